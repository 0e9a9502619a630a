"""Names that the files share with the rest of Timebound: options, signals, routes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.pack.small import GOLDEN

from timebound.config import PREFIX, options
from timebound.events import Events
from timebound.observe.signals import Look, Signals

FILES = {file.relative_to(GOLDEN).as_posix(): file.read_text() for file in sorted(GOLDEN.rglob("*")) if file.is_file()}


@pytest.fixture
def signals() -> Signals:
    return Signals(Events(), lambda now: Look(0.0, 0.0, 1), is_told=True)


def test_every_variable_in_the_files_is_an_option() -> None:
    named = {name for text in FILES.values() for name in re.findall(rf"\b{PREFIX}[A-Z_]+\b", text)}
    assert len(named) > 10
    assert named - {f"{PREFIX}{option.name.upper()}" for option in options()} == set()


def test_the_metrics_of_aws_are_read_from_fields_that_the_signals_line_has(signals: Signals) -> None:
    resources = msgspec.yaml.decode(FILES["ecs.yaml"])["Resources"].values()
    filters = [each["Properties"] for each in resources if each["Type"] == "AWS::Logs::MetricFilter"]
    told = [each for each in filters if each["FilterPattern"] == '{ $.message = "signals" }']
    fields = {each["MetricTransformations"][0]["MetricValue"].removeprefix("$.") for each in told}
    assert fields == set(signals.read())


def test_the_cluster_scales_by_a_metric_that_the_servers_have(signals: Signals) -> None:
    named = set(re.findall(r"timebound_(\w+)", FILES["kubernetes/overlays/load/kustomization.yaml"]))
    assert named == {"load_ratio"}
    assert named <= set(signals.gauges())


def test_servers_are_asked_whether_they_are_ready_and_killed_only_if_they_are_not_alive() -> None:
    def paths(value: object) -> Iterator[tuple[str, str]]:
        if isinstance(value, dict):
            for key, inner in value.items():
                if key.endswith("Probe") and "httpGet" in inner:
                    yield key, inner["httpGet"]["path"]
                yield from paths(inner)
        elif isinstance(value, list):
            for each in value:
                yield from paths(each)

    asked = dict(paths(msgspec.yaml.decode(FILES["kubernetes/base/deployment.yaml"])))
    assert asked == {"startupProbe": "/readyz", "readinessProbe": "/readyz", "livenessProbe": "/livez"}


def test_one_name_leads_to_every_server_and_it_is_the_one_that_is_told_for_reloading_them() -> None:
    base = "kubernetes/base"
    service, pods = (msgspec.yaml.decode(FILES[f"{base}/{name}.yaml"]) for name in ("servers-service", "deployment"))
    template = pods["spec"]["template"]
    assert service["spec"]["clusterIP"] == "None"  # else it has one address, and one of the servers is reloaded
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert service["spec"]["ports"][0]["port"] == template["spec"]["containers"][0]["ports"][0]["containerPort"]
    told = f"kubectl exec deployment/hello -- timebound reload --all {service['metadata']['name']}:8000"
    assert told in FILES[f"{base}/deployment.yaml"]
    assert told in (Path(__file__).parents[2] / "docs/deploy.md").read_text()


def test_the_dashboard_of_aws_shows_every_signal() -> None:
    resources = msgspec.yaml.decode(FILES["ecs.yaml"])["Resources"]
    shown = resources["Dashboard"]["Properties"]["DashboardBody"]["Fn::Sub"]
    made = [each["Properties"] for each in resources.values() if each["Type"] == "AWS::Logs::MetricFilter"]
    names = {each["MetricTransformations"][0]["MetricName"] for each in made}
    assert {name for name in names if f'["Timebound/hello", "{name}"' not in shown} == set()


def test_the_operators_secret_on_aws_is_read_from_where_it_is_kept_and_by_nobody_else() -> None:
    resources = msgspec.yaml.decode(FILES["ecs.yaml"])["Resources"]
    (container,) = resources["Task"]["Properties"]["ContainerDefinitions"]
    secret = {"Name": "TIMEBOUND_ADMIN_TOKEN", "ValueFrom": {"Ref": "AdminToken"}}
    assert container["Secrets"]["Fn::If"][:2] == ["HasAdminToken", [secret]]
    condition, (policy,), _ = resources["StartRole"]["Properties"]["Policies"]["Fn::If"]
    (right,) = policy["PolicyDocument"]["Statement"]
    assert (condition, right["Action"]) == ("HasAdminToken", "secretsmanager:GetSecretValue")
    assert right["Resource"] == {"Ref": "AdminToken"}
