"""Why each error happens and what helps, for people: the API document and docs/errors.md are made of it."""

from __future__ import annotations

from timebound.http.problems import STATUSES

CAUSES: dict[str, tuple[str, str]] = {
    "malformed_http": (
        "The bytes are not HTTP/1.1.",
        "Look at what sends them: https to an http port, or a broken proxy.",
    ),
    "malformed_json": ("The body cannot be read as JSON, or not as the kind its content type names.", "Fix the body."),
    "empty_body": ("The body is empty, or a list without items.", "Send a body."),
    "bad_header": ("A header has a value it cannot have; `field` names it.", "Fix or leave out that header."),
    "unauthorized": (
        "No API key that the server knows came along.",
        "Send `X-API-Key: KEY` or `Authorization: Bearer KEY`.",
    ),
    "forbidden": (
        "The API key is not for this model, or only the operator may ask this.",
        "Use another key; an operator shows `--admin-token`, or works on the server's machine.",
    ),
    "not_found": ("There is nothing at this path.", "Look for the path in /docs."),
    "unknown_model": ("No model of this name or version is served.", "Take a name from `GET /v1/models`."),
    "no_result": (
        "No result is kept under this key: never asked, gone with time, or of another API key.",
        "Ask the model.",
    ),
    "method_not_allowed": (
        "The path is there, but not for this method.",
        "Models are asked by POST, others as /docs says.",
    ),
    "slow_client": ("The request took longer than `--read-timeout` to arrive.", "Send faster, or raise the option."),
    "reload_failed": ("The new code or model cannot be loaded; the old one goes on.", "`detail` says why: fix that."),
    "body_too_large": ("The body has more bytes than `--max-body`.", "Send less, or raise the option."),
    "unsupported_media_type": (
        "The model does not read bodies of this content type.",
        "Send JSON as `application/json`, or what the model's `accepts` names.",
    ),
    "unsupported_encoding": ("The body is compressed in a way that is not taken here.", "Send it as it is."),
    "bad_input": (
        "A field is missing or of the wrong type, or the model refused the input; `field` names it.",
        "Fix the body; /docs shows what the model takes.",
    ),
    "key_reused": (
        "The key was used before with another body.",
        "Send a retry with the same body, a new request with a new key. Fields that change belong in `key_ignore`.",
    ),
    "too_long": ("The model's `size` says that it must not take this input.", "Send a shorter one."),
    "too_much_history": ("The question to the history takes too long.", "Ask for a shorter time."),
    "queue_full": ("`--max-queue` requests of this model wait already.", "Ask again after `Retry-After`."),
    "deadline_unreachable": (
        "The answer would take longer than the deadline leaves.",
        "Give it more time (`Timebound-Timeout-Ms`), or ask again after `Retry-After`.",
    ),
    "overloaded": (
        "More work waits than can be done in time.",
        "Ask again after `Retry-After`. If it lasts: more workers or servers (`timebound plan`), or a `fallback`.",
    ),
    "too_late": ("The load left no time for this request before its deadline.", "As for `overloaded`."),
    "rate_limited": ("The API key is over its rate.", "Ask again after `Retry-After`, or raise the key's rate."),
    "client_busy": (
        "Too many connections or requests of one API key or address are open.",
        "Wait for answers before asking more; `--max-per-address` is the limit of an address.",
    ),
    "headers_too_large": (
        "Request line and headers have more bytes than `--max-header`.",
        "Send fewer, or raise the option.",
    ),
    "internal": ("The server made a mistake; its log has the traceback.", "Report it, with the log's lines."),
    "model_failed": (
        "The model's code raised on this input; the server's log has the traceback.",
        "Fix the model, or have `prepare` raise `tb.BadInput` if the input is wrong.",
    ),
    "crashes_worker": (
        "Workers died or hung on this input, each time with it alone.",
        "Look for the input's `request_id` in the log and fix the model. Until then it is refused for a while.",
    ),
    "not_ready": (
        "No worker is ready: they still load, or all have died.",
        "Ask /readyz why; ask again after `Retry-After`.",
    ),
    "store_unavailable": (
        "This needs the shared store (Redis), which does not answer.",
        "Ask again when /readyz no longer mentions the store.",
    ),
    "draining": ("The server is shutting down.", "Ask again: another server or its successor answers."),
    "too_many_watchers": (
        "64 pages show this server live already.",
        "Close some of them; those that are not read lose their place within seconds.",
    ),
    "too_many_connections": (
        "`--max-connections` are open.",
        "Keep connections and use them again, or raise the option.",
    ),
    "memory_full": (
        "Large bodies and unread answers fill `--max-held`.",
        "Ask again after `Retry-After`, or raise the option.",
    ),
    "deadline_missed": (
        "The deadline passed although an answer was predicted in time; there is no fallback, or no time for it.",
        "Ask again; a `fallback` answers where more than a few ms are left. The live page shows what takes so long.",
    ),
}


def error_table() -> str:
    """All errors as a Markdown table: status, code, cause and cure."""
    rows = [f"| {status} | `{code}` | {' | '.join(CAUSES[code])} |\n" for code, (status, _) in STATUSES.items()]
    return "| status | code | cause | cure |\n|---|---|---|---|\n" + "".join(rows)
