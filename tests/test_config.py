"""Every option: where it is found, how it is read, and what is said when it is wrong."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebound.config import SIZE, Config, Form, default_of, describe, options, resolve, seconds, shown_default, whole
from timebound.config.values import TEXT, TRUTH, one_of
from timebound.errors import SetupError


def complaint(folder: Path, *, flags: dict[str, Any] | None = None, environment: dict[str, str] | None = None) -> str:
    with pytest.raises(SetupError) as caught:
        resolve(flags or {}, environment or {}, folder)
    return str(caught.value)


def test_without_any_source_every_option_has_its_default(tmp_path: Path) -> None:
    config = resolve({}, {}, tmp_path)
    assert config == Config()
    assert config.sources == {}


def test_a_flag_beats_the_environment_beats_dotenv_beats_the_file_beats_the_default(tmp_path: Path) -> None:
    names = ["port", "workers", "slots", "threads"]
    (tmp_path / "timebound.toml").write_text("".join(f"{name} = 1\n" for name in names))
    (tmp_path / ".env").write_text("".join(f"TIMEBOUND_{name.upper()}=2\n" for name in names[:3]))
    environment = {f"TIMEBOUND_{name.upper()}": "3" for name in names[:2]}
    config = resolve({"port": "4"}, environment, tmp_path)
    assert [getattr(config, name) for name in names] == [4, 3, 2, 1]
    assert config.max_queue == default_of(next(o for o in options() if o.name == "max_queue"))


def test_sources_remember_where_each_option_was_found(tmp_path: Path) -> None:
    (tmp_path / "timebound.toml").write_text("threads = 1\nslots = 1\n")
    (tmp_path / ".env").write_text("TIMEBOUND_SLOTS=2\n")
    config = resolve({"port": 4}, {"TIMEBOUND_WORKERS": "3"}, tmp_path)
    assert config.sources == {
        "port": "flag",
        "workers": "environment",
        "slots": ".env",
        "threads": "timebound.toml",
    }


def test_an_empty_variable_or_a_flag_not_given_counts_as_not_there(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TIMEBOUND_PORT=\nTIMEBOUND_HOST\n")
    config = resolve({"port": None}, {"TIMEBOUND_PORT": ""}, tmp_path)
    assert (config.port, config.host, config.sources) == (8000, "127.0.0.1", {})


def test_a_flag_that_says_no_beats_a_file_that_says_yes(tmp_path: Path) -> None:
    (tmp_path / "timebound.toml").write_text("access_log = true\n")
    config = resolve({"access_log": False}, {}, tmp_path)
    assert (config.access_log, config.sources["access_log"]) == (False, "flag")


def test_variables_of_others_are_ignored(tmp_path: Path) -> None:
    assert resolve({}, {"PORT": "1", "OTHER_PORT": "2", "TIMEBOUND_COLOUR": "red"}, tmp_path) == Config()


def test_a_variable_that_is_nearly_an_option_is_a_slip(tmp_path: Path) -> None:
    told = complaint(tmp_path, environment={"TIMEBOUND_PROT": "1"})
    assert told == "TIMEBOUND_PROT (environment) is no option; did you mean TIMEBOUND_PORT?"


def test_a_deadline_above_the_longest_allowed_is_refused(tmp_path: Path) -> None:
    assert "max_deadline" in complaint(tmp_path, flags={"deadline": 90})


def test_describe_shows_each_option_its_value_and_its_source(tmp_path: Path) -> None:
    shown = describe(resolve({"port": "9000"}, {"TIMEBOUND_DEADLINE": "250ms"}, tmp_path))
    rows = {line.split()[0]: line.split()[1:] for line in shown.splitlines()}
    assert list(rows) == ["option", *(option.name for option in options())]
    assert rows["port"] == ["9000", "flag"]
    assert rows["deadline"] == ["0.25", "environment"]
    assert rows["workers"] == ["(chosen", "at", "start)", "default"]
    assert rows["keys"] == ["(none)", "default"]


def test_describe_lines_its_columns_up() -> None:
    lines = describe(Config()).splitlines()
    starts = {line.rindex("from") if line.endswith("from") else line.rindex("default") for line in lines}
    assert len(starts) == 1


def test_every_default_is_a_value_its_own_parser_takes() -> None:
    for option in options():
        default = default_of(option)
        assert default is None or option.metadata["form"].read(default) == default, option.name
        assert option.metadata["help"]


def test_only_what_the_server_chooses_by_itself_is_called_chosen() -> None:
    unset = {option.name: shown_default(option) for option in options() if default_of(option) is None}
    assert {name for name, shown in unset.items() if "chosen" in shown} == {"workers", "slots", "threads"}
    assert unset["max_held"] == "256 MB, or four times --max-body if that is more"
    assert (unset["keys"], unset["recycle_after"], unset["deadline"]) == ("none", "never", "each model's own")


@pytest.mark.parametrize(
    ("form", "value", "meant"),
    [
        (whole(1, 9), 5, 5),
        (whole(1, 9), "5", 5),
        (whole(0, 9), "0", 0),
        (seconds(0, 100), 1, 1.0),
        (seconds(0, 100), "1.5", 1.5),
        (seconds(0, 100), "250ms", 0.25),
        (seconds(0, 100), "2 s", 2.0),
        (seconds(0, 100), "1min", 60.0),
        (seconds(0, 100), 0.00005, 0.00005),
        (SIZE, 1000, 1000),
        (SIZE, "10MB", 10_000_000),
        (SIZE, "512 KiB", 512 * 1024),
        (SIZE, "1.5kb", 1500),
        (SIZE, "7b", 7),
        (SIZE, "1GiB", 2**30),
        (TRUTH, True, True),
        (TRUTH, "Yes", True),
        (TRUTH, "on", True),
        (TRUTH, 1, True),
        (TRUTH, "0", False),
        (TRUTH, "off", False),
        (one_of("a", "b"), "b", "b"),
        (TEXT, "x", "x"),
    ],
)
def test_a_form_reads_every_usual_spelling(form: Form, value: Any, meant: Any) -> None:
    assert form.read(value) == pytest.approx(meant)
    assert type(form.read(value)) is type(meant)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("port", "http", "a whole number"),
        ("port", "70000", "a whole number from 0 to 65535"),
        ("port", 80.5, "a whole number from 0 to 65535"),
        ("port", True, "a whole number from 0 to 65535"),
        ("port", [80], "a whole number"),
        ("workers", "0", "a whole number from 1 to 256"),
        ("deadline", "soon", "seconds from 0.001 to 3600"),
        ("deadline", "0", "seconds from 0.001 to 3600"),
        ("deadline", "2h", "seconds from 0.001 to 3600"),
        ("deadline", "1.2.3", "seconds from 0.001 to 3600"),
        ("deadline", -1, "seconds from 0.001 to 3600"),
        ("max_body", "big", "a size above zero"),
        ("max_body", "10XB", "a size above zero"),
        ("max_body", "0", "a size above zero"),
        ("max_body", "0.5", "a size above zero"),
        ("max_body", "1.2.3MB", "a size above zero"),
        ("access_log", "maybe", "true or false"),
        ("log_level", "loud", "one of debug, info, warning, error"),
        ("host", 7, "a text"),
    ],
)
def test_a_bad_value_is_named_with_its_option_and_source(tmp_path: Path, name: str, value: Any, wanted: str) -> None:
    sentence = complaint(tmp_path, flags={name: value})
    flag = "--" + name.replace("_", "-")
    assert sentence.startswith(f"{flag} is {value!r} (flag); it must be {wanted}")


def test_a_bad_value_names_the_source_it_came_from(tmp_path: Path) -> None:
    assert "TIMEBOUND_PORT is 'x' (environment)" in complaint(tmp_path, environment={"TIMEBOUND_PORT": "x"})
    (tmp_path / "timebound.toml").write_text('port = "y"\n')
    assert "port is 'y' (timebound.toml)" in complaint(tmp_path)
    (tmp_path / ".env").write_text("TIMEBOUND_PORT=z\n")
    assert "TIMEBOUND_PORT is 'z' (.env)" in complaint(tmp_path)


def test_a_line_of_the_environment_file_that_says_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("# ours\nTIMEBOUND_PORT=80\nport is 81\n")
    assert complaint(tmp_path) == f"{tmp_path / '.env'}: line 3 is not understood; write NAME=value"


def test_an_unknown_table_is_told_where_settings_of_the_app_go(tmp_path: Path) -> None:
    (tmp_path / "timebound.toml").write_text("[ap]\nthreshold = 0.9\n")
    assert complaint(tmp_path).endswith("unknown table [ap]; settings of the app itself go into [app]")


def test_a_bad_value_that_a_better_source_hides_does_no_harm(tmp_path: Path) -> None:
    assert resolve({"port": "1"}, {"TIMEBOUND_PORT": "x"}, tmp_path).port == 1


def test_an_unknown_option_in_the_file_suggests_the_near_one(tmp_path: Path) -> None:
    file = tmp_path / "timebound.toml"
    file.write_text("max_queues = 5\n")
    assert complaint(tmp_path) == f"{file}: unknown option 'max_queues'; did you mean 'max_queue'?"


def test_an_unknown_option_near_nothing_lists_them_all(tmp_path: Path) -> None:
    (tmp_path / "timebound.toml").write_text("zzz = 5\n")
    sentence = complaint(tmp_path)
    assert "unknown option 'zzz'; known options: host, port" in sentence


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    (tmp_path / "timebound.toml").write_text("port == 5\n")
    assert complaint(tmp_path).startswith(f"{tmp_path / 'timebound.toml'} is not valid TOML: ")
    (tmp_path / "timebound.toml").write_bytes(b"host = '\xff'\n")
    assert complaint(tmp_path).startswith(f"{tmp_path / 'timebound.toml'} is not valid TOML: ")


@pytest.mark.parametrize("source", ["flag", "environment", ".env", "timebound.toml"])
def test_no_secret_is_shown_wherever_it_comes_from(tmp_path: Path, source: str) -> None:
    secrets = {"admin_token": "t0ken-x", "store": "redis://me:p@ss/w0rd@host:6379/0"}
    lines = [f"TIMEBOUND_{name.upper()}={value}\n" for name, value in secrets.items()]
    (tmp_path / ".env").write_text("".join(lines) if source == ".env" else "")
    table = "".join(f'{name} = "{value}"\n' for name, value in secrets.items())
    (tmp_path / "timebound.toml").write_text(table if source == "timebound.toml" else "")
    flags = secrets if source == "flag" else {}
    environment = {line.split("=")[0]: line.split("=", 1)[1].strip() for line in lines}
    shown = describe(resolve(flags, environment if source == "environment" else {}, tmp_path))
    assert "redis://***@host:6379/0" in shown
    assert not any(part in shown for part in ("t0ken", "p@ss", "w0rd", "me:"))


def test_a_secret_that_cannot_be_used_is_not_repeated(tmp_path: Path) -> None:
    sentence = complaint(tmp_path, flags={"store": "redi://:passw0rd@host"})
    assert sentence.startswith("--store is not what it can be (flag)")
    assert "passw0rd" not in sentence


def test_a_certificate_needs_its_key_and_held_bytes_a_whole_body(tmp_path: Path) -> None:
    assert "belong together" in complaint(tmp_path, flags={"tls_cert": "a.pem"})
    assert "below max_body" in complaint(tmp_path, flags={"max_held": "1MB"})


@pytest.mark.parametrize("origins", ["https://a.example", "*", "https://a.example,http://localhost:3000/"])
def test_origins_are_read(tmp_path: Path, origins: str) -> None:
    assert resolve({"cors_origins": origins}, {}, tmp_path).cors_origins == origins


@pytest.mark.parametrize("origins", ["", "a.example", "https://*.example", "https://a.example/path", "https://a b"])
def test_what_is_no_origin_is_refused(tmp_path: Path, origins: str) -> None:
    assert "it must be origins" in complaint(tmp_path, flags={"cors_origins": origins})


@given(st.sampled_from(options()), st.text())
def test_any_text_is_read_or_refused_in_a_sentence(option: Any, value: str) -> None:
    with suppress(SetupError):
        resolve({option.name: value}, {}, Path("/nowhere"))


def test_the_files_in_the_apps_folder_come_last(tmp_path: Path) -> None:
    here, app = tmp_path / "here", tmp_path / "app"
    for folder in (here, app):
        folder.mkdir()
    (app / "timebound.toml").write_text('port = 1\ndeadline = "250ms"\n')
    (here / "timebound.toml").write_text("port = 2\n")
    config = resolve({}, {}, here, home=app)
    assert (config.port, config.deadline) == (2, 0.25)
    assert config.sources == {"port": "timebound.toml", "deadline": str(app / "timebound.toml")}
    assert resolve({}, {}, app, home=app).sources["port"] == "timebound.toml"
    (app / ".env").write_text("TIMEBOUND_PORT=3\nTIMEBOUND_DEADLINE=300ms\n")
    config = resolve({}, {}, here, home=app)
    assert (config.port, config.deadline, config.sources["deadline"]) == (2, 0.3, str(app / ".env"))


def test_an_engine_is_for_all_models_for_some_or_both(tmp_path: Path) -> None:
    def engines(text: str) -> dict[str, str]:
        (tmp_path / "timebound.toml").write_text(text)
        return resolve({}, {}, tmp_path).engines

    assert engines("") == {}
    assert engines('engine = "openvino-bf16"') == {"": "openvino-bf16"}
    assert engines('[engine]\ndigits = "openvino-f32"') == {"digits": "openvino-f32"}
    both = resolve({"engine": "onnxruntime, digits=openvino-f32"}, {}, tmp_path)
    assert both.engines == {"": "onnxruntime", "digits": "openvino-f32"}
    for wrong in ("openvino", "digits=", "digits=cuda", "onnxruntime,onnxruntime"):
        assert "one of onnxruntime" in complaint(tmp_path, flags={"engine": wrong})


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"trusted_proxies": "everybody"}, "trusted-proxies is 'everybody'"),
        ({"proxy_protocol": True}, "needs --trusted-proxies"),
        (
            {"proxy_protocol": True, "trusted_proxies": "::1", "tls_cert": "c", "tls_key": "k"},
            "let TLS end at the proxy",
        ),
    ],
)
def test_trust_in_proxies_that_cannot_be_meant_is_refused(flags: dict[str, Any], reason: str) -> None:
    with pytest.raises(SetupError, match=reason):
        resolve(flags, {}, None)


def test_how_torch_computes_is_for_all_models_for_some_or_both(tmp_path: Path) -> None:
    both = resolve({"torch": "bfloat16+compile, digits=own"}, {}, tmp_path)
    assert both.modes == {"": "bfloat16+compile", "digits": "own"}
    for wrong in ("int8", "own+compile", "float16+bfloat16", "compile+compile", "digits=", ""):
        assert "own, or some of float32" in complaint(tmp_path, flags={"torch": wrong})
