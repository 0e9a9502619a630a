"""Clients and load tools of others: where each comes from, how it is run, and what it prints when all is right."""

import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from urllib.request import urlopen

from benchmarks.tools.load import HOST

HERE = Path(__file__).parent
CACHE = Path.home() / ".cache" / "timebound-clients"
TIMEOUT_S = 120
BODY = '{"values": [0.5, 1.5]}'
LOCUST = """
from locust import HttpUser, task

class User(HttpUser):
    @task
    def ask(self):
        with self.client.post("/predictions/echo", json={"values": [0.5, 1.5]}, catch_response=True) as answer:
            if answer.json() != {"sum": 2.0}:
                answer.failure(answer.text)
"""
K6 = """
import http from "k6/http";
import { check } from "k6";
export const options = { vus: 8, duration: "1s", thresholds: { checks: ["rate==1.0"] } };
export default function () {
  const answer = http.post(`${__ENV.URL}/predictions/echo`, '{"values": [0.5, 1.5]}',
                           { headers: { "Content-Type": "application/json" } });
  check(answer, { right: (a) => a.status === 200 && a.json("sum") === 2.0 });
}
"""


@dataclass(frozen=True)
class Ports:
    """Where the servers of the echo and of the file `twice` listen, by HTTP and gRPC."""

    echo: int
    twice: int
    twice_grpc: int


@dataclass(frozen=True)
class Client:
    """How one client is run, and what it prints when all is right."""

    command: Callable[[Ports, Path], list[str]]
    right: str
    packages: tuple[str, ...] = ()
    environment: Callable[[Path], Mapping[str, str]] = lambda folder: {}
    program: "Program | None" = None
    """What it is, where no package for Python has it."""


@dataclass(frozen=True)
class Program:
    """A program as npm has it, in a tar file."""

    url: str
    """With the machine to be filled in."""
    sums: Mapping[str, str]
    """Of the tar file, SHA-256, by machine."""
    member: str

    def fetch(self, folder: Path) -> None:
        """Put it into `folder`; raises `OSError` if it cannot be had."""
        machine = platform.machine()
        if machine not in self.sums:
            raise OSError(f"there is none for {machine}")
        with urlopen(self.url.format(machine.replace("x86_64", "x64")), timeout=TIMEOUT_S) as answer:
            packed = answer.read()
        if sha256(packed).hexdigest() != self.sums[machine]:
            raise OSError(f"{self.url} is not what it was")
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=BytesIO(packed)) as archive:
            source = archive.extractfile(self.member)
            assert source is not None
            file = folder / Path(self.member).name
            file.write_bytes(source.read())
        file.chmod(0o755)


