"""Packing again: what was written is renewed, what its owner changed is kept, and nothing is said twice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from timebound.errors import SetupError
from timebound.pack.folder import Content, Done, Folder


def write(folder: Path, *, is_forced: bool = False, **files: str) -> dict[str, Done]:
    """What became of each file; `__` in a name is a slash."""
    contents = {name.replace("__", "/"): text.encode() for name, text in files.items()}
    return {name: done for done, name in Folder(folder).write(contents, is_forced=is_forced)}


def test_what_was_written_is_renewed_when_it_would_be_written_differently(tmp_path: Path) -> None:
    assert write(tmp_path, a="1", b="1") == {"a": Done.WROTE, "b": Done.WROTE}
    assert write(tmp_path, a="1", b="2") == {"a": Done.SAME, "b": Done.RENEWED}
    assert (tmp_path / "b").read_text() == "2"


def test_a_file_that_was_changed_is_kept_and_the_new_version_lies_beside_it(tmp_path: Path) -> None:
    write(tmp_path, a="1")
    (tmp_path / "a").write_text("mine")
    assert write(tmp_path, a="2") == {"a": Done.OFFERED}
    assert (tmp_path / "a").read_text() == "mine"
    assert (tmp_path / "a.new").read_text() == "2"


def test_who_has_seen_the_new_version_is_not_shown_it_again(tmp_path: Path) -> None:
    write(tmp_path, a="1")
    (tmp_path / "a").write_text("mine")
    write(tmp_path, a="2")
    (tmp_path / "a.new").unlink()
    assert write(tmp_path, a="2") == {"a": Done.KEPT}
    assert not (tmp_path / "a.new").exists()
    assert write(tmp_path, a="3") == {"a": Done.OFFERED}


def test_a_change_that_was_taken_over_is_no_change_any_more(tmp_path: Path) -> None:
    write(tmp_path, a="1")
    (tmp_path / "a").write_text("2")
    assert write(tmp_path, a="2") == {"a": Done.SAME}
    assert write(tmp_path, a="3") == {"a": Done.RENEWED}


def test_a_file_that_was_there_before_is_its_owners(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("mine")
    assert write(tmp_path, Makefile="ours") == {"Makefile": Done.OFFERED}
    assert (tmp_path / "Makefile").read_text() == "mine"


def test_force_replaces_what_was_changed(tmp_path: Path) -> None:
    write(tmp_path, a="1")
    (tmp_path / "a").write_text("mine")
    assert write(tmp_path, is_forced=True, a="2") == {"a": Done.REPLACED}
    assert (tmp_path / "a").read_text() == "2"


def test_a_file_that_was_deleted_is_written_again(tmp_path: Path) -> None:
    write(tmp_path, a="1")
    (tmp_path / "a").unlink()
    assert write(tmp_path, a="1") == {"a": Done.WROTE}


def test_what_left_the_app_leaves_the_pack_unless_it_was_changed(tmp_path: Path) -> None:
    write(tmp_path, app__old="1", app__mine="1", app__now="1", Makefile="1")
    (tmp_path / "app" / "mine").write_text("mine")
    folder = Folder(tmp_path)
    assert list(folder.remove_others("app", {"app/now": b"1"})) == [(Done.REMOVED, "app/old")]
    assert sorted(file.name for file in (tmp_path / "app").iterdir()) == ["mine", "now"]
    assert (tmp_path / "Makefile").exists()


def test_a_file_comes_in_the_place_of_a_folder_and_a_folder_in_that_of_a_file(tmp_path: Path) -> None:
    write(tmp_path, app__words__en__a="1", app__words__b="1", app__rules="1")
    folder, now = Folder(tmp_path), {"app/words": b"2", "app/rules/a": b"2"}
    assert len(list(folder.remove_others("app", now))) == 3
    assert list(folder.write(now, is_forced=False)) == [(Done.WROTE, "app/words"), (Done.WROTE, "app/rules/a")]


def test_a_big_file_is_copied_whole(tmp_path: Path) -> None:
    source = tmp_path / "weights"
    source.write_bytes(bytes(range(256)) * 10_000)
    done = list(Folder(tmp_path / "out").write({"models/weights": source}, is_forced=False))
    assert done == [(Done.WROTE, "models/weights")]
    assert (tmp_path / "out" / "models" / "weights").read_bytes() == source.read_bytes()


def test_a_folder_that_cannot_be_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="is a file; give a folder"):
        Folder(tmp_path / "file")
    (tmp_path / ".timebound-pack.json").write_text("{")
    with pytest.raises(SetupError, match="delete it"):
        Folder(tmp_path)


def test_a_file_that_cannot_be_written_is_named_and_the_others_are_remembered(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with pytest.raises(SetupError, match=r"b cannot be read or written"):
        write(tmp_path, a="1", b="1")
    assert write(tmp_path, a="2") == {"a": Done.RENEWED}


def test_whoever_runs_the_app_can_read_it_whatever_the_umask_here(tmp_path: Path) -> None:
    """An image's user is another than the one who packs; with 0600 the server there could not read its own code."""
    program = tmp_path / "run.sh"
    program.write_text("#!/bin/sh\n")
    files: dict[str, Content] = {"nginx.conf": b"", "app/sub/run.sh": program}
    was = os.umask(0o077)
    try:
        list(Folder(tmp_path / "out").write(files, is_forced=False))
        found = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "out").rglob("*")}
        program.chmod(0o700)
        list(Folder(tmp_path / "out").write(files, is_forced=False))
    finally:
        os.umask(was)
    assert found.items() >= {"nginx.conf": 0o644, "app": 0o755, "sub": 0o755, "run.sh": 0o644}.items()
    assert (tmp_path / "out/app/sub/run.sh").stat().st_mode & 0o777 == 0o755
