"""What the other protocols cost: the Open Inference Protocol beside our own, binary tensors beside JSON, and deadlines.

The echo is asked in both protocols by turns, at concurrency 64, and over gRPC by turns with a server of bare grpc.aio
that does the same sum; all of them have one client, in Python. A network that takes float32[1, 3, 224, 224] is asked
with the tensor in binary and as a JSON list. A model with a fallback is asked at 1.5 times what it can do, with a
deadline of 250 ms, in every protocol in turn: `late_` and the name of the protocol; a model archive likewise.

The exit code is 1 if a bar does not hold: the echo at 0.75 of our own protocol and over gRPC at 0.6 of bare grpc.aio,
binary five times as fast as JSON, no answer late, wrong or missing.
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.tools import rpc
from benchmarks.tools.bars import Bar, conclude, zero
from benchmarks.tools.commandline import Failed, finish, options_parser, say
from benchmarks.tools.contestants import timebound
from benchmarks.tools.load import EchoTraffic, Load, Traffic, answers_right, free_port, measure, measure_echo
from benchmarks.tools.openloop import DEADLINE_S, drive
from benchmarks.tools.processes import Server
from benchmarks.tools.workload import ECHO_SUM, ECHO_VALUES
from timebound.lab.load.attempts import End, Exchange
from timebound.lab.load.client import Reply
from timebound.lab.load.schedule import Phase

SURFACES = ("oip", "grpc", "predict", "lists", "invocations", "archive")
"""Those that are asked for more than can be done; what is late is counted for each."""
BARS = (
    *zero("errors", "late", "unanswered", *(f"late_{name}" for name in SURFACES)),
    Bar("binary_over_json", at_least=5.0),
    Bar("oip_over_native", at_least=0.75, is_quick=False),
    Bar("grpc_over_bare", at_least=0.6, is_quick=False),
)
PICTURE = (1, 3, 224, 224)
OVERLOAD = 1.5
SLOW_S = 0.04
"""What a batch of the archive takes, as of the class in `apps/slow_app.py`."""

EXAMPLES = """\
examples:
  python benchmarks/serving/surfaces.py --quick
  python benchmarks/serving/surfaces.py --json out.json
"""


class OipEchoTraffic(EchoTraffic):
    """The same eight numbers as a tensor."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.path = "/v2/models/echo/infer"
        tensor = {"name": "values", "datatype": "FP64", "shape": [1, len(ECHO_VALUES)], "data": ECHO_VALUES}
        self.body = json.dumps({"inputs": [tensor]})
        self._exchange = Exchange(self._head(len(self.body)) + self.body.encode(), _is_sum)


def _is_sum(reply: Reply) -> bool:
    return bool(json.loads(reply.body)["outputs"][0]["data"] == [ECHO_SUM])


class TensorTraffic(Traffic):
    """One picture, again and again; its answer is its mean."""

    def __init__(self, port: int, model: str, *, is_binary: bool) -> None:
        picture = np.random.default_rng(0).random(PICTURE, np.float32)
        self._mean = float(picture.mean())
        tensor: dict[str, object] = {"name": "x", "datatype": "FP32", "shape": list(PICTURE)}
        if is_binary:
            tensor["parameters"] = {"binary_data_size": picture.nbytes}
            head = json.dumps({"inputs": [tensor]}).encode()
            more, body = f"Inference-Header-Content-Length: {len(head)}\r\n", head + picture.tobytes()
        else:
            more, body = "", json.dumps({"inputs": [{**tensor, "data": picture.ravel().tolist()}]}).encode()
        super().__init__(f"/v2/models/{model}/infer", port, more)
        self._exchange = Exchange(self._head(len(body)) + body, self._is_mean)

    def _is_mean(self, reply: Reply) -> bool:
        (mean,) = json.loads(reply.body)["outputs"][0]["data"]
        return abs(float(mean) - self._mean) < 1e-3

    def next(self) -> Exchange:
        return self._exchange


class SlowTraffic(Traffic):
    """Numbers to a model that takes its time, in one of the protocols."""

    def __init__(self, port: int, surface: str, deadline_s: float = DEADLINE_S) -> None:
        path, body = _slow_request(surface, deadline_s)
        headers = "" if surface == "oip" else f"Timebound-Timeout-Ms: {deadline_s * 1e3:g}\r\n"
        super().__init__(path, port, headers)
        encoded = json.dumps(body).encode()
        self._exchange = Exchange(self._head(len(encoded)) + encoded, lambda reply: reply.status == 200)

    def next(self) -> Exchange:
        return self._exchange


