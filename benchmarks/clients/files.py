"""What the clients ask: a network that doubles numbers, and one that says texts again."""

from pathlib import Path

from tests.models.onnx_files import STRING, save_doubler, save_echo


def served_files(folder: Path) -> Path:
    """A folder with the models `twice` and `words`."""
    save_doubler(folder / "twice" / "1" / "model.onnx")
    save_echo(folder / "words" / "1" / "model.onnx", STRING, ("n", 1))
    return folder
