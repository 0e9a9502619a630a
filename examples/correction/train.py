"""Trains the corrector: `fit` trains it on prepare.py's arrays (a GPU takes minutes), `export` writes corrector.onnx.

python examples/correction/train.py fit --work WORK --out OUT
python examples/correction/train.py export --out OUT
"""

from __future__ import annotations

import argparse
import copy
import math
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
from sentences import CANDIDATES, NOTHING, PAD, START, Alphabet, encode

try:
    import torch
    from network import Corrector, Served
    from torch.nn import functional
except ModuleNotFoundError as error:
    raise SystemExit(f"{error.name} is not installed: pip install torch onnx") from None

HERE = Path(__file__).parent
BUCKETS = (9, 12, 16, 22, 41)
"""Lines of like length go together: the most rows of each kind."""


# ------------------------------------------------------------------ fit: arrays to weights


class Texts:
    """Batches on the device: real lines, and truths or word salads with errors made up afresh each time."""

    def __init__(self, work: Path, alphabet: Alphabet, device: str) -> None:
        for name in ("real.npz", "made.npz"):
            if not (work / name).is_file():
                raise SystemExit(f"{work} has no {name}; prepare.py --work {work} writes it")
        real, made = np.load(work / "real.npz"), np.load(work / "made.npz")
        self.names = [str(name) for name in real["names"]]
        self.tables = torch.from_numpy(real["tables"]).to(device)
        first = self.tables[:, :, :1]
        others = self.tables[:, :, 1:CANDIDATES]
        self.tables[:, :, 1:CANDIDATES] = torch.where(others == PAD, first, others)
        self.wanted = torch.from_numpy(real["wanted"]).to(device)
        self.source = torch.from_numpy(real["source"]).to(device)
        is_dev = torch.from_numpy(real["is_dev"])
        weight = torch.from_numpy(real["weight"]) * ~is_dev
        self.dev = is_dev.nonzero()[:, 0].to(device)
        self.truths = torch.from_numpy(made["truths"]).to(device)
        self.words = torch.from_numpy(made["words"]).to(device)
        self.confusions = torch.from_numpy(made["confusions"]).to(device).long()
        self.sounds = torch.tensor([alphabet.sound(c) for c in alphabet.characters], device=device)
        self.device = device
        self._real = self._buckets(self.tables[:, :, 0], weight.to(device))
        self._truths = self._buckets(self.truths, torch.ones(len(self.truths), device=device))
        self._words = self._buckets(self.words, torch.ones(len(self.words), device=device))

    def _buckets(self, numbers: Any, weight: Any) -> list[tuple[Any, Any, float]]:
        """Lines of like length, with their chances and the bucket's share of all tokens."""
        lengths, buckets, below = (numbers != PAD).sum(1), [], 0
        for longest in BUCKETS:
            members = ((lengths > below) & (lengths <= longest) & (weight > 0)).nonzero()[:, 0]
            buckets.append((members, weight[members].cumsum(0), float(weight[members].sum()) * longest))
            below = longest
        return buckets

    def _draw(self, buckets: list[tuple[Any, Any, float]], tokens: int) -> tuple[Any, int]:
        which = random.choices(range(len(BUCKETS)), [b[2] for b in buckets])[0]
        members, chances, _ = buckets[which]
        places = torch.rand(tokens // BUCKETS[which], device=self.device) * chances[-1]
        return members[torch.searchsorted(chances, places).clamp(max=len(members) - 1)], BUCKETS[which]

    def real(self, tokens: int) -> tuple[Any, Any]:
        """Tables of real lines and what is wanted; some come without their other candidates, as some clients will."""
        rows, longest = self._draw(self._real, tokens)
        tables, wanted = self.tables[rows, :longest].long(), self.wanted[rows, :longest].long()
        alone = torch.rand(len(rows), 1, 1, device=self.device) < 0.2
        tables[:, :, :CANDIDATES] = torch.where(alone, tables[:, :, :1], tables[:, :, :CANDIDATES])
        return tables, wanted

    def made(self, tokens: int, from_words: bool) -> tuple[Any, Any]:
        """Tables with made-up errors: characters mistaken, one dropped here, one too many there."""
        texts = self.words if from_words else self.truths
        rows, longest = self._draw(self._words if from_words else self._truths, tokens)
        truth = texts[rows, :longest].long()
        count, device = len(rows), self.device
        inserted = torch.full_like(truth, NOTHING)
        replaced = truth.clone()
        place = torch.arange(longest, device=device)[None]
        length = (truth != PAD).sum(1, keepdim=True)
        # One in six loses a character: what comes before it must insert it again.
        lost = 1 + (torch.rand(count, 1, device=device) * (length - 1)).long()
        loses = (torch.rand(count, 1, device=device) < 0.17) & (length > 3)
        lost = torch.where(loses, lost, torch.full_like(lost, longest + 1))
        source = (place + (place >= lost)).clamp(max=longest - 1)
        inserted = torch.where(place == lost - 1, truth.gather(1, lost.clamp(max=longest - 1)), inserted)
        replaced = torch.where(place >= length - loses.long(), torch.zeros_like(truth), truth.gather(1, source))
        seen = replaced.clone()
        share = torch.rand(count, 1, device=device) ** 2 * 0.6
        pick = torch.randint(self.confusions.shape[1], truth.shape, device=device)
        wrong = self.confusions[seen, pick]
        is_wrong = (torch.rand(truth.shape, device=device) < share) & (seen > START)
        seen = torch.where(is_wrong, wrong, seen)
        # One in eight has a character too many, like its neighbour: it must turn into nothing.
        extra = 1 + (torch.rand(count, 1, device=device) * (length - 1)).long()
        extra = torch.where(torch.rand(count, 1, device=device) < 0.12, extra, torch.full_like(extra, longest + 1))
        before = (place - (place > extra).long()).clamp(min=0)
        near = torch.where(pick % 4 == 0, seen, self.confusions[seen, pick])
        is_extra = place == extra
        seen = torch.where(is_extra, near, seen.gather(1, before))
        replaced = torch.where(is_extra, torch.full_like(seen, NOTHING), replaced.gather(1, before))
        inserted = torch.where(is_extra, torch.full_like(seen, NOTHING), inserted.gather(1, before))
        replaced = torch.where(seen == PAD, seen, replaced)
        sounds = self.sounds[seen]
        tables = torch.cat((seen[:, :, None].expand(-1, -1, CANDIDATES), sounds), 2)
        return tables, torch.stack((replaced, inserted), 2)


def _loss(net: Any, tables: Any, wanted: Any) -> Any:
    replacing, inserting = net(tables)
    there = tables[:, :, 0] != PAD
    replaced = functional.cross_entropy(replacing[there].float(), wanted[there][:, 0])
    inserted = functional.cross_entropy(inserting[there].float(), wanted[there][:, 1])
    return replaced + inserted


def _dev_losses(net: Any, texts: Texts) -> str:
    net.eval()
    losses = []
    with torch.no_grad():
        for number, name in enumerate(texts.names):
            rows = texts.dev[texts.source[texts.dev] == number][:512]
            if len(rows):
                loss = float(_loss(net, texts.tables[rows].long(), texts.wanted[rows].long()))
                losses.append(f"{name} {loss:.3f}")
    net.train()
    return "  ".join(losses)


def fit(options: argparse.Namespace) -> None:
    """Train for the given number of steps or seconds, whichever ends first; writes the averaged weights."""
    random.seed(0)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    alphabet = Alphabet(HERE / "characters.tsv", HERE / "phonemes.json")
    texts = Texts(options.work, alphabet, device)
    net = Corrector(alphabet, width=options.width, layers=options.layers, dropout=options.dropout).to(device)
    average = copy.deepcopy(net)
    decayed = [p for n, p in net.named_parameters() if p.ndim > 1]
    plain = [p for n, p in net.named_parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=options.rate, betas=(0.9, 0.98), fused=device == "cuda")
    started, step, done = time.monotonic(), 0, 0.0
    while done < 1.0:
        done = max(step / options.steps, (time.monotonic() - started) / options.seconds)
        warm = min(1.0, (step + 1) / 500)
        for group in optimiser.param_groups:
            group["lr"] = options.rate * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))
        kinds = ("truths", "words", "real"), ((0.45, 0.25, 0.3) if done < 0.4 else (0.22, 0.08, 0.7))
        kind = random.choices(*kinds)[0]
        tables, wanted = texts.real(options.tokens) if kind == "real" else texts.made(options.tokens, kind == "words")
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = _loss(net, tables, wanted)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
        keep = min(0.999, step / (step + 10))
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(net.parameters()), 1 - keep)
        step += 1
        if step % options.every == 0 or done >= 1.0:
            print(f"{step} steps {time.monotonic() - started:.0f} s  {_dev_losses(average, texts)}", flush=True)
    _save(average, options.out)


