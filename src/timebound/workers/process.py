"""A worker's main: loads the models it is told to, then computes batches until it is told to stop.

Started as `python -m timebound.workers.process CONTROL_FD SLOT_FD...`; the gateway holds the other ends. With `early`
instead of the slots it gets those when there is a gateway (`early.py`).
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from msgspec.structs import replace

from timebound.backends.base import during, in_slot
from timebound.clock import Clock, MonotonicClock
from timebound.devices.base import Device, current_device, run_on_device, take_usage, unprepared
from timebound.handlers.model import Handler, HandlerModel
from timebound.importer import describe
from timebound.log import set_up_logging
from timebound.model import doubtful_attributes
from timebound.target import load_models, sentence
from timebound.workers import messages, wire
from timebound.workers.early import sockets
from timebound.workers.errands import serve_errands
from timebound.workers.fetching import serve_fetches
from timebound.workers.hands import Hands
from timebound.workers.measuring import tell_measures
from timebound.workers.members import open_runner
from timebound.workers.preparation import open_preparation
from timebound.workers.runner import Runner
from timebound.workers.second import check_room, loading_beside
from timebound.workers.slots import serve_slot
from timebound.workers.warmup import warm_up

log = logging.getLogger("timebound.worker")


def main(arguments: list[str]) -> int:
    """Serve until the control channel says stop or closes; the exit code tells which way it ended."""
    # Ctrl-C reaches the whole process group; when to leave is the gateway's decision. Until here both were held back.
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    control, *slots = sockets(arguments)
    for sock in (control, *slots):
        sock.set_inheritable(False)  # who held one open after this process would hide its end from the gateway
    os.register_at_fork(after_in_child=partial(_forget_the_gateway, (control, *slots)))
    frame = wire.read_frame(control)
    if frame is None or not isinstance(frame[0], messages.Load):
        return 1
    load = frame[0]
    set_up_logging(load.plan.log_level, as_json=load.plan.log_json, colour=load.plan.log_colour)
    if load.role is not messages.Role.WORKER:
        serve = serve_errands if load.role is messages.Role.UNDERSTUDY else serve_fetches
        return serve(control, slots[0], load)
    try:
        runners, ready, rooms = run_on_device(
            partial(_open, load, control), is_wanted=load.plan.device not in ("", "cpu")
        )
    except Exception as error:
        wire.write_frame(control, messages.Failed(sentence(error), traceback.format_exc()))
        return 2
    threads = [
        threading.Thread(target=_compute, args=(number, sock, runners, room), name=f"slot-{number}", daemon=True)
        for number, (sock, room) in enumerate(zip(slots, rooms, strict=False))
    ]
    for thread in threads:
        thread.start()
    for unused in slots[ready.slots :]:
        unused.close()
    wire.write_frame(control, ready)
    tell_measures(
        control, [net.measures for net in (each.model.net for each in runners.values()) if isinstance(net, Handler)]
    )
    frame = wire.read_frame(control)
    if frame is None:
        os._exit(1)  # the gateway is gone: nobody is left to answer to
    # The gateway sends Stop when no batch runs here, so there is nothing to wait for.
    return 0


def _forget_the_gateway(socks: Sequence[socket.socket]) -> None:
    """In what a model forks: when it comes back from the model's code it may neither answer nor compute once more."""
    for sock in socks:
        sock.close()
    Runner.infer_apart = _leave  # type: ignore[assignment, method-assign]
    Runner.report = _leave  # type: ignore[assignment, method-assign]


def _leave(*_: object) -> NoReturn:
    os._exit(0)


def _compute(number: int, sock: socket.socket, runners: Mapping[str, Runner], room: wire.Room) -> None:
    tell = lambda is_new: wire.write_frame(sock, messages.Unprepared(is_new))  # noqa: E731
    with in_slot(number), during(unprepared, tell):
        serve_slot(sock, runners, room)


