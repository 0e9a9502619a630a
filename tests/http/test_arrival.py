"""How long bytes have been here is asked of the kernel, and only of TCP."""

from __future__ import annotations

import socket

from timebound.http.connection import unread_s


def test_what_is_no_tcp_connection_has_no_age() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert unread_s(ours) == 0.0
    assert unread_s(None) == 0.0


def test_bytes_that_have_just_come_are_fresh() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        ours, _ = server.accept()
        with ours:
            ages = []
            for _ in range(20):  # a busy machine may be away for a moment
                client.sendall(b"x")
                ages.append(unread_s(ours))
                ours.recv(1)
            assert min(ages) == 0.0
