"""What Ray itself says of serve.yaml, and of the keys that we know of it: its own schema takes unknown ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.pack.small import texts

from timebound.pack.documents import RAY_KEYS, serve

schema = pytest.importorskip("ray.serve.schema", reason="Ray is not installed: pip install 'timebound[ray]'")
config = pytest.importorskip("ray.serve.config")


def packed(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.yaml.decode(texts(folder, "ray", deadline="250ms")["serve.yaml"])
    return found


def test_rays_schema_takes_the_config_file_and_reads_what_it_says(tmp_path: Path) -> None:
    document = packed(tmp_path)
    (read,) = schema.ServeDeploySchema.model_validate(document).applications
    assert (read.name, read.import_path, read.route_prefix) == ("hello", "timebound.ray:app", "/")
    scaling = read.deployments[0].autoscaling_config
    assert config.AutoscalingConfig.model_validate(scaling).policy.policy_function == "timebound.ray:policy"


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("max_surge_percent", 200),
        ("ray_actor_options", {"num_cpus": -1}),
        ("max_ongoing_requests", 0),
    ],
)
def test_rays_schema_refuses_a_broken_one(tmp_path: Path, key: str, wrong: object) -> None:
    document = packed(tmp_path)
    document["applications"][0]["deployments"][0][key] = wrong
    with pytest.raises(ValueError, match="validation error"):
        schema.ServeDeploySchema.model_validate(document)
    with pytest.raises(ValueError, match="validation error"):  # that part is read later, by a model of its own
        config.AutoscalingConfig.model_validate({"min_replicas": 5, "max_replicas": 2})


def test_a_misspelt_key_that_ray_takes_is_found_by_our_own_check(tmp_path: Path) -> None:
    document = packed(tmp_path)
    assert serve(document) == ""
    deployment = document["applications"][0]["deployments"][0]
    deployment["num_replicaz"] = 2
    assert schema.ServeDeploySchema.model_validate(document)
    assert "unknown key 'num_replicaz'" in serve(document)


@pytest.mark.parametrize("name", RAY_KEYS)
def test_every_key_that_we_take_is_one_of_rays(name: str) -> None:
    model = getattr(schema, name, None) or getattr(config, name)
    assert RAY_KEYS[name] - set(model.model_fields) == set()
