"""How long it takes to build the image of an app, and to build it again when the model or the code has changed."""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.tools.commandline import say
from benchmarks.tools.engine import Engine
from timebound import demo

# What is told of the two images of the contest system that Timebound grew from: the larger one and the smaller one.
CONTEST = {"rebuild_model_s": (31.0, 11.0), "rebuild_code_s": (31.0, 11.0), "image_mb": (5400.0, 2750.0)}
BUILT = tuple(f"localhost/handwriting:{number}" for number in (1, 2, 3))


def pack(target: Path, name: str, out: Path, wheel: Path | None = None) -> Path:
    """Write the folder of `timebound pack` for containers; the wheel of Timebound in it, built if none is given."""
    words = ["pack", str(target), "--name", name, "--out", str(out), "--only", "docker,compose"]
    words += ["--wheel", str(wheel)] if wheel is not None else []
    subprocess.run([sys.executable, "-m", "timebound", *words], check=True, stdout=subprocess.DEVNULL)
    return next((out / "wheels").glob("*.whl"))


def time_builds(engine: Engine, folder: Path) -> tuple[dict[str, float], Path]:
    """The handwriting model: its image from nothing, with another model, with other code; its size; and the wheel."""
    app, out = folder / "handwriting", folder / "packed"
    shutil.copytree(Path(demo.__file__).parent, app, ignore=shutil.ignore_patterns("__pycache__"))
    wheel = Path(shutil.copy(pack(app, "handwriting", out), folder))
    say("containers: the image of the handwriting model, from nothing")
    first_s = engine.build(out, BUILT[0], is_new=True)
    say("containers: with another model, with other code")
    with (app / "models/lite.onnx").open("ab") as file:
        file.write(b"\x0a\x00")
    pack(app, "handwriting", out, wheel)
    model_s = engine.build(out, BUILT[1])
    with (app / "app.py").open("a") as file:
        file.write("# changed\n")
    pack(app, "handwriting", out, wheel)
    code_s = engine.build(out, BUILT[2])
    figures = {
        "build_first_s": round(first_s, 2),
        "rebuild_model_s": round(model_s, 2),
        "rebuild_code_s": round(code_s, 2),
        "image_mb": round(engine.megabytes(BUILT[2]), 1),
    }
    return figures, wheel


def beside_the_contest(figures: Mapping[str, float]) -> str:
    """The same figures of the contest's images beside ours; nothing if no image was built."""
    if not CONTEST.keys() <= figures.keys():
        return ""
    rows = [f"{'':16} {'this image':>12} {'contest, larger':>18} {'smaller':>10}"]
    for name, (larger, smaller) in CONTEST.items():
        rows.append(f"{name:16} {figures[name]:>12,.1f} {larger:>18,.1f} {smaller:>10,.1f}")
    return "\n".join(rows) + "\n"
