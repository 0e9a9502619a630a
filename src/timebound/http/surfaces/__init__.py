"""The protocols that models are asked in, one file each."""

from timebound.http.surfaces.base import Surface
from timebound.http.surfaces.native import Native

SURFACES: tuple[type[Surface], ...] = (Native,)
"""Every protocol; where two claim a path, the first has it."""
