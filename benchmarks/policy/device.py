"""What just-in-time binding, the ladder of batch sizes and preparing processes are worth on a GPU, in simulated time.

The simulator drives the very scheduler that serves, in a closed loop of clients around one device that takes as long as
five EfficientNet-B0 do as CUDA graphs on an H200. Rates are over the device's own, never idle and never padded.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.bars import Bar, conclude
from benchmarks.tools.pipeline import JUDGED_S, POWERS, Loop, Pipeline, Seen, ceiling

CLIENTS = (64, 128, 256, 512)
LOADS = (0.8, 1.0, 1.2, 1.5, 2.0)
WAYS = {
    "usual": ("two slots, just in time, fine ladder, 4 hands", Pipeline()),
    "two_hands": ("2 hands", Pipeline(hands=2)),
    "normalised": ("the CPU normalises too (0.9 ms per item), 4 hands", Pipeline(prepare_s=0.9e-3)),
    "normalised_8_hands": ("the same, 8 hands", Pipeline(prepare_s=0.9e-3, hands=8)),
    "dear_gateway": ("gateway twice as dear", Pipeline(gateway_in_s=120e-6, gateway_out_s=100e-6)),
    "at_once": ("bound at once, powers of two", Pipeline(is_just_in_time=False, ladder=POWERS)),
    "one_slot": ("one slot, 8 hands", Pipeline(slots=1, hands=8)),
}
"""By the name in the figures: what is other than usual."""
BARS = (
    Bar("share_usual_128", at_least=0.80),
    Bar("share_usual_256", at_least=0.95),
    Bar("share_usual_512", at_least=0.97, is_quick=False),
    Bar("off_usual_256_ms", at_most=5),
    *(Bar(f"in_time_{load}", at_least=0.98, is_quick=load == 1.5) for load in LOADS),
    Bar("members_1.5", at_least=3),
)
"""Simulated, so the same in every run: what the criteria of a real GPU ask for, and a little room."""


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the usual way alone, with fewer clients and loads")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as a flat JSON object")
    chosen = parser.parse_args()
    figures: dict[str, float | str] = {}
    print("requests/s (share of the ceiling); p50 ms; mean batch; 95 % of the batches end so near their prediction, ms")
    for name in ["usual"] if chosen.quick else WAYS:
        figures |= closed_loop(name, (128, 256) if chosen.quick else CLIENTS)
    print("\nfive members, at multiples of what the device does with all of them: in time; mean members; p50 ms")
    for load in (1.5,) if chosen.quick else LOADS:
        figures |= offered(load)
    return conclude("device", chosen, figures, BARS)


def closed_loop(name: str, clients: Sequence[int]) -> Mapping[str, float]:
    """One way of using the device, by so many clients."""
    told, pipeline = WAYS[name]
    print(told)
    figures: dict[str, float] = {}
    for count in clients:
        seen = Loop(pipeline, count).run()
        share, off_ms = seen.rate / ceiling(pipeline), 1000 * off_s(seen)
        figures |= {f"share_{name}_{count}": round(share, 4), f"off_{name}_{count}_ms": round(off_ms, 2)}
        many = f"{1000 * seen.p50_s:4.0f}  {seen.mean_batch:4.0f}  {off_ms:4.1f}"
        print(f"  c={count:<4} {seen.rate:6.0f} ({share:.2f})  {many}", flush=True)
    return figures


def offered(load: float) -> Mapping[str, float]:
    """Five members, as many requests as the device does with all of them times `load`."""
    seen = Loop(Pipeline(members=5), rate=load * ceiling(Pipeline())).run()
    in_time = seen.rate / (seen.rate + seen.unanswered / JUDGED_S)
    print(f"  {load:.1f}x   {in_time:.3f}  {seen.members:.2f}  {1000 * seen.p50_s:4.0f}", flush=True)
    return {f"in_time_{load}": round(in_time, 4), f"members_{load}": round(seen.members, 3)}


def off_s(seen: Seen) -> float:
    """How far nineteen of twenty batches ended from their prediction, at the most."""
    ordered = sorted(map(abs, seen.off_s))
    return ordered[int(0.95 * len(ordered))]


if __name__ == "__main__":
    sys.exit(main())
