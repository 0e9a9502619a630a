"""A small app and what is packed of it. `python -m tests.pack.small` renews the golden files."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from pathlib import Path

from timebound.config import Config, resolve
from timebound.pack.facts import Facts, Wish
from timebound.pack.kinds import KINDS
from timebound.pack.pack import learn, written
from timebound.scaffold.scaffold import write_application

GOLDEN = Path(__file__).parent / "golden"


def app(folder: Path) -> Path:
    """The app that `timebound new hello --template onnx` writes, below `folder`."""
    write_application(folder / "hello", "onnx")
    return folder / "hello"


def wheel(folder: Path) -> Path:
    """A file that passes for a wheel of Timebound until it is installed."""
    file = folder / "timebound-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo("timebound/version.py"), 'VERSION = "0.1.0"\n')
    return file


def config(target: Path, **flags: object) -> Config:
    """The app's options, with these flags."""
    return resolve(flags, {}, target if target.is_dir() else target.parent)


def known(folder: Path, **flags: object) -> Facts:
    """What there is to know about that app, packed into `folder`/deploy."""
    target = app(folder)
    wish = Wish(python="3.12", again="".join(f" --{name}={value}" for name, value in flags.items()))
    return learn(target, folder / "deploy", config(target, **flags), wish, wheel=wheel(folder))


def texts(folder: Path, *kinds: str, **flags: object) -> dict[str, str]:
    """The files of these kinds, or of all."""
    return written(known(folder, **flags), kinds or list(KINDS))


def main() -> None:
    """Write the golden files anew."""
    with tempfile.TemporaryDirectory() as folder:
        files = texts(Path(folder), deadline="250ms")
        shutil.rmtree(GOLDEN, ignore_errors=True)
        for name, text in files.items():
            file = GOLDEN / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)


if __name__ == "__main__":
    main()
