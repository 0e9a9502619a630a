"""The list of archives that are registered, as the management of TorchServe changes it.

The list is a file that workers read; whoever changes it has it loaded, and puts the old one back if that fails. Of
several versions of a model the one that comes first answers by default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from timebound.errors import RequestError, SetupError
from timebound.handlers.archive import LONGEST, LONGEST_PART
from timebound.handlers.manifest import USUAL_TIMEOUT_S, Registered, describe
from timebound.handlers.properties import Archive
from timebound.handlers.store import LIST, Listed, is_model_archive, read_list
from timebound.handlers.unpacked import unpacked

VERSION = "version"


class Registry:
    """The registered archives of one server; what raises `RequestError` has changed nothing."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @property
    def listed(self) -> Listed:
        """What is registered now."""
        return read_list(self._file)

    def put(self, listed: Listed) -> None:
        """Register exactly this, for those who read the list from now on."""
        write_list(self._file, listed)

    def with_model(self, wish: Registered) -> tuple[Listed, Registered]:
        """The list with one archive more, and what that is; unpacks it."""
        listed = self.listed
        file = inside_store(Path(listed.store), wish.file)
        if not file.exists():
            raise RequestError(f"Model not found at: {wish.file}", code="not_found")
        found = identified(file, wish)
        if any((each.name, each.version) == (found.name, found.version) for each in listed.models):
            detail = f"Model version {found.version} is already registered for model {found.name}"
            raise RequestError(detail, code="reload_failed")
        return Listed(listed.store, [*listed.models, found]), found

    def without(self, name: str, version: str | None) -> Listed:
        """The list without this model, or this version of it; without a word, its default version."""
        listed = self.listed
        gone = self.named(name, version)[0]
        rest = [each for each in listed.models if each is not gone and each != gone]
        return Listed(listed.store, rest)

    def with_default(self, name: str, version: str) -> Listed:
        """The list with this version as the one that answers by default."""
        listed = self.listed
        (first,) = self.named(name, version)
        return Listed(listed.store, [first, *(each for each in listed.models if each != first)])

    def named(self, name: str, version: str | None = None) -> list[Registered]:
        """The versions of a model, the default first; raises `RequestError` if it is not registered."""
        found = [each for each in self.listed.models if each.name == name]
        if not found:
            raise RequestError(f"Model not found: {name}", code="unknown_model")
        if version is not None:
            found = [each for each in found if each.version == version]
            if not found:
                raise no_version(name, version)
        return found


def no_version(model: str, version: str) -> RequestError:
    """What is told of a version that a model does not have."""
    detail = f"Model version: {version} does not exist for model: {model}"
    return RequestError(detail, code="unknown_model", field=VERSION)


def inside_store(store: Path, url: str) -> Path:
    """The archive that a URL names in the model store; raises `RequestError` if it leads elsewhere."""
    if "://" in url:
        detail = f"{url} is not fetched: put the archive into the model store {store} and give its name"
        raise RequestError(detail, code="bad_input")
    if not _could_be_a_file(url):
        raise RequestError(f"{url[:80]!r} is no name of a file in the model store {store}", code="bad_input")
    file = (store / url).resolve()
    if ".." in Path(url).parts or not file.is_relative_to(store.resolve()) or file == store.resolve():
        raise RequestError(f"Relative path is not allowed in url: {url}", code="not_found")
    return file


def _could_be_a_file(url: str) -> bool:
    """Whether the system could have a file of this name."""
    is_short = url.isprintable() and len(url.encode()) <= LONGEST
    return is_short and all(len(part.encode()) <= LONGEST_PART for part in Path(url).parts)


def identified(file: Path, wish: Registered) -> Registered:
    """An archive with the name and the version that it is served by; raises `SetupError`."""
    if not is_model_archive(file):
        raise SetupError(f"{file} is no model archive; give a .mar or .tar.gz file, or a folder with MAR-INF in it")
    found = describe(unpacked(file), wish)
    return msgspec.structs.replace(wish, name=found.name, version=found.version)


def write_list(file: Path, listed: Listed) -> None:
    """Write a list for workers to read."""
    scratch = file.with_suffix(".new")
    scratch.write_bytes(msgspec.json.encode(listed))
    scratch.replace(file)


def first_list(
    folder: Path,
    store: Path,
    wanted: Sequence[str],
    known: Mapping[str, Mapping[str, Archive]],
    usual_timeout: float = USUAL_TIMEOUT_S,
) -> Path:
    """Write the list that a server starts with: `wanted` are archives as `--models` has them. Raises `SetupError`.

    `known` is what `models` of config.properties says of single ones.
    """
    if not store.is_dir():
        raise SetupError(f"there is no model store {store}; give a folder with --model-store")
    wishes: list[tuple[str | None, str]] = []
    for word in wanted:
        name, _, url = word.rpartition("=")
        if word.lower() == "all":
            wishes += [(None, entry.name) for entry in sorted(store.iterdir()) if is_model_archive(entry)]
        else:
            wishes.append((name or None, url))
    if not wanted:
        wishes = [
            (name, each.mar_name)
            for name, versions in known.items()
            for each in sorted(versions.values(), key=lambda one: not one.default_version)
            if each.mar_name
        ]
    named = [Registered(file=url, name=name, usual_timeout=usual_timeout) for name, url in wishes]
    models = [_first(store, wish, known) for wish in named]
    file = folder / f"models{LIST}"
    write_list(file, Listed(str(store.resolve()), models))
    return file


def _first(store: Path, wish: Registered, known: Mapping[str, Mapping[str, Archive]]) -> Registered:
    try:
        file = inside_store(store, wish.file)
        if not file.exists() and inside_store(store, f"{wish.file}.mar").is_file():
            file, wish = Path(f"{file}.mar"), msgspec.structs.replace(wish, file=f"{wish.file}.mar")
    except RequestError as error:
        raise SetupError(error.detail) from None
    if not file.exists():
        raise SetupError(f"{file} does not exist; the archives of --models lie in --model-store")
    found = identified(file, wish)
    said = known.get(found.name or "", {}).get(found.version or "")
    if said is None:
        return found
    return msgspec.structs.replace(found, batch_size=said.batch_size, response_timeout=said.response_timeout)
