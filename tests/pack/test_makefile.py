"""`make deploy` and the ways back: real files, the real kustomize, and stubs of what would reach further."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from tests.pack.small import app, config, texts, wheel

from timebound.pack.facts import Wish
from timebound.pack.pack import learn, written

_KUBECTL = shutil.which("kubectl")
_NEEDS_KUBECTL = pytest.mark.skipif(_KUBECTL is None, reason="kubectl is not installed")
_PRODUCTION = "kubernetes/overlays/production/kustomization.yaml"
_EXAMPLE = "newName: registry.example.org/hello"


class Packed:
    """The files of a pack, and stubs of what they are for: each writes down what it was told."""

    def __init__(self, folder: Path, *kinds: str) -> None:
        self.folder = folder / "deploy"
        for name, text in texts(folder, "make", *kinds).items():
            self.put(name, text)
        self._stubs = folder / "stubs"
        self._stubs.mkdir()
        self._said = folder / "said"
        self._said.touch()

    def put(self, name: str, text: str) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def change(self, name: str, right: str, wrong: str) -> None:
        text = (self.folder / name).read_text()
        assert right in text
        self.put(name, text.replace(right, wrong))

    def stub(self, program: str, script: str = "") -> None:
        file = self._stubs / program
        file.write_text(f'#!/bin/sh\necho "{program} $*" >> {self._said}\n{script}\n')
        file.chmod(0o755)

    def make(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        self._said.write_text("")
        known = {name: value for name, value in os.environ.items() if name not in ("IMAGE", "TAG")}
        env = {**known, **variables, "PATH": f"{self._stubs}:{os.environ['PATH']}"}
        command = ["make", "--no-print-directory", *words]
        return subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, check=False)

    @property
    def said(self) -> list[str]:
        """What the stubs were told by the last `make`."""
        return [" ".join(line.split()) for line in self._said.read_text().splitlines()]


# ---------------------------------------------------------------------- Kubernetes


@pytest.fixture
def cluster(tmp_path: Path) -> Packed:
    """A kubectl whose `kustomize` is the real one, and whose `apply` keeps what it would send."""
    packed = Packed(tmp_path, "kubernetes")
    kustomize = f'{_KUBECTL} kustomize "$2"'
    packed.stub("kubectl", f'case $1 in kustomize) {kustomize};; apply) {_KUBECTL} kustomize "$3" > applied;; esac')
    packed.change(_PRODUCTION, _EXAMPLE, "newName: ghcr.io:443/me/greeter")
    return packed


def images(packed: Packed) -> dict[str, str]:
    """The image of each Deployment that was applied."""
    documents = map(msgspec.yaml.decode, (packed.folder / "applied").read_text().split("\n---\n"))
    return {
        each["metadata"]["name"]: container["image"]
        for each in documents
        if each["kind"] == "Deployment"
        for container in each["spec"]["template"]["spec"]["containers"]
    }


@_NEEDS_KUBECTL
@pytest.mark.parametrize(
    ("words", "image"),
    [
        (["TAG=2"], "ghcr.io:443/me/greeter:2"),
        (["IMAGE=registry.test/hello", "TAG=2"], "registry.test/hello:2"),
        (["IMAGE=registry.test/hello"], "registry.test/hello:latest"),
        ([], "ghcr.io:443/me/greeter:1"),
        (["TAG=2", "OVERLAY=load"], "ghcr.io:443/me/greeter:2"),
        (["TAG=2", "OVERLAY=dev"], "hello:2"),
    ],
)
def test_the_image_that_was_asked_for_is_the_one_that_is_deployed(
    cluster: Packed, words: list[str], image: str
) -> None:
    done = cluster.make("deploy", "ON=kubernetes", *words)
    assert done.returncode == 0, done.stderr
    assert images(cluster) == {"hello": image, "hello-redis": "docker.io/library/redis:8"}
    assert cluster.said[-1] == "kubectl rollout status deployment/hello --timeout 5m"


@_NEEDS_KUBECTL
def test_a_digest_in_the_overlay_gives_way_to_a_tag(cluster: Packed) -> None:
    cluster.change(_PRODUCTION, 'newTag: "1"', f"digest: sha256:{'a' * 64}")
    assert cluster.make("deploy", "ON=kubernetes", "TAG=2").returncode == 0
    assert images(cluster)["hello"] == "ghcr.io:443/me/greeter:2"


@_NEEDS_KUBECTL
def test_an_image_that_cannot_be_set_is_told_and_nothing_is_applied(cluster: Packed) -> None:
    cluster.change(_PRODUCTION, "ghcr.io:443/me/greeter", "registry.example.org/hello")
    told = cluster.make("deploy", "ON=kubernetes", "TAG=2")
    assert (told.returncode != 0, "registry.example.org/hello:2 is an example" in told.stderr) == (True, True)
    cluster.change("kubernetes/base/deployment.yaml", "- name: app\n", "- name: server\n")
    told = cluster.make("deploy", "ON=kubernetes", "TAG=2", "IMAGE=registry.test/hello")
    assert (told.returncode != 0, "no container with the name app" in told.stderr) == (True, True)
    assert not (cluster.folder / "applied").exists()


# ---------------------------------------------------------------------- AWS


def test_what_is_not_given_stays_as_the_stack_on_aws_has_it(tmp_path: Path) -> None:
    packed = Packed(tmp_path, "ecs")
    packed.stub("aws")
    first = ["IMAGE=registry.test/hello", "TAG=2", "VPC=vpc-1", "SUBNETS=subnet-1,subnet-2"]
    assert packed.make("deploy", "ON=ecs", *first).returncode == 0
    assert packed.said[0].endswith(
        "--parameter-overrides Image=registry.test/hello:2 Vpc=vpc-1 Subnets=subnet-1,subnet-2"
    )
    assert packed.make("deploy", "ON=ecs", *first[:1], "TAG=before").returncode == 0
    assert packed.said[0].endswith("--parameter-overrides Image=registry.test/hello:before")
    told = packed.make("deploy", "ON=ecs", "TAG=before")
    assert (told.returncode != 0, "IMAGE=..." in told.stderr, packed.said) == (True, True, [])


# ---------------------------------------------------------------------- compose

_ASK = "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/readyz', timeout=2)"
_ENGINE = """
echo "IMAGE=$IMAGE TAG=$TAG" >> "$0.env"
case "$*" in
  "image inspect "*) grep -qxF "$3" "$0.images" || exit 1;;
  build*) echo "$3" >> "$0.images";;
  "ps -q "*) [ ! -e "$0.servers" ] || cat "$0.servers";;
  *--scale*) printf 'new1\\nnew2\\n' >> "$0.servers";;
  exec*) [ ! -e "$0.broken" ] || exit 1;;
  "compose up -d --no-build") printf 'old1\\nold2\\n' > "$0.servers";;
  rm*) shift; for name; do sed -i "/^$name$/d" "$0.servers"; done;;
