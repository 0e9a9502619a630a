"""Writes the pictures that the page offers to try: glyphs of two faces under the SIL Open Font License.

    python examples/handwriting/samples.py --data DATA

The first are clean, the others crops of drawn forms.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from examples.handwriting.forms import draw_form

SAMPLES = Path(__file__).resolve().parents[2] / "src" / "timebound" / "demo" / "samples.json"
SHOWN = (("zen-kurenaido-400", "勇玉山銀行富貴"), ("iansui-400", "誠信你我"))
"""The first face was kept out of training. The last two characters are none of the 800."""
ON_FORMS = "林陳張李蔡楊他"
"""In the first face, each among the others; the last is none of the 800."""


def picture(ink: Any) -> str:
    """A glyph as a PNG of 128 x 128 in four greys, black on white, in base64."""
    sheet = Image.fromarray(ink).resize((128, 128), Image.Resampling.BICUBIC)
    tone = (255 - np.asarray(sheet)).astype(np.uint16) // 64 * 85
    buffer = io.BytesIO()
    Image.fromarray(tone.astype(np.uint8)).quantize(4).save(buffer, "PNG", optimize=True, bits=2)
    return base64.b64encode(buffer.getvalue()).decode()


def on_sheet(ink: Any) -> Any:
    """A glyph as the drawing of forms takes it: 64 x 64, filled to 0.86."""
    rows, columns = (np.flatnonzero((ink > 80).any(axis=axis)) for axis in (1, 0))
    half = (max(rows[-1] - rows[0], columns[-1] - columns[0]) + 1) / 0.86 / 2
    x, y = (columns[0] + columns[-1] + 1) / 2, (rows[0] + rows[-1] + 1) / 2
    wide = Image.fromarray(np.pad(ink, 48))
    box = (48 + x - half, 48 + y - half, 48 + x + half, 48 + y + half)
    return np.asarray(wide.resize((64, 64), Image.Resampling.BICUBIC, box=box))


class Glyphs:
    """The glyphs of a file, by face and character."""

    def __init__(self, path: Path) -> None:
        file = np.load(path)
        self._chars, self._sources = list(file["chars"]), list(file["sources"])
        self._places = list(zip(file["label"].tolist(), file["source"].tolist(), strict=True))
        self._packed = file["packed"]

    def ink(self, face: str, char: str) -> Any:
        """One glyph, 48 x 48, ink bright."""
        row = self._packed[self._places.index((self._chars.index(char), self._sources.index(face)))]
        return np.stack([row >> 4, row & 15], -1).reshape(48, 48) * np.uint8(17)


def main() -> None:
    """One entry per character: `title` and `image`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with glyphs48.npz")
    data = parser.parse_args().data
    if not (data / "glyphs48.npz").is_file():
        parser.error(f"{data} has no glyphs48.npz; README.md says where it comes from")
    glyphs = Glyphs(data / "glyphs48.npz")
    entries = [{"title": char, "image": picture(glyphs.ink(face, char))} for face, text in SHOWN for char in text]
    written = np.stack([on_sheet(glyphs.ink(SHOWN[0][0], char)) for char in ON_FORMS])
    for turn, char in enumerate(ON_FORMS):
        crop = draw_form(written[turn], np.roll(written, turn, 0)[1:5], turn)
        entries.append({"title": char, "image": base64.b64encode(crop.file).decode()})
    SAMPLES.write_text(json.dumps(entries, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {SAMPLES} ({SAMPLES.stat().st_size:,} bytes)")


if __name__ == "__main__":
    main()
