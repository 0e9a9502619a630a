"""Where a Redis is: every kind of URL, mistakes in a sentence, and never a password where somebody can read it."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from timebound.cli import main
from timebound.config import Config, describe, resolve
from timebound.errors import SetupError
from timebound.store.address import read_address

SECRET = "s3cr3t"


def test_host_port_and_database() -> None:
    found = read_address("redis://somewhere:7000/3")
    assert (found.host, found.port, found.database, found.path, found.tls) == ("somewhere", 7000, 3, None, None)
    assert (found.user, found.password) == (None, None)


def test_what_is_left_out_is_the_usual() -> None:
    for url in ("redis://", "redis:///", "redis://127.0.0.1", "redis://127.0.0.1/", "redis://127.0.0.1:6379/0"):
        found = read_address(url)
        assert (found.host, found.port, found.database) == ("127.0.0.1", 6379, 0), url


def test_a_database_as_an_option() -> None:
    assert read_address("redis://somewhere?db=5").database == 5


def test_an_ipv6_host() -> None:
    found = read_address("redis://[::1]:7000/0")
    assert (found.host, found.port, found.shown) == ("::1", 7000, "redis://[::1]:7000/0")


def test_user_and_password_with_any_characters() -> None:
    found = read_address("redis://a%3Ab:p%40%2F%23%3Fs%25@somewhere")
    assert (found.user, found.password) == ("a:b", "p@/#?s%")
    assert read_address("redis://:p@ss@somewhere").password == "p@ss"


def test_a_unix_socket() -> None:
    found = read_address(f"unix://:{SECRET}@/run/my%20redis.sock?db=2")
    assert (found.path, found.database, found.password) == ("/run/my redis.sock", 2, SECRET)
    assert SECRET not in found.shown


def test_tls_checks_certificates_unless_told_not_to() -> None:
    checked, unchecked = read_address("rediss://somewhere"), read_address("rediss://somewhere?ssl_cert_reqs=none")
    assert checked.tls is not None
    assert unchecked.tls is not None
    assert (checked.tls.verify_mode, checked.tls.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert (unchecked.tls.verify_mode, unchecked.tls.check_hostname) == (ssl.CERT_NONE, False)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://somewhere", "http"),
        ("redis://somewhere:port", "redis://host:6379/0"),
        ("redis://somewhere:70000", "redis://host:6379/0"),
        ("redis://[::1", "redis://host:6379/0"),
        ("redis://somewhere/zero", "database"),
        ("redis://somewhere/-1", "database"),
        ("redis://somewhere/²", "database"),
        ("redis://somewhere/0?timeout=5", "unknown option 'timeout'"),
        ("unix://", "unix:///path"),
        ("unix://relative/path", "unix:///path"),
        ("rediss://somewhere?ssl_ca_certs=/no/such/file", "TLS files"),
        ("rediss://somewhere?ssl_certfile=/no/such/file", "TLS files"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(url: str, words: str) -> None:
    with pytest.raises(SetupError) as wrong:
        read_address(url)
    assert words in str(wrong.value)
    assert "\n" not in str(wrong.value)


LEAKY = [
    f"redis://:{SECRET}@somewhere/0",
    f"redis://user:{SECRET}@somewhere/0",
    f"redis://:a@{SECRET}@somewhere/0",
    f"redis://:{SECRET}/x@somewhere/0",
    f"redis://:x/{SECRET}@somewhere/0",
    f"redis://:{SECRET}#x@somewhere/0",
    f"redis://:1#{SECRET}@somewhere/0",
    f"redis://:{SECRET}?x@somewhere/0",
    f"redis://:1?{SECRET}=x@somewhere/0",
    f"redis://somewhere/0?password={SECRET}",
    f"unix://:{SECRET}@/run/redis.sock",
]


@pytest.mark.parametrize("url", LEAKY)
def test_a_password_is_never_shown_also_not_one_with_unusual_characters(url: str) -> None:
    try:
        found = read_address(url)
        shown = found.shown + repr(found)
    except SetupError as error:
        shown = str(error)
    assert SECRET not in shown


@pytest.mark.parametrize("url", LEAKY)
def test_the_printed_configuration_shows_no_password(url: str) -> None:
    assert SECRET not in describe(Config(store=url, admin_token=SECRET))


@pytest.mark.parametrize("url", [f"redis:/:{SECRET}@host", f"http://:{SECRET}@host"])
def test_a_store_that_is_none_is_refused_without_repeating_it(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "app.py", "--store", url]) == 2
    said = capsys.readouterr()
    assert "--store" in said.err
    assert SECRET not in said.out + said.err


def test_an_option_of_the_wrong_kind_in_the_file_is_a_sentence(tmp_path: Path) -> None:
    for line in ("store = 5", "store_namespace = 5", "admin_token = 5"):
        (tmp_path / "timebound.toml").write_text(line)
        with pytest.raises(SetupError, match="it must be"):
            resolve({}, {}, tmp_path)
