"""Looks at heavy bodies elsewhere: what JSON says of its key and size, and any body's fingerprint.

A protocol that makes several items of a body has a reader of its own, a module that is named to the process.

To read ten megabytes of JSON takes 10 ms and more, and msgspec keeps the interpreter lock meanwhile: a thread would
hold up everybody's answers just as the event loop would. So a thread hands such a body to a process of its own, started
when the first one comes. `light.py` says which bodies are heavy, `turns.py` whose is next; `reading.py` hands them
over, `reader.py` is the gateway's side of a process, `process.py` the process, and `wire.py` what goes between them.
"""

from timebound.reading.light import LIGHT, is_heavy
from timebound.reading.reading import Done, Reading
from timebound.reading.wire import Errand, Looked

__all__ = ["LIGHT", "Done", "Errand", "Looked", "Reading", "is_heavy"]
