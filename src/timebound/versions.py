"""Which versions of the models in a folder are served, and how each model's traffic is divided among them.

Without a word, the newest version of `<folder>/<model>/<version>/` gets everything. A file beside the versions,
`<folder>/<model>/traffic.json`, says otherwise: `{"split": {"1": 0.9, "2": 0.1}, "shadow": ["3"]}`. It is a file so
that a restart, or another server of the same folder, does the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from timebound.errors import SetupError

FILE = "traffic.json"
_REMEMBERED = 20
"""Divisions that a rollback can go back through."""
_WATCHED = (".py", ".mar", ".json", ".toml", ".onnx", ".pt", ".pt2", ".txt")


class Division(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Shares of the requests by version, and versions that get a copy whose answer is only compared."""

    split: dict[str, float]
    shadow: list[str] = []


class Traffic(Division, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The division of now, and those before it."""

    earlier: list[Division] = []
    """The way back, the latest first; `rolled_back` takes the first."""
    previous: dict[str, float] | None = None
    """What servers wrote that remembered one division only; `read` puts it into `earlier`."""
    previous_shadow: list[str] = []

    @property
    def main(self) -> str:
        """The version with the largest share."""
        return max(self.split, key=lambda version: (self.split[version], int(version)))

    @property
    def versions(self) -> list[str]:
        """All that must be loaded, the main one first."""
        others = [version for version, share in self.split.items() if share > 0]
        return list(dict.fromkeys([self.main, *others, *self.shadow]))


def known_versions(folder: Path) -> list[str]:
    """The versions of a model's folder, oldest first."""
    numbers = [int(entry.name) for entry in folder.iterdir() if entry.is_dir() and entry.name.isdecimal()]
    return [str(number) for number in sorted(numbers)]


def read_all(target: Path) -> dict[str, Traffic]:
    """The traffic of every model that has versions in this target; empty for a single file or app."""
    if not target.is_dir() or (target / "app.py").is_file():
        return {}
    try:
        folders = [entry for entry in sorted(target.iterdir()) if entry.is_dir() and known_versions(entry)]
    except OSError as error:
        raise SetupError(f"{error.filename} cannot be read: {error.strerror}; give the server the right to") from None
    return {folder.name: read(folder) for folder in folders}


def read(folder: Path) -> Traffic:
    """The traffic of one model's folder; raises `SetupError` that names the file and the mistake."""
    file = folder / FILE
    newest = known_versions(folder)[-1]
    if not file.is_file():
        return Traffic({newest: 1.0})
    try:
        traffic = msgspec.json.decode(file.read_bytes(), type=Traffic)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise SetupError(f'{file} cannot be read: {error}; write {{"split": {{"{newest}": 1}}}}') from None
    if traffic.previous is not None:
        past = [Division(traffic.previous, traffic.previous_shadow)]
        traffic = Traffic(traffic.split, traffic.shadow, traffic.earlier or past)
    return checked(folder, traffic)


def checked(folder: Path, traffic: Traffic) -> Traffic:
    """This traffic with shares that sum to one; raises `SetupError` if a version is not there or a share is wrong."""
    known = known_versions(folder)
    for version in [*traffic.split, *traffic.shadow]:
        if version not in known:
            raise SetupError(f"{folder.name} has no version {version!r}; it has {', '.join(known)}")
    total = sum(traffic.split.values())
    if min(traffic.split.values(), default=-1.0) < 0 or not 0 < total < float("inf"):
        raise SetupError(f"the shares of {folder.name} are {traffic.split}; give at least one above zero, none below")
    split = {version: share / total for version, share in traffic.split.items()}
    return msgspec.structs.replace(traffic, split=split)


def changed(folder: Path, traffic: Division) -> Traffic:
    """This division in place of the present one, which the next `rolled_back` leads back to."""
    try:
        now = read(folder)
    except SetupError:  # such as a version that is no longer there: this is the way out
        return checked(folder, Traffic(traffic.split, traffic.shadow))
    fresh = checked(folder, Traffic(traffic.split, traffic.shadow))
    if (fresh.split, fresh.shadow) == (now.split, now.shadow):  # no change that could be taken back
        return now
    return msgspec.structs.replace(fresh, earlier=[Division(now.split, now.shadow), *now.earlier][:_REMEMBERED])


def write(folder: Path, traffic: Traffic) -> Traffic:
    """Divide the traffic so from the next reload on."""
    scratch = folder / f".{FILE}.{os.getpid()}"
    scratch.write_bytes(msgspec.json.format(msgspec.json.encode(traffic), indent=2) + b"\n")
    scratch.replace(folder / FILE)
    return traffic


def rolled_back(folder: Path) -> Traffic:
    """The division before the present one, so that the next time goes back one further.

    Where none is known, everything to the version before the main one. Divisions with a version whose folder is gone
    are passed over.
    """
    now, known = read(folder), known_versions(folder)
    for place, past in enumerate(now.earlier):
        if {*past.split, *past.shadow} <= set(known):
            return checked(folder, Traffic(past.split, past.shadow, now.earlier[place + 1 :]))
    older = [version for version in known if int(version) < int(now.main)]
    if not older:
        raise SetupError(f"{folder.name} has nothing to go back to: version {now.main} is its oldest")
    return Traffic({older[-1]: 1.0})


def to_load(traffic: Mapping[str, Traffic]) -> dict[str, list[str]]:
    """By model, the versions that a worker must hold, the main one first."""
    return {model: each.versions for model, each in traffic.items()}


def signature(target: Path) -> int:
    """A number that changes when files of the target do: names, sizes and times of what may be part of a model."""
    return hash(tuple(sorted(_stats(target))))


def _stats(target: Path) -> Iterable[tuple[str, int, int]]:
    files = [target] if target.is_file() else [file for file in target.rglob("*") if file.suffix in _WATCHED]
    for file in files:
        try:
            stat = file.stat()
        except OSError:
            continue  # it has just gone
        yield str(file), stat.st_size, stat.st_mtime_ns
