"""API keys: the file, and who is behind a key."""

from __future__ import annotations

from pathlib import Path

import pytest

from timebound.admission.client import Client, Terms
from timebound.admission.keys import Keys, hash_of, new_key
from timebound.errors import Refusal, RequestError, SetupError


def keys_file(folder: Path, text: str) -> Path:
    file = folder / "keys.toml"
    file.write_text(text)
    return file


def test_a_key_is_known_by_its_hash_alone(tmp_path: Path) -> None:
    key = new_key()
    keys = Keys(keys_file(tmp_path, f'[shop]\nhash = "{hash_of(key.encode())}"\npriority = 2\n'))
    client = keys.find(key.encode())
    assert client is not None
    assert (client.name, client.terms.priority) == ("shop", 2)
    for other in (b"", b"tb_", key.encode() + b"x", key.encode()[:-1], hash_of(key.encode()).encode(), b"\xff" * 9999):
        assert keys.find(other) is None


def test_two_keys_of_one_name_work_while_one_replaces_the_other(tmp_path: Path) -> None:
    old, new = new_key().encode(), new_key().encode()
    keys = Keys(keys_file(tmp_path, f'[shop]\nhash = ["{hash_of(old)}", "{hash_of(new)}"]\n'))
    assert keys.find(old) is keys.find(new) is not None


def test_reading_again_takes_keys_in_and_out_and_keeps_what_was_counted(tmp_path: Path) -> None:
    first, second = new_key().encode(), new_key().encode()
    file = keys_file(tmp_path, f'[a]\nhash = "{hash_of(first)}"\n')
    keys = Keys(file)
    client = keys.find(first)
    assert client is not None
    client.enter()
    file.write_text(f'[a]\nhash = "{hash_of(second)}"\nconcurrent = 1\n')
    keys.read()
    assert keys.find(first) is None
    assert keys.find(second) is client
    with pytest.raises(Refusal):
        client.enter()


def test_a_file_that_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    key = new_key().encode()
    file = keys_file(tmp_path, f'[a]\nhash = "{hash_of(key)}"\n')
    keys = Keys(file)
    file.write_text("[a\n")
    with pytest.raises(SetupError, match="TOML"):
        keys.read()
    assert keys.find(key) is not None


HASH = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "has no keys"),
        ("[shop]\n", "has no hash"),
        ('[shop]\nhash = "sha256:12"\n', "64 hexadecimal"),
        ("[shop]\nhash = []\n", "64 hexadecimal"),
        (f'[shop]\nhash = "{HASH}"\nrate = 0\n', "above zero"),
        (f'[shop]\nhash = "{HASH}"\nrate = true\n', "above zero"),
        (f'[shop]\nhash = "{HASH}"\nconcurrent = 1.5\n', "whole number"),
        (f'[shop]\nhash = "{HASH}"\nmodels = "all"\n', "list of names"),
        (f'[shop]\nhash = "{HASH}"\nrates = 5\n', "unknown option 'rates'"),
        (f'["a b"]\nhash = "{HASH}"\n', "no name for a key"),
        (f'["a:b"]\nhash = "{HASH}"\n', "no name for a key"),
        (f'[a]\nhash = "{HASH}"\n[b]\nhash = "{HASH}"\n', "same hash twice"),
        (f'hash = "{HASH}"\n', "must be a table"),
    ],
)
def test_a_mistake_in_the_file_is_told_in_a_sentence(tmp_path: Path, text: str, cause: str) -> None:
    with pytest.raises(SetupError, match=cause):
        Keys(keys_file(tmp_path, text))


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="cannot be read"):
        Keys(tmp_path / "none.toml")


def test_a_rate_lets_a_burst_through_and_then_says_when_to_come_back() -> None:
    client = Client(Terms(name="a", rate=4.0, burst=2))
    client.count(10.0)
    client.count(10.0)
    with pytest.raises(Refusal) as refused:
        client.count(10.0)
    assert (refused.value.code, refused.value.retry_after_s) == ("rate_limited", 0.25)
    client.count(10.25)
    with pytest.raises(Refusal):
        client.count(10.25)


def test_a_slow_rate_computes_a_long_wait() -> None:
    client = Client(Terms(name="a", rate=0.1))
    client.count(0.0)
    with pytest.raises(Refusal) as refused:
        client.count(1.0)
    assert refused.value.retry_after_s == pytest.approx(9.0)


def test_a_client_has_so_many_requests_in_work() -> None:
    client = Client(Terms(name="a", concurrent=1))
    leave = client.enter()
    with pytest.raises(Refusal) as refused:
        client.enter()
    assert refused.value.code == "client_busy"
    leave()
    leave()  # once is enough
    assert client.in_work == 0
    client.enter()


def test_a_request_may_ask_for_less_priority_than_its_key_has_not_for_more() -> None:
    client = Client(Terms(name="a", priority=3))
    assert [client.priority(asked) for asked in (None, 1, 3, 9, -2)] == [3, 1, 3, 3, -2]


def test_a_key_may_be_for_some_models_only() -> None:
    client = Client(Terms(name="a", models=frozenset({"digits"})))
    client.check_model("digits")
    with pytest.raises(RequestError) as refused:
        client.check_model("other")
    assert refused.value.code == "forbidden"


def test_requests_that_count_as_come_earlier_are_not_credited_twice() -> None:
    client = Client(Terms(name="a", rate=10.0, burst=10))
    let_in = 0
    for number in range(400):
        try:
            client.count(100.0 - number % 2)
            let_in += 1
        except Refusal:
            pass
    assert let_in == 10
