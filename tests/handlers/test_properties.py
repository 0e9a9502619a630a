"""config.properties is read as Java reads it, and says what of it means nothing here."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebound.errors import SetupError
from timebound.handlers.properties import Properties, parse, read_properties


def told(folder: Path, text: str, **environment: str) -> Properties:
    file = folder / "config.properties"
    file.write_text(text)
    return read_properties(file, environment)


def test_pairs_comments_escapes_and_long_lines_are_read() -> None:
    text = "# no\n! no\na=1\nb : 2\nc 3\n  d\\==4\ne=one \\\n   two\nf=\\u00fc\\n\ng\na=last\n"
    assert parse(text) == {
        "a": "last", "b": "2", "c": "3", "d=": "4", "e": "one two", "f": "ü", "g": "",
    }  # fmt: skip


def test_what_means_something_here_becomes_options(tmp_path: Path) -> None:
    found = told(
        tmp_path,
        """
inference_address=http://0.0.0.0:8080
management_address=http://127.0.0.1:8081
metrics_address=https://[::1]:8082
model_store=/srv/store
load_models=all
default_workers_per_model=3
job_queue_size=50
max_request_size=1000
default_response_timeout=30
decode_input_request=false
disable_token_authorization=true
number_of_netty_threads=32
models={"m": {"1.0": {"defaultVersion": true, "marName": "m.mar", "minWorkers": 1, "batchSize": 4, \\
  "responseTimeout": 60}}}
""",
    )
    assert (found.inference, found.management, found.metrics) == ("0.0.0.0:8080", "127.0.0.1:8081", "[::1]:8082")
    assert found.options == {"workers": "3", "max_queue": "50", "max_body": "1000"}
    assert (found.store, found.load, found.usual_timeout, found.decodes, found.is_open) == (
        "/srv/store", "all", 30.0, False, True,
    )  # fmt: skip
    assert (found.models["m"]["1.0"].batch_size, found.models["m"]["1.0"].response_timeout) == (4, 60)
    assert found.ignored == ["number_of_netty_threads"]


def test_the_environment_goes_before_the_file_where_the_file_says_so(tmp_path: Path) -> None:
    text = "inference_address=http://127.0.0.1:1\n"
    assert told(tmp_path, text, TS_INFERENCE_ADDRESS="http://127.0.0.1:2").inference == "127.0.0.1:1"
    text += "enable_envvars_config=true\n"
    assert told(tmp_path, text, TS_INFERENCE_ADDRESS="http://127.0.0.1:2").inference == "127.0.0.1:2"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("inference_address=unix:/tmp/x y", "inference_address is"),
        ("models={", "models cannot be read"),
        ('models={"m": {"1.0": {"batchSize": "x"}}}', "models cannot be read"),
        ("default_response_timeout=-1", "default_response_timeout is"),
    ],
)
def test_a_property_that_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SetupError, match=said):
        told(tmp_path, text)


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    parse(text)
