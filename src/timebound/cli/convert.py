"""`timebound convert`: a network to ONNX, and ONNX to something smaller, compared before it is kept."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from timebound.cli.verb import declare
from timebound.convert.convert import Job, convert, specs


def add_to(verbs: Any) -> None:
    """Declare the verb and its flags."""
    parser = declare(
        verbs,
        "convert",
        "turn a network of torch or Keras into ONNX, or ONNX into int8 or fp16",
        "Convert a network and print what it gains and loses: size, speed, agreement, accuracy.",
    )
    add = parser.add_argument
    source = "an .onnx, .pt2, .pt, .keras or .h5 file, or net.py:make for a function that makes the network"
    add("source", metavar="IN", help=source)
    add("out", metavar="OUT", type=Path, help="the .onnx file to write")
    spec = 'name, type and shape of an input, such as "x: float32[any, 3, 224, 224]"; may be repeated'
    add("--input", action="append", metavar="SPEC", help=spec)
    weights = "file with the weights (a state_dict) for the network that net.py:make makes"
    add("--weights", type=Path, metavar="FILE", help=weights)
    samples = "inputs to compare the files on: an .npz file, or a folder of .npy files"
    add("--samples", type=Path, metavar="PATH", help=samples)
    calibrate = "inputs to calibrate --int8 on, in place of --samples: an .npz file, or a folder of .npy files"
    add("--calibrate", type=Path, metavar="PATH", help=calibrate)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--int8", action="store_true", help="make the file smaller with eight-bit whole numbers")
    form.add_argument("--fp16", action="store_true", help="make the file smaller with half-precision numbers")
    difference = "largest difference an export may show, each output relative to its largest number (default: 0.001)"
    add("--tolerance", type=float, default=1e-3, metavar="VALUE", help=difference)
    share = (
        "minimum share of samples that the new file must answer as before. For an int8 or fp16 file without classes "
        "to choose from: 1 minus the largest difference allowed, relative to the largest number of that output "
        "(default: 0.9)"
    )
    add("--agreement", type=float, default=0.9, metavar="SHARE", help=share)
    add("--debug", action="store_true", help="show tracebacks")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """Convert, and print the table."""
    same = ("source", "out", "weights", "samples", "calibrate", "tolerance", "agreement")
    job = Job(
        **{name: getattr(chosen, name) for name in same},
        inputs=specs(chosen.input) if chosen.input else None,
        form="int8" if chosen.int8 else "fp16" if chosen.fp16 else "fp32",
    )
    print(convert(job, lambda step: print(f"{step} ...", file=sys.stderr, flush=True)))
    print(f"wrote {chosen.out}", file=sys.stderr)
    return 0
