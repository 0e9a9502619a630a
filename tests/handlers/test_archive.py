"""Archives are unpacked safely: whatever they hold, nothing outside the folder is written, and nothing without end."""

from __future__ import annotations

import io
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from timebound.errors import SetupError
from timebound.handlers.archive import MOST_FILES, Bounds, unpack
from timebound.handlers.unpacked import unpacked

BAD_NAMES = (
    "../escaped", "a/../../escaped", "/absolute", "a\\..\\b", "C:/x", "a//b", "./a", "nul\x01l", "x/" * 40 + "y",
    "n" * 300,
)  # fmt: skip


def zipped(file: Path, *entries: tuple[zipfile.ZipInfo | str, bytes]) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry, content in entries:
            archive.writestr(entry, content)
    return file


def tarred(file: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(file, "w:gz") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(b"x" * member.size))
    return file


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, size
    return info


def refused(archive: Path, said: str, bounds: Bounds | None = None) -> None:
    """Nothing is left of it, in its folder or beside it."""
    place = archive.parent / "place"
    place.mkdir()
    before = sorted(archive.parent.rglob("*"))
    with pytest.raises(SetupError, match=said):
        unpack(archive, place / "folder", bounds)
    assert sorted(archive.parent.rglob("*")) == before


def test_files_and_folders_come_out(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "good.mar", ("a.py", b"one"), ("deep/er/b.bin", b"\x00" * 70_000), ("empty/", b""))
    unpack(archive, tmp_path / "out")
    assert (tmp_path / "out" / "a.py").read_bytes() == b"one"
    assert (tmp_path / "out" / "deep" / "er" / "b.bin").stat().st_size == 70_000
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o700


def test_a_tar_loses_the_folder_that_all_lies_in(tmp_path: Path) -> None:
    archive = tarred(tmp_path / "good.tar.gz", member("m", tarfile.DIRTYPE), member("m/a", size=3), member("m/b/c"))
    unpack(archive, tmp_path / "out")
    assert (tmp_path / "out" / "a").read_bytes() == b"xxx"
    assert (tmp_path / "out" / "b" / "c").is_file()


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    refused(zipped(tmp_path / "bad.mar", ("good", b"1"), (name, b"2")), "no path inside|too long a name")


@pytest.mark.parametrize("name", ["../escaped", "/absolute", "m/../../escaped"])
def test_a_name_that_leads_out_of_a_tar_is_refused(tmp_path: Path, name: str) -> None:
    refused(tarred(tmp_path / "bad.tar.gz", member(name, size=1)), "no path inside")


@pytest.mark.parametrize("target", ["/etc/passwd", "a"])
def test_a_link_is_refused(tmp_path: Path, target: str) -> None:
    link = zipfile.ZipInfo("link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    refused(zipped(tmp_path / "link.mar", (link, target.encode())), "link or no plain file")
    (tmp_path / "place").rmdir()
    kinds = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE)
    for kind in kinds:
        refused(tarred(tmp_path / "link.tar.gz", member("m/link", kind, target)), "link or no plain file")
        (tmp_path / "place").rmdir()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    refused(zipped(tmp_path / "twice.mar", ("a", b"1"), ("a", b"2")), "twice")
    (tmp_path / "place").rmdir()
    refused(zipped(tmp_path / "both.mar", ("a", b"1"), ("a/b", b"2")), "twice")


def test_a_bomb_ends_where_its_bytes_are_counted(tmp_path: Path) -> None:
    bomb = zipped(tmp_path / "bomb.mar", *((f"{number}", b"\0" * 5_000_000) for number in range(40)))
    assert bomb.stat().st_size < 1_000_000
    refused(bomb, "far more than it is long")
    (tmp_path / "place").rmdir()
    refused(tarred(tmp_path / "bomb.tar.gz", *(member(f"m/{n}", size=5_000_000) for n in range(40))), "far more")


def test_a_bomb_that_lies_about_its_length_is_counted_all_the_same(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "liar.mar", ("a", b"\0" * 5_000_000))
    content = archive.read_bytes()
    archive.write_bytes(content.replace(struct.pack("<I", 5_000_000), struct.pack("<I", 10)))
    refused(archive, "liar.mar", Bounds(10, 1_000_000))


def test_a_hundred_thousand_files_are_refused_at_once(tmp_path: Path) -> None:
    refused(zipped(tmp_path / "many.mar", *((f"{number:x}", b"") for number in range(100_000))), str(MOST_FILES))


def test_folders_that_only_the_names_of_files_tell_of_are_counted(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "deep.mar", *((f"{place}/b/c/d/e/f", b"") for place in range(3)))
    unpack(archive, tmp_path / "all", Bounds(15, 1_000))
    refused(archive, "more than 14 folders", Bounds(14, 1_000))


def test_a_tar_of_many_folders_or_of_a_huge_header_is_refused(tmp_path: Path) -> None:
    many = (member(f"m/{number}", tarfile.DIRTYPE) for number in range(2 * MOST_FILES + 2))
    refused(tarred(tmp_path / "many.tar.gz", *many), str(MOST_FILES))
    (tmp_path / "place").rmdir()
    refused(tarred(tmp_path / "pax.tar.gz", member("m/a", tarfile.XHDTYPE, size=40_000_000)), "too long")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: b"",
        lambda content: content[: len(content) // 2],
        lambda content: b"\0" * len(content),
        lambda content: content.replace(b"PK\x01\x02", b"PK\x01\x03"),
        lambda content: content[:-8] + b"\xff" * 8,
        lambda content: content[:40] + b"\xff" * 20 + content[60:],
    ],
)
def test_a_damaged_archive_is_told_in_one_sentence(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    archive = zipped(tmp_path / "damaged.mar", ("a", b"some text " * 100))
    archive.write_bytes(spoil(archive.read_bytes()))
    refused(archive, "damaged.mar")


def test_an_archive_is_unpacked_once_and_again_when_it_has_changed(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "m.mar", ("a", b"1"))
    first = unpacked(archive, root=tmp_path / "root")
    (first / "mark").touch()
    assert unpacked(archive, root=tmp_path / "root") == first
    zipped(archive, ("a", b"changed"))
    second = unpacked(archive, root=tmp_path / "root")
    assert (second / "a").read_bytes() == b"changed"
    assert (first / "mark").exists()  # this process holds it still


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert unpacked(tmp_path) == tmp_path.resolve()


def test_an_archive_that_is_refused_leaves_the_cache_empty(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "m.mar", ("../a", b"1"))
    with pytest.raises(SetupError):
        unpacked(archive, root=tmp_path / "root")
    assert not [file for file in (tmp_path / "root").rglob("*") if file.name != "turn" and file.is_file()]
    assert not (tmp_path / "root" / "a").exists()
