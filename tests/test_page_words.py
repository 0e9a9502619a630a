"""The pages have words, in both languages, for whatever a server can decide."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import timebound
from timebound.http.problems import STATUSES
from timebound.observe import marks
from timebound.types import Loss

PACKAGE = Path(timebound.__file__).parent
OF_PAGES = {
    "malformed_http", "headers_too_large", "not_found", "no_result", "method_not_allowed", "reload_failed",
    "too_much_history", "too_many_watchers",
}  # fmt: skip
"""Codes that no question to a model ends with: they are of other routes, or of what is no request yet."""
NAMED = re.compile(r"\{(\w+)\}")
NO_WORDS = {"complete", "fits", "over", "note"}
"""Ends of batches, and of their parts, that need no explanation."""


TEXT = r'"((?:[^"\\]|\\.)*)"'


def words(language: str) -> dict[str, str]:
    """What one language says."""
    pairs = re.findall(rf"(\w+): \[{TEXT}, {TEXT}\]", (PACKAGE / "ui" / "texts.js").read_text())
    return {key: (english, chinese)[language == "chinese"] for key, english, chinese in pairs}


def said(room: str, *calls: str) -> Iterator[str]:
    """Every word that the files of a room hand to these functions as a reason."""
    for file in (PACKAGE / room).glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in calls:
                yield from (
                    one.value
                    for one in node.args
                    if isinstance(one, ast.Constant) and isinstance(one.value, str) and one.value.isidentifier()
                )


@pytest.mark.parametrize("language", ["english", "chinese"])
def test_every_error_has_words(language: str) -> None:
    known = words(language)
    codes = STATUSES.keys() - OF_PAGES
    assert [code for code in codes if not {f"refused_{code}", f"failed_{code}"} & known.keys()] == []


@pytest.mark.parametrize("language", ["english", "chinese"])
def test_every_end_of_a_batch_has_words(language: str) -> None:
    ends = {*said("scheduler", "Step", "_stop"), *said("requests", "Step"), *Loss} - NO_WORDS
    assert {"backlog", "deadline", "device"} <= ends
    assert [end for end in sorted(ends) if f"end_{end}" not in words(language)] == []


@pytest.mark.parametrize("language", ["english", "chinese"])
def test_every_reason_for_less_than_the_full_answer_has_words(language: str) -> None:
    reasons = {
        *said("requests", "give_up", "give_best", "because", "Degraded"),
        *said("scheduler", "Verdict", "SetAside"),
    }
    reasons |= {"backlog", "deadline", "deadline_missed"}
    assert {"guard", "fetch_failed", "queue_full"} <= reasons
    assert [reason for reason in sorted(reasons) if f"why_{reason}" not in words(language)] == []


@pytest.mark.parametrize("language", ["english", "chinese"])
def test_every_reason_for_a_batchs_size_has_words(language: str) -> None:
    policies = [(PACKAGE / "scheduler" / name).read_text() for name in ("policy.py", "tight.py")]
    reasons = set(re.findall(r'"([a-z]+_[a-z]+|split)"(?: if |$|\))', "\n".join(policies), re.M))
    reasons |= {*said("scheduler", "_take_again")}
    assert {"all_waiting", "best_rate", "split", "long_shot", "suspect"} <= reasons
    assert [reason for reason in sorted(reasons) if reason not in words(language)] == []


@pytest.mark.parametrize("language", ["english", "chinese"])
def test_every_mark_has_words(language: str) -> None:
    kinds = {*said("observe", "put")} & set(re.findall(r'put\("(\w+)"', Path(marks.__file__).read_text())) | {"drift"}
    assert {"model", "reload_failed", "divided", "shrunk"} <= kinds
    assert [kind for kind in sorted(kinds) if f"mark_{kind}" not in words(language)] == []


def test_both_languages_say_the_same_things_with_the_same_numbers_filled_in() -> None:
    english, chinese = words("english"), words("chinese")
    assert len(english) == (PACKAGE / "ui" / "texts.js").read_text().count(": [")
    differing = [key for key, text in english.items() if set(NAMED.findall(text)) != set(NAMED.findall(chinese[key]))]
    assert differing == []


def test_every_word_that_pages_ask_for_is_there() -> None:
    scripts = [file for file in (PACKAGE / "ui").glob("*.js") if file.name != "texts.js"]
    text = "\n".join(file.read_text() for file in [*scripts, PACKAGE / "ui" / "index.html"])
    known = words("english").keys()
    asked = {*re.findall(r'\bsay\("(\w+)"', text), *re.findall(r'data-say="(\w+)"', text)}
    assert len(asked) > 200
    assert asked - known == set()
