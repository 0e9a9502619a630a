"""Anything at all may be sent to the server: it answers or closes, and goes on as before."""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path

import pytest
from benchmarks.serving import fuzz
from benchmarks.tools.inputs import HTTP_KINDS, mutated, request
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.live.serving import MODELS, Serving, eventually

from timebound.errors import WireError
from timebound.workers.messages import KINDS
from timebound.workers.wire import MAGIC, PREFIX, FrameReader

pytestmark = pytest.mark.live


@pytest.mark.long
def test_the_short_form_of_the_fuzzer_finds_no_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = fuzz.main(["--quick", "--count", "600", "--json", str(tmp_path / "fuzz.json")])
    told = capsys.readouterr().out
    assert code == 0, told
    assert all(kind in told for kind in HTTP_KINDS)


def test_the_fuzzer_sees_a_fault() -> None:
    with Serving(MODELS / "picky.py", "--workers", "1") as serving:
        seen = fuzz.Seen()
        assert serving.http.post("/predictions/picky", json={"value": -1}).status_code == 500
        serving.http.close()
        fuzz.settle(serving.port, seen)
    assert any('status="500"' in fault for fault in seen.faults)


HEADERS = st.lists(
    st.tuples(st.from_regex(rb"\A[A-Za-z-]{1,20}\Z"), st.binary(max_size=40)).map(lambda pair: b"%b: %b" % pair),
    max_size=4,
)


def test_any_bytes_are_answered_or_closed() -> None:
    with Serving(MODELS / "many.py", "--workers", "1", "--read-timeout", "0.1", "--keep-alive", "0.1") as serving:

        @settings(max_examples=6, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
        @given(
            st.lists(
                st.one_of(
                    st.binary(max_size=300), st.builds(lambda b, h: request("/order", b, *h), st.binary(), HEADERS)
                ),
                min_size=8,
                max_size=8,
            )
        )
        def ask(eight: list[bytes]) -> None:
            with ExitStack() as opened:  # at once: most end only when they are slow
                wires = [opened.enter_context(serving.wire()) for _ in eight]
                for wire, data in zip(wires, eight, strict=True):
                    wire.send(data)
                for wire, data in zip(wires, eight, strict=True):
                    assert b"HTTP/1.1 500" not in (wire.read_to_end() if data else b"")

        ask()
        eventually(lambda: serving.gauge("requests_pending") == 0, "nothing pending")
        assert fuzz.is_right(serving.port)
        assert "Traceback" not in serving.said


@given(st.lists(st.binary(max_size=60), max_size=5), st.integers(0, 255), st.integers(0, 200), st.integers(0, 200))
def test_the_reader_of_frames_knows_one_waits_or_says_what_is_wrong(
    parts: list[bytes], kind: int, head: int, body: int
) -> None:
    reader = FrameReader()
    try:
        for part in [PREFIX.pack(MAGIC, kind, head, body), *parts]:
            for known, _ in reader.feed(part):
                assert isinstance(known, KINDS)
    except WireError:
        pass


def test_mutations_change_something() -> None:
    dice = random.Random(1)
    assert sum(mutated(dice, b"GET / HTTP/1.1\r\n\r\n") != b"GET / HTTP/1.1\r\n\r\n" for _ in range(100)) > 80
