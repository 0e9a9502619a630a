"""Figures for a person to read."""

from collections.abc import Mapping


def table(figures: Mapping[str, float]) -> str:
    """The figures in two columns."""
    width = max(map(len, figures))
    return "\n".join(f"{name:{width}}  {value:,.3f}".rstrip("0").rstrip(".") for name, value in figures.items())
