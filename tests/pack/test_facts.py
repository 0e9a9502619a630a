"""What the files say of an app: its name, its size, its options, and none of its secrets."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from tests.pack.small import app, config, known, texts, wheel

from timebound.errors import SetupError
from timebound.pack.facts import Wish, name_of
from timebound.pack.fargate import pair
from timebound.pack.kinds import KINDS
from timebound.pack.pack import learn, written


@pytest.mark.parametrize(
    ("path", "name"),
    [("My_App", "my-app"), ("hello/app.py", "hello"), ("nets/Digits 2.onnx", "digits-2"), ("1st", "app-1st"),
     ("héllo", "h-llo"), ("no", "no-app"), ("x" * 80, "x" * 40)],
)  # fmt: skip
def test_names_are_such_that_hosts_images_and_yaml_take_them(tmp_path: Path, path: str, name: str) -> None:
    target = tmp_path / path
    if target.suffix:
        target.parent.mkdir()
        target.write_text("")
    else:
        target.mkdir()
    assert name_of(target, None) == name


@pytest.mark.parametrize("name", ["My", "a b", "-a", "a-", "1a", "a" * 41, "a/b"])
def test_a_name_that_cannot_be_one_is_refused(name: str) -> None:
    with pytest.raises(SetupError, match="cannot be a name"):
        name_of(Path(), name)


def test_options_that_are_given_hold_in_the_image_and_those_of_the_app_go_along_with_it(tmp_path: Path) -> None:
    target = app(tmp_path)
    (target / "timebound.toml").write_text('max_queue = 7\nport = 9000\nread_timeout = "4s"\n')
    (target / ".env").write_text("TIMEBOUND_MAX_DEADLINE=20\n")
    options = config(target, deadline="250ms", access_log=True)
    files = written(learn(target, tmp_path / "deploy", options, Wish(), wheel=wheel(tmp_path)), list(KINDS))
    image = files["Dockerfile"]
    for line in ("TIMEBOUND_PORT=9000", 'TIMEBOUND_DEADLINE="0.25"', 'TIMEBOUND_ACCESS_LOG="true"',
                 'TIMEBOUND_MAX_DEADLINE="20.0"', "EXPOSE 9000", "127.0.0.1:9000/readyz"):  # fmt: skip
        assert line in image
    assert "MAX_QUEUE" not in image  # its timebound.toml says so there, too
    assert "proxy_read_timeout 25s;" in files["nginx.conf"]
    assert "client_body_timeout 4000ms;" in files["nginx.conf"]
    assert "server app:9000 resolve" in files["nginx.conf"]
    arguments = msgspec.yaml.decode(files["serve.yaml"])["applications"][0]["args"]  # Ray reads no timebound.toml
    assert arguments == {
        "target": "app.py", "max_queue": 7, "deadline": 0.25, "max_deadline": 20.0, "read_timeout": 4.0,
        "access_log": True,
    }  # fmt: skip


def test_options_beside_a_model_file_hold_in_the_image(tmp_path: Path) -> None:
    target = app(tmp_path) / "model.onnx"
    (target.parent / "timebound.toml").write_text("max_queue = 7\n")
    files = written(learn(target, tmp_path / "deploy", config(target), Wish(), wheel=wheel(tmp_path)), ["docker"])
    assert 'TIMEBOUND_MAX_QUEUE="7"' in files["Dockerfile"]


@pytest.mark.parametrize(("name", "copied"), [("model.onnx", "models"), ("app.py", "models app"), ("words.mar", "app")])
def test_an_image_copies_only_folders_that_are_there(tmp_path: Path, name: str, copied: str) -> None:
    target = app(tmp_path) / name
    target.touch()
    files = written(learn(target, tmp_path / "deploy", config(target), Wish(), wheel=wheel(tmp_path)), ["docker"])
    for file in ("Dockerfile", "Dockerfile.gpu"):
        found = re.findall(r"^COPY (models|app)/", files[file], re.MULTILINE)
        assert found == copied.split()


def test_each_image_computes_where_its_base_can(tmp_path: Path) -> None:
    target = app(tmp_path)

    def files(kind: str, **flags: object) -> dict[str, str]:
        facts = learn(target, tmp_path / "deploy", config(target, **flags), Wish(), wheel=wheel(tmp_path))
        return written(facts, [kind])

    def devices(**flags: object) -> list[list[str]]:
        found = files("docker", **flags)
        return [re.findall(r'TIMEBOUND_DEVICE="(.*)"', found[name]) for name in ("Dockerfile", "Dockerfile.gpu")]

    assert devices() == [[], []]
    assert devices(device="cuda:1") == [["cpu"], ["cuda:1"]]
    (target / "net.pt2").write_bytes(b"")
    assert devices() == [[], ["cuda"]]
    # Ray hides the GPUs from a replica that asks for none.
    assert "{ num_gpus: 1, num_cpus: 1," in files("ray", device="cuda")["serve.yaml"]


def test_no_secret_is_written_anywhere(tmp_path: Path) -> None:
    files = texts(tmp_path, admin_token="hush-hush", store="redis://:hush-hush@10.0.0.5:6379/0")
    files.pop("Makefile")  # its flags are ours here; tests/cli/test_pack.py looks at those of the command
    assert not [name for name, text in files.items() if "hush" in text]


def test_odd_characters_stay_what_they_are_in_every_file(tmp_path: Path) -> None:
    target = app(tmp_path) / "model.onnx"
    odd = target.rename(target.with_name('a "b" $c %d.onnx'))
    options = config(odd, store_namespace="x", cors_origins="https://a$b.example")
    facts = learn(odd, tmp_path / "deploy", options, Wish(name="odd"), wheel=wheel(tmp_path))
    files = written(facts, list(KINDS))
    assert 'CMD ["serve", "a \\"b\\" $c %d.onnx"]' in files["Dockerfile"]
    assert 'TIMEBOUND_CORS_ORIGINS="https://a\\$b.example"' in files["Dockerfile"]
    assert 'serve "a \\"b\\" $$c %%d.onnx"' in files["systemd/odd.service"]
    assert msgspec.yaml.decode(files["serve.yaml"])["applications"][0]["args"]["target"] == 'a "b" $c %d.onnx'


def test_size_is_as_asked_for_or_guessed_from_options_and_models(tmp_path: Path) -> None:
    target = app(tmp_path)
    options = config(target, workers="2", threads="2")
    guessed = learn(target, tmp_path / "deploy", options, Wish(), wheel=wheel(tmp_path))
    assert (guessed.cores, guessed.memory_mb) == (4, 1024)
    assert "guess" in guessed.memory_why
    (target / "big.bin").write_bytes(bytes(300_000_000))
    bigger = learn(target, tmp_path / "deploy", options, Wish(), wheel=wheel(tmp_path))
    assert bigger.memory_mb == 1792
    asked = Wish(cores=2, memory=3 * 2**30, replicas=4)
    files = written(learn(target, tmp_path / "deploy", options, asked, wheel=wheel(tmp_path)), list(KINDS))
    compose = msgspec.yaml.decode(files["compose.yaml"])["services"]["app"]
    assert compose["scale"] == 4
    assert compose["deploy"]["resources"]["limits"] == {"cpus": "2", "memory": "3072M"}
    container = msgspec.yaml.decode(files["kubernetes/base/deployment.yaml"])["spec"]["template"]["spec"]["containers"][
        0
    ]
    assert container["resources"]["limits"] == container["resources"]["requests"] == {"cpu": "2", "memory": "3072Mi"}
    task = msgspec.yaml.decode(files["ecs.yaml"])["Resources"]["Task"]["Properties"]
    assert (task["Cpu"], task["Memory"]) == ("2048", "4096")


@pytest.mark.parametrize(
    ("cores", "memory", "found"),
    [(1, 512, (1024, 2048)), (1, 2049, (1024, 3072)), (1, 9000, (2048, 9216)), (3, 1024, (4096, 8192)),
     (8, 16385, (8192, 20480)), (16, 122880, (16384, 122880))],
)  # fmt: skip
def test_fargate_gets_the_next_pair_that_it_has(cores: int, memory: int, found: tuple[int, int]) -> None:
    assert pair(cores, memory) == found


def test_what_fargate_does_not_have_is_refused() -> None:
    with pytest.raises(SetupError, match="Fargate has nothing with 32 cores"):
        pair(32, 1024)


def test_where_the_store_is_a_cluster_the_image_has_what_that_needs(tmp_path: Path) -> None:
    files = texts(tmp_path, "docker", "ray", store="rediss-cluster://:secret@nodes.example.org:6379")
    assert "timebound-0.1.0-py3-none-any.whl[cluster]" in files["requirements.txt"]
    assert "timebound[cluster,ray]==" in files["serve.yaml"]
    assert "secret" not in "".join(files.values())
    plain = texts(tmp_path / "plain", "docker", store="redis://nodes.example.org:6379")
    assert "cluster" not in plain["requirements.txt"]


def test_requirements_are_timebounds_and_the_apps_own(tmp_path: Path) -> None:
    target = app(tmp_path)
    (target / "requirements.txt").write_text("# mine\ntimebound[convert]>=0.1\nregex==2026.1.1  # why\n\ntimebound-x\n")
    (target / "net.pt2").write_text("")
    facts = learn(target, tmp_path / "deploy", config(target, engine="openvino-f32"), Wish(), wheel=wheel(tmp_path))
    files = written(facts, ["docker"])
    lines = [line for line in files["requirements.txt"].splitlines() if not line.startswith("#")]
    assert lines == [
        "./wheels/timebound-0.1.0-py3-none-any.whl[convert,openvino,torch]",
        "regex==2026.1.1",
        "timebound-x",
    ]
    assert "--extra-index-url https://download.pytorch.org/whl/cpu" in files["Dockerfile"]
    assert "--extra-index-url" not in files["Dockerfile.gpu"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"port": "0"}, "what stands in front must know it"),
        ({"tls_cert": "a.pem", "tls_key": "b.pem"}, "TLS ends before the server"),
        ({"grpc_port": "8001"}, "speaks HTTP alone"),
        ({"keys": "keys.toml"}, "is not part of the app"),
    ],
)
def test_options_that_cannot_work_there_are_refused(tmp_path: Path, flags: dict[str, str], said: str) -> None:
    with pytest.raises(SetupError, match=said):
        known(tmp_path, **flags)


def test_a_keys_file_beside_the_app_goes_along(tmp_path: Path) -> None:
    target = app(tmp_path)
    (target / "keys.toml").write_text("")
    facts = learn(target, tmp_path / "deploy", config(target, keys="keys.toml"), Wish(), wheel=wheel(tmp_path))
    files = written(facts, list(KINDS))
    assert 'TIMEBOUND_KEYS="keys.toml"' in files["Dockerfile"]
    assert 'Environment="TIMEBOUND_KEYS=keys.toml"' in files["systemd/hello.service"]
    assert msgspec.yaml.decode(files["serve.yaml"])["applications"][0]["args"]["keys"] == "keys.toml"
    assert "app/keys.toml" in facts.contents.copies()


def test_the_servers_are_given_time_to_leave_everywhere(tmp_path: Path) -> None:
    files = texts(tmp_path, grace="60")
    assert msgspec.yaml.decode(files["compose.yaml"])["services"]["app"]["stop_grace_period"] == "65s"
    pod = msgspec.yaml.decode(files["kubernetes/base/deployment.yaml"])["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 70
    container = msgspec.yaml.decode(files["ecs.yaml"])["Resources"]["Task"]["Properties"]["ContainerDefinitions"][0]
    assert container["StopTimeout"] == 70
    assert "TimeoutStopSec=65" in files["systemd/hello.service"]
