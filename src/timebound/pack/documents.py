"""What can be seen to be wrong in the YAML files of a pack: keys, names that lead nowhere, JSON inside YAML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

import msgspec

Document = dict[str, Any]


def read(text: str) -> Document:
    """A document; raises `ValueError` saying what is wrong if it is none."""
    try:
        found = msgspec.yaml.decode(text.encode())
    except msgspec.DecodeError as error:
        raise ValueError(" ".join(str(error).split())) from None
    if not isinstance(found, dict):
        raise ValueError("it is no mapping")
    return found


def unknown(found: Mapping[str, Any], known: set[str], what: str) -> str:
    """Names the first key that is not known."""
    wrong = sorted(set(found) - known)
    return f"{what} has the unknown key {wrong[0]!r}" if wrong else ""


# ---------------------------------------------------------------------- compose

_SERVICE = {"image", "build", "command", "user", "ports", "volumes", "tmpfs", "depends_on", "stop_signal",
            "stop_grace_period", "deploy", "scale", "environment", "healthcheck", "restart", "read_only",
            "cap_drop", "security_opt", "cpu_shares"}  # fmt: skip


def compose(document: Document) -> str:
    """Services with keys that compose knows, which name each other rightly."""
    services: dict[str, Document] = document.get("services") or {}
    for name, service in services.items():
        wrong = unknown(service, _SERVICE, name)
        lost = set(service.get("depends_on", ())) - set(services)
        if wrong or lost:
            return wrong or f"{name} needs {min(lost)!r}, which is no service"
    return "" if services else "it has no services"


# ---------------------------------------------------------------------- Kubernetes

_VERSIONS = {
    "Deployment": "apps/v1",
    "Service": "v1",
    "HorizontalPodAutoscaler": "autoscaling/v2",
    "PodDisruptionBudget": "policy/v1",
    "Kustomization": "kustomize.config.k8s.io/v1beta1",
}


def kubernetes(document: Document) -> str:
    """A resource with its right version and a name, whose selector finds its own pods."""
    kind = str(document.get("kind"))
    if document.get("apiVersion") != _VERSIONS.get(kind):
        return f"{kind} has the apiVersion {document.get('apiVersion')!r}"
    if kind == "Kustomization":
        return unknown(document, {"apiVersion", "kind", "resources", "images", "replicas", "patches"}, "it")
    if not isinstance(document.get("metadata", {}).get("name"), str):
        return f"{kind} has no name"
    if kind == "Deployment":
        spec = document["spec"]
        if spec["selector"]["matchLabels"] != spec["template"]["metadata"]["labels"]:
            return "the selector does not find the pods"
    return ""


def lost_resources(texts: Mapping[str, str]) -> str:
    """A file that a kustomization names and that is not there, or a patch of something that is nowhere."""
    files = [file for file in texts if file.endswith("/kustomization.yaml")]
    known = {_identity(read(text)) for file, text in texts.items() if file.startswith("kubernetes/base/")}
    for file in files:
        document = read(texts[file])
        for resource in document.get("resources", ()):
            path = _joined(PurePosixPath(file).parent, resource)
            if path not in texts and f"{path}/kustomization.yaml" not in texts:
                return f"{file} names {resource}, which is not there"
        for patch in document.get("patches", ()):
            if _identity(read(patch["patch"])) not in known:
                return f"{file} changes {' '.join(_identity(read(patch['patch'])))}, which is not there"
    return ""


def _identity(document: Document) -> tuple[str, str]:
    return str(document.get("kind")), str(document.get("metadata", {}).get("name"))


def _joined(folder: PurePosixPath, path: str) -> str:
    parts = list(folder.parts)
    for part in PurePosixPath(path).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


# ---------------------------------------------------------------------- CloudFormation


def cloudformation(document: Document) -> str:
    """References that lead somewhere, and a dashboard that is JSON and shows only signals that are made."""
    resources: dict[str, Document] = document.get("Resources") or {}
    known = {*resources, *document.get("Parameters", {}), *document.get("Conditions", {})}
    for name in _references(document):
        if not name.startswith("AWS::") and name.partition(".")[0] not in known:
            return f"{name!r} is referred to and not there"
    made = {
        (each["MetricNamespace"], each["MetricName"])
        for resource in resources.values()
        if resource["Type"] == "AWS::Logs::MetricFilter"
        for each in resource["Properties"]["MetricTransformations"]
    }
    for resource in resources.values():
        if resource["Type"] == "AWS::CloudWatch::Dashboard":
            return _dashboard(resource["Properties"]["DashboardBody"]["Fn::Sub"], made)
    return "" if resources else "it has no resources"


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from _references(each)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key == "Ref" or (key == "DependsOn" and isinstance(inner, str)):
                yield inner
            elif key in ("Fn::GetAtt", "Fn::If"):
                yield inner[0]
                yield from _references(inner[1:])
            elif key == "Fn::Sub":
                yield from re.findall(r"\$\{([^}]+)\}", inner)
            else:
                yield from _references(inner)


def _dashboard(body: str, made: set[tuple[str, str]]) -> str:
    try:
        widgets = json.loads(body)["widgets"]
    except (ValueError, KeyError, TypeError) as error:
        return f"the dashboard is not JSON with widgets: {error}"
    for widget in widgets:
        wrong = unknown(widget, {"type", "x", "y", "width", "height", "properties"}, "a widget of the dashboard")
        if wrong:
            return wrong
        for metric in widget["properties"].get("metrics", ()):
            if metric[0].startswith("Timebound/") and tuple(metric[:2]) not in made:
                return f"the dashboard shows {metric[1]}, which no filter makes"
    return ""


# ---------------------------------------------------------------------- Ray Serve, whose own schema takes unknown keys

RAY_KEYS = {
    "ServeDeploySchema": {"applications", "grpc_options", "http_options", "logging_config", "proxy_location",
                          "target_capacity"},
    "HTTPOptionsSchema": {"host", "keep_alive_timeout_s", "port", "request_timeout_s", "root_path"},
    "ServeApplicationSchema": {"args", "deployments", "import_path", "logging_config", "name", "route_prefix",
                               "runtime_env"},
    "DeploymentSchema": {"autoscaling_config", "graceful_shutdown_timeout_s", "graceful_shutdown_wait_loop_s",
                         "health_check_period_s", "health_check_timeout_s", "max_ongoing_requests",
                         "max_queued_requests", "max_replicas_per_node", "max_surge_percent", "name", "num_replicas",
                         "ray_actor_options", "user_config"},
    "RayActorOptionsSchema": {"accelerator_type", "memory", "num_cpus", "num_gpus", "resources", "runtime_env"},
    "AutoscalingConfig": {"downscale_delay_s", "initial_replicas", "look_back_period_s", "max_replicas",
                          "metrics_interval_s", "min_replicas", "policy", "target_ongoing_requests",
                          "upscale_delay_s"},
    "AutoscalingPolicy": {"policy_function", "policy_kwargs"},
}  # fmt: skip
"""By Ray's name of each part, the keys of it that a pack may use; a test compares them with Ray's own."""


def serve(document: Document) -> str:
    """Keys that Serve's schema has (of Ray 2.60)."""
    parts: list[tuple[Mapping[str, Any], str, str]] = [
        (document, "ServeDeploySchema", "it"),
        (document.get("http_options", {}), "HTTPOptionsSchema", "http_options"),
    ]
    for application in document.get("applications", ()):
        parts.append((application, "ServeApplicationSchema", "an application"))
        for deployment in application.get("deployments", ()):
            scaling = deployment.get("autoscaling_config", {})
            parts += [
                (deployment, "DeploymentSchema", "a deployment"),
                (deployment.get("ray_actor_options", {}), "RayActorOptionsSchema", "ray_actor_options"),
                (scaling, "AutoscalingConfig", "autoscaling_config"),
                (scaling.get("policy", {}), "AutoscalingPolicy", "policy"),
            ]
    return next((wrong for part, model, what in parts if (wrong := unknown(part, RAY_KEYS[model], what))), "")


