"""`python -m tests.fuzz.programs`: many programs of a seed."""

import sys

from . import main

sys.exit(main())
