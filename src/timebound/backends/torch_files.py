"""Opening files of torch: which kind one is, its network and signature; never by running a Python pickle."""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import torch

from timebound.backends.base import TensorSpec
from timebound.backends.signature import parse_spec
from timebound.errors import SetupError

INPUTS_FILE = "inputs.txt"
"""The extra file of a TorchScript archive that may say what it takes, one input per line."""


class Opened(msgspec.Struct, frozen=True):
    """A network and what its file says about it; empty where it says nothing."""

    call: Callable[..., Any]
    inputs: Sequence[TensorSpec] = ()
    outputs: Sequence[TensorSpec] = ()
    keywords: frozenset[str] = frozenset()
    """Inputs that go by name."""
    max_batch: int | None = None
    program: Any = None
    """What an exporter takes: the module, script or exported program."""


def open_file(path: Path, device: torch.device) -> Opened:
    """The network of a TorchScript or torch.export file; anything else is refused, saying what to do."""
    records = _records(path)
    if any(record.startswith("code/") for record in records):
        return _open_script(path, device)
    if any(record.startswith("data/aotinductor/") for record in records):
        raise SetupError(
            f"{path.name} holds compiled machine code (AOTInductor), which is not run here; "
            "save the program itself with torch.export.save"
        )
    if "archive_format" in records or any(record.startswith("models/") for record in records):
        return _open_export(path, device)
    # To look further into it would run it.
    raise SetupError(
        f"{path.name} is no TorchScript or torch.export file: it looks like torch.save's, a Python pickle, "
        "which can run any code when read. If it holds weights, use tb.torch(make_network, weights=...) in an app.py; "
        "if it holds a network, save that with torch.export.save or torch.jit.save"
    )


def load_weights(path: Path, net: torch.nn.Module, device: torch.device) -> None:
    """Fill a network with a state_dict from a file; only tensors are read from it."""
    try:
        stored = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise SetupError(f"weights file not found: {path}; check the name") from None
    except pickle.UnpicklingError:
        raise SetupError(
            f"{path.name} holds Python objects, which can run code when read; "
            "save only the weights: torch.save(net.state_dict(), path)"
        ) from None
    except Exception as error:  # of files that are no such thing torch says anything, such as "101"
        raise SetupError(
            f"{path.name} is no file of weights, or a damaged one; make it with torch.save(net.state_dict(), path)"
        ) from error
    try:
        net.load_state_dict(stored)
    except Exception as error:
        raise SetupError(f"the weights of {path.name} do not fit the network: {_one_line(error)}") from error


def _records(path: Path) -> list[str]:
    """The archive's entries, listed by the very reader that will load them; empty if it is no archive."""
    try:
        return list(torch._C.PyTorchFileReader(str(path)).get_all_records())
    except RuntimeError:
        return []


def _open_script(path: Path, device: torch.device) -> Opened:
    extra: dict[str, Any] = {INPUTS_FILE: ""}
    try:
        with warnings.catch_warnings():
            # Newer versions of torch recommend torch.export; people still have these files.
            warnings.simplefilter("ignore", DeprecationWarning)
            net = program = torch.jit.load(str(path), map_location=device, _extra_files=extra).eval()
            if hasattr(net, "training"):  # a network that is frozen already has no such thing
                with suppress(RuntimeError):  # some cannot be, and run as they are
                    net = torch.jit.freeze(net)
    except Exception as error:
        raise SetupError(f"torch cannot load {path}: {_one_line(error)}; save the network again") from error
    text = extra[INPUTS_FILE]
    lines = (text.decode() if isinstance(text, bytes) else text).splitlines()
    inputs = [parse_spec(line) for line in lines if line.strip()]
    return Opened(net, inputs=inputs, program=program)


def _open_export(path: Path, device: torch.device) -> Opened:
    try:
        with _no_pickles():
            program = torch.export.load(path)
    except pickle.UnpicklingError as error:
        raise SetupError(
            f"{path.name} holds Python objects, which can run code when read; "
            "export the network without custom objects or tensor subclasses"
        ) from error
    except Exception as error:
        raise SetupError(f"torch cannot load {path}: {_one_line(error)}; export the network again") from error
    if device.type != "cpu":
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, device)
    arguments, keywords = _arguments(path.name, program)
    inputs = [_spec(path.name, name, value) for name, value in zip(arguments, _examples(program), strict=True)]
    names = [str(name) for name in program.graph_signature.user_outputs]
    outputs = [TensorSpec("output" if len(names) == 1 else f"output_{place}", "", ()) for place in range(len(names))]
    low, high = _batch_range(program)
    if low > 1:
        raise SetupError(
            f"{path.name} was exported for batches of at least {low}; export it with torch.export.Dim('batch', min=1)"
        )
    return Opened(program.module(), inputs, outputs, keywords, high, program)


@contextmanager
def _no_pickles() -> Iterator[None]:
    """Refuse Python pickles inside the `with` block: torch.export.load would run those that a file brings along."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise pickle.UnpicklingError("pickles are not read here")

    setting = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # torch.load's own switch; nothing but tensors gets through
    before, loads, load = os.environ.get(setting), pickle.loads, pickle.load
    os.environ[setting] = "1"
    pickle.loads = pickle.load = refuse
    try:
        yield
    finally:
        pickle.loads, pickle.load = loads, load
        if before is None:
            del os.environ[setting]
        else:
            os.environ[setting] = before


def _arguments(label: str, program: Any) -> tuple[list[str], frozenset[str]]:
    """Names of the program's inputs, in order, and which of them go by keyword."""
    positional, by_name = program.call_spec.in_spec.children()
    nested = [part for part in (*positional.children(), *by_name.children()) if not part.is_leaf()]
    if nested:
        raise SetupError(f"{label} takes lists or dicts of tensors; export a network whose inputs are plain tensors")
    names = [str(name) for name in program.graph_signature.user_inputs]
    if len(names) != positional.num_children + by_name.num_children:
        raise SetupError(f"{label} takes more than tensors; export a network whose inputs are plain tensors")
    keywords = list(by_name.context or ())
    return [*names[: positional.num_children], *keywords], frozenset(keywords)


def _examples(program: Any) -> list[Any]:
    wanted = set(program.graph_signature.user_inputs)
    return [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder" and node.name in wanted]


def _spec(label: str, name: str, value: Any) -> TensorSpec:
    shape = tuple(size if isinstance(size, int) else None for size in value.shape)
    spec = TensorSpec(name, str(value.dtype).removeprefix("torch."), shape)
    if not shape or shape[0] is not None:
        raise SetupError(
            f"{label} was exported with a fixed batch ({spec}); export it again with a dynamic first dimension: "
            f"torch.export.export(net, example, dynamic_shapes=({{0: torch.export.Dim('batch')}},))"
        )
    return spec


def _batch_range(program: Any) -> tuple[int, int | None]:
    """The smallest and the largest batch that the program takes; None is no limit."""
    symbol = _examples(program)[0].shape[0].node.expr
    limits = program.range_constraints.get(symbol)
    if limits is None:
        return 1, None
    high = int(limits.upper) if limits.upper.is_Integer and int(limits.upper) < 2**31 else None
    return int(limits.lower), high


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