esac
"""


def test_new_servers_are_ready_before_the_old_ones_are_stopped(tmp_path: Path) -> None:
    packed = Packed(tmp_path, "compose")
    packed.stub("docker", _ENGINE)
    packed.stub("sleep")
    # The first time all of it is started
    assert packed.make("build", "deploy", "TAG=1").returncode == 0
    servers = (
        "docker ps -q --filter label=com.docker.compose.project=hello --filter label=com.docker.compose.service=app"
    )
    ready = ["docker image inspect hello:1", servers]
    assert packed.said == ["docker build -t hello:1 .", *ready, "docker compose up -d --no-build"]
    # Then as many new ones as there are, and the old ones leave
    assert packed.make("build", "deploy", "TAG=2").returncode == 0
    assert packed.said[3:] == [
        "docker compose up -d --no-build --no-deps --no-recreate --scale app=4 app",
        servers,
        *(f"docker exec {each} python -c {_ASK}" for each in ("new1", "new2")),
        *("docker stop old1", "docker rm old1", "sleep 2"),
        *("docker stop old2", "docker rm old2", "sleep 2"),
    ]
    assert (tmp_path / "stubs/docker.servers").read_text().split() == ["new1", "new2"]
    # And back again the same way, without a build
    assert packed.make("deploy", "ON=compose", "TAG=1").returncode == 0
    assert packed.said[:2] == ready
    assert [line for line in packed.said if "stop" in line] == ["docker stop new1", "docker stop new2"]
    assert (tmp_path / "stubs/docker.env").read_text().splitlines()[-1] == "IMAGE=hello TAG=1"


def test_old_servers_stay_where_new_ones_do_not_get_ready(tmp_path: Path) -> None:
    packed = Packed(tmp_path, "compose")
    packed.stub("docker", _ENGINE)
    assert packed.make("build", "deploy").returncode == 0
    (tmp_path / "stubs/docker.broken").touch()
    told = packed.make("build", "deploy", "TAG=2", "READY_S=1")
    assert told.returncode != 0
    assert "not ready within 1 s (READY_S) and are taken away; the old ones go on" in told.stderr
    assert packed.said[-1] == "docker rm -f new1 new2"
    assert [line for line in packed.said if line.startswith(("docker stop", "docker rm old"))] == []


def test_a_tag_without_an_image_is_told_and_never_built_of_the_files_as_they_are_now(tmp_path: Path) -> None:
    packed = Packed(tmp_path, "compose")
    packed.stub("docker", _ENGINE + "[ $1 != pull ] || exit 1")
    told = packed.make("deploy", "ON=compose", "TAG=old")
    assert told.returncode != 0
    assert "there is no image hello:old; to make it of the files as they are now: make build TAG=old" in told.stderr
    assert packed.said == ["docker image inspect hello:old"]
    # One of a registry may not be here yet
    told = packed.make("deploy", "ON=compose", "IMAGE=registry.test/hello", "TAG=old")
    assert (told.returncode != 0, "there is no image registry.test/hello:old" in told.stderr) == (True, True)
    assert packed.said[1:] == ["docker pull registry.test/hello:old"]
    packed.stub("docker", _ENGINE)
    assert packed.make("deploy", "ON=compose", "IMAGE=registry.test/hello", "TAG=old").returncode == 0
    assert packed.said[-1] == "docker compose up -d --no-build"


# ---------------------------------------------------------------------- systemd


class Machine(Packed):
    """A machine's /opt and /etc below a folder of their own, with an environment of Python that has all it needs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "systemd")
        self.stub("systemctl")
        self.opt = folder / "machine/opt/hello"
        (self.opt / "venv/bin").mkdir(parents=True)
        for program in ("python", "pip"):
            (self.opt / "venv/bin" / program).symlink_to("/bin/true")

    def deploy(self, files: Mapping[str, str]) -> None:
        for part in ("app", "models"):
            shutil.rmtree(self.folder / part, ignore_errors=True)
        for name, text in files.items():
            self.put(name, text)
        self.do("deploy", "ON=systemd")

    def do(self, *words: str) -> None:
        done = self.make(*words, DESTDIR=str(self.opt.parents[1]))
        assert done.returncode == 0, done.stderr

    def app(self, link: str = "app") -> dict[str, str]:
        folder = (self.opt / link).resolve()
        return {file.relative_to(folder).as_posix(): file.read_text() for file in folder.rglob("*") if file.is_file()}


