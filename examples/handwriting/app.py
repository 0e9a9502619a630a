"""The handwriting model, the very one that `timebound demo` serves: its code and files are in src/timebound/demo."""

from timebound.demo import app


class Handwriting(app.Handwriting):
    __doc__ = app.Handwriting.__doc__
