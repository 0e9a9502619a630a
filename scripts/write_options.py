"""Writes docs/options.md from the options declared in timebound.config."""

from __future__ import annotations

from pathlib import Path

from timebound.config import PREFIX, default_of, options, shown_default

PAGE = Path(__file__).parents[1] / "docs" / "options.md"

_HEAD = """\
# Options

Made by `scripts/write_options.py` from `src/timebound/config/options.py`; do not edit.

Each option is a flag (`--max-body 5MB`), an environment variable (`TIMEBOUND_MAX_BODY=5MB`, also in `.env`) and a
line of `timebound.toml` (`max_body = "5MB"`) in the working directory. A flag beats the environment beats `.env`
beats the file, and those beat the same two files in the app's folder.
`timebound serve app.py --print-config` shows each value and where it came from. Lengths of time are seconds or carry a
unit (`250ms`, `2s`, `1min`), sizes are bytes or carry one (`10MB`, `512KiB`).
[glossary.md](glossary.md) explains the words.

| flag | environment | default | meaning |
|---|---|---|---|
"""


def page() -> str:
    """The page's text."""
    rows = []
    for option in options():
        shown = shown_default(option) if default_of(option) is None else f"`{shown_default(option)}`"
        flag = "--" + option.name.replace("_", "-")
        rows.append(f"| `{flag}` | `{PREFIX}{option.name.upper()}` | {shown} | {option.metadata['help']} |\n")
    return _HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page())
