"""Which release this is; `timebound.__version__`."""

VERSION = "0.1.0"
