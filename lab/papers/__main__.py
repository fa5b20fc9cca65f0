"""`python -m lab.papers`."""

import sys

from lab.papers.page import main

sys.exit(main())
