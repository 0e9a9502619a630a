"""Without a server: what the hardware can do, and what the device's own code makes of it. Prints JSON, a line a figure.

python -m benchmarks.tools.gpu_bare device --net efficientnet_b0 --device cuda
"""

import argparse
import io
import json
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

import timebound as tb
from benchmarks.tools.gpu_networks import MEMBERS, SIDE, jpegs, member
from benchmarks.tools.gpu_texts import corrector, encoder, texts
from timebound.devices.base import current_device, settle_all, take_usage


def tell(name: str, value: Any) -> None:
    """A figure, at once."""
    print(json.dumps({name: value}), flush=True)


def guarded(name: str, part: Callable[[], None]) -> None:
    """A part that fails says how, and the others run."""
    begin = time.perf_counter()
    try:
        part()
    except Exception:
        tell(f"{name}_failed", traceback.format_exc()[-1500:])
    tell(f"{name}_took_s", round(time.perf_counter() - begin, 1))


def versions(options: argparse.Namespace) -> None:
    """Of what computes."""
    import torch

    tell("torch", torch.__version__)
    if options.device != "host":
        tell("gpu", torch.cuda.get_device_name(0))
        tell("cuda", torch.version.cuda)
        tell("cudnn", torch.backends.cudnn.version())


def _decode_ms() -> float:
    """What one picture takes before a network sees it."""
    took = []
    for body in jpegs(16):
        begin = time.perf_counter()
        np.asarray(Image.open(io.BytesIO(body)).convert("RGB"))
        took.append(time.perf_counter() - begin)
    return round(statistics.median(took) * 1e3, 3)


def ceiling(options: argparse.Namespace) -> None:
    """Plain torch: all networks in one graph, one after another and on parallel branches, and nothing else."""
    import torch

    nets = [member(options.net, seed)().to("cuda").eval() for seed in range(options.members)]
    stream, sides = torch.cuda.Stream(), [torch.cuda.Stream() for _ in nets[1:]]

    def sequential(x: Any) -> Any:
        return torch.stack([net(x) for net in nets]).mean(0)

    def together(x: Any) -> Any:
        current = torch.cuda.current_stream()
        outputs = [None] * len(nets)
        for place, side in enumerate(sides, 1):
            side.wait_stream(current)
            with torch.cuda.stream(side):
                outputs[place] = nets[place](x)
        outputs[0] = nets[0](x)
        for side in sides:
            current.wait_stream(side)
        return torch.stack(outputs).mean(0)

    def seconds(work: Callable[[Any], Any], size: int) -> float:
        x = torch.randint(0, 255, (size, SIDE, SIDE, 3), dtype=torch.uint8, device="cuda")
        with torch.cuda.stream(stream):
            for _ in range(3):
                work(x)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            work(x)
        took = []
        for _ in range(options.repeats):
            begin = time.perf_counter()
            graph.replay()
            torch.cuda.synchronize()
            took.append(time.perf_counter() - begin)
        return statistics.median(took)

    tell("decode_ms", _decode_ms())
    with torch.inference_mode():
        for size in (128, 1):
            took = seconds(sequential, size)
            tell(f"ceiling_{size}_ms", round(took * 1e3, 3))
            tell(f"ceiling_{size}_rps", round(size / took))
        if len(nets) > 1:
            tell("ceiling_together_1_ms", round(seconds(together, 1) * 1e3, 3))


def inductor(options: argparse.Namespace) -> None:
    """What a compiler makes of the same networks, and how long it takes: kernels for two sizes."""
    import torch

    x = torch.randint(0, 255, (128, SIDE, SIDE, 3), dtype=torch.uint8, device="cuda")
    stream = torch.cuda.Stream()
    nets = [member(options.net, seed)().to("cuda").eval() for seed in range(options.members)]
    with torch.inference_mode(), torch.cuda.stream(stream):
        compiled = [torch.compile(net, dynamic=False) for net in nets]
        for size in (128, 16):
            rows, took = x[:size], []
            for one in compiled:
                begin = time.perf_counter()
                one(rows)
                torch.cuda.synchronize()
                took.append(round(time.perf_counter() - begin, 1))
            tell(f"inductor_{size}_compile_s", took)
            for one in compiled:
                one(rows)
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                outputs = [one(rows) for one in compiled]
            begin = time.perf_counter()
            for _ in range(options.repeats):
                graph.replay()
            torch.cuda.synchronize()
            seconds = (time.perf_counter() - begin) / options.repeats
            off = max(float((out - net(rows)).abs().max()) for out, net in zip(outputs, nets, strict=True))
            tell(f"inductor_{size}", {"ms": round(seconds * 1e3, 3), "rps": round(size / seconds), "off": off})


