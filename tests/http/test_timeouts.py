"""The time limit a request brings along."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebound.errors import RequestError
from timebound.http.headers import timeout_s

MS, GRPC = b"timebound-timeout-ms", b"grpc-timeout"
SECONDS, ENVOY = b"x-request-timeout-seconds", b"x-envoy-expected-rq-timeout-ms"


def limit(headers: dict[bytes, bytes], *, default_s: float = 1.0, cap_s: float = 60.0) -> float:
    return timeout_s(headers.items(), default_s, cap_s)


def test_without_a_header_the_models_own_deadline_holds() -> None:
    assert limit({}) == 1.0
    assert limit({b"content-type": b"application/json"}, default_s=0.25) == 0.25


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        (MS, b"250", 0.25),
        (MS, b"0.5", 0.0005),
        (MS, b" 250 ", 0.25),
        (GRPC, b"250m", 0.25),
        (GRPC, b"2S", 2.0),
        (GRPC, b"1M", 60.0),
        (GRPC, b"500u", 0.0005),
        (GRPC, b"99999999n", 0.099999999),
        (SECONDS, b"0.25", 0.25),
        (SECONDS, b"3", 3.0),
        (ENVOY, b"250", 0.25),
    ],
)
def test_each_header_is_read_in_its_own_unit(name: bytes, value: bytes, meant: float) -> None:
    assert limit({name: value}) == pytest.approx(meant)


def test_a_limit_of_hours_is_understood() -> None:
    assert limit({GRPC: b"1H"}, cap_s=10_000) == 3600.0


@given(st.permutations([MS, GRPC, SECONDS, ENVOY]))
def test_the_smallest_header_wins(order: list[bytes]) -> None:
    values = {MS: b"400", GRPC: b"300m", SECONDS: b"0.2", ENVOY: b"500"}
    assert limit({name: values[name] for name in order}) == pytest.approx(0.2)
    assert limit({name: values[name] for name in order if name != SECONDS}) == pytest.approx(0.3)


@given(st.permutations([b"400", b"300", b"200"]))
def test_of_a_header_that_comes_several_times_the_smallest_counts(values: list[bytes]) -> None:
    assert timeout_s([(MS, value) for value in values], 1.0, 60.0) == pytest.approx(0.2)


def test_nothing_is_above_the_servers_cap() -> None:
    assert limit({SECONDS: b"100"}, cap_s=5.0) == 5.0
    assert limit({}, default_s=10.0, cap_s=5.0) == 5.0


@pytest.mark.parametrize("value", [b"", b"soon", b"0", b"-1", b"nan", b"inf", b"1e999", b"\xff", b"250ms"])
@pytest.mark.parametrize("name", [MS, SECONDS, ENVOY])
def test_a_value_that_is_no_length_of_time_names_the_header(name: bytes, value: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        limit({name: value})
    assert (caught.value.code, caught.value.field) == ("bad_header", name.decode())
    assert caught.value.detail.startswith(f"{name.decode()} must be ")


@pytest.mark.parametrize("value", [b"", b"S", b"1", b"1s", b"0S", b"-1S", b"1.5S", b"123456789S", b"\xc2\xb2S"])
def test_a_grpc_timeout_is_at_most_eight_digits_and_a_unit(value: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        limit({GRPC: value})
    assert caught.value.detail == "grpc-timeout must be digits and a unit of H, M, S, m, u, n, such as 250m"


def test_one_bad_header_is_enough_whatever_the_others_say() -> None:
    with pytest.raises(RequestError):
        limit({MS: b"250", ENVOY: b"soon"})


@given(st.sampled_from([MS, GRPC, SECONDS, ENVOY]), st.binary(max_size=12))
def test_any_value_gives_a_limit_within_the_cap_or_a_request_error(name: bytes, value: bytes) -> None:
    try:
        found: float | str = limit({name: value})
    except RequestError as error:
        found = error.code
    assert found == "bad_header" or (isinstance(found, float) and 0 < found <= 60.0)
