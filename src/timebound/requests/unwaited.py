"""Requests whose clients have all left, kept because a retry may come for them by their key.

They take what nobody else wants: few of each client's, few in all; whoever waits goes first, for a place in the queue
as for memory. None of them has run, so nothing is lost but its place with one that is let go: a retry asks anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from timebound.requests.request import Phase, Request

_SHARE, _SHARE_EACH = 4, 8
"""Of the longest queue that they may fill, and of that again the part that one client's may."""


class Unwaited:
    """Knows them in the order in which their clients left; `let_go` is called with those that must go, oldest first."""

    def __init__(self, max_queue: int, let_go: Callable[[Request], None]) -> None:
        self._let_go = let_go
        self._most = max(1, max_queue // _SHARE)
        self._most_each = max(1, self._most // _SHARE_EACH)
        self._all: OrderedDict[int, Request] = OrderedDict()
        self._of_client: dict[str, OrderedDict[int, Request]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, request: Request, client: str) -> None:
        """Its last client has left."""
        request.left_by = client
        own = self._of_client.setdefault(client, OrderedDict())
        own[request.seq] = self._all[request.seq] = request
        if len(own) > self._most_each:
            self._drop_first(own)
        if len(self._all) > self._most:
            self._drop_first(self._all)

    def remove(self, request: Request) -> None:
        """A retry came for it, or it has come to its end."""
        client, request.left_by = request.left_by, None
        if client is not None:
            del self._all[request.seq]
            own = self._of_client[client]
            del own[request.seq]
            if not own:
                del self._of_client[client]

    def make_place(self, model: str) -> bool:
        """Let one go that waits for this model; whether there was one."""
        return self._drop_first(self._all, lambda request: request.model == model)

    def make_room(self, has_room: Callable[[], bool]) -> None:
        """Let go of those that hold memory, until there is enough."""
        while not has_room() and self._drop_first(self._all, lambda request: request.hold is not None):
            pass

    def _drop_first(
        self, requests: OrderedDict[int, Request], is_one: Callable[[Request], bool] = lambda request: True
    ) -> bool:
        """Let the oldest go that has not started; what runs is soon over."""
        for request in requests.values():
            if request.phase is Phase.QUEUED and is_one(request):
                self._let_go(request)
                return True
        return False