def opened(options: argparse.Namespace) -> Any:
    """The networks as a server has them."""
    how = {"device": options.device, "compile": options.compile}
    members = [tb.torch(member(options.net, seed), **how) for seed in range(options.members)]
    return tb.ensemble(*members) if len(members) > 1 else members[0]


def pictures(count: int) -> Any:
    """Rows of bytes."""
    return np.random.default_rng(count).integers(0, 255, (count, SIDE, SIDE, 3), dtype=np.uint8)


def device(options: argparse.Namespace) -> None:
    """The device's own code: how long until it is ready, what it measured, whether it is right, how fast it feeds."""
    begin = time.perf_counter()
    net = opened(options)
    tell("loaded_s", round(time.perf_counter() - begin, 1))
    samples = [pictures(count) for count in (1, 3, 17, 100)]
    wanted = [net(sample[: options.max_batch]) for sample in samples]
    tell("first_runs_s", round(time.perf_counter() - begin, 1))
    begin = time.perf_counter()
    settle_all(options.max_batch, 3, lambda text: print(text, flush=True))
    tell("settled_s", round(time.perf_counter() - begin, 1))
    here = current_device()
    assert here is not None
    tell("facts", dict(here.facts()))
    tell("notes", net.notes())
    tell("ladder", list(net.batch_sizes))
    tell("step_ms", [[round(second * 1e3, 3) for second in each] for each in net.member_seconds()])
    tell("together_ms", [round(second * 1e3, 3) for second in net.together_seconds()])
    tell("free_gb", round((here.free_bytes() or 0) / 1e9, 1))
    worst = max(
        float(np.abs(net(sample[: options.max_batch]) - want).max()) / float(np.abs(want).max())
        for sample, want in zip(samples, wanted, strict=True)
    )
    tell("worst_difference", worst)
    guarded("steps", lambda: _steps(net, options))
    guarded("feed", lambda: _feed(net, options))


def _steps(net: Any, options: argparse.Namespace) -> None:
    """One batch at a time: how long a caller waits for each size."""
    for size in (1, 8, 32, options.max_batch):
        rows = pictures(size)
        for _ in range(5):
            net(rows)
        take_usage()
        took = []
        for _ in range(options.repeats):
            begin = time.perf_counter()
            net(rows)
            took.append(time.perf_counter() - begin)
        used = take_usage()
        tell(
            f"call_{size}",
            {
                "p50_ms": round(statistics.median(took) * 1e3, 3),
                "device_ms": round(used.device_s / options.repeats * 1e3, 3),
                "waited_ms": round(used.waited_s / options.repeats * 1e3, 3),
            },
        )


def _feed(net: Any, options: argparse.Namespace) -> None:
    """Threads that hand over pinned rows, as slots do: the rate, and what a batch took beside what was told."""
    here = current_device()
    assert here is not None
    for threads, sizes in ((1, [options.max_batch]), (2, [options.max_batch]), (2, [1, 5, 30, 61, 90, 128])):
        _feed_once(net, options, here, threads, [size for size in sizes if size <= options.max_batch])


