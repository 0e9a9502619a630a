"""How well the served files read what they were not trained on: two font faces, one pen, two people.

    python examples/handwriting/evaluate.py --data DATA [--models FOLDER]
    python examples/handwriting/evaluate.py --data DATA --forms           20,000 drawn crops of forms instead, twice
    python examples/handwriting/evaluate.py --data DATA --threshold       what `isnull` at which share would give
    python examples/handwriting/evaluate.py --data DATA --forms --count 1000    fewer, to see that it works

Every picture takes the way of a request: the app's own `read_picture`, then the ONNX files.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from PIL import Image, ImageDraw

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from examples.handwriting.folders import folder_with

from timebound.demo.app import CLEAN_NONE, FILES, FORM_NONE, LABELS
from timebound.demo.picture import is_clean, read_picture

MODELS = Path(__file__).resolve().parents[2] / "src" / "timebound" / "demo" / "models"
MEMBERS = [Path(file).name for file in FILES]
WRITERS = "real_two_writers.npz"
FACES = ("zen-kurenaido-400", "kiloji")
ISNULL = len(LABELS) - 1


class Test(NamedTuple):
    """Pictures that no training saw: ink 0..1 as the networks take it, and the right outputs."""

    name: str
    ink: Any
    labels: Any
    clean: Any
    """Which of them the app takes for clean pictures, and not for crops of forms."""


def tests(data: Path, *, untidy: bool, writers: bool) -> Iterator[Test]:
    """All tests, as they are asked for."""
    file = np.load(data / "glyphs48.npz")
    for face in FACES:
        rows = file["source"] == list(file["sources"]).index(face)
        packed = file["packed"][rows]
        pictures = np.stack([packed >> 4, packed & 15], -1).reshape(len(packed), 48, 48) * np.uint8(17)
        yield _test(f"face {face}", pictures, file["chars"][file["label"][rows]])
    strokes = dict(np.load(data / "strokes_pen_tomoe.npz"))  # read once, not at every mention
    known = [place for place, char in enumerate(strokes["chars"]) if char in LABELS]
    others = [place for place, char in enumerate(strokes["chars"]) if char not in LABELS][::6]
    which = known + others
    yield _test("pen tomoe", [_drawn(strokes, place) for place in which], strokes["chars"][which])
    if untidy:
        for how, seed in (("shaky", 11), ("flowing", 12)):
            test = _untidy(data, how, seed)
            yield test
            yield _small(test)
    if writers:
        yield from _writers(data)


def _writers(data: Path) -> Iterator[Test]:
    real = np.load(data / WRITERS)
    for writer in (0, 1):
        rows = real["writer"] == writer
        yield _test(f"writer {writer + 1}", real["images"][rows], real["chars"][rows])


def _test(name: str, pictures: Any, chars: Any) -> Test:
    places = {char: place for place, char in enumerate(LABELS)}
    labels = np.array([places.get(str(char), ISNULL) for char in chars])
    ink = np.stack([read_picture(picture) for picture in pictures])[:, None]
    return Test(name, ink, labels, np.array([is_clean(picture) for picture in pictures]))


def _drawn(strokes: Any, place: int) -> Any:
    """One character drawn with a pen of constant width."""
    sheet = Image.new("L", (256, 256))
    pen = ImageDraw.Draw(sheet)
    first, last = strokes["char_start"][place : place + 2]
    for stroke in range(first, last):
        low, high = strokes["stroke_start"][stroke : stroke + 2]
        line = [(float(x) * 0.22 + 16, float(y) * 0.22 + 16) for x, y in strokes["points"][low:high]]
        pen.line(line if len(line) > 1 else line * 2, fill=255, width=7, joint="curve")
    return np.asarray(sheet)


def _untidy(data: Path, how: str, seed: int, rare: slice | None = None) -> Test:
    """The frequent characters in an untidy hand, as training draws other strokes; or some of the rare ones."""
    # Imported here: nothing else in this file needs torch.
    import torch
    from examples.handwriting.strokes import HAND, draw, read_strokes

    hand = HAND._replace(flow=(0.0, 0.4)) if how == "flowing" else HAND
    torch.manual_seed(seed)
    strokes = read_strokes(str(data / "strokes_pen_tomoe.npz"), "cpu")
    frequent = set(np.load(data / "glyphs48.npz")["chars"])
    places = [place for place, char in enumerate(strokes.chars) if (char in frequent) == (rare is None)]
    if rare is not None:
        places = places[rare]
    pictures = draw(strokes, torch.tensor(places), hand, chunk=16).numpy()
    name = f"pen tomoe, {how}{'' if rare is None else ', rare'} ({seed})"
    return _test(name, pictures, [strokes.chars[place] for place in places])


def _small(test: Test) -> Test:
    """The same as a coarse scan has it: some 33 pixels of ink on a sheet of 64."""
    sheets = []
    for ink in test.ink[:, 0]:
        sheet = Image.new("L", (64, 64))
        sheet.paste(Image.fromarray((ink * 255).astype(np.uint8)).resize((38, 38), Image.Resampling.HAMMING), (13, 13))
        sheets.append(read_picture(np.asarray(sheet)))
    return test._replace(name=test.name + ", small", ink=np.stack(sheets)[:, None])


def _bent(data: Path, seed: int) -> Test:
    """The faces kept back, bent four times as training bends pictures once."""
    import torch
    from examples.handwriting.data import read_glyphs
    from examples.handwriting.paper import centred, slant, to_ink

    torch.manual_seed(seed)
    _, (pictures, labels) = read_glyphs(data / "glyphs48.npz", torch.device("cpu"))
    ink = to_ink(pictures)
    for _ in range(4):
        ink = centred(slant(ink))
    return Test(f"both faces, bent ({seed})", ink.numpy(), labels.clamp(max=ISNULL).numpy(), np.ones(len(ink), bool))


def tests_to_choose_by(data: Path) -> Iterator[Test]:
    """What weights are chosen by: other drawings by the untidy hands, and bent glyphs."""
    for how, seeds in (("shaky", (21, 22, 31, 32, 33, 34)), ("flowing", (41, 42, 43, 44))):
        for place, seed in enumerate(seeds):
            yield from _plain_and_spoilt(_untidy(data, how, seed), seed)
            yield from _plain_and_spoilt(_untidy(data, how, seed, slice(place, None, 20)), seed)
    for seed in (51, 52):
        yield from _plain_and_spoilt(_bent(data, seed), seed + 10)  # or it would be bent the same way once more


def _plain_and_spoilt(test: Test, seed: int) -> Iterator[Test]:
    """The test as it is, then as training spoils pictures."""
    import torch
    from examples.handwriting.paper import spoil

    yield test
    torch.manual_seed(seed)
    yield test._replace(name=test.name + " and spoilt", ink=spoil(torch.tensor(test.ink)).numpy())


class Member:
    """One ONNX file on one core, as the server runs it."""

    def __init__(self, path: Path) -> None:
        self.name, self.bytes = path.stem, path.stat().st_size
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def __call__(self, ink: Any) -> Any:
        parts = np.array_split(ink, max(1, len(ink) // 64))
        return np.concatenate([self._session.run(None, {"pixels": part})[0] for part in parts])

    def median_ms(self, ink: Any) -> float:
        """One picture alone, the median of 200."""
        took = []
        for turn in range(220):
            one = ink[turn % len(ink)][None]
            began = time.perf_counter()
            self._session.run(None, {"pixels": one})
            took.append(time.perf_counter() - began)
        return float(np.median(took[20:])) * 1000


class Told(NamedTuple):
    """What each network, and several together, answered to a test."""

    name: str
    labels: Any
    answers: dict[str, Any]


def told(test: Test, members: list[Member]) -> Told:
    """Each member's answers, then those of the first two and of all three."""
    outputs = {member.name: member(test.ink) for member in members}
    first, second, third = outputs.values()
    outputs["two of three"] = (first + second) / 2
    outputs["all three"] = (first + second + third) / 3
    none = np.where(test.clean, CLEAN_NONE, FORM_NONE)
    return Told(test.name, test.labels, {name: said(rows, none) for name, rows in outputs.items()})


