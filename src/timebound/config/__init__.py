"""Options: how they are written (`values.py`), which there are (`options.py`), where they are found (`layers.py`)."""

from timebound.app_settings import FILE
from timebound.config.layers import PREFIX, describe, of_options, resolve, settings
from timebound.config.options import Config, default_of, options, shown_default
from timebound.config.values import SIZE, Form, seconds, whole

__all__ = [
    "FILE",
    "PREFIX",
    "SIZE",
    "Config",
    "Form",
    "default_of",
    "describe",
    "of_options",
    "options",
    "resolve",
    "seconds",
    "settings",
    "shown_default",
    "whole",
]
