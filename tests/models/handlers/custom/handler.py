"""A handler with a function of its own name: statuses, headers, metrics, and every way to go wrong."""

import fcntl
import os
import threading
import time

calls = {"init": 0, "threads": set(), "inside": 0, "most": 0}


try:
    from ts.utils.util import PredictionException
except ImportError:

    class PredictionException(Exception):
        def __init__(self, message, error_code=500):
            self.message = message
            self.error_code = error_code
            super().__init__(message)


def entry(data, context):
    if data is None:
        calls["init"] += 1
        return None
    calls["threads"].add(threading.get_ident())
    calls["inside"] += 1
    calls["most"] = max(calls["most"], calls["inside"])
    try:
        return _handled(data, context)
    finally:
        calls["inside"] -= 1


def _handled(data, context):
    for row in data:
        if "gate" in row:  # wait until nobody holds it shut
            with open(bytes(row["gate"]).decode()) as file:
                fcntl.flock(file, fcntl.LOCK_SH)
    context.metrics.add_counter("Calls", 1)
    context.metrics.add_time("HandleTime", 1.5, None, "ms")
    fields = [row.get("do", b"") for row in data]
    whole = {bytes(field).decode() for field in fields if isinstance(field, bytearray)}
    if "raise" in whole:
        raise ValueError("the secret of the house")
    if "memory" in whole:
        raise MemoryError()
    if "prediction" in whole:
        raise PredictionException("not that one", 422)
    if "fewer" in whole:
        return ["one"] * (len(data) - 1)
    if "tuple" in whole:
        return tuple(data)
    if "slow" in whole:
        time.sleep(5)
    return [_answer(idx, row, context) for idx, row in enumerate(data)]


def _answer(idx, row, context):
    do = bytes(row.get("do", b"")).decode()
    if do == "object":
        return object()
    if do == "teapot":
        context.set_response_status(code=418, phrase="teapot", idx=idx)
        context.set_response_content_type(idx, "text/x-tea")
        context.set_response_header(idx, "X-Leaf", "green")
        return "short and stout"
    if do == "split":
        context.set_response_header(idx, "X-Bad", "a\r\nX-Worse: b")
        return b"\x00bytes"
    return {
        "row": {name: [type(value).__name__, str(value)[:100]] for name, value in row.items()},
        "headers": {
            name: context.get_request_header(idx, name) for name in ("X-Mine", "explain", "url_path", "Content-Type")
        },
        "greeting": context.model_yaml_config.get("handler", {}).get("greeting"),
        "init": calls["init"],
        "threads": len(calls["threads"]),
        "most": calls["most"],
        "pid": os.getpid(),
        "version": context.manifest["model"]["modelVersion"],
        "batch": len(context.request_processor),
        "is_beside": os.path.isfile("handler.py"),
    }
