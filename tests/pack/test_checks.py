"""What is looked at before a file is written: good files pass, and of a broken one it is said what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.pack.small import GOLDEN, known

from timebound.errors import SetupError
from timebound.pack import kinds
from timebound.pack.checks import check
from timebound.pack.pack import pack

GOOD: Mapping[str, str] = {
    file.relative_to(GOLDEN).as_posix(): file.read_text() for file in sorted(GOLDEN.rglob("*")) if file.is_file()
}
BROKEN = [
    ("Dockerfile", "WORKDIR /app", "WORKDIRS /app", "WORKDIRS is no instruction"),
    ("Dockerfile", "USER 10001:10001", "USER root", "runs as root"),
    ("Dockerfile", "\nUSER 10001:10001", "", "has no USER"),
    ("Dockerfile", "HEALTHCHECK --interval=10s --timeout=3s --start-period=120s --retries=3 \\\n    CMD", "CMD",
     "has no HEALTHCHECK"),
    ("Dockerfile", "COPY app/ /app/", "COPY app/ /app/\nENV A=1", "comes after COPY"),
    ("Dockerfile", "WORKDIR /app", "RUN pip install this", "builds"),
    ("Dockerfile", "/app/", "{{name}}/", "the place for {{name}} was left open"),
    (".dockerignore", GOOD[".dockerignore"], "", "is empty"),
    ("requirements.txt", "timebound-", "numpy-", "no timebound"),
    ("requirements.txt", "./wheels/timebound-", "timebound-x", "no timebound"),
    ("nginx.conf", "least_conn;", "least_conn", "has no end: least_conn"),
    ("nginx.conf", "http {", "http {\nevents {", "a block is not closed"),
    ("nginx.conf", "events {", "}", "closes a block"),
    ("compose.yaml", "tmpfs: [/tmp]", "tmpf: [/tmp]", "nginx has the unknown key 'tmpf'"),
    ("compose.yaml", "depends_on: [redis]", "depends_on: [rediz]", "app needs 'rediz'"),
    ("compose.yaml", "services:", "  services:", "compose.yaml: "),
    ("prometheus/prometheus.yml", "[alerts.yml]", "[rules.yml]", "alerts.yml are not read"),
    ("prometheus/alerts.yml", "expr: up", "exp: up", "TimeboundNoAnswer has the unknown key 'exp'"),
    ("prometheus/dashboard.json", '"panels"', '"pannels"', "it is no dashboard"),
    ("kubernetes/base/deployment.yaml", "apps/v1", "apps/v1beta1", "apiVersion 'apps/v1beta1'"),
    ("kubernetes/base/deployment.yaml", "  name: hello\n", "", "has no name"),
    ("kubernetes/base/deployment.yaml", "      labels: { app: hello }", "      labels: { app: hullo }",
     "the selector does not find the pods"),
    ("kubernetes/base/kustomization.yaml", "service.yaml", "services.yaml", "services.yaml, which is not there"),
    ("kubernetes/overlays/dev/kustomization.yaml", "metadata: { name: hello }", "metadata: { name: hullo }", "hullo"),
    ("kubernetes/overlays/load/kustomization.yaml", "resources:", "resource:", "unknown key 'resource'"),
    ("ecs.yaml", "Ref: Targets", "Ref: Tragets", "'Tragets' is referred to"),
    ("ecs.yaml", "${Redis.PrimaryEndPoint.Address}", "${Radis.PrimaryEndPoint.Address}", "'Radis.Prim"),
    ("ecs.yaml", '{ "widgets": [', '{ "widgets": [,', "the dashboard is not JSON"),
    ("ecs.yaml", '["Timebound/hello", "queue_seconds"]', '["Timebound/hello", "queue_second"]', "no filter makes"),
    ("ecs.yaml", '"width": 12', '"widht": 12', "unknown key 'widht'"),
    ("systemd/hello.service", "[Service]", "[Servise]", "[Servise] is no section"),
    ("systemd/hello.service", "KillMode=mixed", "KillMode mixed", "is no setting"),
    ("systemd/hello.service", "ExecStart=", "ExecBegin=", "ExecStart is missing"),
    ("Makefile", "\t$(DOCKER) build", "    $(DOCKER) build", "belongs to no target"),
    ("serve.yaml", "min_replicas", "min_replicaz", "autoscaling_config has the unknown key 'min_replicaz'"),
    ("serve.yaml", "import_path", "importpath", "an application has the unknown key 'importpath'"),
    ("serve.yaml", "policy_function", "policy_functoin", "policy has the unknown key"),
]  # fmt: skip


def test_the_golden_files_are_as_they_should_be() -> None:
    assert check(GOOD) == ""


@pytest.mark.parametrize(("file", "right", "wrong", "said"), BROKEN, ids=[f"{row[0]}-{row[3]}" for row in BROKEN])
def test_a_broken_file_is_named_with_what_is_wrong_in_it(file: str, right: str, wrong: str, said: str) -> None:
    assert right in GOOD[file]
    found = check({**GOOD, file: GOOD[file].replace(right, wrong)})
    assert file in found
    assert said in found


def test_nothing_is_written_if_one_file_would_be_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = known(tmp_path)
    wrong = kinds.Kind("", {"compose.yaml": lambda _: "services: {app: {imag: x}}"})
    monkeypatch.setitem(kinds.KINDS, "compose", wrong)
    with pytest.raises(SetupError, match=r"nothing was written: compose.yaml: app has the unknown key 'imag'"):
        list(pack(facts, tmp_path / "deploy", ["docker", "compose"]))
    assert not (tmp_path / "deploy").exists()


@pytest.mark.parametrize("name", ["compose.yaml", "ecs.yaml", "serve.yaml", "kubernetes/base/service.yaml"])
def test_what_is_no_yaml_is_refused(name: str) -> None:
    assert check({**GOOD, name: "a: [1, 2\nb: }"}).startswith(f"{name}: ")