def _feed_once(net: Any, options: argparse.Namespace, here: Any, threads: int, sizes: list[int]) -> None:
    steps, ratios, done = list(net.batch_sizes), list[float](), [0] * threads
    told = [sum(each) for each in zip(*net.member_seconds(), strict=True)]
    told[: len(net.together_seconds())] = net.together_seconds()
    stop = time.perf_counter() + options.seconds

    def slot(number: int) -> None:
        area = bytearray(options.max_batch * SIDE * SIDE * 3)
        here.pin(area)
        rows = np.frombuffer(area, np.uint8).reshape(-1, SIDE, SIDE, 3)
        rows[:] = pictures(1)
        turn = 0
        while time.perf_counter() < stop:
            size = sizes[turn % len(sizes)]
            turn += 1
            take_usage()
            net(rows[:size])
            step = next(place for place, step in enumerate(steps) if step >= size)
            ratios.append(take_usage().device_s / told[step])
            done[number] += size
        here.unpin(area)

    begin = time.perf_counter()
    running = [threading.Thread(target=slot, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    name = f"feed_{threads}x{'mixed' if len(sizes) > 1 else sizes[0]}"
    ordered = sorted(ratios)
    tell(
        name,
        {
            "rps": round(sum(done) / (time.perf_counter() - begin)),
            "over_told_p50": round(ordered[len(ordered) // 2], 3),
            "over_told_p95": round(ordered[int(len(ordered) * 0.95)], 3),
        },
    )


def strict(options: argparse.Namespace) -> None:
    """What cannot be captured, and what is captured after it."""
    import torch

    class Looks(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            y = x.float().mean((1, 2))
            return y if y.sum().item() > 0 else -y

    class Masks(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            y = x.float().mean((1, 2))
            y[y > 100] = 100.0
            return y + y[y > 1e9].sum()

    class Writes(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x.bitwise_right_shift_(1).float().mean((1, 2))

    for make in (Looks, Masks, Writes, member(options.net, 0)):
        net = tb.torch(make, device=options.device)
        sample = pictures(5)
        wanted = net(sample)
        settle_all(8, 2, lambda text: None)
        got = net(sample)
        tell(
            f"strict_{getattr(make, '__name__', '')}",
            {"notes": net.notes(), "difference": float(np.abs(got - wanted).max()), "steps": list(net.batch_sizes)},
        )


def _sized(make: Callable[..., Any], options: argparse.Namespace) -> Callable[[], Any]:
    """A network of texts in full, or a small one for machines without GPU."""
    return partial(make, width=64, layers=1) if options.net == "small" else make


def encoding(options: argparse.Namespace) -> None:
    """An encoder and texts of 5 to 512 tokens in batches of 1 to 32: is every shape there, how much is padding."""
    most = min(32, options.max_batch)
    net = tb.torch(_sized(encoder, options), device=options.device, dtype="float16", longest=512)
    net(texts(1, 5, 512, 0))
    begin = time.perf_counter()
    settle_all(most, 2, lambda text: print(text, flush=True))
    tell("encoding_settled_s", round(time.perf_counter() - begin, 1))
    tell("encoding_notes", net.notes())
    take_usage()
    real, device_s, begin = 0, 0.0, time.perf_counter()
    for turn in range(options.repeats):
        batch = texts(1 + turn % most, *((5, 64), (64, 256), (256, 512))[turn % 3], turn)
        net(batch)
        real += int((batch != 0).sum())
        device_s += take_usage().device_s
    spent = time.perf_counter() - begin
    tell("encoding_tokens_per_s", {"wall": round(real / spent), "device": round(real / device_s)})
    tell("encoding_strangers", net._networks.strangers if net._networks is not None else -1)


def greedy(options: argparse.Namespace) -> None:
    """A corrector of 6 + 6 layers that writes up to 64 tokens: all its steps in one graph, beside the plain loop."""
    x = {count: texts(count, 20, 30, count) for count in (1, 10)}
    for name, graphs in (("plain", False), ("captured", True)):
        make = _sized(corrector, options)
        net = tb.torch(make, device=options.device, dtype="float16", longest=32, graphs=graphs)
        net(x[1])
        begin = time.perf_counter()
        settle_all(10, 2, lambda text: print(text, flush=True))
        tell(f"greedy_{name}_settled_s", round(time.perf_counter() - begin, 1))
        for count, tokens in x.items():
            took = []
            for _ in range(10):
                begin = time.perf_counter()
                net(tokens)
                took.append(time.perf_counter() - begin)
            tell(f"greedy_{name}_{count}_ms", round(statistics.median(took) * 1e3, 2))


PARTS = {
    "versions": versions,
    "ceiling": ceiling,
    "device": device,
    "strict": strict,
    "inductor": inductor,
    "encoding": encoding,
    "greedy": greedy,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--net", default="efficientnet_b0")
    parser.add_argument("--members", type=int, default=MEMBERS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--max-batch", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    guarded(options.part, lambda: PARTS[options.part](options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
