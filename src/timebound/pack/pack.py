"""Writes a pack: gathers what is known of an app, fills templates, checks what came out, and puts it into a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from timebound.config import Config
from timebound.errors import SetupError
from timebound.pack.checks import check
from timebound.pack.contents import APP, MODELS, read_contents
from timebound.pack.facts import Facts, Wish, facts
from timebound.pack.folder import Content, Done, Folder
from timebound.pack.kinds import KINDS
from timebound.pack.origin import WHEELS, find_origin
from timebound.pack.template import fill


def learn(
    target: Path,
    out: Path,
    config: Config,
    wish: Wish,
    *,
    wheel: Path | None,
    left_out: Sequence[str] = (),
    follows_links: bool = False,
) -> Facts:
    """What is to be packed; raises `SetupError` if it cannot be."""
    contents = read_contents(target, out, left_out, follows_links=follows_links)
    app = Path(os.path.relpath(target.resolve(), out.resolve())).as_posix()
    return facts(target, wish, app=app, config=config, contents=contents, origin=find_origin(wheel))


def written(known: Facts, kinds: Sequence[str]) -> dict[str, str]:
    """The texts of these kinds by file, each checked."""
    texts = {
        fill(file, {"name": known.name}): write(known) for kind in kinds for file, write in KINDS[kind].files.items()
    }
    trouble = check(texts)
    if trouble:
        raise SetupError(f"a file would not be valid, so nothing was written: {trouble}")
    return texts


def pack(known: Facts, out: Path, kinds: Sequence[str], *, is_forced: bool = False) -> Iterator[tuple[Done, str]]:
    """Write these kinds into `out`; what became of each file."""
    texts = written(known, kinds)
    files: dict[str, Content] = {file: text.encode() for file, text in texts.items()}
    folder = Folder(out)
    if any(KINDS[kind].has_app for kind in kinds):
        files |= known.contents.copies()
        if known.origin.wheel:
            files[f"{WHEELS}/{known.origin.wheel}"] = known.origin.content
        for part in (APP, MODELS, WHEELS):
            yield from folder.remove_others(part, files)
    yield from folder.write(files, is_forced=is_forced)
