"""The backend for torch: TorchScript and torch.export files, and networks made in Python, on processors and GPUs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from timebound.backends.base import Backend, TensorSpec, current_place
from timebound.backends.signature import feed, parse_spec
from timebound.devices.base import Device, has_driver, open_device
from timebound.devices.tree import alike
from timebound.errors import MissingExtra, SetupError
from timebound.types import CHANNELS_LAST, COMPILE, DTYPES, OWN

try:
    import torch as library
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise MissingExtra("torch", "torch") from None

from timebound.backends.torch_files import INPUTS_FILE, Opened, load_weights, open_file
from timebound.devices.compiling import compiled
from timebound.devices.mixture import Mix
from timebound.devices.networks import Networks

if TYPE_CHECKING:
    from torch import Tensor

_WARM_SIZES = (1, 2, 4, 8, 16, 32, 64)


class TorchBackend(Backend):
    """One network in inference mode: a TorchScript (.pt) or torch.export (.pt2) file, an nn.Module, or a function that
    makes one. Calls from several threads share its weights and run side by side.

    `weights` fills a made network from a state_dict file. `inputs`, such as "x: float32[any, 3, 224, 224]", has every
    batch checked where the file itself does not say; .pt2 files do.

    On a GPU ("cuda", "cuda:1", or "auto" for one if it is there) every batch size is captured before serving, unless
    `graphs` is False. `dtype` ("float16", "bfloat16") is what it computes in; numbers come back as float32. `compile`
    has torch write kernels for this network, which takes minutes the first time; they are kept on disk. On a processor
    it is done for the batch sizes that are run before serving, and for no other. With
    `longest` the second axis of its inputs is a length, up to this: on a GPU texts are padded with zeros to the next of
    a few lengths, and outputs cut back.
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
        channels_last: bool | None = None,
        dtype: str | None = None,
        compile: bool | None = None,
        graphs: bool = True,
        longest: int | None = None,
        threads: int | None = None,
    ) -> None:
        place = current_place()
        self._on = _device(place.device or device)
        self.device = self._on.name if self._on is not None else "cpu"
        where = self._on.place if self._on is not None else library.device("cpu")
        if self._on is None:
            _keep_memory()
        # One setting for the whole process; threads started later follow it.
        library.set_num_threads(threads or place.threads)
        if isinstance(source, str | Path):
            if weights is not None:
                raise SetupError("tb.torch(path, weights=...): a file brings its weights; give a function instead")
            path = place.file(source)
            self.label, opened = path.name, open_file(path, where)
        else:
            self.label, opened = _made(source, where, place.folder / weights if weights is not None else None)
        self._opened = opened
        self.choices = choices(opened.call, self.device, dtype, channels_last, compile)
        self.mode = place.mode if place.mode != OWN else ""
        words = self.mode.split("+")
        dtype = dtype or next((word for word in words if word in DTYPES), None)
        channels_last = True if channels_last is None and CHANNELS_LAST in words else channels_last
        compile = COMPILE in words if compile is None else compile
        self._dtype = _dtype(dtype)
        if channels_last is None:  # what GPUs compute convolutions of half precision in
            channels_last = self._on is not None and self._dtype is not None
        self._layout = library.channels_last if channels_last else library.contiguous_format
        if isinstance(opened.call, library.nn.Module):
            if self._dtype is not None:
                opened.call.to(self._dtype)
            if channels_last:
                opened.call.to(memory_format=library.channels_last)
        self._compiled = compiled(opened.call) if compile else None
        self._is_warming = False
        self._ready: set[Any] = set()
        """Batches that kernels were compiled for on this processor, by their shapes."""
        self._is_captured = graphs
        self._longest = longest
        self._networks: Networks | None = None
        self._place = 0
        if self._on is not None:
            place.on_device.append(self)
            self._networks = Networks(
                self._on,
                [(self._forward, self._forward_as_it_is)],
                [self.label],
                limit=opened.max_batch,
                longest=longest,
                is_captured=graphs,
                is_compiled=bool(compile),
            )
        given = [inputs] if isinstance(inputs, str) else inputs
        self.inputs: Sequence[TensorSpec] = opened.inputs if given is None else [parse_spec(text) for text in given]
        self.outputs: Sequence[TensorSpec] = opened.outputs or (TensorSpec("output", "", ()),)
        self.max_batch = opened.max_batch

    def __call__(self, batch: Any) -> Any:
        """Run a batch: an array, or a dict or tuple of arrays; arrays come back in the network's own form."""
        arrays = self.arrays(batch)
        try:
            if self._networks is not None:
                return self._networks.outputs(arrays, self._place)
            # A copy, always: a network may write into its input (`x.div_(2)`), and others of an ensemble read the same
            # one. Besides, torch warns about arrays that it could not write to, and takes no negative strides.
            tensors = {key: library.from_numpy(array.copy()) for key, array in arrays.items()}
            forward = self._forward if self._has_kernels(arrays) else self._forward_as_it_is
            with library.inference_mode():
                output = forward(tensors)
        except RuntimeError as error:
            if self.inputs:
                raise
            # Nothing was known to check before, and torch speaks of its insides: say what came in.
            came = ", ".join(f"{array.dtype}{list(array.shape)}" for array in arrays.values())
            reason = str(error).strip().splitlines()[-1]
            raise ValueError(f"{self.label} failed on a batch of {came}: {reason}") from error
        return alike(output, lambda tensor: tensor.numpy())

    def arrays(self, batch: Any) -> dict[int | str, Any]:
        """A batch's arrays, checked, by their place or name among the network's arguments."""
        if self.inputs:
            given = feed(self.label, self.inputs, batch)
            keywords = self._opened.keywords
            in_place = [name for name in given if name not in keywords]
            arrays: dict[int | str, Any] = {place: given[name] for place, name in enumerate(in_place)}
            arrays.update({name: value for name, value in given.items() if name in keywords})
        elif isinstance(batch, Mapping):
            arrays = dict(batch)
        else:
            arrays = dict(enumerate(batch if isinstance(batch, tuple) else (batch,)))
        for value in arrays.values():
            if not isinstance(value, np.ndarray) or value.dtype.kind in "USO":
                what = "texts" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
                raise ValueError(
                    f"{self.label} takes arrays of numbers, but got {what}: "
                    "its items have different shapes, or prepare() does not return arrays"
                )
        return arrays

    @property
    def program(self) -> Any:
        """What an exporter takes: the module, script or exported program."""
        return self._opened.program

    def warm_sizes(self, max_batch: int) -> list[int]:
        """Batch sizes to run once before serving: torch sets itself up for each shape that it meets."""
        if self._networks is not None:
            return []
        return [size for size in _WARM_SIZES if size <= min(max_batch, self.max_batch or max_batch)]

    def _has_kernels(self, arrays: Mapping[int | str, Any]) -> bool:
        """Whether there are, or may be, kernels for a batch like this: while requests wait none are compiled."""
        if self._compiled is None:
            return False
        shapes = tuple((key, array.dtype.str, array.shape) for key, array in arrays.items())
        if self._is_warming:
            self._ready.add(shapes)
        return shapes in self._ready

    @contextmanager
    def warming(self) -> Iterator[None]:
        self._is_warming = True
        try:
            yield
        finally:
            self._is_warming = False

    @property
    def batch_sizes(self) -> Sequence[int]:  # type: ignore[override]
        """What is captured on its device; any on a processor, or before it is known."""
        form = self._networks.form if self._networks is not None else None
        return form.ladder if form is not None else ()

    def member_seconds(self) -> list[list[float]]:
        form = self._networks.form if self._networks is not None else None
        return [[seconds[size] for size in form.ladder] for seconds in form.seconds] if form is not None else []

    def seconds_by_length(self) -> list[tuple[float, list[list[float]]]]:
        return self._networks.seconds_by_length() if self._networks is not None else []

    def notes(self) -> list[str]:
        return list(self._networks.notes) if self._networks is not None else []

    def captured(self) -> str:
        return self._networks.captured() if self._networks is not None else ""

    def join(self, members: Sequence[TorchBackend], mix: Mix) -> Networks | None:
        """These as members of an ensemble that take their rows once, if they take the same; None if they do not."""
        if self._on is None or any(member._takes() != self._takes() for member in members):
            return None
        labels = [member.label for member in members]
        calls = [(member._forward, member._forward_as_it_is) for member in members]
        limits = [member.max_batch for member in members if member.max_batch is not None]
        joined = Networks(
            self._on,
            calls,
            labels,
            mix,
            limit=min(limits, default=None),
            longest=self._longest,
            is_captured=self._is_captured,
            is_compiled=self._compiled is not None,
        )
        for place, member in enumerate(members):
            member._networks, member._place = joined, place
        return joined

    def _takes(self) -> Any:
        names = [spec.name for spec in self.inputs]
        return self.device, self._is_captured, self._compiled is None, self._longest, names, self._opened.keywords

    def _forward(self, tensors: Mapping[int | str, Tensor]) -> Any:
        """From tensors where the network is to tensors, compiled if it is to be."""
        return self._run(self._opened.call if self._compiled is None else self._compiled, tensors)

    def _forward_as_it_is(self, tensors: Mapping[int | str, Tensor]) -> Any:
        """The same, and nothing is compiled for it."""
        return self._run(self._opened.call, tensors)

    def _run(self, call: Callable[..., Any], tensors: Mapping[int | str, Tensor]) -> Any:
        """What is in half precision comes out as float32."""
        arguments = [self._fitting(tensors[key]) for key in tensors if isinstance(key, int)]
        by_name = {key: self._fitting(tensors[key]) for key in tensors if isinstance(key, str)}
        return alike(call(*arguments, **by_name), self._plain)

    def _fitting(self, tensor: Tensor) -> Tensor:
        if self._dtype is not None and tensor.is_floating_point():
            tensor = tensor.to(self._dtype)
        is_picture = tensor.dim() == 4 and tensor.is_floating_point()
        return tensor.contiguous(memory_format=self._layout) if is_picture else tensor

    def _plain(self, output: Any) -> Tensor:
        if not isinstance(output, library.Tensor):
            raise ValueError(f"{self.label} gave a {type(output).__name__}; a network must give tensors")
        is_half = output.dtype is library.bfloat16 or (self._dtype is not None and output.dtype is library.float16)
        return output.float() if is_half else output


