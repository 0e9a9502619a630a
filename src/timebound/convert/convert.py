"""One conversion from start to end; the file appears whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from timebound.backends.base import Backend
from timebound.backends.onnx import OnnxBackend, onnx
from timebound.backends.signature import parse_spec
from timebound.convert import compare, samples, shrink
from timebound.convert.extras import check_extras
from timebound.convert.reason import told
from timebound.convert.source import check_exists, open_source
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
    _check_paths(job)
    check_extras(job.source)
    with _folder_beside(job.out) as folder:
        tell(f"opening {job.source}")
        net, given, calibration = _opened(job)
        tell(f"running the original on {len(given)} {'samples' if given.is_real else 'made-up samples'}")
        before = _original(job, net, given)
        made = net.path if isinstance(net, OnnxBackend) else folder / "plain.onnx"
        if not isinstance(net, OnnxBackend):
            from timebound.convert.export import write_onnx  # converting ONNX files needs no torch

            tell("exporting to ONNX")
            write_onnx(net, made, given)
            after = _measured(made, given)
            _check_export(job, compare.agreement(before, after), tell)
        if job.form != "fp32":
            made = _shrunk(job, made, folder / "small.onnx", calibration, tell)
            tell("comparing")
            after = _measured(made, given)
            _check_answers(job, compare.agreement(before, after), given)
        os.replace(made, job.out)
    return compare.table(before, after, len(given))


def _check_paths(job: Job) -> None:
    """What is wrong with IN and OUT, before any work is done."""
    if job.out.suffix != ".onnx":
        raise SetupError(f"{job.out} must end in .onnx, which is what conversions write")
    if not job.out.parent.is_dir():
        raise SetupError(f"the folder {job.out.parent} does not exist; make it first")
    if job.out.is_dir():
        raise SetupError(f"{job.out} is a folder; give the name of a file to write")
    check_exists(job.source)
    if job.out.exists() and Path(job.source).exists() and job.out.samefile(job.source):
        raise SetupError(f"{job.out} is the file to be converted itself; give another name to write")
    if job.form == "fp32" and job.source.endswith(".onnx"):
        raise SetupError(f"{job.source} is ONNX already; say --int8 or --fp16 to make it smaller")


@contextmanager
def _folder_beside(out: Path) -> Iterator[Path]:
    """A folder beside the target, so that the last step is a rename within one file system."""
    try:
        made = tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.")
    except OSError as error:
        raise SetupError(f"nothing can be written into {out.parent}: {error.strerror}; choose another folder") from None
    with made as folder:
        yield Path(folder)


def _opened(job: Job) -> tuple[Backend, samples.Samples, samples.Samples]:
    """The network, samples to compare with, and samples to calibrate on."""
    given = samples.read_samples(job.samples) if job.samples is not None else None
    net = open_source(job.source, inputs=job.inputs, weights=job.weights)
    if not net.inputs and given is not None:
        net.inputs = samples.specs_of(given)
    _check_inputs(job, net)
    if given is None or job.samples is None:
        fitting = samples.made_up(net.inputs)
    else:
        fitting = samples.named_as(given, net.inputs, job.samples)
    if job.calibrate is None:
        return net, fitting, fitting
    return net, fitting, samples.named_as(samples.read_samples(job.calibrate), net.inputs, job.calibrate)


def _check_inputs(job: Job, net: Backend) -> None:
    if not net.inputs:
        raise SetupError(
            f"{job.source} does not say what it takes; "
            'add --input "x: float32[any, 3, 224, 224]", or --samples FILE.npz'
        )
    if isinstance(net, OnnxBackend) and net.fixed_batch not in (None, 1):
        raise SetupError(f"{job.source} was exported for batches of {net.fixed_batch}; export it with a dynamic one")
    for spec in net.inputs:
        if any(size is not None and size < 1 for size in spec.shape):
            raise SetupError(f'{spec} has a size below 1; write "any" for a size that is free')


def _original(job: Job, net: Backend, given: samples.Samples) -> compare.Measure:
    with told(f"{job.source} fails on the samples: %s; check --input and --samples"):
        before = compare.measure(net, _size(net, job), given)
    if any(output.dtype.kind == "f" and np.isnan(output).any() for output in before.outputs):
        cure = "check them and the network" if given.is_real else "give real ones with --samples, or check the network"
        what = "samples" if given.is_real else "made-up samples"
        raise SetupError(f"{job.source} itself gives NaN on the {what}, so there is nothing to compare with; {cure}")
    return before


def _measured(path: Path, given: samples.Samples) -> compare.Measure:
    with told("the converted file does not run: %s; nothing was written"):
        return compare.measure(onnx(path, threads=1), path.stat().st_size, given)


def _check_export(job: Job, alike: list[compare.Agreement], tell: Callable[[str], None]) -> None:
    worst = compare.largest(alike)
    if not worst.relative <= job.tolerance:
        raise SetupError(
            f"the ONNX file differs from {job.source} by {worst.difference:.2g} (largest output {worst.scale:.2g}); "
            f"that is above --tolerance {job.tolerance:g}, so nothing was written"
        )
    # Scores around 1000 that choose by small differences are within the tolerance whatever they choose.
    near = min((each.near for each in alike if each.near is not None), default=1.0)
    if near < job.agreement:
        raise SetupError(
            f"the ONNX file gives the same answer as {job.source} on only {near:.1%} of the samples, "
            f"below --agreement {job.agreement:g}; nothing was written"
        )
    tell(f"checked against the original: largest difference {max(each.difference for each in alike):.2g}")


def _shrunk(job: Job, plain: Path, path: Path, given: samples.Samples, tell: Callable[[str], None]) -> Path:
    if job.form == "int8":
        shrink.write_int8(plain, path, given if given.is_real else None, tell)
    else:
        tell("converting to half precision")
        shrink.write_fp16(plain, path)
    return path


def _check_answers(job: Job, alike: list[compare.Agreement], given: samples.Samples) -> None:
    if any(each.difference == float("inf") for each in alike):
        raise SetupError(
            f"the {job.form} file answers in other shapes, or with NaN or infinity where the original gives numbers; "
            "nothing was written"
        )
    # Made-up samples lie anywhere, so that the smallest change turns answers; they prove nothing here.
    if not given.is_real:
        return
    same = min((each.same for each in alike if each.same is not None), default=1.0)
    if same < job.agreement:
        raise SetupError(
            f"the {job.form} file gives the same answer on only {same:.1%} of the samples, below --agreement "
            f"{job.agreement:g}; nothing was written. More or better samples may help, or --fp16"
        )
    worst = compare.largest([each for each in alike if each.same is None] or [compare.Agreement(0.0, 0.0, None)])
    if worst.relative > 1 - job.agreement:
        raise SetupError(
            f"the {job.form} file differs by {worst.difference:.3g} (largest output {worst.scale:.3g}); that share is "
            f"above {1 - job.agreement:.3g}, which is 1 less --agreement {job.agreement:g}, so nothing was written"
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
