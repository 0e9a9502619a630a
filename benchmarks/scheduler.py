"""What the policy gets out of a machine, in simulated time, and what a decision costs, in processor time.

The simulator drives the very code that serves. Goodput is the share of requests answered by the model before their
deadline, beside what a clairvoyant server without batches, noise or delay could answer. The cost is measured per
request, with many others waiting all the time.
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from timebound.lab.arrivals import constant, poisson
from timebound.lab.machine import CPU_LIKE, GPU_LIKE, Speed, clairvoyant_share
from timebound.lab.simulate import Setting, Simulation
from timebound.scheduler import ModelSpec, Scheduler, Ticket

CURVES = {"cpu": CPU_LIKE, "gpu": GPU_LIKE}
LOADS = (1.0, 1.2, 1.5, 2.0, 3.0)
SLOTS = 2
DEADLINE_S = 1.0

EXAMPLES = """\
examples:
  python benchmarks/scheduler.py --quick
  python benchmarks/scheduler.py --json scheduler.json
"""


def main() -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one seed and shorter runs: well under a minute")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as a flat JSON object")
    chosen = parser.parse_args()
    seeds, seconds = ((11,), 25.0) if chosen.quick else ((11, 12, 13, 14), 40.0)
    flat = simulated(seeds, seconds) | costs()
    if chosen.json:
        chosen.json.write_text(json.dumps({name: round(value, 4) for name, value in flat.items()}, indent=1) + "\n")
    return 0


def simulated(seeds: tuple[int, ...], seconds: float) -> dict[str, float]:
    """Goodput over the bound for one model, and in-time share and members for an ensemble of three."""
    print(f"simulated: {SLOTS} slots, deadline {DEADLINE_S:g} s, {len(seeds)} seeds of {seconds:g} s")
    print("curve  load   in time   bound   share   p50/deadline   three members: in time  members")
    flat: dict[str, float] = {}
    for curve, speed in CURVES.items():
        for load in LOADS:
            single = [run(speed, load, seed, seconds) for seed in seeds]
            three = [run(replace(speed, members=3), load, seed, seconds) for seed in seeds]
            in_time, bound, p50 = (mean(r[i] for r in single) for i in (0, 1, 2))
            anytime, members = mean(r[0] for r in three), mean(r[3] for r in three)
            name = f"{curve}_{load}"
            flat |= {f"share_{name}": in_time / bound, f"p50_{name}": p50}
            flat |= {f"anytime_{name}": anytime, f"members_{name}": members}
            print(
                f"{curve:5}  {load:.1f}x   {in_time:.3f}    {bound:.3f}   {in_time / bound:.3f}   {p50:12.2f}"
                f"   {anytime:22.3f}  {members:7.2f}"
            )
    return flat


def run(speed: Speed, load: float, seed: int, seconds: float) -> tuple[float, float, float, float]:
    """(in time, bound, p50 over deadline, mean members) of one run."""
    capacity = speed.capacity(SLOTS, DEADLINE_S)
    setting = Setting({"model": speed}, deadline_s=DEADLINE_S, slots=SLOTS, until=seconds, seed=seed)
    rate = load * capacity
    simulation = Simulation(setting, poisson(constant(rate), rate, seconds, seed=seed))
    report = simulation.run()
    if report.late or report.lost:
        raise SystemExit(f"{report.late} late and {report.lost} lost at {load}x: this must not happen")
    times = [request.arrived for request in simulation.requests]
    bound = clairvoyant_share(times, DEADLINE_S, capacity, setting.judge_from, setting.judge_until)
    return report.in_time, bound, report.p50_over_deadline, report.mean_members


def costs() -> dict[str, float]:
    """Microseconds of processor time per request."""
    print("\ncost per request, microseconds, with so many waiting all the time")
    print("best batch     100   1,000  10,000  30,000")
    flat: dict[str, float] = {}
    for best in (1, 8, 64):
        row = {waiting: min(cost_us(waiting, best) for _ in range(3)) for waiting in (100, 1_000, 10_000, 30_000)}
        flat |= {f"cost_us_batch{best}_waiting{waiting}": us for waiting, us in row.items()}
        print(f"{best:10}  " + "".join(f"{us:8.1f}" for us in row.values()))
    return flat


def cost_us(waiting: int, best_batch: int) -> float:
    """Offer, take and finish, with about `waiting` tickets queued."""
    per_item_s = 1e-5
    overhead_s = per_item_s * best_batch / 20  # so that larger batches gain little
    scheduler = Scheduler(0.0)
    scheduler.add_model(ModelSpec("model", 1e3, max_batch=best_batch, max_queue=1_000_000))
    scheduler.set_slots(2)
    for items in [1, 2, 4, 8, 16, 32, 64] * 4:
        if items <= best_batch:
            scheduler.observe("model", items, 1.0, overhead_s + per_item_s * items)
    now, seq = 0.0, 0

    def offer(count: int) -> None:
        nonlocal seq
        for _ in range(count):
            seq += 1
            # Each deadline a little off the order of arrival, so that insertion is not always at the end.
            scheduler.offer(Ticket(seq, "model", now + 1.0 + (seq * 7919 % 1000) * 1e-4, now), now)

    offer(waiting)
    done = 0
    start = time.process_time()
    while done < 5_000:
        batch = scheduler.take(now)
        if batch is None:
            raise SystemExit("nothing to take although much waits")
        now += 1e-6
        offer(len(batch))
        scheduler.batch_done(batch, batch.predicted_s, now)
        done += len(batch)
        scheduler.set_aside()
    return (time.process_time() - start) / done * 1e6


if __name__ == "__main__":
    sys.exit(main())
