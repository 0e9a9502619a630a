"""What an archive says of itself is checked before its handler runs, and a lie is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from timebound.errors import SetupError
from timebound.handlers.manifest import Described, Registered, describe
from timebound.handlers.model import handler_model


def planted(folder: Path, model: Any, config: str | None = None, **more: Any) -> Path:
    """An unpacked archive with this manifest."""
    (folder / "MAR-INF").mkdir(exist_ok=True)
    if config is not None:
        (folder / "model-config.yaml").write_text(config)
        model = {**model, "configFile": "model-config.yaml"}
    (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps({"runtime": "python", "model": model, **more}))
    return folder


GOOD = {"modelName": "m", "handler": "h.py"}


def described(folder: Path, config: str | None = None, **registered: Any) -> Described:
    return describe(planted(folder, GOOD, config), Registered(file="m.mar", **registered))


def test_a_plain_archive_has_the_values_of_its_own_server(tmp_path: Path) -> None:
    found = described(tmp_path)
    assert (found.name, found.version, found.batch_size, found.deadline_s) == ("m", "1.0", 1, 120.0)
    assert found.ignored == []


def test_the_configuration_says_batch_and_deadline_and_the_registration_goes_before_it(tmp_path: Path) -> None:
    config = "batchSize: 8\nresponseTimeout: 20\nmaxWorkers: 2\nhandler: {a: 1}\n"
    found = described(tmp_path, config)
    assert (found.batch_size, found.deadline_s, found.config["handler"]) == (8, 20, {"a": 1})
    assert found.ignored == [
        "m: maxWorkers in model-config.yaml is ignored: each worker process holds every model; set --workers"
    ]
    found = described(tmp_path, config, name="other", batch_size=2, response_timeout=5)
    assert (found.name, found.batch_size, found.deadline_s) == ("other", 2, 5)


def test_what_comes_on_top_goes_before_the_other_servers_words(tmp_path: Path) -> None:
    config = "responseTimeout: 20\ntimebound: {deadline: 0.5, max_batch: 4, keep: 60, cache: content}\n"
    cls = type(handler_model(described(tmp_path, config)))
    assert (cls.deadline, cls.max_batch, cls.keep, cls.cache) == (0.5, 4, 60, "content")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("- a\n- b\n", "no list of options"),
        ("a: [", "not valid YAML"),
        ("a: !!python/object/apply:os.system ['true']", "not valid YAML"),
        ("batchSize: many", "batchSize is 'many'"),
        ("batchSize: -1", "batchSize is -1"),
        ("batchSize: .inf", "batchSize is inf"),
        ("batchSize: 2.5", "batchSize is 2.5; it must be a whole number"),
        ("responseTimeout: .nan", "responseTimeout is nan"),
        ("responseTimeout: true", "responseTimeout is True"),
        ("timebound: {deadlin: 1}", "deadlin"),
        ("x" * 1_000_001, "over 1000000 bytes"),
    ],
)
def test_a_configuration_that_is_wrong_is_named(tmp_path: Path, config: str, said: str) -> None:
    with pytest.raises(SetupError, match=said):
        described(tmp_path, config)


@pytest.mark.parametrize(
    ("model", "more", "said"),
    [
        ("text", {}, "no 'model'"),
        ({**GOOD, "modelName": "../../etc"}, {}, "must be letters"),
        ({**GOOD, "modelName": 7, "handler": 1}, {}, "handler is 1"),
        ({**GOOD, "modelVersion": "1/2"}, {}, "must be letters"),
        ({**GOOD, "configFile": "../outside.yaml"}, {}, "no path inside"),
        ({**GOOD, "configFile": "/etc/passwd"}, {}, "no path inside"),
        ({**GOOD, "configFile": "link.yaml"}, {}, "has no file"),
        ({**GOOD, "configFile": "gone.yaml"}, {}, "has no file"),
        (GOOD, {"runtime": "java"}, "runtime is 'java'"),
        (GOOD, {"runtime": "LSP"}, "only handlers in Python"),
    ],
)
def test_a_manifest_that_lies_is_named(tmp_path: Path, model: Any, more: dict[str, Any], said: str) -> None:
    (tmp_path / "outside.yaml").write_text("a: 1")
    folder = tmp_path / "archive"
    folder.mkdir()
    (folder / "link.yaml").symlink_to(tmp_path / "outside.yaml")
    with pytest.raises(SetupError, match=said):
        describe(planted(folder, model, **more), Registered(file="m.mar"))


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"[" * 100_000, b"\xff\xfe"])
def test_a_manifest_that_is_none_is_named(tmp_path: Path, content: bytes) -> None:
    planted(tmp_path, GOOD)
    (tmp_path / "MAR-INF" / "MANIFEST.json").write_bytes(content)
    with pytest.raises(SetupError, match=r"MANIFEST\.json"):
        describe(tmp_path, Registered(file="m.mar"))


def test_requirements_are_told_and_not_installed(tmp_path: Path) -> None:
    found = describe(planted(tmp_path, {**GOOD, "requirementsFile": "requirements.txt"}), Registered(file="m.mar"))
    assert "pip install -r" in found.ignored[0]
