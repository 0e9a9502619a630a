"""The backend for torch: TorchScript and torch.export files, and networks made in Python."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from timebound.backends.base import Backend, TensorSpec, current_place
from timebound.backends.signature import feed, parse_spec
from timebound.errors import MissingExtra, SetupError

try:
    import torch as library
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise MissingExtra("torch", "torch") from None

from timebound.backends.torch_files import INPUTS_FILE, Opened, load_weights, open_file

if TYPE_CHECKING:
    from torch import Tensor, device

_WARM_SIZES = (1, 2, 4, 8, 16, 32, 64)


class TorchBackend(Backend):
    """One network in inference mode: a TorchScript (.pt) or torch.export (.pt2) file, an nn.Module, or a function that
    makes one. Calls from several threads share its weights and run side by side.

    `weights` fills a made network from a state_dict file. `inputs`, such as "x: float32[any, 3, 224, 224]", has every
    batch checked where the file itself does not say; .pt2 files do.
    """

    kind = "torch"
    parallel = True

    def __init__(
        self,
        source: str | Path | library.nn.Module | Callable[[], library.nn.Module],
        *,
        device: str = "cpu",
        weights: str | Path | None = None,
        inputs: str | Sequence[str] | None = None,
        channels_last: bool = False,
        threads: int | None = None,
    ) -> None:
        place = current_place()
        self.device = _device(device)
        _keep_memory()
        # One setting for the whole process; threads started later follow it.
        library.set_num_threads(threads or place.threads)
        if isinstance(source, str | Path):
            if weights is not None:
                raise SetupError("tb.torch(path, weights=...): a file brings its weights; give a function instead")
            path = place.file(source)
            self.label, opened = path.name, open_file(path, self.device)
        else:
            self.label, opened = _made(source, self.device, place.folder / weights if weights is not None else None)
        self._opened = opened
        self._layout = library.channels_last if channels_last else library.contiguous_format
        if channels_last and isinstance(opened.call, library.nn.Module):
            opened.call.to(memory_format=library.channels_last)
        given = [inputs] if isinstance(inputs, str) else inputs
        self.inputs: Sequence[TensorSpec] = opened.inputs if given is None else [parse_spec(text) for text in given]
        self.outputs: Sequence[TensorSpec] = opened.outputs or (TensorSpec("output", "", ()),)
        self.max_batch = opened.max_batch

    def __call__(self, batch: Any) -> Any:
        """Run a batch: an array, or a dict or tuple of arrays; arrays come back in the network's own form."""
        arguments, by_name = self._feed(batch)
        try:
            with library.inference_mode():
                output = self._opened.call(*arguments, **by_name)
        except RuntimeError as error:
            if self.inputs:
                raise
            # Nothing was known to check before, and torch speaks of its insides: say what came in.
            came = ", ".join(f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in arguments)
            reason = str(error).strip().splitlines()[-1]
            raise ValueError(f"{self.label} failed on a batch of {came}: {reason}") from error
        return self._arrays(output)

    @property
    def program(self) -> Any:
        """What an exporter takes: the module, script or exported program."""
        return self._opened.program

    def warm_sizes(self, max_batch: int) -> list[int]:
        """Batch sizes to run once before serving: torch sets itself up for each shape that it meets."""
        return [size for size in _WARM_SIZES if size <= min(max_batch, self.max_batch or max_batch)]

    def _feed(self, batch: Any) -> tuple[list[Tensor], dict[str, Tensor]]:
        if self.inputs:
            given = feed(self.label, self.inputs, batch)
            tensors = {name: self._tensor(value) for name, value in given.items()}
            in_place = [tensor for name, tensor in tensors.items() if name not in self._opened.keywords]
            return in_place, {name: tensors[name] for name in tensors if name in self._opened.keywords}
        if isinstance(batch, Mapping):
            return [], {name: self._tensor(value) for name, value in batch.items()}
        parts = batch if isinstance(batch, tuple) else (batch,)
        return [self._tensor(value) for value in parts], {}

    def _tensor(self, value: Any) -> Tensor:
        if not isinstance(value, np.ndarray) or value.dtype.kind in "USO":
            what = "texts" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
            raise ValueError(
                f"{self.label} takes arrays of numbers, but got {what}: "
                "its items have different shapes, or prepare() does not return arrays"
            )
        # A copy, always: a network may write into its input (`x.div_(2)`), and others of an ensemble read the same one.
        # Besides, torch warns about arrays that it could not write to, and takes no negative strides.
        tensor = library.from_numpy(value.copy()).to(self.device)
        return tensor.contiguous(memory_format=self._layout) if tensor.dim() == 4 else tensor

    def _arrays(self, output: Any) -> Any:
        if isinstance(output, library.Tensor):
            plain = output.float() if output.dtype is library.bfloat16 else output
            return plain.cpu().numpy()
        if isinstance(output, Mapping):
            return {name: self._arrays(value) for name, value in output.items()}
        if isinstance(output, tuple | list):
            return tuple(self._arrays(value) for value in output)
        raise ValueError(f"{self.label} gave a {type(output).__name__}; a network must give tensors")


