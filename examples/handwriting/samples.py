"""Writes the pictures that the page offers to try: glyphs of two faces under the SIL Open Font License.

python examples/handwriting/samples.py --data DATA
"""

from __future__ import annotations

import argparse
import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SAMPLES = Path(__file__).resolve().parents[2] / "src" / "timebound" / "demo" / "samples.json"
SHOWN = (("zen-kurenaido-400", "勇玉山銀行富貴"), ("iansui-400", "誠信你我"))
"""The first face was kept out of training. The last two characters are none of the 800."""


def picture(ink: Any) -> str:
    """A glyph as a PNG of 128 x 128 in four greys, black on white, in base64."""
    sheet = Image.fromarray(ink).resize((128, 128), Image.Resampling.BICUBIC)
    tone = (255 - np.asarray(sheet)).astype(np.uint16) // 64 * 85
    buffer = io.BytesIO()
    Image.fromarray(tone.astype(np.uint8)).quantize(4).save(buffer, "PNG", optimize=True, bits=2)
    return base64.b64encode(buffer.getvalue()).decode()


def main() -> None:
    """One entry per character: `title` and `image`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with glyphs48.npz")
    data = parser.parse_args().data
    if not (data / "glyphs48.npz").is_file():
        parser.error(f"{data} has no glyphs48.npz; README.md says where it comes from")
    file = np.load(data / "glyphs48.npz")
    chars, sources, labels, faces = (list(file[name]) for name in ("chars", "sources", "label", "source"))
    packed = file["packed"]
    entries = []
    for face, text in SHOWN:
        for char in text:
            wanted = (chars.index(char), sources.index(face))
            row = packed[list(zip(labels, faces, strict=True)).index(wanted)]
            ink = np.stack([row >> 4, row & 15], -1).reshape(48, 48) * np.uint8(17)
            entries.append({"title": char, "image": picture(ink)})
    SAMPLES.write_text(json.dumps(entries, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {SAMPLES} ({SAMPLES.stat().st_size:,} bytes)")


if __name__ == "__main__":
    main()