def _open(load: messages.Load, control: socket.socket) -> tuple[Mapping[str, Runner], messages.Ready, list[wire.Room]]:
    """The models, what is to be told of them, and where each slot's frames are received."""
    plan = load.plan
    with loading_beside(load.beside_bytes > 0):
        models = load_models(
            Path(plan.target),
            threads=load.threads,
            slots=min(load.max_slots, plan.cpu_slots),
            engines=plan.engines,
            modes=plan.modes,
            max_batch=plan.max_batch,
            versions=plan.versions,
            device=plan.device,
            app=plan.app,
        )
    clock, device = MonotonicClock(), current_device()
    if device is None:
        _lower(messages.NICENESS - load.niceness)
    else:
        check_room(device, load.beside_bytes)
    free = device.free_bytes() if device is not None else None
    most = min(load.max_slots, plan.slots_for(has_device=device is not None))
    hands = _open_hands(load, most, clock)
    runners = {runner.name: runner for runner in (open_runner(model, clock) for model in models)}
    tell = partial(_tell_progress, control)
    infos = [warm_up(runner, clock, most, load.fetched.get(runner.name, b""), tell) for runner in runners.values()]
    slots = most if all(info.is_parallel for info in infos) else 1
    for info in infos:
        if info.device != "cpu":
            runners[info.name].take_usage = take_usage
    for info in infos:
        _divide(runners[info.name], slots, clock, info.fetched)
    doubts = [doubt for model in models for doubt in doubtful_attributes(type(model))]
    doubts += [note for model in models if isinstance(model, HandlerModel) for note in model.notes]
    doubts += [note for info in infos for note in info.notes]
    rooms: list[wire.Room] = [bytearray] * slots
    if hands is not None:
        notes = open_preparation(runners, infos, hands, clock)
        infos = [replace(info, notes=[*info.notes, notes[info.name]]) if info.name in notes else info for info in infos]
        doubts += notes.values()
        rooms = [area.receive for area in hands.areas[:slots]]
        if device is not None:
            doubts += _pin(device, [area.rows for area in hands.areas[:slots] if area.rows])
    if device is not None:
        _settle_garbage()
    _return_memory()
    left = device.free_bytes() if device is not None else None
    taken = max(0, free - left) if free is not None and left is not None else 0
    return runners, messages.Ready(infos, slots, doubts, taken), rooms


def _tell_progress(control: socket.socket, sentence: str) -> None:
    log.info("%s", sentence)
    wire.write_frame(control, messages.Progress(sentence))


def _open_hands(load: messages.Load, slots: int, clock: Clock) -> Hands | None:
    """Processes that prepare, if this worker is to have any."""
    count = load.plan.hands_for(has_device=current_device() is not None)
    if not count:
        return None
    try:
        return Hands(load.plan, count, slots, messages.NICENESS - load.niceness, clock)
    except OSError as error:  # a sandbox may forbid memory without a name
        log.warning("the worker prepares by itself, there is no memory to share: %s", error)
        return None


def _pin(device: Device, areas: list[memoryview]) -> list[str]:
    """Let the device copy from there by itself; without that it takes longer, and no more."""
    try:
        for area in areas:
            device.pin(area)
    except RuntimeError as error:
        return [f"prepared rows are copied once more on their way to {device.name}: {describe(error)}"]
    return []


def _lower(niceness: int) -> None:
    """Go behind the gateway, with all threads that there are; Linux keeps this by thread."""
    for thread in os.listdir("/proc/self/task") if niceness > 0 else ():
        with suppress(OSError):  # it has ended meanwhile
            os.setpriority(os.PRIO_PROCESS, int(thread), os.getpriority(os.PRIO_PROCESS, int(thread)) + niceness)


def _divide(runner: Runner, slots: int, clock: Clock, fetched: bytes) -> None:
    """Let the slots have their own of what they should not share; only now is it known how many there are."""
    divided = [backend for backend in runner.model.opened if backend.divide(slots)]
    if divided:
        for number in range(1, slots):
            with in_slot(number):
                warm_up(runner, clock, fetched=fetched)


def _settle_garbage() -> None:
    """Look for garbage now, and never again among what loading made: with torch that held up every batch for 0.8 s."""
    gc.collect()
    gc.freeze()


def _return_memory() -> None:
    """Give back what reading model files has left in the allocator: a third of a small worker's memory."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, others may not
    if trim is not None:
        trim(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
