"""`timebound pack` as it is called."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.pack.small import app, wheel

from timebound.cli import main


def test_it_writes_what_is_asked_for_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deploy"
    call = ["pack", str(app(tmp_path)), "--out", str(out), "--wheel", str(wheel(tmp_path)), "--only", "docker,compose"]
    assert main(call) == 0
    said = capsys.readouterr().out
    assert f"wrote {out / 'Dockerfile'}\n" in said
    assert "the image installs wheels/timebound-0.1.0-py3-none-any.whl" in said
    assert f"next: docker compose --project-directory {out} up --build\n" in said
    assert sorted(file.name for file in out.iterdir()) == [
        ".dockerignore", ".timebound-pack.json", "Dockerfile", "Dockerfile.gpu", "app", "compose.gpu.yaml",
        "compose.yaml", "models", "nginx.conf", "requirements.txt", "wheels",
    ]  # fmt: skip


def test_an_app_of_one_file_is_counted_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "app.py").write_text("def greet(name: str) -> str:\n    return name\n")
    call = ["pack", str(tmp_path / "one"), "--out", str(tmp_path / "deploy"), "--wheel", str(wheel(tmp_path))]
    assert main([*call, "--only", "docker"]) == 0
    assert "one: 1 file of the app in app/; " in capsys.readouterr().out


def test_called_again_it_keeps_what_was_changed_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, out = app(tmp_path), tmp_path / "deploy"
    call = ["pack", str(target), "--out", str(out), "--wheel", str(wheel(tmp_path)), "--only", "docker"]
    main(call)
    (out / "Dockerfile").write_text("FROM mine\n")
    (target / "test_hello.py").unlink()
    (target / "app.py").write_text((target / "app.py").read_text() + "\n")
    capsys.readouterr()
    assert main([*call, "--port", "9000"]) == 0
    said = capsys.readouterr().out
    mine = out / "Dockerfile"
    assert f"kept {mine}, which you changed; the new version is {mine}.new (--force replaces yours)\n" in said
    assert f"removed {out / 'app' / 'test_hello.py'}\n" in said
    assert f"renewed {out / 'app' / 'app.py'}\n" in said
    assert mine.read_text() == "FROM mine\n"
    assert main([*call, "--port", "9000", "--force"]) == 0
    assert f"replaced {mine}\n" in capsys.readouterr().out


def test_make_packs_again_with_the_same_flags_but_secrets(tmp_path: Path) -> None:
    out = tmp_path / "deploy"
    call = ["pack", str(app(tmp_path)), "--out", str(out), "--wheel", str(wheel(tmp_path)), "--only", "make"]
    main(
        [
            *call,
            "--cores",
            "2",
            "--leave-out",
            "*.csv",
            "--follow-links",
            "--deadline",
            "250ms",
            "--no-watch",
            "--admin-token",
            "hush",
        ]
    )
    again = "timebound pack $(APP) --out . --only make --cores 2 --wheel ../timebound-0.1.0-py3-none-any.whl"
    made = (out / "Makefile").read_text()
    assert f"\t{again} --leave-out '*.csv' --follow-links --deadline=0.25 --admin-token=SECRET --no-watch\n" in made
    assert "hush" not in made
    assert "APP ?= ../hello\n" in made


def test_an_unknown_kind_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["pack", str(app(tmp_path)), "--out", str(tmp_path / "deploy"), "--only", "docker,helm"])
    assert "'helm' is none of docker, compose, kubernetes" in capsys.readouterr().err


def test_a_mistake_is_one_sentence_and_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["pack", str(app(tmp_path)), "--out", str(tmp_path / "deploy"), "--wheel", str(tmp_path / "none.whl")]
    assert main(call) == 2
    assert capsys.readouterr().err.startswith("timebound: there is no wheel ")
    assert not (tmp_path / "deploy").exists()
