"""Makes what train.py reads: the base model with a smaller vocabulary, and the posts as numbers."""

from __future__ import annotations

import argparse
import collections
import sys
import unicodedata
from pathlib import Path

import numpy as np

try:
    from safetensors.numpy import load_file
except ModuleNotFoundError as error:
    raise SystemExit(f"{error.name} is not installed: pip install safetensors") from None

sys.path.insert(0, str(Path(__file__).parent.parent))
from posts import Post, airline, semeval
from words import END, LONGEST, NAME, PAD, START, UNKNOWN, Words

LENGTH = 48
"""Pieces a post is cut to in training; about one in two hundred is longer."""
COMMON = 8_000
"""The base vocabulary is sorted by how common words are; so many are kept whether or not the tweets have them."""

PARTS = {
    "attention.self.query": "query",
    "attention.self.key": "key",
    "attention.self.value": "value",
    "attention.output.dense": "mix",
    "attention.output.LayerNorm": "after_mix",
    "intermediate.dense": "widen",
    "output.dense": "narrow",
    "output.LayerNorm": "after_narrow",
}


def choose_pieces(base: list[str], posts: list[Post]) -> list[str]:
    """The base's pieces that are common, or spell the training posts or the emoji, or are single letters."""
    words = Words([*base, NAME])
    seen: collections.Counter[int] = collections.Counter()
    for post in posts:
        seen.update(words.ids(post.text).tolist())
    emoji = " ".join(chr(code) for code in range(0x2190, 0x1FB00) if unicodedata.category(chr(code)) == "So")
    for sign in emoji.split():
        if unicodedata.name(sign).isascii() and not 0x2F00 <= ord(sign) <= 0x1F000:
            seen.update(dict.fromkeys(words.ids(sign).tolist(), 2))
    first = base.index("the")
    kept = [
        piece
        for number, piece in enumerate(base)
        if seen[number] >= 2
        or first <= number < first + COMMON
        or (len(piece.removeprefix("##")) == 1 and piece.isascii())
    ]
    special = [PAD, UNKNOWN, START, END, NAME]
    return special + [piece for piece in kept if piece not in special]


def shrink(folder: Path, pieces: list[str], base: list[str]) -> dict[str, np.ndarray]:
    """The base model's weights under our names, with the rows of `pieces` only."""
    weights = load_file(folder / "model.safetensors")
    table = weights["embeddings.word_embeddings.weight"]
    row = {piece: table[number] for number, piece in enumerate(base)}
    row[NAME] = (row["@"] + row["user"]) / 2
    small = {
        "pieces": np.stack([row[piece] for piece in pieces]),
        # Every piece has token type 0, so its vector goes into the places.
        "places": weights["embeddings.position_embeddings.weight"][:LONGEST]
        + weights["embeddings.token_type_embeddings.weight"][0],
        "first_scale": weights["embeddings.LayerNorm.weight"],
        "first_shift": weights["embeddings.LayerNorm.bias"],
    }
    for name, value in weights.items():
        if not name.startswith("encoder.layer."):
            continue
        layer, _, rest = name.removeprefix("encoder.layer.").partition(".")
        part, _, kind = rest.rpartition(".")
        normal = part.endswith("LayerNorm")
        ending = {"weight": "_scale" if normal else "", "bias": "_shift" if normal else "_bias"}[kind]
        small[f"layer{layer}_{PARTS[part]}{ending}"] = value
    for number in range(6):
        for ending in ("", "_bias"):
            three = [small.pop(f"layer{number}_{part}{ending}") for part in ("query", "key", "value")]
            small[f"layer{number}_look{ending}"] = np.concatenate(three)
    return {name: value.astype(np.float16) for name, value in small.items()}


def as_numbers(words: Words, posts: list[Post]) -> tuple[np.ndarray, np.ndarray]:
    """Ids [post, LENGTH] with zeros at the end, and the classes."""
    ids = np.zeros((len(posts), LENGTH), np.uint16)
    for number, post in enumerate(posts):
        piece = words.ids(post.text)[:LENGTH]
        ids[number, : len(piece)] = piece
    return ids, np.array([post.feeling for post in posts], np.uint8)


def main() -> None:
    """Read, shrink, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the tweets")
    parser.add_argument("--base", type=Path, required=True, help="folder with model.safetensors and vocab.txt")
    parser.add_argument("--out", type=Path, required=True, help="folder for vocabulary.txt, base.npz and posts.npz")
    options = parser.parse_args()
    for name in ("vocab.txt", "model.safetensors"):
        if not (options.base / name).is_file():
            parser.error(f"{options.base} has no {name}; README.md says where the base model comes from")
    base = (options.base / "vocab.txt").read_text(encoding="utf-8").splitlines()
    train = semeval(options.data, "train")
    pieces = choose_pieces(base, train)
    words = Words(pieces)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "vocabulary.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    np.savez(options.out / "base.npz", **shrink(options.base, pieces, base))  # type: ignore[arg-type]
    arrays = {}
    for name, posts in (("train", train), ("test", semeval(options.data, "test")), ("airline", airline(options.data))):
        arrays[name], arrays[name + "_labels"] = as_numbers(words, posts)
        print(f"{name}: {len(posts)} posts, {(arrays[name] == 1).sum()} unknown words")
    np.savez_compressed(options.out / "posts.npz", **arrays)  # type: ignore[arg-type]
    print(f"{len(pieces)} pieces")


if __name__ == "__main__":
    main()
