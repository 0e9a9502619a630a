"""Mistakes at the start: exit code 2 and one sentence with cause and cure; and help where one looks for it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from tests.live.serving import MODELS, PATIENCE_S, clean_environment
from tests.models.torch_files import Trap, save_export, save_script, torch_pickle

pytestmark = pytest.mark.live

ECHO = (MODELS / "echo.py").read_text()


def timebound(
    *arguments: str | Path, folder: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "timebound.cli", *map(str, arguments)],
        cwd=folder,
        # Port 0 wherever the test does not say another: it must not fail because somebody else serves.
        env={**clean_environment(), "TIMEBOUND_PORT": "0", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_S,
        check=False,
    )


def sentence_of(*arguments: str | Path, folder: Path) -> str:
    """The one sentence that starting with these arguments fails with."""
    done = timebound("serve", *arguments, folder=folder)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    sentence = done.stderr.splitlines()[-1]
    assert sentence.startswith("timebound: ")
    return sentence


def app(folder: Path, *lines: str) -> Path:
    """An app.py with one class, given the lines of its body."""
    body = "".join(f"    {line}\n" for line in lines)
    (folder / "app.py").write_text(f"import numpy as np\nimport timebound as tb\n\nclass Reader(tb.Model):\n{body}")
    return folder / "app.py"


def test_a_history_that_cannot_be_written_is_no_server(tmp_path: Path) -> None:
    (tmp_path / "kept").touch()
    said = sentence_of(
        app(tmp_path, "def infer(self, batch):", "    return batch"), "--history", "kept", folder=tmp_path
    )
    assert said == "timebound: no history can be written to kept: it is a file; check --history"


def save_network(path: Path) -> None:
    """An ONNX file that takes four float32 per item."""
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "doubler", tensors[:1], tensors[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.mark.parametrize("source", [None, "import timebound\n"], ids=["seen by the gateway", "seen by a worker"])
def test_the_sentence_is_all_that_is_said(tmp_path: Path, source: str | None) -> None:
    if source is not None:
        (tmp_path / "app.py").write_text(source)
    said = timebound("serve", "app.py", folder=tmp_path).stderr
    assert len(said.splitlines()) == 1, said


def test_a_path_that_does_not_exist(tmp_path: Path) -> None:
    said = sentence_of("nowhere.py", folder=tmp_path)
    assert "nowhere.py does not exist; give a .py, .onnx" in said


def test_a_file_of_an_unknown_kind(tmp_path: Path) -> None:
    (tmp_path / "model.txt").write_text("weights")
    assert "cannot serve model.txt: load it in an app.py, or give a .py" in sentence_of("model.txt", folder=tmp_path)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    assert "no model in models; put an app.py in it, or files at <model>/<version>/model.onnx" in sentence_of(
        "models", folder=tmp_path
    )


def test_a_file_that_defines_no_model(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import timebound as tb\n")
    assert "defines no model; add a class derived from timebound.Model" in sentence_of("app.py", folder=tmp_path)


def test_a_class_without_infer(tmp_path: Path) -> None:
    said = sentence_of(app(tmp_path, "path = '/read'"), folder=tmp_path)
    assert "class Reader has no infer: define `def infer(self, batch)`" in said


def test_a_library_that_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import timebound\nimport no_such_library\n")
    said = sentence_of("app.py", folder=tmp_path)
    assert "No module named 'no_such_library'" in said
    assert "app.py, line 2" in said


def test_a_syntax_error(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import timebound\n\nclass Reader(timebound.Model)\n    pass\n")
    said = sentence_of("app.py", folder=tmp_path)
    assert "SyntaxError" in said
    assert "app.py, line 3" in said


def test_a_load_that_raises(tmp_path: Path) -> None:
    file = app(tmp_path, "def load(self): self.net = {}['weights']", "def infer(self, batch): return batch")
    said = sentence_of(file, folder=tmp_path)
    assert "Reader.load() failed: KeyError: 'weights' (app.py, line 5)" in said


def test_an_example_that_prepare_refuses(tmp_path: Path) -> None:
    file = app(
        tmp_path,
        "example = {'n': 3}",
        "class Request(tb.Struct): n: int",
        "def prepare(self, request): raise tb.BadInput('n is odd', field='n')",
        "def infer(self, batch): return batch",
    )
    said = sentence_of(file, folder=tmp_path)
    assert "reader: prepare() refused the example (field n): n is odd" in said


def test_an_example_of_the_wrong_shape(tmp_path: Path) -> None:
    file = app(
        tmp_path,
        "example = {'m': 3}",
        "class Request(tb.Struct): n: int",
        "def infer(self, batch): return batch",
    )
    assert "refused the example (field n)" in sentence_of(file, folder=tmp_path)


def test_an_infer_that_gives_too_few_outputs(tmp_path: Path) -> None:
    file = app(tmp_path, "example = b'x'", "def infer(self, batch): return []")
    assert "reader.infer returned 0 outputs for 1 items" in sentence_of(file, folder=tmp_path)


def test_an_answer_that_json_cannot_say(tmp_path: Path) -> None:
    file = app(tmp_path, "example = b'x'", "def infer(self, batch): return [object() for _ in batch]")
    assert "convert it in finish()" in sentence_of(file, folder=tmp_path)


@pytest.mark.parametrize(
    ("item", "cause", "cure"),
    [
        ("np.zeros(3, np.float32)", "takes x: float32[any, 4]", "give items of shape (4,)"),
        ("np.zeros(4, np.float64)", "but prepare() gave float64", "return .astype(np.float32)"),
        ("[0.0] * 4", "but got a list", "prepare() does not return arrays"),
    ],
    ids=["shape", "dtype", "list"],
)
def test_an_item_that_does_not_fit_the_network(tmp_path: Path, item: str, cause: str, cure: str) -> None:
    save_network(tmp_path / "net.onnx")
    file = app(
        tmp_path,
        "example = b'x'",
        "def load(self): self.net = tb.onnx('net.onnx')",
        f"def prepare(self, request): return {item}",
    )
    said = sentence_of(file, folder=tmp_path)
    assert cause in said
    assert cure in said


def test_a_model_file_that_is_missing(tmp_path: Path) -> None:
    said = sentence_of(app(tmp_path, "def load(self): self.net = tb.onnx('net.onnx')"), folder=tmp_path)
    assert f"model file not found: {tmp_path / 'net.onnx'}" in said


def test_a_model_file_that_is_broken(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"not a network")
    assert "onnxruntime cannot load" in sentence_of("net.onnx", folder=tmp_path)


def test_a_torch_file_without_shapes(tmp_path: Path) -> None:
    save_script(tmp_path / "net.pt")
    assert "net.pt is TorchScript, which does not say the shape of its inputs" in sentence_of("net.pt", folder=tmp_path)


def test_a_torch_pickle(tmp_path: Path) -> None:
    (tmp_path / "net.pt").write_bytes(torch_pickle({"weights": Trap(tmp_path / "mark")}))
    assert "a Python pickle, which can run any code when read" in sentence_of("net.pt", folder=tmp_path)
    assert not (tmp_path / "mark").exists()


def test_a_torch_file_exported_for_one_batch_size(tmp_path: Path) -> None:
    save_export(tmp_path / "net.pt2", batch=None)
    assert "was exported with a fixed batch (x: float32[2, 3])" in sentence_of("net.pt2", folder=tmp_path)


def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    file = app(tmp_path, "def load(self): self.net = tb.torch(dict, device='cuda:99')")
    said = sentence_of(file, folder=tmp_path)
    assert "device='cuda:99'" in said
    assert "CUDA device" in said


def test_a_worker_that_ends_while_it_loads(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import os\nos._exit(3)\n")
    assert "the worker process ended before it was ready" in sentence_of("app.py", folder=tmp_path)


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(ECHO)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        said = sentence_of("app.py", "--port", port, folder=tmp_path)
    assert f"port {port} is taken on 127.0.0.1; stop the other server or choose one with --port" in said


def test_too_few_open_files_allowed(tmp_path: Path) -> None:
    few = f"ulimit -n 24; exec {sys.executable} -m timebound.cli serve {MODELS / 'echo.py'} --port 0 --workers 1"
    done = subprocess.run(
        ["bash", "-c", few], cwd=tmp_path, env=clean_environment(), capture_output=True, text=True,
        timeout=3 * PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "this process may have 24. Raise its limit: ulimit -n" in done.stderr.splitlines()[-1]


def test_a_host_that_is_not_here(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(ECHO)
    assert "check --host and --port" in sentence_of("app.py", "--host", "192.0.2.1", folder=tmp_path)


@pytest.mark.parametrize(
    ("flag", "value", "wanted"),
    [
        ("--port", "http", "a whole number"),
        ("--port", "70000", "a whole number from 0 to 65535"),
        ("--deadline", "soon", "seconds from"),
        ("--deadline", "1.2.3", "seconds from"),
        ("--max-body", "10 bananas", "a size above zero"),
        ("--max-body", "1.2.3MB", "a size above zero"),
        ("--log-level", "loud", "one of debug, info, warning, error"),
    ],
)
def test_a_flag_with_a_bad_value(tmp_path: Path, flag: str, value: str, wanted: str) -> None:
    said = sentence_of("app.py", flag, value, folder=tmp_path)
    assert f"{flag} is {value!r} (flag); it must be {wanted}" in said


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("prot = 80", "unknown option 'prot'; did you mean 'port'?"),
        ("workers = 'all'", "workers is 'all' (timebound.toml); it must be a whole number"),
        ("workers = [2]", "workers is [2] (timebound.toml); it must be a whole number"),
        ("port = ", "timebound.toml is not valid TOML"),
    ],
    ids=["unknown", "value", "list", "syntax"],
)
def test_a_mistake_in_the_configuration_file(tmp_path: Path, line: str, sentence: str) -> None:
    (tmp_path / "timebound.toml").write_text(line)
    assert sentence in sentence_of("app.py", folder=tmp_path)


@pytest.mark.parametrize("by", [["--debug"], []], ids=["flag", "environment"])
def test_debug_shows_the_traceback_too(tmp_path: Path, by: list[str]) -> None:
    file = app(tmp_path, "def load(self): self.net = {}['weights']", "def infer(self, batch): return batch")
    environment = {} if by else {"TIMEBOUND_DEBUG": "1"}
    done = timebound("serve", file, *by, folder=tmp_path, environment=environment)
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert "self.net = {}['weights']" in done.stderr
    assert "Reader.load() failed: KeyError" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["serve", "--help"], ["demo", "--help"], ["convert", "--help"], ["new", "--help"]],
    ids=" ".join,
)
def test_help_shows_examples(tmp_path: Path, arguments: list[str]) -> None:
    done = timebound(*arguments, folder=tmp_path)
    assert done.returncode == 0
    assert "examples:\n  timebound " in done.stdout


def test_print_config_shows_where_each_value_comes_from(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TIMEBOUND_GRACE=5\nTIMEBOUND_PORT=1\nTIMEBOUND_MAX_QUEUE=1\n")
    (tmp_path / "timebound.toml").write_text('keep_alive = "1min"\nport = 2\nmax_queue = 2\ngrace = 2\n')
    environment = {"TIMEBOUND_MAX_QUEUE": "77", "TIMEBOUND_PORT": "3"}
    arguments = ("serve", "app.py", "--print-config", "--port", "9000")
    done = timebound(*arguments, folder=tmp_path, environment=environment)
    rows = {row[0]: row[1:] for row in (line.split(maxsplit=2) for line in done.stdout.splitlines())}
    assert done.returncode == 0
    assert rows["port"] == ["9000", "flag"]
    assert rows["max_queue"] == ["77", "environment"]
    assert rows["grace"] == ["5.0", ".env"]
    assert rows["keep_alive"] == ["60.0", "timebound.toml"]
    assert rows["host"] == ["127.0.0.1", "default"]


def test_output_into_a_closed_pipe_is_no_traceback() -> None:
    unread, end = os.pipe()
    os.close(unread)
    command = [sys.executable, "-m", "timebound.cli", "keys", "new", "shop"]
    done = subprocess.run(command, stdout=end, stderr=subprocess.PIPE, text=True, env=clean_environment(), check=False)
    os.close(end)
    assert done.returncode == 141
    assert "BrokenPipe" not in done.stderr


def test_an_engine_for_a_model_that_is_not_there(tmp_path: Path) -> None:
    save_network(tmp_path / "net.onnx")
    for engine in ("nosuch=onnxruntime", "onnxruntime,net@1=onnxruntime"):
        sentence = sentence_of("net.onnx", "--engine", engine, folder=tmp_path)
        assert f"names a model {engine.rpartition(',')[2].partition('=')[0]!r}, but there is only: net" in sentence
