"""Why a library failed, in one line out of its many."""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

from timebound.errors import MissingExtra, SetupError

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_SUMMARY = "## Exception summary"
_CLASS = re.compile(r"<class '(?:[\w.]+\.)?(\w+)'>")
_LONGEST = 300


def reason(error: BaseException) -> str:
    """The part of an error's text that says what is wrong."""
    text = _COLOURS.sub("", str(error)).strip()
    if _SUMMARY in text:
        # torch.onnx: advice first, then this heading and the errors, the cause of all first.
        lines = _lines(text.partition(_SUMMARY)[2])
        return _CLASS.sub(r"\1", lines[0])[:_LONGEST] if lines else type(error).__name__
    whole = " ".join(text.split())
    if len(whole) <= _LONGEST:
        return whole or type(error).__name__
    # TorchScript: pages of code first, the reason in the last line.
    return _lines(text)[-1][:_LONGEST]


@contextmanager
def told(sentence: str) -> Iterator[None]:
    """What fails in the `with` block fails with this sentence: %s in it is the reason, %kind the error's own name."""
    try:
        yield
    except SetupError:
        raise
    except Exception as error:
        raise SetupError(sentence.replace("%kind", type(error).__name__).replace("%s", reason(error))) from error


@contextmanager
def library() -> Iterator[None]:
    """Libraries at work on a conversion: what they print and warn of is not shown, and one that is missing is named."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    except ModuleNotFoundError as error:
        raise MissingExtra(str(error.name), "convert") from None
    finally:
        logging.disable(before)


def _lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]