def choices(call: Any, device: str, dtype: str | None, channels_last: bool | None, compile: bool | None) -> list[str]:
    """What `timebound tune` may try of a network: what its class does not say, the plainest first."""
    is_net = isinstance(call, library.nn.Module)
    has_pictures = is_net and any(each.dim() == 4 for each in call.parameters())
    halves = ["bfloat16"] if device == "cpu" else ["float16", "bfloat16"]
    found = [OWN]
    if channels_last is None and has_pictures:
        found.append(CHANNELS_LAST)
    if dtype is None and is_net:
        found += halves
        if CHANNELS_LAST in found and device == "cpu":  # on a GPU half precision brings it along
            found += [f"{half}+{CHANNELS_LAST}" for half in halves]
    if compile is None:
        found += [COMPILE if each == OWN else f"{each}+{COMPILE}" for each in found]
    return found if len(found) > 1 else []


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


def _device(name: str) -> Device | None:
    """Where to compute; None is this processor, as it always was."""
    if name == "auto":
        name = "cuda" if has_driver() and library.cuda.is_available() else "cpu"
    return open_device(name) if name != "cpu" else None


def _dtype(name: str | None) -> Any:
    if name is None:
        return None
    if name not in DTYPES:
        raise SetupError(f'tb.torch(dtype={name!r}) is unknown; use "float16", "bfloat16" or "float32"')
    return getattr(library, name)


def _made(source: Any, device: Any, weights: Path | None) -> tuple[str, Opened]:
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