def said(rows: Any, none: Any) -> Any:
    """The answers to these outputs, by the rule that the served model has, with `isnull` above such a share."""
    return np.where(rows[:, ISNULL] > none, ISNULL, rows[:, :ISNULL].argmax(1))


def judge_forms(data: Path, members: list[Member], count: int) -> Test:
    """Crops of forms, with characters that training never saw: as most are, then with what some have besides."""
    from examples.handwriting.crops import KINDS, draw_crops, held_out  # needs torch

    piles = held_out(data, 61)
    for name, varied in (("forms", False), ("forms, varied", True)):
        crops = draw_crops(piles, 62, count, varied=varied)
        test = Test(name, crops.ink, crops.labels, crops.clean)
        answers = told(test, members)
        judge(answers)
        print(
            f"  prepared in {np.median(crops.took_s) * 1000:.2f} ms (median); {crops.clean.sum()} taken for clean ones"
        )
        for kind in range(1, len(KINDS)):
            rows = crops.kinds == kind
            if rows.any():
                right = (answers.answers["all three"] == test.labels)[rows]
                print(f"  {KINDS[kind]}: {right.mean():.2%} of {len(right)} right by all three")
    return test


def weigh_forms(data: Path, members: list[Member], count: int) -> None:
    """What other thresholds would give: on crops that are not those of `--forms`, and on both writers' scans."""
    from examples.handwriting.crops import draw_crops, held_out  # needs torch

    crops = draw_crops(held_out(data, 71), 72, count)
    weigh(Test("forms", crops.ink, crops.labels, crops.clean), members)
    if (data / WRITERS).is_file():
        for test in _writers(data):
            weigh(test, members)


