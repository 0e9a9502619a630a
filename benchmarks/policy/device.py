"""What just-in-time binding, the ladder of batch sizes and preparing processes are worth on a GPU, in simulated time.

The simulator drives the very scheduler that serves, in a closed loop of clients around one device that takes as long as
five EfficientNet-B0 do as CUDA graphs on an H200. Rates are over the device's own, never idle and never padded.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.pipeline import JUDGED_S, POWERS, Loop, Pipeline, Seen, ceiling

CLIENTS = (64, 128, 256, 512)
LOADS = (0.8, 1.0, 1.2, 1.5, 2.0)
WAYS = {
    "two slots, just in time, fine ladder, 4 hands": Pipeline(),
    "2 hands": Pipeline(hands=2),
    "the CPU normalises too (0.9 ms per item), 4 hands": Pipeline(prepare_s=0.9e-3),
    "the same, 8 hands": Pipeline(prepare_s=0.9e-3, hands=8),
    "gateway twice as dear": Pipeline(gateway_in_s=120e-6, gateway_out_s=100e-6),
    "bound at once, powers of two": Pipeline(is_just_in_time=False, ladder=POWERS),
    "one slot, 8 hands": Pipeline(slots=1, hands=8),
}


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as a flat JSON object")
    chosen = parser.parse_args()
    print("requests/s (share of the ceiling); p50 ms; mean batch; 95 % of the batches end so near their prediction, ms")
    flat: dict[str, float] = {}
    for name, pipeline in WAYS.items():
        print(name)
        for clients in CLIENTS:
            seen = Loop(pipeline, clients).run()
            share = seen.rate / ceiling(pipeline)
            flat[f"sim_device_{name}_{clients}"] = share
            print(
                f"  c={clients:<4} {seen.rate:6.0f} ({share:.2f})  {1000 * seen.p50_s:4.0f}  {seen.mean_batch:4.0f}"
                f"  {1000 * off_s(seen):4.1f}",
                flush=True,
            )
    print("\nfive members, at multiples of what the device does with all of them: in time; mean members; p50 ms")
    for load in LOADS:
        rate = load * ceiling(Pipeline())
        seen = Loop(Pipeline(members=5), rate=rate).run()
        in_time = seen.rate / (seen.rate + seen.unanswered / JUDGED_S)
        flat |= {f"sim_device_in_time_{load}": in_time, f"sim_device_members_{load}": seen.members}
        print(f"  {load:.1f}x   {in_time:.3f}  {seen.members:.2f}  {1000 * seen.p50_s:4.0f}", flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps({name: round(value, 4) for name, value in flat.items()}, indent=1) + "\n")
    return 0


def off_s(seen: Seen) -> float:
    """How far nineteen of twenty batches ended from their prediction, at the most."""
    ordered = sorted(map(abs, seen.off_s))
    return ordered[int(0.95 * len(ordered))]


if __name__ == "__main__":
    sys.exit(main())