def _save(net: Any, out: Path) -> None:
    """Weights as half floats, in files small enough to send."""
    weights = {name: value.detach().cpu().numpy().astype(np.float16) for name, value in net.state_dict().items()}
    parts: list[dict[str, Any]] = [{}]
    for name, value in weights.items():
        if sum(v.nbytes for v in parts[-1].values()) + value.nbytes > 12e6:
            parts.append({})
        parts[-1][name] = value
    parts[0]["shape"] = np.array([net.shape["width"], net.shape["layers"], net.shape["heads"]])
    for number, part in enumerate(parts):
        np.savez(out / f"weights{number}.npz", **part)


# ------------------------------------------------------------------ export: weights to ONNX


def export(options: argparse.Namespace) -> None:
    """corrector.onnx beside this file: matrices as 8-bit numbers unless --float."""
    try:
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error.name} is not installed: pip install torch onnx") from None

    weights: dict[str, Any] = {}
    for part in sorted(options.out.glob("weights*.npz")):
        weights.update(np.load(part))
    if not weights:
        raise SystemExit(f"{options.out} has no weights*.npz; train.py fit --out {options.out} writes them")
    width, layers, heads = map(int, weights.pop("shape"))
    alphabet = Alphabet(HERE / "characters.tsv", HERE / "phonemes.json")
    net = Corrector(alphabet, width=width, layers=layers, heads=heads)
    net.load_state_dict({name: torch.from_numpy(value.astype(np.float32)) for name, value in weights.items()})
    served = Served(net.eval())
    example = torch.from_numpy(np.stack([encode(alphabet, ["今天天氣很好"]), encode(alphabet, ["明天天氣不好"])]))
    plain = options.out / "corrector-float.onnx"
    torch.onnx.export(
        served,
        (example,),
        str(plain),
        input_names=["tables"],
        output_names=["numbers", "chances", "candidates", "insertions"],
        dynamic_axes={
            name: {0: "batch", 1: "rows"} for name in ("tables", "numbers", "chances", "candidates", "insertions")
        },
        opset_version=17,
        dynamo=False,
    )
    target = HERE / "corrector.onnx"
    if options.float:
        target.write_bytes(plain.read_bytes())
    else:
        quantize_dynamic(plain, target, weight_type=QuantType.QInt8, per_channel=True)
    print(f"{plain.stat().st_size / 1e6:.1f} MB as floats, {target.stat().st_size / 1e6:.1f} MB written")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser("fit")
    verb.set_defaults(run=fit)
    verb.add_argument("--work", type=Path, required=True)
    verb.add_argument("--out", type=Path, required=True)
    verb.add_argument("--steps", type=int, default=20_000)
    verb.add_argument("--seconds", type=float, default=math.inf)
    verb.add_argument("--tokens", type=int, default=24_576, help="places in a batch")
    verb.add_argument("--width", type=int, default=320)
    verb.add_argument("--layers", type=int, default=6)
    verb.add_argument("--dropout", type=float, default=0.15)
    verb.add_argument("--rate", type=float, default=1e-3)
    verb.add_argument("--every", type=int, default=1000, help="steps between two looks at the dev losses")
    verb = verbs.add_parser("export")
    verb.set_defaults(run=export)
    verb.add_argument("--out", type=Path, required=True, help="where fit wrote the weights")
    verb.add_argument("--float", action="store_true", help="do not pack the matrices into 8 bits")
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
