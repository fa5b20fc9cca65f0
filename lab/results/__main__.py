"""`python -m lab.results`."""

import sys

from lab.results.pages import main

sys.exit(main())
