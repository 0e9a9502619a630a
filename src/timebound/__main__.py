"""`python -m timebound` does what `timebound` does."""

import sys

from timebound.cli import process

sys.exit(process())
