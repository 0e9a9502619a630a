"""What deadly inputs have in common: who sent them, their size, their fields, and the values and sizes of these.

Somebody who changes one field each time sends bodies that nobody has met. Of each batch that was lost every item has
its share of the blame; who is proven guilty has all of it, and who is answered none. What they share is counted, for
them and for all that ran since. A trait tells where far more blame comes together than elsewhere. Whoever shares most
of what tells with one of the last that were blamed is of its kind, and a suspect from the start: it runs alone, in
the worker that is kept for suspects, and takes no other request with it. One trait of several is not enough: the
innocent may come to share it at any time, all at once.

Where nobody of a kind is ever answered, it is not run at all, but for one now and then.
"""

from __future__ import annotations

import enum
from collections import OrderedDict, deque

import msgspec

from timebound.requests.request import Request
from timebound.types import Body

ENOUGH, ENOUGH_ALONE = 1.5, 0.99
"""So much blame a trait has before it counts, where one request can bring 1: one may have it by chance. If somebody was
lost alone with it, once so many ran since that it is known what others have:"""
MANY = 8
SELDOM = 0.01
"""Or if nobody with it was answered, several times, which would hardly be so by chance: it has this probability."""
SHARE, TIMES = 0.5, 5.0
"""Of those who ran with a trait, so many were guilty, or so many times as many as of all requests: what the innocent
have as well says nothing."""
ALIKE = 0.5
"""Who has so many of one's telling traits is of its kind."""
SURE, SURE_SHARE = 3.0, 0.9
"""Of a kind that so many were guilty of, and hardly anybody else, none is run,"""
TRIED_S = 10.0
"""unless the last one was so long ago."""
KEPT_S = 600.0
MOST_TRAITS = 512
MOST_PROFILES = 32
MOST_FIELDS = 16
LONGEST_BODY = 4096
LONGEST_VALUE = 64
"""Bytes; longer bodies are known by their sender and size alone, and longer values by their size."""
_VALUE = b"\0field\0"

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Likeness(enum.Enum):
    """What a request has in common with those that killed workers."""

    NONE = "none"
    KIN = "kin"  # it runs apart
    DEADLY = "deadly"  # it is not run now


class _Trait(msgspec.Struct):
    until: float
    blame: float = 0.0
    ran: int = 0
    """So many with it were answered or lost; who was given up before it ran tells nothing."""
    lost: int = 0
    times: int = 0
    """At how many losses so many with it were lost."""
    is_alone: bool = False
    """Whether all of one request's blame is in it."""
    lost_at: float = 0.0
    tried: float = 0.0
    """When somebody with it was last let in."""


class Kin:
    """Remembers at most `MOST_TRAITS` and `MOST_PROFILES`; the oldest is forgotten first."""

    def __init__(self) -> None:
        self.traits: OrderedDict[bytes, _Trait] = OrderedDict()
        self._profiles: deque[list[bytes]] = deque(maxlen=MOST_PROFILES)  # of those that were blamed last

    def __len__(self) -> int:
        return len(self.traits)

    def meet(self, request: Request, now: float) -> Likeness:
        """It came; is it of a kind that kills?"""
        every = self.traits.get(_all(request))
        if every is None:
            return Likeness.NONE
        share = min(SHARE, TIMES * every.blame / max(1, every.ran))
        own: list[_Trait] = []
        telling: set[bytes] = set()
        for name in traits_of(request):
            trait = self.traits.get(name)
            if trait is not None and trait.until <= now:
                del self.traits[name]
            elif trait is not None:
                own.append(trait)
                # Itself left out: a row of guilty ones is not broken by the one that nobody has judged yet.
                if _tells(trait, every, share):
                    telling.add(name)
        likeness = self._likeness(telling, every, share, now) if telling else Likeness.NONE
        if likeness is not Likeness.DEADLY:
            request.traits = (*own, every)
            for name in telling if likeness is Likeness.KIN else ():
                self.traits[name].tried = now
        return likeness

    def _likeness(self, own: set[bytes], every: _Trait, share: float, now: float) -> Likeness:
        """Of somebody with these telling traits to those that were blamed last."""
        for profile in self._profiles:
            common = [name for name in profile if name in own]
            if not common:
                continue
            missing = sum(name not in own and self._is_expected(name, every, share) for name in profile)
            if len(common) >= ALIKE * (len(common) + missing):
                traits = [self.traits[name] for name in common]
                is_sure = any(t.blame >= SURE and t.lost >= SURE_SHARE * t.ran for t in traits)
                is_tried = max(trait.tried for trait in traits) > now - TRIED_S
                return Likeness.DEADLY if is_sure and is_tried else Likeness.KIN
        return Likeness.NONE

    def _is_expected(self, name: bytes, every: _Trait, share: float) -> bool:
        """Whether another one of the kind should have this trait: not if only one ever had that value."""
        trait = self.traits.get(name)
        return trait is not None and _tells(trait, every, share) and not (_VALUE in name and trait.lost <= 1)

    def blame(self, request: Request, now: float, share: float = 1.0) -> None:
        """It was one of those in a lost batch, or with all of the blame was lost alone."""
        more, is_first = share - request.blame, not request.blame
        if more <= 0:
            return
        request.blame = share
        own = traits_of(request)
        self._profiles.append(own)
        for name in (*own, _all(request)):
            trait = self.traits.setdefault(name, _Trait(now))
            trait.blame += more
            trait.is_alone |= share == 1.0
            trait.lost += is_first
            trait.times += is_first and (not trait.times or trait.lost_at != now)
            trait.lost_at = now
            trait.ran += is_first
            trait.until, trait.tried = now + KEPT_S, now
            self.traits.move_to_end(name)
        while len(self.traits) > MOST_TRAITS:
            self.traits.popitem(last=False)

    def answered(self, request: Request) -> None:
        """It ran, and its worker lives: whatever was held against it was not its doing."""
        less, request.blame = request.blame, 0.0
        if not less:
            for trait in request.traits:
                trait.ran += 1
            return
        for name in (*traits_of(request), _all(request)):
            if (trait := self.traits.get(name)) is not None:
                trait.blame -= less
                trait.lost -= 1


def _tells(trait: _Trait, every: _Trait, share: float) -> bool:
    is_never_answered = trait.times > 1 and trait.lost >= SURE_SHARE * trait.ran
    if is_never_answered and (every.lost / max(1, every.ran)) ** trait.times <= SELDOM:
        return True
    enough = ENOUGH_ALONE if trait.is_alone and every.ran >= MANY else ENOUGH
    return trait.blame >= enough and trait.blame >= share * trait.ran


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
            traits.append(b"%b%b%b\0%b" % (model, _VALUE, name.encode(), value))
    return traits