# ---------------------------------------------------------------------- Prometheus and Grafana


def scraping(document: Document) -> str:
    """Rules that lie beside it, and jobs with a name."""
    wrong = unknown(document, {"global", "rule_files", "scrape_configs"}, "it")
    if not wrong and document.get("rule_files") != ["alerts.yml"]:
        wrong = "the rules of alerts.yml are not read"
    return wrong or (
        "" if all(job.get("job_name") for job in document.get("scrape_configs") or [{}]) else "no job name"
    )


def alerts(document: Document) -> str:
    """Each rule says when it holds, how grave it is, and what it means."""
    for group in document.get("groups") or [{"rules": [{}]}]:
        for rule in group["rules"]:
            wrong = unknown(rule, {"alert", "expr", "for", "labels", "annotations"}, str(rule.get("alert")))
            if wrong or not (rule.get("alert") and rule.get("expr") and rule.get("annotations", {}).get("summary")):
                return wrong or f"the rule {rule.get('alert')!r} lacks its expr or summary"
    return ""


def dashboard(text: str) -> str:
    """JSON, with panels that ask something."""
    try:
        panels = json.loads(text)["panels"]
    except (ValueError, KeyError) as error:
        return f"it is no dashboard: {error}"
    silent = [panel["title"] for panel in panels if not all(target.get("expr") for target in panel["targets"])]
    return f"the panel {silent[0]!r} asks nothing" if silent else ""