def _written(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def _ab(ports: Ports, folder: Path) -> list[str]:
    body = _written(folder, "body.json", BODY)
    url = f"http://{HOST}:{ports.echo}/predictions/echo"
    return ["ab", "-k", "-q", "-n", "4000", "-c", "8", "-T", "application/json", "-p", body, url]


def _wrk(ports: Ports, folder: Path) -> list[str]:
    script = _written(
        folder, "post.lua", f"wrk.method='POST' wrk.body='{BODY}' wrk.headers['Content-Type']='application/json'"
    )
    return ["wrk", "-t1", "-c8", "-d1s", "-s", script, f"http://{HOST}:{ports.echo}/predictions/echo"]


def _locust(ports: Ports, folder: Path) -> list[str]:
    file = _written(folder, "locustfile.py", LOCUST)
    run = ["--headless", "-u", "8", "-r", "8", "-t", "2s", "--host", f"http://{HOST}:{ports.echo}", "--only-summary"]
    return ["locust", "-f", file, *run]


def _k6(ports: Ports, folder: Path) -> list[str]:
    return ["k6", "run", "-q", "-e", f"URL=http://{HOST}:{ports.echo}", _written(folder, "script.js", K6)]


def _buf(ports: Ports, folder: Path) -> list[str]:
    """Knows the service by reflection alone."""
    tensor = '{"name": "x", "datatype": "FP32", "shape": [1, 3], "contents": {"fp32_contents": [1, 2, 6.5]}}'
    method = f"http://{HOST}:{ports.twice_grpc}/inference.GRPCInferenceService/ModelInfer"
    body = f'{{"model_name": "twice", "inputs": [{tensor}]}}'
    return ["buf", "curl", "--protocol", "grpc", "--http2-prior-knowledge", "-d", body, method]


_BUF = Program(
    "https://registry.npmjs.org/@bufbuild/buf-linux-{0}/-/buf-linux-{0}-1.75.0.tgz",
    {
        "x86_64": "98b19d4b2b46130e083157490c54dfdcb8ea771e53204d3c6a06a2b12edd0503",
        "aarch64": "ea5b4981ad7199a482609c3f1f7230767e095c4a5a7e96ae74a21225a1fc75dc",
    },
    "package/bin/buf",
)


def _perf(kind: str, *more: str) -> Callable[[Ports, Path], list[str]]:
    def command(ports: Ports, folder: Path) -> list[str]:
        where = ports.twice_grpc if kind == "grpc" else ports.twice
        load = ["--concurrency-range", "4", "-p", "300", "-r", "3", "-s", "999", "-b", "2"]
        return ["perf_analyzer", "-m", "twice", "-i", kind, "-u", f"{HOST}:{where}", *load, *more]

    return command


def _cuda(folder: Path) -> dict[str, str]:
    own = ":".join(str(path.parent) for path in folder.rglob("libcudart.so.12"))
    return {"LD_LIBRARY_PATH": f"{own}:{os.environ.get('LD_LIBRARY_PATH', '')}"}


_PERF = ("tritonclient==2.50.0", "nvidia-cuda-runtime-cu12")  # the last that runs with glibc 2.36
CLIENTS: dict[str, Client] = {
    "ab": Client(_ab, r"Failed requests:\s+0\n(?!Non-2xx)"),
    "wrk": Client(_wrk, r"^(?!.*(Non-2xx|Socket errors)).*Requests/sec"),
    "k6": Client(_k6, r"checks.*100\.00%", ("k6==1.1.0",)),
    "locust": Client(_locust, r"Aggregated\s+\d+\s+0\(0\.00%\)", ("locust==2.47.0",)),
    "kserve": Client(
        lambda ports, _: ["python", str(HERE / "kserve_client.py"), str(ports.twice), str(ports.twice_grpc)],
        "all answers are right",
        tuple((HERE / "kserve.txt").read_text().split()),
    ),
    "buf": Client(_buf, '"AAAAQAAAgEAAAFBB"', program=_BUF),  # 2, 4 and 13 as FP32
    "perf_analyzer http": Client(_perf("http"), r"throughput: [1-9]", _PERF, _cuda),
    "perf_analyzer grpc": Client(_perf("grpc"), r"throughput: [1-9]", _PERF, _cuda),
    "perf_analyzer streaming": Client(_perf("grpc", "--streaming"), r"throughput: [1-9]", _PERF, _cuda),
}


def prepared(name: str, client: Client, *, may_install: bool) -> Path | None:
    """The environment of a client that comes in packages; None if they are not installed. Safe between processes."""
    folder = CACHE / name.partition(" ")[0]
    done = folder / "installed"  # written last, for an installation may break off
    wish = "\n".join((*client.packages, *([client.program.url] if client.program else [])))
    if not wish:
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if may_install and not (done.exists() and done.read_text() == wish):
            print(f"installing {wish.splitlines()[0]}", file=sys.stderr)
            if client.program is not None:
                client.program.fetch(folder / "bin")
                done.write_text(wish)
                return folder
            subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], check=True)
            pip = [sys.executable, "-m", "pip", "--python", str(folder), "install", "-q", "--no-compile"]
            subprocess.run([*pip, "--disable-pip-version-check", *client.packages], check=True)
            done.write_text(wish)
    return folder if done.exists() else None


def told(name: str, client: Client, ports: Ports, *, may_install: bool) -> str:
    """What came of asking with this client: right, wrong, or why it was not tried."""
    folder = prepared(name, client, may_install=may_install)
    if folder is None:
        return f"not installed: {name}; try --install"
    with tempfile.TemporaryDirectory() as scratch:
        command = client.command(ports, Path(scratch))
        found = shutil.which(command[0], path=f"{folder / 'bin'}:{os.environ['PATH']}")
        if found is None:
            return f"not installed: {command[0]}"
        environment = {**os.environ, **client.environment(folder)}
        done = subprocess.run(
            [found, *command[1:]], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    said = done.stdout + done.stderr
    if "error while loading shared libraries" in said or "not found (required by" in said:
        return f"does not run here: {said.strip().splitlines()[0]}"
    if re.search(client.right, said, re.S):
        return "right"
    print(said, file=sys.stderr)
    return f"wrong (exit code {done.returncode})"
