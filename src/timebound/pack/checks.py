"""What can be seen to be wrong in the files of a pack without the tools that read them, before they are written."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatch

from timebound.pack import documents

Check = Callable[[str], str]
"""What is wrong with a text; nothing if it is as it should be."""


def check(texts: Mapping[str, str]) -> str:
    """What is wrong with these texts, by file; nothing if they are as they should be."""
    for file, text in texts.items():
        left = re.search(r"\{\{\w+\}\}", text)
        found = f"the place for {left[0]} was left open" if left else _look_for(file)(text)
        if found:
            return f"{file}: {found}"
    return documents.lost_resources(texts)


def _look_for(file: str) -> Check:
    return next(look for pattern, look in _CHECKS.items() if fnmatch(file, pattern))


def dockerfile(text: str) -> str:
    """Instructions that exist; the last stage without pip, not as root, with a health check, and COPY at its end."""
    joined = re.sub(r"\\\n", " ", "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")))
    lines = [line.strip() for line in joined.splitlines() if line.strip()]
    words = [line.split(maxsplit=1)[0] for line in lines]
    unknown = [word for word in words if word not in _INSTRUCTIONS]
    if unknown:
        return f"{unknown[0]} is no instruction"
    last = len(words) - 1 - words[::-1].index("FROM") if "FROM" in words else 0
    stage, kinds = lines[last:], words[last:]
    missing = [word for word in ("FROM", "USER", "HEALTHCHECK", "CMD", "COPY") if word not in kinds]
    if missing:
        return f"the last stage has no {missing[0]}"
    if any(re.match(r"USER (root|0)\b", line) for line in stage):
        return "the last stage runs as root"
    if any("pip install" in line for line in stage):
        return "the last stage builds"
    if set(kinds[kinds.index("COPY") :]) != {"COPY"}:
        return "an instruction comes after COPY: it would be done again for each new model"
    return ""


_INSTRUCTIONS = ("ARG", "FROM", "WORKDIR", "RUN", "COPY", "ENV", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD")


def nginx(text: str) -> str:
    """Every line a directive with its end, every block closed."""
    depth = 0
    for number, line in enumerate(text.splitlines(), 1):
        said = line.partition("#")[0].strip()
        if said and said[-1] not in ";{}":
            return f"line {number} has no end: {said}"
        depth += said.endswith("{") - said.endswith("}")
        if depth < 0:
            return f"line {number} closes a block that is not open"
    return "a block is not closed" if depth else ""


def unit(text: str) -> str:
    """Sections and settings as systemd has them, and something to start."""
    section, settings = "", set()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("["):
            section = line.strip()
            if section not in ("[Unit]", "[Service]", "[Install]"):
                return f"line {number}: {section} is no section"
        elif not section or not re.match(r"[A-Z][A-Za-z]+=", line):
            return f"line {number} is no setting: {line}"
        else:
            settings.add(line.partition("=")[0])
    missing = {"ExecStart", "WantedBy"} - settings
    return f"{min(missing)} is missing" if missing else ""


def makefile(text: str) -> str:
    """Lines of a recipe begin with a tab, and stand below a target."""
    has_target = False
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"[.\w$()-]+:(?!=)", line):
            has_target = True
        elif line.startswith(" ") or (line.startswith("\t") and not has_target):
            return f"line {number} belongs to no target: {line.strip()}"
    return "" if has_target else "it has no targets"


def requirements(text: str) -> str:
    """Something to install of Timebound."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    asks = any(re.match(r"timebound(?![\w.-])|\./wheels/timebound-", line) for line in lines)
    return "" if asks else "no timebound in it"


def _yaml(look: Callable[[documents.Document], str]) -> Check:
    def check_one(text: str) -> str:
        try:
            return look(documents.read(text))
        except ValueError as error:
            return str(error)

    return check_one


_CHECKS: Mapping[str, Check] = {
    "Dockerfile*": dockerfile,
    ".dockerignore": lambda text: "" if text.strip() else "it is empty",
    "requirements.txt": requirements,
    "nginx.conf": nginx,
    "compose*.yaml": _yaml(documents.compose),
    "kubernetes/*.yaml": _yaml(documents.kubernetes),
    "ecs.yaml": _yaml(documents.cloudformation),
    "systemd/*.service": unit,
    "Makefile": makefile,
    "serve.yaml": _yaml(documents.serve),
    "prometheus/prometheus.yml": _yaml(documents.scraping),
    "prometheus/alerts.yml": _yaml(documents.alerts),
    "prometheus/dashboard.json": documents.dashboard,
}
