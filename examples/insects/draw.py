"""Draws the two sample pictures, an ant and a bee: the photos that the network learned from may not be passed on.

python examples/insects/draw.py
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

HERE = Path(__file__).parent


def ground(colour: tuple[int, int, int], seed: int) -> Image.Image:
    """A blurred, grainy background."""
    random = np.random.default_rng(seed)
    spots = random.normal(0, 38, (24, 24, 1)) + np.array(colour)
    blurred = Image.fromarray(np.clip(spots, 0, 255).astype(np.uint8)).resize((512, 512), Image.Resampling.BICUBIC)
    grain = random.normal(0, 9, (512, 512, 1))
    return Image.fromarray(np.clip(np.asarray(blurred) + grain, 0, 255).astype(np.uint8))


def shaded(picture: Image.Image, box: tuple[float, ...], colour: tuple[int, int, int]) -> None:
    """An oval that is lighter where light falls on it."""
    draw = ImageDraw.Draw(picture)
    left, top, right, bottom = box
    for step in range(24):
        share = step / 24
        tone = tuple(min(255, int(part + 80 * share**3)) for part in colour)
        shift = share * 0.4
        wide, high = (right - left) * share * 0.5, (bottom - top) * share * 0.5
        draw.ellipse(
            (
                left + wide * (1 - shift),
                top + high * (1 - shift),
                right - wide * (1 + shift),
                bottom - high * (1 + shift),
            ),
            fill=tone,
        )


def leg(
    draw: ImageDraw.ImageDraw, at: tuple[float, float], side: int, lean: float, colour: tuple[int, int, int]
) -> None:
    """A thin leg with two joints."""
    x, y = at
    knee = (x + lean * 40, y + side * 62)
    foot = (knee[0] + lean * 62, knee[1] + side * 46)
    draw.line([at, knee, foot, (foot[0] + lean * 16, foot[1] + side * 3)], fill=colour, width=7, joint="curve")


def ant() -> Image.Image:
    """From above, walking over sand."""
    picture, dark = ground((196, 172, 136), 3), (38, 22, 16)
    draw = ImageDraw.Draw(picture)
    for x, lean in ((300, 0.9), (262, 0.1), (228, -0.9)):
        for side in (-1, 1):
            leg(draw, (x, 256), side, lean, dark)
    for side in (-1, 1):
        draw.line(
            [(392, 250 + side * 8), (432, 250 + side * 40), (474, 250 + side * 34)], fill=dark, width=5, joint="curve"
        )
        draw.line([(404, 252 + side * 6), (424, 252 + side * 16)], fill=dark, width=7)
    shaded(picture, (72, 206, 200, 306), dark)
    shaded(picture, (196, 246, 222, 268), dark)
    shaded(picture, (216, 232, 322, 280), dark)
    shaded(picture, (318, 218, 408, 292), dark)
    return picture.filter(ImageFilter.GaussianBlur(1.2))


def bee() -> Image.Image:
    """From above, on a flower with white petals."""
    picture, dark, amber = ground((150, 180, 120), 5), (20, 14, 10), (120, 80, 30)
    flower(picture)
    draw = ImageDraw.Draw(picture)
    for x, lean in ((350, 0.9), (320, 0.1), (280, -0.9)):
        for side in (-1, 1):
            leg(draw, (x, 256), side, lean, dark)
    shaded(picture, (90, 196, 290, 316), amber)
    body = Image.new("L", picture.size)
    ImageDraw.Draw(body).ellipse((90, 196, 290, 316), fill=255)
    stripes = Image.new("L", picture.size)
    for x in (108, 148, 188, 228):
        ImageDraw.Draw(stripes).chord((x - 60, 186, x + 20, 326), -90, 90, fill=255)
        ImageDraw.Draw(stripes).chord((x - 76, 186, x + 2, 326), -90, 90, fill=0)
    both = Image.fromarray(np.minimum(np.asarray(body), np.asarray(stripes)))
    picture.paste(Image.new("RGB", picture.size, dark), (0, 0), both.filter(ImageFilter.GaussianBlur(2)))
    random = np.random.default_rng(8)
    fur(picture, random, (190, 256, 100, 60), 800, width=1)
    shaded(picture, (270, 200, 370, 312), (150, 104, 40))
    fur(picture, random, (320, 256, 52, 58), 700, width=2)
    shaded(picture, (358, 224, 412, 288), (78, 56, 34))
    for side in (-1, 1):
        wing = Image.new("L", picture.size)
        ImageDraw.Draw(wing).ellipse((96, 216, 320, 296), fill=80)
        turned = wing.rotate(side * 48, center=(318, 256), translate=(0, side * -10))
        picture.paste(
            Image.new("RGB", picture.size, (200, 200, 190)), (0, 0), turned.filter(ImageFilter.GaussianBlur(2))
        )
        ImageDraw.Draw(picture).line(
            [(404, 256 + side * 12), (424, 256 + side * 30), (436, 256 + side * 34)], fill=dark, width=4
        )
    return picture.rotate(90).filter(ImageFilter.GaussianBlur(0.6))


def flower(picture: Image.Image) -> None:
    """White petals around a yellow heart, all over the picture."""
    draw = ImageDraw.Draw(picture)
    for turn in range(22):
        angle = turn * math.tau / 22
        x, y = 256 + 170 * math.cos(angle), 256 + 170 * math.sin(angle)
        draw.ellipse((x - 64, y - 64, x + 64, y + 64), fill=(min(255, 230 + turn), min(255, 225 + 3 * turn), 235))
    draw.ellipse((166, 166, 346, 346), fill=(225, 205, 70))
    random = np.random.default_rng(7)
    for x, y in random.normal(256, 45, (1400, 2)):
        draw.ellipse((x - 6, y - 6, x + 6, y + 6), fill=(221, int(random.uniform(165, 235)), 60))


def fur(
    picture: Image.Image, random: np.random.Generator, oval: tuple[int, int, int, int], count: int, *, width: int
) -> None:
    """Hairs that stand out from an oval: its middle, and how far it goes to the sides and up."""
    draw, (left, top, wide, high) = ImageDraw.Draw(picture), oval
    for angle, far in zip(random.uniform(0, math.tau, count), random.uniform(0.2, 1.1, count), strict=True):
        x, y = left + wide * far * math.cos(angle), top + high * far * math.sin(angle)
        end = (x + 9 * math.cos(angle), y + 9 * math.sin(angle))
        draw.line([(x, y), end], fill=(190, int(random.uniform(120, 170)), 70), width=width)


if __name__ == "__main__":
    for name, picture in (("ant", ant()), ("bee", bee())):
        picture.save(HERE / "samples" / f"{name}.jpg", quality=88)
