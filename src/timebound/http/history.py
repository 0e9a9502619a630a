"""The history over HTTP: outcomes, counts and files for the operator; right or wrong from whoever asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from timebound.admission import Client
from timebound.catalogue import Catalogue
from timebound.errors import BadInput, MissingExtra, Refusal, RequestError
from timebound.http.access import CLIENT
from timebound.http.admin import Admin
from timebound.http.responses import json_response
from timebound.requests.identity import MAX_KEY
from timebound.types import Quality

_MOST_ROWS = 500
_MOST_SKIPPED = 5_000
_DAY_S = 86_400
_FARTHEST_ZONE = 14 * 60
"""Minutes ahead of UTC, or behind."""
_MOST_STEPS = 1_500
"""A day by minutes, with room."""
_LONGEST_STEP_S = 31 * _DAY_S
_LONGEST = 200
_LARGEST = 10_000


class Journal(Protocol):
    """What writes."""

    folder: Path

    def say(self, row: tuple[Any, ...]) -> bool: ...


class History(Protocol):
    """What reads."""

    def damaged(self, wanted: Any) -> list[str]: ...
    def rows(self, wanted: Any, *, most: int, order: str, skip: int) -> list[dict[str, Any]]: ...
    def counts(self, wanted: Any, by: str, east_s: int) -> list[tuple[str, int]]: ...
    def minutes(self, wanted: Any, since: float, until: float, step: float) -> list[dict[str, Any]]: ...
    def body(self, place: str, which: str) -> tuple[bytes, str] | None: ...
    def sent(self, place: str) -> tuple[str, str, bytes] | None: ...
    def export(self, wanted: Any, form: str) -> Iterator[bytes]: ...


class Answer(Protocol):
    """What a version answers."""

    @property
    def body(self) -> bytes: ...
    @property
    def media(self) -> str: ...
    @property
    def quality(self) -> Quality: ...
    @property
    def version(self) -> str: ...


class Served(Protocol):
    """Who answers."""

    catalogue: Catalogue

    async def ask_again(self, model: str, version: str, body: bytes) -> Answer: ...


class Kept(msgspec.Struct, frozen=True):
    """What there is of a history: who writes, who reads, and what makes a filter of a query."""

    journal: Journal
    history: History
    filter_of: Callable[[dict[str, str]], Any]
    formats: dict[str, str]


class _Verdict(msgspec.Struct):
    verdict: str
    label: str = ""


class HistoryRoutes:
    """For the operator, and to look for who has a pass; feedback comes from clients."""

    def __init__(
        self,
        kept: Kept | None,
        served: Served,
        admin: Admin,
        wall: Callable[[], float],
        *,
        has_clients: bool,
    ) -> None:
        self._kept = kept
        self._admin = admin
        self._served = served
        self._models = served.catalogue.models
        self._one_at_a_time = asyncio.Lock()
        self._wall = wall
        self._has_clients = has_clients

    @property
    def is_kept(self) -> bool:
        """Whether verdicts about answers are taken."""
        return self._kept is not None

    def routes(self) -> list[Route]:
        """What to mount."""
        return [
            Route("/v1/history", self._rows),
            Route("/v1/history/counts", self._counts),
            Route("/v1/history/minutes", self._minutes),
            Route("/v1/history/export", self._export),
            Route("/v1/history/{place:path}/again", self._again, methods=["POST"]),
            Route("/v1/history/{place:path}/{which:str}", self._body),
            Route("/v1/feedback/{model}/{key:path}", self._feedback, methods=["POST"]),
        ]

    def _open(self, request: HttpRequest) -> Kept:
        self._admin.check_pass(request)
        return self._there()

    def _there(self) -> Kept:
        if self._kept is None:
            raise RequestError("this server keeps no history; start it with --history FOLDER", code="not_found")
        return self._kept

    async def _rows(self, request: HttpRequest) -> Response:
        kept, given = self._open(request), dict(request.query_params)
        order, most = given.pop("order", "newest"), _count(given.pop("most", "100"), "most", 1, _MOST_ROWS)
        skip = _count(given.pop("skip", "0"), "skip", 0, _MOST_SKIPPED)
        wanted = kept.filter_of(given)
        rows = await asyncio.to_thread(kept.history.rows, wanted, most=most, order=order, skip=skip)
        return json_response({"outcomes": rows, **_damaged(kept, wanted)})

    async def _counts(self, request: HttpRequest) -> Response:
        kept, given = self._open(request), dict(request.query_params)
        by, zone = given.pop("by", "label"), given.pop("zone", "0")
        east_s = 60 * _count(zone.removeprefix("-"), "zone", 0, _FARTHEST_ZONE) * (-1 if zone.startswith("-") else 1)
        wanted = kept.filter_of(given)
        found = await asyncio.to_thread(kept.history.counts, wanted, by, east_s)
        return json_response({"by": by, "counts": found, **_damaged(kept, wanted)})

    async def _minutes(self, request: HttpRequest) -> Response:
        kept, given = self._open(request), dict(request.query_params)
        step = _count(given.pop("step", "60"), "step", 60, _LONGEST_STEP_S)
        wanted = kept.filter_of(given)
        until = self._wall() if wanted.until is None else wanted.until
        since = until - _DAY_S if wanted.since is None else wanted.since
        if (until - since) / step > _MOST_STEPS:
            raise BadInput(f"these are more than {_MOST_STEPS} steps; ask for a longer step, in seconds", field="step")
        found = await asyncio.to_thread(kept.history.minutes, wanted, since, until, step)
        return json_response({"step": step // 60 * 60, "minutes": found})

    async def _body(self, request: HttpRequest) -> Response:
        kept, path = self._open(request), request.path_params
        found = await asyncio.to_thread(kept.history.body, path["place"], path["which"])
        if found is None:
            raise RequestError("it was not kept, or its time is over; see keep_inputs", code="not_found")
        headers = {"content-disposition": "attachment", "cache-control": "no-store"}  # whatever it is, it is no page
        media = found[1] if path["which"] == "answer" else "application/octet-stream"
        return Response(found[0], headers=headers, media_type=media)

    async def _again(self, request: HttpRequest) -> Response:
        """The same to the same version, under no key; it is neither counted nor written."""
        kept = self._open(request)
        async with self._one_at_a_time:
            sent = await asyncio.to_thread(kept.history.sent, request.path_params["place"])
            if sent is None:
                raise RequestError("what was sent was not kept, or its time is over; see keep_inputs", code="not_found")
            try:
                answer = await self._served.ask_again(*sent)
            except RequestError as error:
                error.detail += self._redacted(sent[0])
                raise
        facts = {"timebound-version": answer.version, "timebound-quality": answer.quality.value}
        headers = {"content-disposition": "attachment", "cache-control": "no-store", **facts}
        return Response(answer.body, headers=headers, media_type=answer.media)

    def _redacted(self, model: str) -> str:
        infos = [info for info in self._models.values() if info.base == model]
        fields = ", ".join({field: None for info in infos for field in info.redact})
        if not fields and not any(info.has_redact for info in infos):
            return ""
        return f"; what is kept is without what `redact` leaves out{f' ({fields})' if fields else ''}"

    async def _export(self, request: HttpRequest) -> Response:
        kept, given = self._open(request), dict(request.query_params)
        form = given.pop("format", "csv")
        parts = kept.history.export(kept.filter_of(given), form)
        try:
            first = await asyncio.to_thread(next, parts, b"")
        except MissingExtra as error:
            raise RequestError(str(error), code="unsupported_media_type") from None

        def whole() -> Iterator[bytes]:
            yield first
            yield from parts

        headers = {"content-disposition": f'attachment; filename="history.{form}"'}
        return StreamingResponse(whole(), headers=headers, media_type=kept.formats[form])

    async def _feedback(self, request: HttpRequest) -> Response:
        kept = self._there()
        client: Client | None = request.scope.get(CLIENT)
        if client is None and self._has_clients:
            self._admin.check_pass(request)
        model, key = request.path_params["model"], request.path_params["key"]
        body = await request.body()
        try:
            said = msgspec.json.decode(body[:_LARGEST], type=_Verdict)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadInput(f'{error}; send {{"verdict": "right"}} or {{"verdict": "wrong", "label": "..."}}') from None
        if said.verdict not in ("right", "wrong") or len(said.label) > _LONGEST or len(key) > MAX_KEY:
            detail = f"the verdict is right or wrong; a label has at most {_LONGEST} letters, a key {MAX_KEY}"
            raise BadInput(detail, field="verdict")
        if not key:
            raise BadInput("name the answer by the key of its request: /v1/feedback/MODEL/KEY", field="key")
        if client is not None:
            client.check_model(model)
            key = client.own(key)
        if all(info.base != model for info in self._models.values()):
            raise RequestError(f"there is no model {model[:_LONGEST]!r}", code="unknown_model")
        row = (model, key, said.verdict, said.label, self._wall(), "" if client is None else client.name)
        if not kept.journal.say(row):
            raise Refusal("too much waits to be written; send it again later", code="overloaded", retry_after_s=1)
        return json_response({"noted": said.verdict}, 202)


def _damaged(kept: Kept, wanted: Any) -> dict[str, list[str]]:
    """Which files of these hours cannot be read, if any."""
    found = kept.history.damaged(wanted)
    return {"damaged": found} if found else {}


def _count(text: str, name: str, least: int, most: int) -> int:
    if not text.isdecimal() or len(text) > len(str(most)) or not least <= int(text) <= most:
        raise BadInput(f"{name} is {text[:_LONGEST]!r}; give a number from {least} to {most}", field=name)
    return int(text)
