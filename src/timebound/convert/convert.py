"""One conversion from start to end; the file appears whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from timebound.backends.base import Backend
from timebound.backends.onnx import OnnxBackend, onnx
from timebound.backends.signature import parse_spec
from timebound.convert import compare, samples, shrink
from timebound.convert.source import open_source
from timebound.errors import SetupError


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What to convert, into what, and how far the result may stray."""

    source: str
    out: Path
    inputs: list[str] | None = None
    weights: Path | None = None
    samples: Path | None = None
    calibrate: Path | None = None
    """Other samples to calibrate on; the same ones if not given."""
    form: str = "fp32"
    """fp32, fp16 or int8."""
    tolerance: float = 1e-3
    agreement: float = 0.9


def convert(job: Job, tell: Callable[[str], None]) -> str:
    """Do the job and return the table of before and after; raises `SetupError`, and then there is no file."""
    if job.out.suffix != ".onnx":
        raise SetupError(f"{job.out} must end in .onnx, which is what conversions write")
    if not job.out.parent.is_dir():
        raise SetupError(f"the folder {job.out.parent} does not exist; make it first")
    if job.form == "fp32" and job.source.endswith(".onnx"):
        raise SetupError(f"{job.source} is ONNX already; say --int8 or --fp16 to make it smaller")
    tell(f"opening {job.source}")
    net, given = _opened(job)
    tell(f"running the original on {len(given)} {'samples' if given.is_real else 'made-up samples'}")
    try:
        before = compare.measure(net, _size(net, job), given)
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise SetupError(f"{job.source} fails on the samples: {reason}; check --input and --samples") from error
    # Beside the target, so that the last step is a rename within one file system.
    with tempfile.TemporaryDirectory(dir=job.out.parent, prefix=f".{job.out.name}.") as folder:
        made = net.path if isinstance(net, OnnxBackend) else Path(folder) / "plain.onnx"
        if not isinstance(net, OnnxBackend):
            _export(net, made, given, tell)
            after = compare.measure(onnx(made, threads=1), made.stat().st_size, given)
            _check_export(job, compare.agreement(before, after), tell)
        if job.form != "fp32":
            made = _shrunk(job, made, Path(folder) / "small.onnx", given, tell)
            tell("comparing")
            after = compare.measure(onnx(made, threads=1), made.stat().st_size, given)
            _check_answers(job, compare.agreement(before, after), given)
        os.replace(made, job.out)
    return compare.table(before, after, len(given))


def _opened(job: Job) -> tuple[Backend, samples.Samples]:
    given = samples.read_samples(job.samples) if job.samples is not None else None
    net = open_source(job.source, inputs=job.inputs, weights=job.weights)
    if not net.inputs and given is not None:
        net.inputs = samples.specs_of(given)
    if not net.inputs:
        raise SetupError(
            f"{job.source} does not say what it takes; "
            'add --input "x: float32[any, 3, 224, 224]", or --samples FILE.npz'
        )
    if isinstance(net, OnnxBackend) and net.fixed_batch not in (None, 1):
        raise SetupError(f"{job.source} was exported for batches of {net.fixed_batch}; export it with a dynamic one")
    if given is None:
        return net, samples.made_up(net.inputs)
    return net, samples.named_as(given, net.inputs)


def _export(net: Backend, path: Path, given: samples.Samples, tell: Callable[[str], None]) -> None:
    from timebound.backends.torch import TorchBackend
    from timebound.convert.export import write_onnx

    assert isinstance(net, TorchBackend)
    tell("exporting to ONNX")
    write_onnx(net, path, given)


def _check_export(job: Job, alike: compare.Agreement, tell: Callable[[str], None]) -> None:
    if not alike.relative <= job.tolerance:
        raise SetupError(
            f"the ONNX file differs from {job.source} by {alike.difference:.2g} (largest output {alike.scale:.2g}); "
            f"that is above --tolerance {job.tolerance:g}, so nothing was written"
        )
    tell(f"checked against the original: largest difference {alike.difference:.2g}")


def _shrunk(job: Job, plain: Path, path: Path, given: samples.Samples, tell: Callable[[str], None]) -> Path:
    if job.form == "int8":
        if job.calibrate is not None:
            given = samples.named_as(samples.read_samples(job.calibrate), onnx(plain).inputs)
        shrink.write_int8(plain, path, given if given.is_real else None, tell)
    else:
        tell("converting to half precision")
        shrink.write_fp16(plain, path)
    return path


def _check_answers(job: Job, alike: compare.Agreement, given: samples.Samples) -> None:
    if alike.difference == float("inf"):
        raise SetupError(f"the {job.form} file answers in other shapes or with NaN; nothing was written")
    # Made-up samples lie anywhere, so that the smallest change turns answers; they prove nothing here.
    if given.is_real and alike.same is not None and alike.same < job.agreement:
        raise SetupError(
            f"the {job.form} file gives the same answer on only {alike.same:.1%} of the samples, below --agreement "
            f"{job.agreement:g}; nothing was written. More or better samples may help, or --fp16"
        )


def _size(net: Backend, job: Job) -> int:
    """Bytes on disk, or of the weights where there is no file."""
    if ".py:" not in job.source:
        return Path(job.source).stat().st_size
    program = getattr(net, "program", None)
    return sum(tensor.numel() * tensor.element_size() for tensor in program.state_dict().values()) if program else 0


def specs(texts: list[str]) -> list[str]:
    """The inputs as given, checked."""
    for text in texts:
        parse_spec(text)
    return texts
