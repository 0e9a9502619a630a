"""`timebound convert`: a network to ONNX, and ONNX to something smaller, compared before it is kept."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

_EXAMPLES = """\
examples:
  timebound convert net.pt2 net.onnx                                torch.export to ONNX
  timebound convert net.pt net.onnx --input "x: float32[any, 3, 224, 224]"
  timebound convert net.py:make net.onnx --weights net.pth --samples val.npz
  timebound convert net.onnx small.onnx --int8 --samples val.npz --calibrate train.npz
  timebound convert net.onnx small.onnx --int8                      without samples: weights only
  timebound convert net.onnx half.onnx --fp16                       half the size

Samples are an .npz with one array per input, items first (numpy.savez("val.npz", x=..., labels=...)), or a folder
of .npy files with one item each. With labels the accuracy is shown. Without samples random numbers are used: enough
to check an export, not to judge a smaller file. Nothing is written unless the result passes.
"""


def add_to(verbs: Any) -> None:
    """Declare the verb and its flags."""
    parser = verbs.add_parser(
        "convert",
        help="turn a torch network into ONNX, or ONNX into int8 or fp16",
        description="Convert a network and print what it gains and loses: size, speed, agreement, accuracy.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "source", metavar="IN", help="an .onnx, .pt2 or .pt file, or net.py:make for a function that makes the network"
    )
    parser.add_argument("out", metavar="OUT", type=Path, help="the .onnx file to write")
    parser.add_argument(
        "--input",
        action="append",
        metavar="SPEC",
        help='name, type and shape of an input, such as "x: float32[any, 3, 224, 224]"; may be repeated',
    )
    parser.add_argument(
        "--weights",
        type=Path,
        metavar="FILE",
        help="file with the weights (a state_dict) for the network that net.py:make makes",
    )
    parser.add_argument(
        "--samples",
        type=Path,
        metavar="PATH",
        help="inputs to compare the files on: an .npz file, or a folder of .npy files",
    )
    parser.add_argument(
        "--calibrate",
        type=Path,
        metavar="PATH",
        help="inputs to calibrate --int8 on, in place of --samples: an .npz file, or a folder of .npy files",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--int8", action="store_true", help="make the file smaller with eight-bit whole numbers")
    form.add_argument("--fp16", action="store_true", help="make the file smaller with half-precision numbers")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=1e-3,
        metavar="VALUE",
        help="largest difference an export may show, each output relative to its largest number (default: 0.001)",
    )
    parser.add_argument(
        "--agreement",
        type=float,
        default=0.9,
        metavar="SHARE",
        help="least share of samples that the new file must answer as before. For an int8 or fp16 file without classes "
        "to choose from: 1 minus the largest difference allowed, relative to the largest number of that output "
        "(default: 0.9)",
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """Convert, and print the table."""
    # Imported late: --help answers without numpy and onnxruntime.
    from timebound.convert.convert import Job, convert, specs

    job = Job(
        source=chosen.source,
        out=chosen.out,
        inputs=specs(chosen.input) if chosen.input else None,
        weights=chosen.weights,
        samples=chosen.samples,
        calibrate=chosen.calibrate,
        form="int8" if chosen.int8 else "fp16" if chosen.fp16 else "fp32",
        tolerance=chosen.tolerance,
        agreement=chosen.agreement,
    )
    print(convert(job, lambda step: print(f"{step} ...", file=sys.stderr, flush=True)))
    print(f"wrote {chosen.out}", file=sys.stderr)
    return 0