def _slow_request(surface: str, deadline_s: float) -> tuple[str, object]:
    """The path and the body that ask for the same."""
    value = {"value": 7}
    tensor = {"name": "value", "datatype": "INT64", "shape": [1], "data": [7]}
    return {
        "oip": ("/v2/models/slow/infer", {"inputs": [tensor], "parameters": {"timeout": int(deadline_s * 1e6)}}),
        "predict": ("/v1/models/slow:predict", {"instances": [value]}),
        "lists": ("/predictions/slow:batch", [value]),
        "invocations": ("/invocations", value),
        "archive": ("/predictions/slow", value),
    }[surface]


HANDLER = f"""\
import time


def handle(data, context):
    if data is None:
        return None
    time.sleep({SLOW_S})
    return [row["body"] for row in data]


def guess(row):
    return {{"value": 0}}
"""


def save_archive(folder: Path) -> Path:
    """The same model as a handler in an archive that is not packed."""
    (folder / "MAR-INF").mkdir(parents=True)
    model = {"modelName": "slow", "handler": "slow_handler.py:handle", "configFile": "model-config.yaml"}
    (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps({"runtime": "python", "model": model}))
    (folder / "model-config.yaml").write_text("batchSize: 4\ntimebound:\n  fallback: slow_handler.py:guess\n")
    (folder / "slow_handler.py").write_text(HANDLER)
    return folder


