"""The handwriting model, the very one that `timebound demo` serves: its code and files are in src/timebound/demo.

`--set device=cuda` has its networks computed by torch, on a GPU (or on `cpu`); see torched.py.
"""

import timebound as tb
from timebound.demo import app


class Handwriting(app.Handwriting):
    __doc__ = app.Handwriting.__doc__

    class Settings(tb.Struct):
        device: str = ""
        """What torch computes on, such as cuda; empty: the ONNX files run on the processor."""

    def load(self):
        if not self.settings.device:
            super().load()
            return
        from torched import members  # it needs torch, and the files as they are served do not

        self.net = tb.ensemble(*members(self.settings.device), combine="mean")
