"""Arguments of the clients looked over before anything is sent: a wrong one is said in a sentence with its cure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from numbers import Integral

from timebound.clock import is_length
from timebound.errors import BadInput, SetupError


def check_names(
    of: str, given: Mapping[str, object], known: Collection[str], elsewhere: Mapping[str, Collection[str]]
) -> None:
    """Raises `TypeError`, as Python does, for an argument that `of` does not have; it may be one that another has."""
    for name in given:
        if name in known:
            continue
        others = [other for other, names in elsewhere.items() if name in names]
        raise TypeError(f"{of} has no argument {name!r}; {_meant(name, known, others)}")


def _meant(name: str, known: Collection[str], others: list[str]) -> str:
    if others:
        return f"give it to {others[0]}"
    from difflib import get_close_matches  # only a slip pays for this import

    near = ["deadline"] if name == "timeout" and "deadline" in known else get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(sorted(known))}"


def check_seconds(name: str, value: object) -> None:
    """Raises `BadInput` for what is no length of time; None is none, and right."""
    if value is not None and not is_length(value):
        raise BadInput(f"the {name} is {value!r}; give a number of seconds above zero, such as {name}=0.25")


def check_texts(options: Mapping[str, object], names: Collection[str]) -> None:
    """Raises `BadInput` for options of these names that are given and no texts."""
    for name in names:
        value = options.get(name)
        if value is not None and not isinstance(value, str):
            raise BadInput(f'the {name} is {value!r}; give a text, such as {name}="{value}"')


def check_priority(value: object) -> None:
    """Raises `BadInput` for what is no whole number."""
    if not _is_whole(value):
        raise BadInput(f"the priority is {value!r}; give a whole number, such as priority=1; higher goes first")


def check_count(name: str, value: object, least: int) -> None:
    """Raises `SetupError` for what is no whole number of `least` or more."""
    if not (_is_whole(value) and value >= least):  # type: ignore[operator]
        raise SetupError(f"{name} is {value!r}; give a whole number, {least} or more")


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
