"""Serving from a program: `serve` until it is told to stop, `start` a server of its own beside it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from timebound import notebook
from timebound.app_settings import TABLE, handed_to
from timebound.errors import SetupError
from timebound.importer import imported_now
from timebound.model import Model

if TYPE_CHECKING:
    from timebound.client.answer import Answer
    from timebound.client.blocking import Client

Served: TypeAlias = type[Model] | Callable[..., Any] | str | Path
"""A model class, a function with types, or what `timebound serve` takes."""


def serve(model: Served, **options: Any) -> int:
    """Serve it in this process until Ctrl-C or SIGTERM; `options` are those of `timebound serve`, such as `port=8001`.

    For a script: put it under `if __name__ == "__main__":`, for workers import the file that the class is in. A class
    typed into a notebook is handed to them as it is now, if cloudpickle is installed.
    """
    # Imported here: whoever only starts a server beside a program needs no web server in it.
    from timebound.config import of_options
    from timebound.log import set_up_logging
    from timebound.server import run
    from timebound.target import check_target

    with ExitStack() as until:
        target, config = target_of(model, until), of_options(options)
        check_target(target)
        set_up_logging(config.least_logged, as_json=config.logs_json, is_threaded=True)
        return run(target, config)


def start(model: Served, **options: Any) -> Started:
    """Start a server in a process of its own, on a free port unless `port` says which; it stops with this program.

    Returns when it is ready. For notebooks and tests: `with tb.start(Mood) as server: server.ask({...})`.
    """
    with ExitStack() as until:
        return Started(target_of(model, until), options, until.pop_all())


class Started:
    """A server beside this program: `url`, `ask`, and `stop` (or leave the `with` block)."""

    def __init__(self, target: Path, options: Mapping[str, Any], stack: ExitStack) -> None:
        from timebound.lab.load.launch import serving  # imported here: a program that only serves needs no launcher

        with stack:
            self.url = stack.enter_context(serving(target, flags_of(options), handed_to(options.get(TABLE, {})))).url
            self._stack = stack.pop_all()
        self._client: Client | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<timebound server at {self.url}>"

    @property
    def client(self) -> Client:
        """A `timebound.Client` of this server."""
        if self._client is None:
            from timebound.client.blocking import Client  # imported here: not everybody asks from Python

            self._client = Client(self.url)
        return self._client

    def ask(self, item: Any, *, model: str = "", **options: Any) -> Answer[Any]:
        """A model's answer to one item; `model` may be left out where the server has one. Raises `CallFailed`."""
        return self.client.ask(model or self._only_model(), item, **options)

    def _only_model(self) -> str:
        names = [one.name for one in self.client.models()]
        if len(names) != 1:
            raise SetupError(f"the server has {len(names)} models; say which one: model={names[0]!r}")
        return names[0]

    def stop(self) -> None:
        """Let it answer what it has accepted, and leave."""
        if self._client is not None:
            self._client.close()
            self._client = None
        self._stack.close()


def target_of(model: Served, until: ExitStack) -> Path:
    """What `timebound serve` would take for it; raises `SetupError` if workers could not import it.

    Of what was typed into a notebook a file is made, which is there until `until` is closed.
    """
    if (file := imported_now()) is not None:  # a worker would start a server, whose workers would start servers ...
        raise SetupError(
            f"{file} starts a server while it is imported, and every worker imports it; put that call under "
            'if __name__ == "__main__":'
        )
    if isinstance(model, str | Path):
        return Path(model)
    name = getattr(model, "__qualname__", "")
    if not name:
        raise SetupError(
            f"a {type(model).__name__} cannot be served; give a model class, a function with types or a file"
        )
    source = source_of(model)
    if source is None:
        if name.isidentifier() and notebook.is_possible():
            return notebook.handed_over(model, name, until)
        raise SetupError(
            f"{name} is not in a file, and workers import it from one; in a notebook, install what hands it to them: "
            "pip install 'timebound[notebook]'; or begin its cell with `%%writefile app.py` and give 'app.py'"
        )
    if not name.isidentifier():
        raise SetupError(f"{name} is defined inside something else; move it to the top level of {source.name}")
    return Path(f"{source.resolve()}:{name}")


def source_of(model: Any) -> Path | None:
    """The file that it is written in: also one whose module was imported again since, under another name."""
    try:
        file = Path(inspect.getfile(inspect.unwrap(model)) if not isinstance(model, type) else _file_of(model))
    except (TypeError, OSError):
        return None
    return file if file.is_file() else None


def _file_of(cls: type) -> str:
    functions = (value for value in vars(cls).values() if inspect.isfunction(value))
    return next((function.__code__.co_filename for function in functions), None) or inspect.getfile(cls)


def flags_of(options: Mapping[str, Any]) -> list[str]:
    """The options as flags of `timebound serve`; raises `SetupError` for one that there is not."""
    from timebound.config import of_options  # imported here: serving from a file needs it, importing this does not

    of_options(options)  # whatever is wrong is told now, and not by a process that ends
    flags: list[str] = []
    for name, value in options.items():
        if name == TABLE:  # those of the app are handed over in the environment
            continue
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            flags += [f"--{flag}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return flags
