"""What training learns from: clean pictures that are spoilt anew each time, and crops of forms from a pool."""

from __future__ import annotations

from collections.abc import Callable

import torch
from examples.handwriting.data import Data
from examples.handwriting.mill import Mill, prepared
from examples.handwriting.nets import KNOWN
from examples.handwriting.paper import bent, nudge, spoil, to_ink
from examples.handwriting.views import SIDE
from torch import Tensor
from torch.nn import functional

FAINT = 1e-5
"""The least share that is told apart from none: 16 bits hold its logarithm well."""
Wise = Callable[[Tensor], Tensor]
"""Who reads clean ink [n, 1, 64, 64]: shares [n, 801]."""


class Pictures:
    """Batches ready to learn from, this share of them crops of forms; without a mill there are none.

    With `wise`, each picture comes with what that one reads in the clean character, before forms and scans spoil it.
    """

    def __init__(
        self, data: Data, mill: Mill | None = None, *, share: float = 0.0, room: int = 0, wise: Wise | None = None
    ) -> None:
        self.data, self.device = data, data.device
        self._mill, self._share, self._wise = mill, share, wise
        self._taught = torch.zeros(room if wise else 0, KNOWN + 1, dtype=torch.half, device=self.device)
        self._pile = torch.zeros(room, SIDE, SIDE, dtype=torch.uint8, device=self.device)
        self._labels = torch.zeros(room, dtype=torch.long, device=self.device)
        self.made = 0
        """Crops drawn so far; the pool holds the last of them."""
        self._tests: list[tuple[str, Tensor, Tensor]] = []
        while mill is not None and self.made < min(room, 20 * mill.size):
            self.renew(60.0)

    def batch(self, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Ink [size, 1, 64, 64] as the served model prepares it, labels 0 to 2,000, and scores by `wise` or none."""
        count = int(size * self._share) if self._mill else 0
        clean, labels = self.data.batch(size - count)
        x, taught = spoil(clean), self._read(clean, labels)
        if not count:
            return x, labels, taught
        which = torch.randint(0, min(self.made, len(self._pile)), (count,), device=self.device)
        forms = nudge(to_ink(self._pile[which]))
        if self._wise:
            taught = torch.cat([taught, self._taught[which].float()])
        return torch.cat([x, forms]), torch.cat([labels, self._labels[which]]), taught

    def _read(self, clean: Tensor, labels: Tensor) -> Tensor:
        """Scores [n, 801] that the wise one gives; where it is wrong, the label in its place. Empty without one."""
        if self._wise is None:
            return torch.empty(0, device=self.device)
        shares, right = self._wise(clean), labels.clamp(max=KNOWN)
        plain = functional.one_hot(right, KNOWN + 1).float()
        shares = torch.where((shares.argmax(1) == right)[:, None], shares, plain)
        return shares.clamp(min=FAINT).log()

    def renew(self, timeout_s: float = 0.0) -> None:
        """Take what the mill has ready in place of the oldest, and give it more to do; waits so long if it has none."""
        if self._mill is None:
            return
        for made, (labels, taught) in self._mill.take(timeout_s):
            places = (torch.arange(len(made), device=self.device) + self.made) % len(self._pile)
            self._pile[places] = torch.tensor(made, device=self.device)
            self._labels[places] = labels
            if self._wise:
                self._taught[places] = taught
            self.made += len(made)
        while self._mill.idle():
            ink, labels = self.data.batch(self._mill.size)
            ink = bent(ink)
            taught = self._read(ink, labels).half()
            self._mill.give((ink[:, 0] * 255).to(torch.uint8).cpu().numpy(), (labels, taught))

    def held_out(self) -> list[tuple[str, Tensor, Tensor]]:
        """The faces kept back, ready for the networks: clean, spoilt, and some of them on forms; with labels."""
        if not self._tests:
            self._tests = self._held_out()  # drawn once: who is judged later sees the same
        return self._tests

    def _held_out(self) -> list[tuple[str, Tensor, Tensor]]:
        pictures, labels = self.data.held_out
        if self.device.type != "cuda":
            pictures, labels = pictures[::20], labels[::20]
        ink = to_ink(pictures)
        tests = [("clean", ink, labels), ("spoilt", torch.cat([spoil(part) for part in ink.split(1024)]), labels)]
        if self._mill is not None:
            some = ink[::8]  # they are drawn here and now, while the GPU waits
            characters = (bent(some)[:, 0] * 255).to(torch.uint8).cpu().numpy()
            tests.append(("forms", to_ink(torch.tensor(prepared(characters, 5), device=self.device)), labels[::8]))
        return tests
