"""The operator's socket: closed to others, the newest server's, and gone with its server."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from timebound import operator_socket
from timebound.operator_socket import OperatorSocket, find, make

PORT = 65_001


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "timebound"


def made() -> OperatorSocket:
    found = make(PORT)
    assert found is not None
    return found


def test_it_is_found_by_the_port_and_only_its_user_may_open_it(folder: Path) -> None:
    own = made()
    assert find(PORT) == folder / f"{PORT}.sock"
    assert find(PORT + 1) is None
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / f"{PORT}.sock").stat().st_mode) == 0o600
    own.sock.close()


def test_a_socket_that_nobody_answers_is_not_found_and_swept_by_the_next_server(folder: Path) -> None:
    made().sock.close()
    assert find(PORT) is None
    other = make(PORT + 1)
    assert other is not None
    assert [file.name for file in folder.iterdir()] == [f"{PORT + 1}.sock"]
    other.sock.close()


def test_of_two_servers_on_one_port_the_newest_is_found_and_the_older_takes_nothing_away(folder: Path) -> None:
    old, new = made(), made()
    old.remove()
    old.sock.close()
    assert find(PORT) is not None
    new.remove()
    new.sock.close()
    assert list(folder.iterdir()) == []


def test_a_folder_that_others_may_open_is_neither_used_nor_believed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_socket, "folders", lambda: [folder])
    folder.mkdir()
    folder.chmod(0o777)
    assert make(PORT) is None
    with socket.socket(socket.AF_UNIX) as anothers:
        anothers.bind(str(folder / f"{PORT}.sock"))
        anothers.listen()
        assert find(PORT) is None
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    (folder / f"{PORT}.sock").unlink()
    folder.rmdir()
    folder.symlink_to(own)
    assert make(PORT) is None
