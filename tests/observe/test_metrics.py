"""Numbers for Prometheus: what events add up to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from timebound.events import (
    Answered,
    BatchFinished,
    BatchLost,
    BatchStarted,
    Degraded,
    Events,
    Quarantined,
    Refused,
    WorkerDown,
    WorkerUp,
)
from timebound.observe.families import MOST_COUNTS, MOST_HISTOGRAMS
from timebound.observe.metrics import Metrics
from timebound.observe.tally import SECONDS, Since, Tally
from timebound.types import Loss, ModelInfo, Outcome, Quality, Question, Report, Result, Run, Source, Timing, Trace

REQUEST = Question("r1", "m", b"", 0.0, 1.0)
TWO_VERSIONS = {
    info.name: info
    for info in (ModelInfo(name="m", deadline_s=0.5), ModelInfo(name="m@2", version="2", deadline_s=0.5))
}


def scraped(*events: Any, gauges: Any = None) -> dict[tuple[str, ...], float]:
    """Every sample after these events, by its name (without the package's), its model and its other labels."""
    hub = Events()
    metrics = Metrics(hub, gauges or {})
    for event in events:
        hub.emit(event)
    body, media = metrics.render()
    assert media.startswith("text/plain")
    return {
        (sample.name.removeprefix("timebound_"), *_values(sample.labels)): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def _values(labels: dict[str, str]) -> list[str]:
    """The model first; a version that is empty is left out."""
    names = sorted(labels, key=lambda name: (name != "model", name))
    return [labels[name] for name in names if name != "version" or labels[name]]


def answered(code: str = "", status: int = 200, seconds: float = 0.03, **result: Any) -> Answered:
    return Answered(REQUEST, Result(Outcome(b"", code), **result), status, seconds)


def test_requests_are_counted_by_model_status_and_code() -> None:
    samples = scraped(answered(), answered(), answered("bad_input", 422), Refused("m", "r2", "queue_full", 429, 0.0))
    assert samples["requests_total", "m", "ok", "200"] == 2
    assert samples["requests_total", "m", "bad_input", "422"] == 1
    assert samples["requests_total", "m", "queue_full", "429"] == 1


def test_answers_are_counted_by_quality_and_source_and_errors_are_not_answers() -> None:
    samples = scraped(
        answered(quality=Quality.PARTIAL, source=Source.JOINED), answered(), answered("model_failed", 500)
    )
    assert {key: value for key, value in samples.items() if key[0] == "answers_total"} == {
        ("answers_total", "m", "partial", "joined"): 1,
        ("answers_total", "m", "full", "computed"): 1,
    }


def test_the_time_of_every_request_is_in_a_bucket() -> None:
    samples = scraped(answered(seconds=0.03), Refused("m", "r2", "queue_full", 429, 0.0005), answered(seconds=100))
    assert samples["request_seconds_count", "m"] == 3
    assert samples["request_seconds_sum", "m"] == pytest.approx(100.0305)
    assert samples["request_seconds_bucket", "m", "0.001"] == 1
    assert samples["request_seconds_bucket", "m", "0.025"] == 1
    assert samples["request_seconds_bucket", "m", "0.05"] == 2
    assert samples["request_seconds_bucket", "m", "10.0"] == 2
    assert samples["request_seconds_bucket", "m", "+Inf"] == 3


def test_a_value_on_a_bound_is_in_the_bucket_of_that_bound() -> None:
    samples = scraped(answered(seconds=0.5))
    assert samples["request_seconds_bucket", "m", "0.375"] == 0
    assert samples["request_seconds_bucket", "m", "0.5"] == 1


@given(st.lists(st.floats(0, 20), max_size=20))
def test_buckets_hold_all_values_up_to_their_bound(values: list[float]) -> None:
    samples = scraped(*(answered(seconds=value) for value in values))
    for bound in SECONDS:
        counted = samples.get(("request_seconds_bucket", "m", str(float(bound))), 0)
        assert counted == sum(value <= bound for value in values)


def test_the_time_in_the_queue_is_that_of_answers() -> None:
    samples = scraped(answered(queue_s=0.25), answered("bad_input", 422, queue_s=0.25))
    assert (samples["queue_seconds_count", "m"], samples["queue_seconds_sum", "m"]) == (1, 0.25)


def test_batches_are_counted_by_reason_and_measured_by_size() -> None:
    samples = scraped(
        BatchStarted("m", 3, "all_waiting", 0), BatchStarted("m", 64, "model_limit", 9), BatchLost("m", 64, Loss.KILLED)
    )
    assert samples["batches_total", "m", "all_waiting"] == 1
    assert samples["batches_total", "m", "model_limit"] == 1
    assert samples["batches_lost_total", "m", "killed"] == 1
    assert samples["batch_size_bucket", "m", "4.0"] == 1
    assert samples["batch_size_sum", "m"] == 67


def test_a_finished_batch_is_measured_against_its_prediction() -> None:
    samples = scraped(BatchFinished("m", 4, 0.02, 0.01, 3, "complete"), BatchFinished("m", 4, 0.02, 0.0, 1, "backlog"))
    assert samples["batch_ends_total", "m", "1", "backlog"] == 1
    assert samples["batch_seconds_sum", "m"] == pytest.approx(0.04)
    assert samples["batch_prediction_ratio_sum", "m"] == pytest.approx(3.0)
    assert samples["batch_prediction_ratio_count", "m"] == 2


def test_time_on_a_device_and_padding_are_measured() -> None:
    run = Run(1, "m", "slot 1.0", 33, "all_waiting", 0.0, 0.02, 1.0, step=48, device_s=0.010, sure=5)
    full, cut = (BatchFinished.of(run, Report([], Timing(), n, 5), 0.02, "complete", 0.011) for n in (5, 3))
    samples = scraped(full, cut)
    assert samples["batch_rows_total", "m", "item"] == 66
    assert samples["batch_rows_total", "m", "padding"] == 30
    assert samples["device_seconds_sum", "m"] == pytest.approx(0.022)
    assert samples["device_prediction_ratio_count", "m"] == 1
    assert samples["device_prediction_ratio_sum", "m"] == pytest.approx(1.1)


def test_everything_of_batches_is_counted_by_model_and_version_as_requests_are() -> None:
    hub = Events()
    metrics = Metrics(hub, {}, models=TWO_VERSIONS)
    for name in ("m", "m@2"):
        run = Run(1, name, "slot 1.0", 3, "all_waiting", 0.0, 0.02, 1.0, step=4, device_s=0.010, sure=5)
        hub.emit(BatchStarted.of(run, 0))
        hub.emit(BatchFinished.of(run, Report([], Timing(), 5, 5), 0.02, "complete", 0.011))
        hub.emit(BatchLost(name, 3, Loss.KILLED))
        hub.emit(Degraded(name, 2, Quality.PARTIAL, "backlog"))
        hub.emit(Quarantined(name, 60.0, Loss.CRASHED))
    hub.emit(Answered(REQUEST, Result(Outcome(b""), version="1"), 200, 0.02))
    counted = [family for family in metrics.collect() if family.name.startswith("timebound_") and family.samples]
    seen = {
        family.name.removeprefix("timebound_"): {
            (sample.labels["model"], sample.labels["version"]) for sample in family.samples if "model" in sample.labels
        }
        for family in counted
    }
    of_batches = ("batches", "batch_ends", "degraded", "batches_lost", "quarantined", "batch_rows", "batch_seconds",
                  "batch_size", "batch_prediction_ratio", "device_seconds", "device_prediction_ratio")  # fmt: skip
    both = {("m", "1"), ("m", "2")}
    assert {name: seen[name] for name in of_batches} == dict.fromkeys(of_batches, both)
    assert seen["requests"] == {("m", "1")}


def test_workers_that_leave_when_asked_are_not_deaths() -> None:
    samples = scraped(
        WorkerUp(1, 71, 2),
        WorkerUp(2, 72, 2),
        WorkerDown(1, 71, -9, was_asked=False),
        WorkerDown(2, 72, 0, was_asked=True),
    )
    assert (samples["worker_starts_total",], samples["worker_deaths_total",]) == (2, 1)


def test_a_quiet_server_shows_zero_starts_and_deaths() -> None:
    samples = scraped()
    assert (samples["worker_starts_total",], samples["worker_deaths_total",]) == (0, 0)


def test_gauges_are_read_at_each_scrape() -> None:
    value = [1.0]
    metrics = Metrics(Events(), {"workers_up": ("Workers that take batches.", lambda: value[0])})
    assert b"timebound_workers_up 1.0" in metrics.render()[0]
    value[0] = 2.0
    assert b"timebound_workers_up 2.0" in metrics.render()[0]
    assert b"# HELP timebound_workers_up Workers that take batches." in metrics.render()[0]


def test_two_servers_in_one_process_do_not_share_numbers() -> None:
    assert scraped(answered())["requests_total", "m", "ok", "200"] == 1
    assert scraped(answered())["requests_total", "m", "ok", "200"] == 1


def test_the_process_itself_is_measured() -> None:
    assert scraped()["process_resident_memory_bytes",] > 0


def test_versions_are_told_apart() -> None:
    samples = scraped(answered(version="1"), answered(version="2"), answered(version="2"))
    assert samples["requests_total", "m", "ok", "200", "1"] == 1
    assert samples["requests_total", "m", "ok", "200", "2"] == 2
    assert samples["request_seconds_count", "m", "2"] == 2


def test_who_was_due_an_answer_got_one_in_time_or_not() -> None:
    samples = scraped(
        answered(seconds=0.5),
        answered(seconds=1.5),
        answered(quality=Quality.FALLBACK),
        answered("model_failed", 500),
        answered("bad_input", 422),
        Refused("m", "r2", "overloaded", 429, 0.0),
        Refused("m", "r3", "rate_limited", 429, 0.0),
    )
    assert (samples["due_total", "m", "yes"], samples["due_total", "m", "no"]) == (1, 4)


def test_slack_is_what_was_left_and_nothing_for_who_was_late() -> None:
    samples = scraped(answered(seconds=0.25), answered(seconds=1.5))
    assert samples["deadline_slack_seconds_bucket", "m", "0.0"] == 1
    assert samples["deadline_slack_seconds_sum", "m"] == pytest.approx(0.75)


def test_open_metrics_has_the_last_request_of_each_bucket() -> None:
    hub = Events()
    metrics = Metrics(hub, {})
    hub.emit(answered(seconds=0.03))
    body, media = metrics.render("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert media.startswith("application/openmetrics-text")
    families = openmetrics_families(body.decode())  # type: ignore[no-untyped-call]
    samples = [sample for family in families for sample in family.samples if sample.exemplar]
    (found,) = [sample.exemplar for sample in samples if sample.name == "timebound_request_seconds_bucket"]
    assert (found.labels, found.value) == ({"request_id": "r1"}, 0.03)


@pytest.mark.parametrize(
    ("request_id", "shown"), [("r2", {"trace_id": "a" * 32, "request_id": "r2"}), ("x" * 100, {"trace_id": "a" * 32})]
)
def test_open_metrics_has_the_last_trace_of_each_bucket_where_there_is_one(
    request_id: str, shown: dict[str, str]
) -> None:
    hub = Events()
    metrics = Metrics(hub, {})
    plain, unsampled = Question("r1", "m", b"", 0.0, 1.0), Question("r3", "m", b"", 0.0, 1.0)
    unsampled.trace = Trace("b" * 32, "", "c" * 16, is_sampled=False)
    traced = Question(request_id, "m", b"", 0.0, 1.0)
    traced.trace = Trace("a" * 32, "", "c" * 16, is_sampled=True)
    hub.emit(Refused("m", request_id, "overloaded", 429, 0.03, question=traced))
    for question in (plain, unsampled):
        hub.emit(Answered(question, Result(Outcome(b"")), 200, 0.04))
    body, _ = metrics.render("application/openmetrics-text")
    families = openmetrics_families(body.decode())  # type: ignore[no-untyped-call]
    found = [sample.exemplar for family in families for sample in family.samples if sample.exemplar]
    assert [(one.labels, one.value) for one in found] == [(shown, 0.03)]


def test_workers_show_memory_and_processor_time_and_models_their_versions() -> None:
    metrics = Metrics(Events(), {}, lambda: {"3": (2e6, 1.5)}, TWO_VERSIONS)
    text = metrics.render()[0].decode()
    assert 'timebound_worker_cpu_seconds_total{worker="3"} 1.5' in text
    assert 'timebound_worker_memory_bytes{worker="3"} 2e+06' in text
    assert 'timebound_model_deadline_seconds{model="m",version="2"} 0.5' in text
    assert 'timebound_model_info{backend="python",engine="",model="m",version="1"} 1.0' in text


def test_who_looks_again_is_told_only_what_came_since() -> None:
    hub = Events()
    tally = Tally(hub)
    first, other = Since(tally), Since(tally)
    answered = Answered(REQUEST, Result(Outcome(b"")), 200, 0.02)
    for _ in range(3):
        hub.emit(answered)
    assert [(kind.model, kind.in_time, count) for kind, count in first.seen()] == [("m", True, 3)]
    assert [(model, sum(counts)) for model, counts in first.latencies()] == [("m", 3)]
    assert (list(first.seen()), list(first.latencies())) == ([], [])
    hub.emit(answered)
    hub.emit(Refused("m", "r2", "overloaded", 429, 0.001))
    assert [count for _, count in first.seen()] == [1, 1]
    assert [count for _, count in other.seen()] == [4, 1]
    assert [sum(counts) for _, counts in first.latencies()] == [1]


def test_years_of_models_and_versions_leave_bounded_memory_and_what_comes_is_counted() -> None:
    hub = Events()
    metrics = Metrics(hub, {}, tally=(tally := Tally(hub)))
    since = Since(tally)
    for number in range(6_000):
        question = Question("r", f"m{number}", b"", 0.0, 1.0, client=f"c{number}")
        hub.emit(Answered(question, Result(Outcome(b""), version=str(number)), 200, 0.02))
        hub.emit(BatchStarted(f"m{number}", 1, "all_waiting", 0))
        hub.emit(BatchFinished(f"m{number}", 1, 0.02, 0.02, 1, "complete"))
        if number % 250 == 249:
            assert sum(count for _, count in since.seen()) == 250
            assert sum(sum(counts) for _, counts in since.latencies()) == 250
    assert len(tally.kinds) == len(tally.clients) == MOST_COUNTS
    assert len(tally.times) == len(tally.latencies) == MOST_HISTOGRAMS
    most = {family.name: len(family.samples) for family in metrics.collect() if family.type == "counter"}
    assert max(most.values()) == MOST_COUNTS == most["timebound_requests"]


def test_who_is_counted_anew_after_it_was_forgotten_is_told_whole() -> None:
    hub = Events()
    since = Since(tally := Tally(hub))
    for _ in range(5):
        hub.emit(Refused("m", "r", "overloaded", 429, 0.0))
    assert [count for _, count in since.seen()] == [5]
    tally.kinds.clear()
    for _ in range(2):
        hub.emit(Refused("m", "r", "overloaded", 429, 0.0))
    assert [count for _, count in since.seen()] == [2]
