"""Outputs of networks, tensors in dicts and tuples: taken apart, and put together again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def leaves(tree: Any) -> list[Any]:
    """What is in it, in order."""
    if isinstance(tree, Mapping):
        return [leaf for value in tree.values() for leaf in leaves(value)]
    if isinstance(tree, tuple | list):
        return [leaf for value in tree for leaf in leaves(value)]
    return [tree]


def alike(tree: Any, make: Callable[[Any], Any]) -> Any:
    """The same tree with `make(leaf)` for each; lists become tuples."""
    if isinstance(tree, Mapping):
        return {name: alike(value, make) for name, value in tree.items()}
    if isinstance(tree, tuple | list):
        return tuple(alike(value, make) for value in tree)
    return make(tree)
