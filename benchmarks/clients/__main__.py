"""Asks one server with clients and load tools of others, as they are, and says of each whether it was answered rightly.

    python -m benchmarks.clients [--install] [NAME ...]

What is not on this machine is left out and named. With --install the packages of kserve (300 MB), k6, locust, buf and
perf_analyzer are installed into ~/.cache/timebound-clients; ab and wrk are programs of the system. perf_analyzer
also needs the system's libb64. The exit code is 1 if a client that is here was not answered rightly.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.clients.files import served_files
from benchmarks.clients.roster import CLIENTS, Ports, told
from benchmarks.tools import rpc
from benchmarks.tools.contestants import timebound
from benchmarks.tools.load import EchoTraffic, answers_right, free_port
from benchmarks.tools.processes import Server


def main() -> int:
    """Serve, ask, and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"clients; all of them if none is given: {', '.join(CLIENTS)}")
    parser.add_argument("--install", action="store_true", help="install what comes in packages and is not here")
    options = parser.parse_args()
    chosen = {name: client for name, client in CLIENTS.items() if not options.names or name.split()[0] in options.names}
    ports = Ports(free_port(), free_port(), free_port())
    serve = timebound("echo", [])[:2]
    with tempfile.TemporaryDirectory() as folder:
        files = served_files(Path(folder))
        echo = Server("echo", [*timebound("echo", []), "--port", str(ports.echo)], {}, _asks(EchoTraffic(ports.echo)))
        both = ["--port", str(ports.twice), "--grpc-port", str(ports.twice_grpc)]
        with echo, Server("twice", [*serve, str(files), *both], {}, lambda: rpc.is_live(ports.twice_grpc)):
            results = {name: told(name, each, ports, may_install=options.install) for name, each in chosen.items()}
    for name, result in results.items():
        print(f"{name:26} {result}")
    return int(any(result.startswith("wrong") for result in results.values()))


def _asks(traffic: EchoTraffic) -> Callable[[], bool]:
    return lambda: answers_right(traffic)


if __name__ == "__main__":
    sys.exit(main())