torch = TorchBackend
"""As users write it: `tb.torch(...)`."""


def torch_file(path: Path) -> TorchBackend:
    """A file to be served as it is: its signature must be known."""
    net = TorchBackend(path)
    if not net.inputs:
        raise SetupError(
            f"{path.name} is TorchScript, which does not say the shape of its inputs; serve an app.py that "
            f'opens it with tb.torch("{path.name}"), save it with torch.jit.save(net, path, '
            f'_extra_files={{"{INPUTS_FILE}": "x: float32[any, 3, 224, 224]"}}), or convert it: see timebound convert'
        )
    return net


@cache
def _keep_memory() -> None:
    """Let glibc keep the memory of large tensors instead of mapping it afresh for every layer.

    EfficientNet-Lite0 at batches of 8 took 5,000 page faults per picture without this, and 25 ms of a core; with it
    none, and 15. The process stays at the size of its largest batch.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc has it, others may not
    if set_option is not None:
        trim_threshold, mmap_max, arena_max = -1, -4, -8  # from malloc.h
        for option, value in ((mmap_max, 0), (arena_max, 1), (trim_threshold, 2**31 - 1)):
            set_option(option, value)


def _device(name: str) -> device:
    try:
        found = library.device(name)
    except RuntimeError:
        raise SetupError(f'tb.torch(device={name!r}) is unknown; use "cpu" or "cuda:0"') from None
    if found.type == "cuda":
        if not library.cuda.is_available():
            raise SetupError(
                f"tb.torch(device={name!r}): torch {library.__version__} sees no CUDA device here; "
                'use device="cpu", or install a CUDA build of torch and the driver'
            )
        if (found.index or 0) >= library.cuda.device_count():
            raise SetupError(
                f"tb.torch(device={name!r}): this machine has {library.cuda.device_count()} CUDA device(s), "
                "counted from cuda:0"
            )
    elif found.type != "cpu":
        raise SetupError(f'tb.torch(device={name!r}) is not supported; use "cpu" or "cuda:0"')
    return found


def _made(source: Any, device: device, weights: Path | None) -> tuple[str, Opened]:
    """A network made in Python, on its device and set to inference."""
    label = getattr(source, "__name__", type(source).__name__)
    if not callable(source):
        raise SetupError(f"tb.torch() takes a path, an nn.Module or a function that makes one, not a {label}")
    net = source if isinstance(source, library.nn.Module) else source()
    if not isinstance(net, library.nn.Module):
        raise SetupError(f"{label}() gave a {type(net).__name__}; it must return a torch.nn.Module")
    if weights is not None:
        load_weights(weights, net, device)
    net = net.to(device).eval().requires_grad_(False)
    return label, Opened(net, program=net)
