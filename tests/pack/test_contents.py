"""What of an app is packed: its code and its models, and nothing that happens to lie beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.pack.small import app

from timebound.errors import SetupError
from timebound.pack.contents import read_contents


def lay(folder: Path, *names: str, size: int = 10) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x" * size)


def copies(target: Path, out: Path, *left_out: str) -> list[str]:
    return sorted(read_contents(target, out, left_out).copies())


def test_models_go_apart_from_code(tmp_path: Path) -> None:
    folder = app(tmp_path)
    lay(folder, "corpus.txt", size=1_000_000)
    lay(folder, "words/list.txt", "net.onnx.data")
    assert copies(folder, tmp_path / "deploy") == [
        "app/README.md", "app/app.py", "app/test_hello.py", "app/timebound.toml", "app/words/list.txt",
        "models/corpus.txt", "models/model.onnx", "models/net.onnx.data",
    ]  # fmt: skip


def test_hidden_files_environments_caches_and_packs_stay_behind(tmp_path: Path) -> None:
    lay(tmp_path, "app.py", ".env", ".git/config", "__pycache__/app.pyc", "env/pyvenv.cfg", "env/lib/x.py")
    lay(tmp_path, "deploy/Dockerfile", "old/.timebound-pack.json", "old/app/app.py", "data/a.csv", "data/b.json")
    assert copies(tmp_path, tmp_path / "deploy") == ["app/app.py", "app/data/a.csv", "app/data/b.json"]
    assert copies(tmp_path, tmp_path / "deploy", "*.csv") == ["app/app.py", "app/data/b.json"]
    assert copies(tmp_path, tmp_path / "deploy", "data/") == ["app/app.py"]


def test_links_inside_the_app_are_followed_and_not_in_circles(tmp_path: Path) -> None:
    lay(tmp_path, "hello/app.py", "hello/all/a.onnx")
    (tmp_path / "hello" / "nets").symlink_to("all")
    (tmp_path / "hello" / "all" / "back").symlink_to(tmp_path / "hello")
    assert copies(tmp_path / "hello", tmp_path / "deploy") == ["app/app.py", "models/all/a.onnx"]


@pytest.mark.parametrize(
    ("link", "there", "packed"),
    [("nets", "elsewhere", "models/nets/a.onnx"), ("sub/key", "elsewhere/a.onnx", "app/sub/key")],
)
def test_a_link_that_leads_out_of_the_app_is_packed_only_if_that_is_wished(
    tmp_path: Path, link: str, there: str, packed: str
) -> None:
    lay(tmp_path, "hello/app.py", "hello/sub/b.txt", "elsewhere/a.onnx")
    target, out = tmp_path / "hello", tmp_path / "deploy"
    (target / link).symlink_to(tmp_path / there)
    with pytest.raises(
        SetupError, match=f"{link} is a link to .*--follow-links; else leave it out: --leave-out {link}"
    ):
        read_contents(target, out, [])
    assert not any(link in place for place in copies(target, out, link))
    followed = read_contents(target, out, [], follows_links=True).copies()
    assert [place for place in followed if link in place] == [packed]


def test_a_link_to_nothing_is_told(tmp_path: Path) -> None:
    lay(tmp_path, "app.py")
    (tmp_path / "model.onnx").symlink_to("gone.onnx")
    with pytest.raises(SetupError, match=r"link to gone\.onnx, which is not there.*--leave-out model\.onnx"):
        read_contents(tmp_path, tmp_path / "deploy", [])


def test_an_app_whose_own_folder_is_a_link_is_packed(tmp_path: Path) -> None:
    lay(tmp_path, "v2/app.py", "v2/words/a.txt")
    (tmp_path / "current").symlink_to("v2")
    assert copies(tmp_path / "current", tmp_path / "deploy") == ["app/app.py", "app/words/a.txt"]


@pytest.mark.parametrize(
    ("files", "target", "served"),
    [
        (["hello/app.py"], "hello", "app.py"),
        (["hello/app.py"], "hello/app.py", "app.py"),
        (["hello/other.py", "hello/app.py"], "hello/other.py", "other.py"),
        (["nets/digits/1/model.onnx"], "nets", "."),
        (["nets/model.onnx"], "nets/model.onnx", "model.onnx"),
    ],
)
def test_what_is_served_there_is_what_was_named_here(
    tmp_path: Path, files: list[str], target: str, served: str
) -> None:
    lay(tmp_path, *files)
    assert read_contents(tmp_path / target, tmp_path / "deploy", []).served == served


def test_of_a_model_file_only_itself_and_its_weights_are_packed(tmp_path: Path) -> None:
    lay(tmp_path, "a.onnx", "a.onnx.data", "b.onnx", "app.py", "secret.txt")
    assert copies(tmp_path / "a.onnx", tmp_path / "deploy") == ["models/a.onnx", "models/a.onnx.data"]


def test_an_app_is_not_packed_into_itself(tmp_path: Path) -> None:
    folder = app(tmp_path)
    with pytest.raises(SetupError, match="is the app's own folder; give another"):
        read_contents(folder, folder, [])


def test_a_folder_that_holds_everything_is_no_app(tmp_path: Path) -> None:
    lay(tmp_path, "app.py")
    with (tmp_path / "disk.img").open("wb") as file:
        file.truncate(30_000_000_000)
    with pytest.raises(SetupError, match="more than an app"):
        read_contents(tmp_path, tmp_path / "deploy", [])
    assert copies(tmp_path, tmp_path / "deploy", "*.img") == ["app/app.py"]


def test_requirements_in_other_files_are_asked_for_too(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("")
    (tmp_path / "more").mkdir()
    (tmp_path / "requirements.txt").write_bytes(
        b"\xef\xbb\xbf-r more/base.txt\nregex==1  # why\n-r https://a.example/b.txt\n"
    )
    (tmp_path / "more/base.txt").write_text("--requirement=../requirements.txt\n-rdeep.txt\nnumpy\n")
    (tmp_path / "more/deep.txt").write_text("-r base.txt\nidna\n")
    found = read_contents(tmp_path / "app.py", tmp_path / "deploy", ())
    assert found.requirements == ["idna", "numpy", "regex==1", "-r https://a.example/b.txt"]


@pytest.mark.parametrize("line", ["-c versions.txt", "-e .", "./lib", "../lib.whl", ".", "file:lib.whl", "-r gone.txt"])
def test_requirements_that_only_this_machine_has_are_told(tmp_path: Path, line: str) -> None:
    (tmp_path / "app.py").write_text("")
    (tmp_path / "requirements.txt").write_text(f"regex\n{line}\n")
    with pytest.raises(SetupError, match=r"write (there what is to be installed|it as UTF-8)"):
        read_contents(tmp_path / "app.py", tmp_path / "deploy", ())
