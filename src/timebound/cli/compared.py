"""Shows versions side by side, as a server or a history told of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

_ROW = "{:10} {:>9} {:>24} {:>10} {:>11} {:>8} {:>8}"


def show_versions(found: Mapping[str, Any]) -> None:
    """A row for each, then what differs from the base."""
    if "since" in found:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found["since"]))
        print(f"{found['model']}, since its requests were last divided anew ({when})")
    print(_ROW.format("version", "requests", "in time", "usual ms", "confidence", "right", "judged"))
    for version, told in found["versions"].items():
        right = "-" if told["right"] is None else f"{told['right']['value']:.1%}"
        figures = (_number(told["ms"], ".3g"), _number(told["confidence"], ".4f"), right, f"{told['judged']:,}")
        print(_ROW.format(version, f"{told['requests']:,}", _share(told["in_time"]), *figures))
    for version, off in found["differences"].items():
        print(f"version {version} beside {found['base']}, with 95 % intervals:")
        for line in _lines(off) or ["too few requests to say"]:
            print(f"  {line}")
    for version, told in found.get("copies", {}).items():
        print(f"version {version} gets copies: {told['copies']:,} compared, {told['not_computed']:,} not computed")
        same = (("same answer", told["same"]), ("same label", told["same_label"]))
        for name, found_share in same:
            if found_share is not None:
                print(f"  {name}: {_share(found_share)}")
        if told["confidence"] is not None:
            print(f"  confidence: {_signed(told['confidence'], '+.4f')}")


def _lines(off: Mapping[str, Any]) -> list[str]:
    names = (
        ("in time", "in_time", "+.2%"),
        ("time to the answer", "time", "+.1%"),
        ("confidence", "confidence", "+.4f"),
        ("right answers", "right", "+.2%"),
    )
    lines = [f"{name}: {_signed(off[field], form)}" for name, field, form in names if off[field] is not None]
    if off["label"] is not None:
        label, interval = off["label"]
        lines.append(f"label {label}: {_signed(interval, '+.2%')}")
    return lines


def _signed(interval: Mapping[str, float], form: str) -> str:
    low, high = interval["low"], interval["high"]
    verdict = "differs" if low > 0 or high < 0 else "no clear difference"
    return f"{interval['value']:{form}} ({low:{form}} to {high:{form}}), {verdict}"


def _share(interval: Mapping[str, float] | None) -> str:
    if interval is None:
        return "-"
    return f"{interval['value']:.2%} ({interval['low']:.1%} to {interval['high']:.1%})"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
