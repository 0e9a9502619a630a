"""Builds the docs as a site that needs no internet, search included: `scripts/build_site.py` writes it to out/site.

The pages are those of docs/ and the READMEs, as they are. Links to other files of the repository become plain text. A
link that leads nowhere, a page that is not in the navigation (zensical.toml) and whatever Zensical warns of end it with
an error.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_FENCED = re.compile(r"(^```.*?^```$)", re.M | re.S)


class Broken(Exception):
    """What is wrong with the pages, in one sentence."""


def pages() -> dict[Path, str]:
    """Every page of the repository, and what it is called in the site."""
    found = {
        ROOT / "README.md": "index.md",
        ROOT / "CONTRIBUTING.md": "contributing.md",
        ROOT / "CHANGELOG.md": "changelog.md",
    }
    found |= {file: file.name for file in sorted((ROOT / "docs").glob("*.md"))}
    found |= {file: f"examples/{file.parent.name}.md" for file in sorted((ROOT / "examples").glob("*/README.md"))}
    return found | {ROOT / "benchmarks" / "README.md": "benchmarks/README.md"}


def gather(folder: Path) -> None:
    """All pages and pictures into one folder, with links that lead from one to the other there."""
    names = pages()
    for source, name in names.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        parts = _FENCED.split(source.read_text())
        lead = partial(_led, source=source, name=name, names=names)
        parts[::2] = [_LINK.sub(lead, part) for part in parts[::2]]
        place.write_text("".join(parts))
    for picture in [*(ROOT / "docs").glob("*.svg"), *(ROOT / "docs").glob("*.png")]:
        shutil.copyfile(picture, folder / picture.name)
    shutil.copyfile(ROOT / "scripts" / "site_search.js", folder / "iframe-worker.js")


def _led(found: re.Match[str], source: Path, name: str, names: dict[Path, str]) -> str:
    """A link of a page as it is in the site."""
    mark, text, target = found.groups()
    path, _, anchor = target.partition("#")
    if path.startswith(("http:", "https:")) or not path:
        return found[0]
    there = (source.parent / path).resolve()
    if not there.exists():
        raise Broken(f"{source.relative_to(ROOT)} links {target}, which is not there")
    up = "../" * name.count("/")
    if there.is_dir() and there / "README.md" in names:
        there = there / "README.md"
    if there in names:
        return f"{mark}[{text}]({up}{names[there]}{'#' * bool(anchor)}{anchor})"
    if mark and there.parent == ROOT / "docs":
        return f"![{text}]({up}{there.name})"
    return text


def check_navigation() -> None:
    """Every page is in the navigation once."""
    listed = sorted(_listed(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]))
    there = sorted(pages().values())
    if listed != there:
        odd = sorted(set(listed) ^ set(there)) or listed
        raise Broken(f"pages and the navigation in zensical.toml differ in {', '.join(odd)}")


def _listed(entries: str | dict[str, Any] | list[Any]) -> list[str]:
    if isinstance(entries, str):
        return [entries]
    inside = entries.values() if isinstance(entries, dict) else entries
    return [name for each in inside for name in _listed(each)]


def build(place: Path) -> None:
    """The site, whole or not at all."""
    check_navigation()
    work = place.with_name(f"{place.name}-work")
    shutil.rmtree(work, ignore_errors=True)
    gather(work / "pages")
    shutil.copyfile(ROOT / "zensical.toml", work / "zensical.toml")
    done = subprocess.run(
        [Path(sys.executable).with_name("zensical"), "build", "--strict", "--clean"],
        cwd=work,
        env={"NO_COLOR": "1", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Broken(done.stdout.partition("Traceback")[0] + done.stderr.partition("Traceback")[0])
    shutil.rmtree(place, ignore_errors=True)
    shutil.move(work / "site", place)
    shutil.rmtree(work)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "site", help="where to write it (default: out/site)")
    chosen = parser.parse_args()
    try:
        build(chosen.out.resolve())
    except Broken as broken:
        raise SystemExit(f"the site is not built: {broken}") from None
    print(f"open {chosen.out / 'index.html'}")
