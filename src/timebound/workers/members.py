"""Runs an ensemble's batch member by member: reports after each, asks whether to go on, hears the members' votes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from inspect import isgeneratorfunction
from typing import Any

import msgspec

from timebound.backends.ensemble import Steps, Votes, heard_by, in_steps, on_cores, timed_in
from timebound.clock import Clock
from timebound.handlers.model import HandlerModel
from timebound.model import Model
from timebound.types import Report
from timebound.workers.failures import is_for_want_of_memory, is_lost_device
from timebound.workers.fetched import FetchedRunner
from timebound.workers.handled import HandlerRunner
from timebound.workers.pieces import PiecesRunner
from timebound.workers.runner import CAUGHT, Ask, Prepared, Runner, unstack
from timebound.workers.votes import votes_line

log = logging.getLogger("timebound.worker")


def open_runner(model: Model, clock: Clock) -> Runner:
    """The runner for a loaded model."""
    if isinstance(model, HandlerModel):
        return HandlerRunner(model, clock)
    is_ensemble = len(getattr(model.net, "members", ())) > 1
    kind: type[Runner] = EnsembleRunner if is_ensemble else Runner
    if model.fetch is not None:
        kind = FetchedEnsembleRunner if is_ensemble else FetchedRunner
    if isgeneratorfunction(model.finish):
        kind = type(f"Pieces{kind.__name__}", (PiecesRunner, kind) if kind is not Runner else (PiecesRunner,), {})
    return kind(model, clock)


class _Voted(msgspec.Struct):
    """One item's output, and what it would be by each member alone."""

    output: Any
    alone: list[tuple[str, Any]]


class EnsembleRunner(Runner):
    """Runs batches of a model whose `net` is an ensemble.

    With `ask`, it reports after each member but the last, and once it has run for `ask_after_s` it goes on only if told
    so; if it is not, the last report stands. It does neither while it is `silent`. With several `cores` its members
    run side by side and nothing is asked.
    For the items at the places in `votes` the report also says what each member would have answered alone.
    """

    def compute(self, batch: Prepared) -> Report | None:
        start, beside = self.clock.now(), list[tuple[float, float]]()
        if batch.ask is not None and batch.cores == 1 and batch.items:
            outputs = self._infer_in_steps(batch, batch.ask)
            if outputs is None:
                return None
        else:
            with on_cores(batch.cores), timed_in(beside):
                outputs = self.infer_apart(batch.items, self._infer_with_votes if batch.votes else self.infer)
        report = self.report(batch, outputs, self.clock.now() - start)
        if not beside:
            return report
        return msgspec.structs.replace(report, timing=msgspec.structs.replace(report.timing, beside_s=tuple(beside)))

    def report(self, batch: Prepared, outputs: Sequence[Any], infer_s: float, members: int | None = None) -> Report:
        report = self._report(batch, outputs, infer_s, members)
        if not batch.members_s:
            return report
        timing = msgspec.structs.replace(report.timing, members_s=tuple(batch.members_s))
        return msgspec.structs.replace(report, timing=timing)

    def _report(self, batch: Prepared, outputs: Sequence[Any], infer_s: float, members: int | None) -> Report:
        if not batch.votes:
            return super().report(batch, outputs, infer_s, members)
        plain = [out.output if isinstance(out, _Voted) else out for out in outputs]
        votes = {
            place: votes_line([(member, self.finish(request, output)) for member, output in item.alone])
            for place, request, item in zip(batch.places, batch.requests, outputs, strict=True)
            if place in batch.votes and isinstance(item, _Voted) and item.alone
        }
        return msgspec.structs.replace(super().report(batch, plain, infer_s, members), votes=votes)

    def _infer_in_steps(self, batch: Prepared, ask: Ask) -> list[Any] | None:
        """Outputs after all members, or None if the ensemble was told to leave it at fewer."""
        try:
            stacked = self.stack(batch.items)
        except CAUGHT:
            return self.infer_apart(batch.items, self.infer)  # which finds the item that is to blame
        start = self.clock.now()
        since = start
        broken: list[Exception] = []
        votes = Votes() if batch.votes else None

        def unstacked(infer: Callable[[], Any]) -> list[Any]:
            rows = unstack(infer(), len(batch.items), self.name)
            return rows if votes is None else self._with_votes(rows, votes, stacked)

        def report(infer: Callable[[], Any], members: int) -> bool:
            nonlocal since
            now = self.clock.now()
            batch.members_s.append(now - since)
            infer_s = now - start
            so_far = self.report(batch, unstacked(infer), infer_s, members)
            if infer_s < batch.ask_after_s:  # no need to wait for a decision; but the next member may hang or fail
                so_far = msgspec.structs.replace(so_far, is_note=True)
            try:
                return ask(so_far)
            except Exception as error:
                broken.append(error)
                raise
            finally:
                since = self.clock.now()

        sure, quiet_s = batch.silent
        until = start + quiet_s - batch.prepare_s
        is_quiet = (lambda: self.clock.now() < until) if sure else None
        steps = Steps(lambda: self.model.infer(stacked), report, is_quiet, sure)
        try:
            with in_steps(steps), heard_by(votes):
                outputs = unstacked(lambda: self.model.infer(stacked))
        except CAUGHT as error:
            if broken or is_lost_device(error):  # it was the asking that failed, not the model
                raise
            self.memory_failures += is_for_want_of_memory(error)
            batch.members_s.clear()
            return self.infer_apart(batch.items, self._infer_with_votes if batch.votes else self.infer)
        batch.members_s.append(self.clock.now() - since)
        return outputs if steps.is_complete else None

    def _infer_with_votes(self, items: Sequence[Any]) -> list[Any]:
        stacked, votes = self.stack(items), Votes()
        with heard_by(votes):
            rows = unstack(self.model.infer(stacked), len(items), self.name)
        return self._with_votes(rows, votes, stacked)

    def _with_votes(self, rows: list[Any], votes: Votes, stacked: Any) -> list[Any]:
        """Each item's output with what each member heard so far makes of it alone."""
        count = len(rows)
        try:
            with heard_by(None):
                each = votes.alone(lambda: self.model.infer(stacked))
                alone = [(member, unstack(outputs, count, self.name)) for member, outputs in each]
        except CAUGHT as error:  # the answer itself is there; it is only its details that cannot be had
            log.warning("%s: the members' votes cannot be told", self.name, exc_info=error)
            alone = []
        return [_Voted(row, [(member, own[place]) for member, own in alone]) for place, row in enumerate(rows)]


class FetchedEnsembleRunner(FetchedRunner, EnsembleRunner):
    """The same for an ensemble whose requests fetch something first."""
