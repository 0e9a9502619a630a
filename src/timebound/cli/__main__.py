"""`python -m timebound.cli` does what `timebound` does."""

import sys

from timebound.cli import process

sys.exit(process())
