"""`python -m tests.fuzz`: many seeds, or one at its smallest."""

import sys

from . import main

sys.exit(main())
