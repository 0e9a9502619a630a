"""What deadly inputs have in common: who sent them, their size, their fields, and the values and sizes of these.

Somebody who changes one field each time sends bodies that nobody has met. Of each batch that was lost every item has
its share of the blame; who is proven guilty has all of it, and who is answered none. What they share is counted, for
them and for all that came since. Where far more blame comes together than elsewhere, whoever shares it is a
suspect from the start: it runs alone, in the worker that is kept for suspects, and takes no other request with it.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from timebound.requests.request import Request
from timebound.types import Body

ENOUGH = 1.5
"""So much blame a trait has before it counts, where one request can bring 1: one may have it by chance."""
SHARE, TIMES = 0.5, 5.0
"""Of those who came with a trait, so many were guilty, or so many times as many as of all requests: what the innocent
have as well says nothing."""
KEPT_S = 600.0
MOST_TRAITS = 512
MOST_FIELDS = 16
LONGEST_BODY = 4096
LONGEST_VALUE = 64
"""Bytes; longer bodies are known by their sender and size alone, and longer values by their size."""

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Trait(msgspec.Struct):
    since: float
    until: float
    blame: float = 0.0
    came: int = 0


class Kin:
    """Remembers at most `MOST_TRAITS`; the oldest is forgotten first."""

    def __init__(self) -> None:
        self.traits: OrderedDict[bytes, _Trait] = OrderedDict()

    def __len__(self) -> int:
        return len(self.traits)

    def meet(self, request: Request, now: float) -> bool:
        """It came; is it of a kind that kills?"""
        every = self.traits.get(_all(request))
        if every is None:
            return False
        share, is_kin = min(SHARE, TIMES * every.blame / max(1, every.came)), False
        every.came += 1
        for name in traits_of(request):
            trait = self.traits.get(name)
            if trait is not None and trait.until <= now:
                del self.traits[name]
            elif trait is not None:
                # Itself left out: a row of guilty ones is not broken by the one that nobody has judged yet.
                is_kin |= trait.blame >= ENOUGH and trait.blame >= share * trait.came
                trait.came += 1
        return is_kin

    def blame(self, request: Request, now: float, share: float = 1.0) -> None:
        """It was one of those in a lost batch, or with all of the blame is proven guilty."""
        more, is_first = share - request.blame, not request.blame
        if more <= 0:
            return
        request.blame = share
        for name in (*traits_of(request), _all(request)):
            trait = self.traits.setdefault(name, _Trait(now, now))
            trait.blame += more
            trait.came += is_first and request.arrived <= trait.since  # else it was counted when it came
            trait.until = now + KEPT_S
            self.traits.move_to_end(name)
        while len(self.traits) > MOST_TRAITS:
            self.traits.popitem(last=False)

    def clear(self, request: Request) -> None:
        """It has been answered: whatever was held against it was not its doing."""
        less, request.blame = request.blame, 0.0
        for name in (*traits_of(request), _all(request)) if less else ():
            if (trait := self.traits.get(name)) is not None:
                trait.blame -= less


def _all(request: Request) -> bytes:
    return b"%b\0all" % request.info.name.encode()


def traits_of(request: Request) -> list[bytes]:
    """What it may have in common with others."""
    senders = {(each.question.client, each.question.address) for each in request.attempts}
    model, body = request.info.name.encode(), request.body
    traits = [b"%b\0from\0%b" % (model, (client or address).encode()) for client, address in senders]
    traits.append(b"%b\0size\0%d" % (model, len(body).bit_length()))
    if request.info.body is not Body.JSON or len(body) > LONGEST_BODY:
        return traits
    try:
        fields = _fields.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return traits
    traits.append(b"%b\0fields\0%b" % (model, "\0".join(sorted(fields)).encode()))
    for name in list(fields)[:MOST_FIELDS]:
        value = bytes(fields[name])
        kind = b"%b%d" % (value[:1] if value[:1] in b'"[{-tfn' else b"#", len(value).bit_length())
        traits.append(b"%b\0kind\0%b\0%b" % (model, name.encode(), kind))
        if len(value) <= LONGEST_VALUE:
            traits.append(b"%b\0field\0%b\0%b" % (model, name.encode(), value))
    return traits
