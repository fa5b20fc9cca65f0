"""`python -m lab.results`."""

import sys

from lab.results.write import main

sys.exit(main())
