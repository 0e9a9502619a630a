"""Starts a program by the C library's `posix_spawn`: whoever else runs in this process is not held up meanwhile."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Sequence

_ROOM_BYTES = 1024
"""For a `posix_spawn_file_actions_t`, a `posix_spawnattr_t` or a `sigset_t`: at most 336 bytes in glibc and musl."""
_SETSIGMASK = 0x08
_HELD_BACK = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and what a process manager sends, reach the whole group. A worker holds them back from its first instruction
on, until it has said that it ignores them: when it leaves is the gateway's decision."""


def spawn(command: list[str], environment: dict[str, str], files: dict[int, int]) -> int:
    """Start a process; its number. The interpreter is free for other threads meanwhile."""
    library = ctypes.CDLL(None)
    actions, attributes, held_back = (ctypes.create_string_buffer(_ROOM_BYTES) for _ in range(3))
    pid = ctypes.c_int()
    _check(library.posix_spawn_file_actions_init(actions), command)
    _check(library.posix_spawnattr_init(attributes), command)
    try:
        library.sigemptyset(held_back)
        for sign in _HELD_BACK:
            library.sigaddset(held_back, sign)
        _check(library.posix_spawnattr_setsigmask(attributes, held_back), command)
        _check(library.posix_spawnattr_setflags(attributes, ctypes.c_short(_SETSIGMASK)), command)
        for theirs, ours in files.items():
            # On itself, or on another: in the child, and only there, the file then stays open.
            _check(library.posix_spawn_file_actions_adddup2(actions, ours, theirs), command)
        lines = [f"{name}={value}" for name, value in environment.items()]
        path, words = os.fsencode(command[0]), _strings(command)
        _check(library.posix_spawn(ctypes.byref(pid), path, actions, attributes, words, _strings(lines)), command)
    finally:
        library.posix_spawnattr_destroy(attributes)
        library.posix_spawn_file_actions_destroy(actions)
    return pid.value


def _strings(texts: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * (len(texts) + 1))(*map(os.fsencode, texts), None)


def _check(code: int, command: Sequence[str]) -> None:
    if code:
        raise OSError(code, os.strerror(code), command[0])