def weigh(test: Test, members: list[Member]) -> None:
    """Prints what the three together would say at other thresholds."""
    rows = sum(member(test.ink) for member in members) / len(members)
    is_null = test.labels == ISNULL
    known = rows[~is_null]
    right = (known[:, :ISNULL].argmax(1) == test.labels[~is_null]).mean()
    print(f"\n{test.name}: {len(rows)} pictures, {int(is_null.sum())} of them isnull")
    print(f"the 800 read right if isnull were never said: {right:.2%}")
    print("threshold  800 called isnull  others called isnull  800 right  right of all")
    for none in (*np.arange(0.3, 0.95, 0.05), 0.95, 0.97, 0.98, 0.99):
        answers = said(rows, none)
        lost, found = (answers[~is_null] == ISNULL).mean(), (answers[is_null] == ISNULL).mean()
        right = answers == test.labels
        print(f"{none:9.2f} {lost:18.2%} {found:21.2%} {right[~is_null].mean():10.2%} {right.mean():13.2%}")


def together(name: str, parts: list[Told]) -> Told:
    """Several tests as one."""
    answers = {who: np.concatenate([part.answers[who] for part in parts]) for who in parts[0].answers}
    return Told(name, np.concatenate([part.labels for part in parts]), answers)


def judge(test: Told) -> None:
    """Prints one row per network: right of all and of the 800, those called isnull, right of what is none of them."""
    is_null = test.labels == ISNULL
    print(f"\n{test.name}: {len(test.labels)} pictures, {int(is_null.sum())} of them isnull")
    for name, answers in test.answers.items():
        right = answers == test.labels
        lost = (answers == ISNULL)[~is_null]
        parts = {"characters": right[~is_null], "called isnull": lost, "isnull": right[is_null]}
        shares = ", ".join(f"{what} {part.mean():7.2%}" for what, part in parts.items() if len(part))
        print(f"  {name:12} {right.mean():7.2%} right ({int((~right).sum())} wrong); {shares}")


def main() -> None:
    """Every test, then several taken together."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = folder_with("glyphs48.npz", "strokes_pen_tomoe.npz")
    parser.add_argument("--data", type=data, required=True, help="folder with glyphs48.npz and the other data")
    parser.add_argument(
        "--models", type=folder_with(*MEMBERS), default=MODELS, help="folder of ONNX files, as export.py writes it"
    )
    parser.add_argument("--untidy", action="store_true", help="four more tests, in untidy hands; needs torch, a minute")
    parser.add_argument("--no-writers", action="store_true", help="leave the two people's pictures alone")
    parser.add_argument("--choose", action="store_true", help="only the tests that weights are chosen by; needs torch")
    parser.add_argument("--forms", action="store_true", help="only drawn crops of forms; torch, ten minutes")
    parser.add_argument("--count", type=int, default=20_000, help="how many crops, of each sort")
    parser.add_argument("--threshold", action="store_true", help="only what other thresholds for isnull would give")
    chosen = parser.parse_args()
    if (chosen.forms or chosen.threshold or chosen.untidy or chosen.choose) and importlib.util.find_spec(
        "torch"
    ) is None:
        parser.error("torch, which draws these pictures, is not installed: pip install 'timebound[torch]'")
    only = chosen.choose or chosen.forms or chosen.threshold
    if not (only or chosen.no_writers or (chosen.data / WRITERS).is_file()):
        parser.error(f"{chosen.data} has no {WRITERS}; leave the two people's pictures alone with --no-writers")
    members = [Member(chosen.models / name) for name in MEMBERS]
    if chosen.threshold:
        weigh_forms(chosen.data, members, chosen.count)
        return
    if chosen.forms:
        sizes(members, judge_forms(chosen.data, members, chosen.count))
        return
    wanted = tests(chosen.data, untidy=chosen.untidy, writers=not chosen.no_writers)
    done: list[Told] = []
    for test in tests_to_choose_by(chosen.data) if chosen.choose else wanted:
        done.append(told(test, members))
        judge(done[-1])
    if chosen.choose:
        for how in ("shaky", "flowing"):
            for rare in (False, True):
                parts = [one for one in done if how in one.name and ("rare" in one.name) == rare]
                judge(together(f"{how}, {'rare' if rare else 'frequent'} characters together", parts))
        judge(together("all these drawings", [one for one in done if "tomoe" in one.name]))
        judge(together("bent faces together", [one for one in done if "bent" in one.name]))
    elif not chosen.no_writers:
        judge(together("both writers", [one for one in done if one.name.startswith("writer")]))
        judge(together("both faces and both writers", [one for one in done if one.name.startswith(("face", "writer"))]))
    sizes(members, test)


def sizes(members: list[Member], test: Test) -> None:
    """Prints how large the files are, and how long each takes for a picture."""
    print()
    for member in members:
        print(
            f"{member.name:12} {member.bytes:>10,} bytes, {member.median_ms(test.ink):.2f} ms per picture on one core"
        )
    print(f"together     {sum(member.bytes for member in members):>10,} bytes")


if __name__ == "__main__":
    main()
