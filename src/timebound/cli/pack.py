"""`timebound pack`: a folder that runs an app elsewhere, written from the app and its options."""

from __future__ import annotations

import argparse
import os
import shlex
from collections import Counter
from dataclasses import Field
from pathlib import Path
from typing import Any

from timebound.cli.serve import add_options, flags_of
from timebound.cli.values import read_size, read_whole
from timebound.cli.verb import declare
from timebound.config import Config, options, resolve
from timebound.pack.contents import APP, MODELS
from timebound.pack.facts import Facts, Wish
from timebound.pack.folder import Done
from timebound.pack.kinds import KINDS
from timebound.pack.pack import learn, pack
from timebound.target import check_target


def add_to(verbs: Any) -> None:
    """Declare the verb and its flags."""
    parser = declare(
        verbs,
        "pack",
        "write a folder that runs an app elsewhere: containers, Kubernetes, ECS, systemd, Ray",
        "Write a folder with the app, its models and the files that run it elsewhere. Run again, it brings in what is "
        "new; files that you changed are kept, and the new version is written beside them.",
    )
    kinds = "".join(f"  {name:12} {kind.meaning}\n" for name, kind in KINDS.items())
    parser.epilog = f"{parser.epilog}{kinds}"
    add = parser.add_argument
    add("target", type=Path, help="what to serve, as for `timebound serve`; of an app.py its whole folder is packed")
    add("--out", type=Path, required=True, metavar="DIR", help="folder to write into; it is made if it is not there")
    only = "kinds of files to write, from the list below, separated by commas (default: all)"
    add("--only", type=_read_kinds, default=list(KINDS), metavar="KINDS", help=only)
    add("--name", metavar="NAME", help="name of the image and of the services (default: made from the target's name)")
    add("--replicas", type=read_whole, default=2, metavar="N", help="how many servers at first (default: %(default)s)")
    cores = "whole cores for each server (default: workers x slots x threads where these options are set, else 1)"
    add("--cores", type=read_whole, metavar="N", help=cores)
    memory = "memory for each server, such as 2GiB (default: a guess from the size of the models)"
    add("--memory", type=read_size, metavar="SIZE", help=memory)
    wheel = (
        "wheel of Timebound to install in the image (default: what Timebound was installed from here, the package "
        "index or a wheel; or a wheel built from the sources that it runs from; needed after: pip install .)"
    )
    add("--wheel", type=Path, metavar="FILE", help=wheel)
    left_out = "files or folders of the app that are not needed there, such as data or '*.csv'; can be given often"
    add("--leave-out", action="append", default=[], metavar="PATTERN", help=left_out)
    links = "pack what links lead to outside the app's folder, too; without this such a link is refused"
    add("--follow-links", action="store_true", help=links)
    add("--force", action="store_true", help="replace files that you changed, too")
    add_options(parser)
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """Write the folder, and say what was written, what was kept and what to do next."""
    check_target(chosen.target)
    folder = chosen.target if chosen.target.is_dir() else chosen.target.parent
    # As a server started in the app's folder would find them; the environment here is not that of the server.
    config = resolve(flags_of(chosen), {}, folder)
    wish = Wish(
        name=chosen.name,
        replicas=chosen.replicas,
        cores=chosen.cores,
        memory=chosen.memory,
        again=_again(chosen, config),
    )
    known = learn(
        chosen.target,
        chosen.out,
        config,
        wish,
        wheel=chosen.wheel,
        left_out=chosen.leave_out,
        follows_links=chosen.follow_links,
    )
    counts: Counter[str] = Counter()
    for done, file in pack(known, chosen.out, chosen.only, is_forced=chosen.force):
        counts[done] += 1
        said = _said(done, chosen.out / file)
        if said:
            print(said)
    if counts[Done.SAME]:
        print(f"{counts[Done.SAME]} other files are as they were")
    _tell_next(known, chosen.out, chosen.only)
    return 0


def _again(chosen: argparse.Namespace, config: Config) -> str:
    """The flags that were given, to be given again in the folder that was written; secrets are not in it."""
    words = [] if chosen.only == list(KINDS) else ["--only", ",".join(chosen.only)]
    for flag in ("name", "replicas", "cores", "memory"):
        value = getattr(chosen, flag)
        if value is not None and (flag, value) != ("replicas", 2):
            words += [f"--{flag}", str(value)]
    if chosen.wheel is not None:
        words += ["--wheel", os.path.relpath(chosen.wheel.resolve(), chosen.out.resolve())]
    for pattern in chosen.leave_out:
        words += ["--leave-out", pattern]
    words += ["--follow-links"] if chosen.follow_links else []
    words += [_flag(option, config) for option in options() if config.sources.get(option.name) == "flag"]
    return "".join(f" {shlex.quote(word)}" for word in words).replace("$", "$$")


def _flag(option: Field[Any], config: Config) -> str:
    flag, value = option.name.replace("_", "-"), getattr(config, option.name)
    if option.metadata["is_secret"]:
        return f"--{flag}=SECRET"
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag}={value}"


def _said(done: Done, file: Path) -> str:
    if done is Done.SAME:
        return ""
    if done is Done.KEPT:
        return f"kept {file}, which you changed"
    if done is Done.OFFERED:
        return f"kept {file}, which you changed; the new version is {file}.new (--force replaces yours)"
    return f"{done} {file}"


def _tell_next(known: Facts, out: Path, kinds: list[str]) -> None:
    contents = known.contents
    big = f", {contents.model_bytes / 1e6:.1f} MB of models in {MODELS}/" if contents.has_models else ""
    count = sum(place.startswith(f"{APP}/") for place in contents.copies())
    files = "1 file" if count == 1 else f"{count} files"
    print(f"{known.name}: {files} of the app in {APP}/{big}; {known.origin.said}")
    if "compose" in kinds:
        print(f"next: docker compose --project-directory {out} up --build")
    if "make" in kinds:
        print(f"`make -C {out}` lists the everyday commands")


def _read_kinds(text: str) -> list[str]:
    wanted = [word.strip() for word in text.split(",") if word.strip()]
    for word in wanted:
        if word not in KINDS:
            raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(KINDS)}")
    return wanted