def test_a_deploy_changes_no_file_that_a_server_has_open_and_leaves_none_of_the_version_before(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.deploy({"app/app.py": "one", "app/gone.py": "x", "models/net.onnx": "weights " * 1000})
    first = (machine.opt / "app").resolve()
    with (machine.opt / "app/net.onnx").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        machine.deploy({"app/app.py": "two", "models/net.onnx": "short"})
        assert mapped[:] == b"weights " * 1000
    assert machine.app() == {"app.py": "two", "net.onnx": "short"}
    assert machine.app("before")["gone.py"] == "x"
    assert first.is_dir()
    assert machine.said[-1] == "systemctl reload-or-restart hello"
    assert (machine.opt.parents[1] / "etc/systemd/system/hello.service").is_file()


def test_going_back_brings_exactly_what_was_there_and_once_more_goes_forth_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.deploy({"app/app.py": "one"})
    machine.deploy({"app/app.py": "two", "app/added.py": "y"})
    machine.do("back-systemd")
    assert machine.app() == {"app.py": "one"}
    assert machine.said == ["systemctl reload hello"]
    machine.do("back-systemd")
    assert machine.app() == {"app.py": "two", "added.py": "y"}


def test_the_disk_does_not_fill_up_and_what_is_gone_back_to_is_kept(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.deploy({"app/app.py": "good"})
    for number in range(5):
        machine.deploy({"app/app.py": f"bad {number}"})
        machine.do("back-systemd")
        assert machine.app() == {"app.py": "good"}
    assert len(list((machine.opt / "releases").iterdir())) <= 4


def test_the_user_of_the_unit_can_read_what_an_administrator_with_a_close_umask_deployed(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    was = os.umask(0o022)
    machine.put("app/sub/app.py", "one")
    try:
        os.umask(0o077)
        machine.do("deploy", "ON=systemd")
    finally:
        os.umask(was)
    release = (machine.opt / "app").resolve()
    assert [file.stat().st_mode & 0o055 for file in (release, release / "sub")] == [0o055, 0o055]
    assert (release / "sub/app.py").stat().st_mode & 0o044 == 0o044


def test_a_link_is_turned_in_one_step(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.deploy({"app/app.py": "one"})
    was = (machine.opt / "app").readlink()
    machine.stub("mv", "exit 1")
    assert machine.make("deploy", "ON=systemd", DESTDIR=str(machine.opt.parents[1])).returncode != 0
    assert (machine.opt / "app").readlink() == was
    assert [line.split()[:2] for line in machine.said if line.startswith("mv")] == [["mv", "-T"]]


def test_an_app_is_packed_and_served_again_whatever_its_folder_is_called(tmp_path: Path) -> None:
    odd = app(tmp_path).rename(tmp_path / "it's #1, $HOME 勇")
    facts = learn(odd, tmp_path / "deploy", config(odd), Wish(name="hello"), wheel=wheel(tmp_path))
    packed = Packed(tmp_path)
    packed.put("Makefile", written(facts, ["make"])["Makefile"])
    packed.stub("timebound", f'[ -f "$2/app.py" ] && echo "there is $2" >> {packed.folder.parent}/said')
    for command in ("pack", "dev"):
        done = packed.make(command)
        assert done.returncode == 0, done.stderr
        assert packed.said[-1] == f"there is ../{odd.name}"