def save_mean(path: Path) -> Path:
    """A network that takes next to no time: the mean of a picture."""
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", *PICTURE[1:])),
        helper.make_tensor_value_info("mean", TensorProto.FLOAT, ("n", 1)),
    ]
    nodes = [
        helper.make_node("Flatten", ["x"], ["flat"]),
        helper.make_node("ReduceMean", ["flat"], ["mean"], axes=[1]),
    ]
    graph = helper.make_graph(nodes, "mean", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def started(name: str, command: Sequence[str], traffic: Traffic) -> Server:
    """A server that answers this traffic."""
    say(f"starting {name}")
    return Server(name, [*command, "--port", str(traffic.port)], {}, partial(answers_right, traffic))


def compare_protocols(rounds: int, serve_args: Sequence[str]) -> tuple[list[Load], list[Load]]:
    """The echo in our own protocol and in the other, by turns."""
    port = free_port()
    native, oip = EchoTraffic(port), OipEchoTraffic(port)
    ours: list[Load] = []
    theirs: list[Load] = []
    with started("echo", timebound("echo", serve_args), native):
        if not answers_right(oip):
            raise Failed(1)
        for number in range(rounds):
            say(f"echo: round {number + 1} of {rounds}")
            turns = [(native, ours), (oip, theirs)]
            for traffic, loads in turns if number % 2 == 0 else reversed(turns):
                loads.append(measure_echo(traffic, 64, 1 if rounds < 3 else 2))
    return ours, theirs


def compare_rpc(rounds: int, serve_args: Sequence[str]) -> tuple[list[Load], list[Load]]:
    """The echo over gRPC, and from bare grpc.aio, by turns."""
    ours: list[Load] = []
    theirs: list[Load] = []
    port, own, bare = free_port(), free_port(), free_port()
    command = [*timebound("echo", serve_args), "--port", str(port), "--grpc-port", str(own)]
    program = [sys.executable, str(Path(__file__).parents[1] / "tools" / "rpc.py"), str(bare)]
    with (
        Server("echo", command, {}, partial(rpc.answers_right, own)),
        Server("bare grpc.aio", program, {}, partial(rpc.answers_right, bare)),
    ):
        for number in range(rounds):
            say(f"gRPC: round {number + 1} of {rounds}")
            turns = [(own, ours), (bare, theirs)]
            for which, loads in turns if number % 2 == 0 else reversed(turns):
                loads.append(rpc.measure(which, 64, 1.0 if rounds < 3 else 2.0))
    return ours, theirs


def compare_forms(rounds: int, serve_args: Sequence[str], folder: Path) -> tuple[list[Load], list[Load]]:
    """The same picture in binary and as JSON, by turns."""
    file = save_mean(folder / "mean.onnx")
    port = free_port()
    binary, text = (TensorTraffic(port, "mean", is_binary=is_binary) for is_binary in (True, False))
    command = [*timebound("echo", serve_args)[:2], str(file), "--deadline", "10", *serve_args]
    fast: list[Load] = []
    slow: list[Load] = []
    with started("mean", command, binary):
        for number in range(rounds):
            say(f"picture: round {number + 1} of {rounds}")
            fast.append(measure(binary, 1, 1.0))
            slow.append(measure(text, 1, 1.0))
    return fast, slow


class Overloaded(NamedTuple):
    """What came of asking for more than could be done."""

    offered_rps: float
    late: int
    unanswered: int
    wrong: int


def offered(surface: str, port: int, rate: float, seconds: float) -> Overloaded:
    """Offer so many requests per second."""
    say(f"{surface}: offering {rate:.0f} requests/s")
    record = drive(SlowTraffic(port, surface), [Phase(rate=rate, seconds=seconds)], seed=1)
    attempts = [attempt for question in record.questions for attempt in question.attempts]
    late = sum(attempt.end is End.TIMED_OUT for attempt in attempts)
    lost = sum(question.last.end is not End.ANSWERED for question in record.questions)
    wrong = sum(attempt.end is End.ANSWERED and not attempt.is_right for attempt in attempts)
    return Overloaded(rate, late, lost, wrong)


def rate_of(port: int, surface: str) -> float:
    """Requests per second that are too many."""
    return OVERLOAD * measure(SlowTraffic(port, surface, 4 * DEADLINE_S), 50, 2.0).rps  # nothing has to be left out


def overload(seconds: float, serve_args: Sequence[str], folder: Path) -> dict[str, Overloaded]:
    """A model in each protocol, and one as an archive, asked for more than it can do."""
    port, grpc_port = free_port(), free_port()
    found: dict[str, Overloaded] = {}
    command = [*timebound("slow", serve_args), "--grpc-port", str(grpc_port)]
    with started("slow", command, SlowTraffic(port, "oip")):
        rate = rate_of(port, "oip")
        for surface in SURFACES:
            if surface not in ("grpc", "archive"):
                found[surface] = offered(surface, port, rate, seconds)
        say("the same over gRPC")
        found["grpc"] = Overloaded(rate, *rpc.late_at(grpc_port, 7, rate, seconds, DEADLINE_S), 0)
    port = free_port()
    command = [*timebound("slow", serve_args)[:2], str(save_archive(folder / "slow")), *serve_args]
    with started("the archive", command, SlowTraffic(port, "archive")):
        found["archive"] = offered("archive", port, rate_of(port, "archive"), seconds)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and hold the figures to the bars."""
    options = options_parser(__doc__, EXAMPLES).parse_args(arguments)
    rounds = 2 if options.quick else 5

    def run() -> dict[str, float]:
        native, oip = compare_protocols(rounds, options.serve_args)
        grpc, bare = compare_rpc(rounds, options.serve_args)
        with tempfile.TemporaryDirectory() as folder:
            binary, text = compare_forms(rounds, options.serve_args, Path(folder))
            much = overload(3.0 if options.quick else 15.0, options.serve_args, Path(folder))
        each = [*native, *oip, *grpc, *bare, *binary, *text]
        return {
            "native_rps": median(load.rps for load in native),
            "oip_rps": median(load.rps for load in oip),
            "oip_over_native": median(b.rps / a.rps for a, b in zip(native, oip, strict=True)),
            "grpc_echo_rps": median(load.rps for load in grpc),
            "grpc_bare_rps": median(load.rps for load in bare),
            "grpc_over_bare": median(a.rps / b.rps for a, b in zip(grpc, bare, strict=True)),
            "binary_p50_ms": median(load.p50_ms for load in binary),
            "json_p50_ms": median(load.p50_ms for load in text),
            "binary_over_json": median(b.p50_ms / a.p50_ms for a, b in zip(binary, text, strict=True)),
            "offered_rps": much["oip"].offered_rps,
            **{f"late_{name}": much[name].late for name in SURFACES},
            "late": sum(one.late for one in much.values()),
            "unanswered": sum(one.unanswered for one in much.values()),
            "errors": sum(load.errors for load in each) + sum(one.wrong for one in much.values()),
        }

    try:
        figures = finish("surfaces", run)
    except Failed as failure:
        return failure.code
    for name, figure in figures.items():
        print(f"{name:18} {figure:12,.3f}")
    return conclude("surfaces", options, figures, BARS)


if __name__ == "__main__":
    sys.exit(main())
