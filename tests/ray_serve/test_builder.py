"""What the builder takes and refuses, and what a node is told; all of it without Ray."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks.tools.ray_cluster import NODE

from timebound.config import options
from timebound.errors import SetupError
from timebound.ray.builder import RAYS_OWN, read
from timebound.ray.node import HAPROXY, OPTIMIZED, findings

PAGE = Path(__file__).parents[2] / "docs" / "ray.md"


def test_target_and_options_come_in_one_table_as_text_or_as_yaml_has_them() -> None:
    assert read({"target": "app.py", "workers": "2", "deadline": "250ms"}) == (
        "app.py",
        {"workers": "2", "deadline": "250ms"},
    )
    assert read({"target": "app.py", "workers": 2})[1] == {"workers": 2}


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ({}, "say what to serve: target=app.py"),
        ({"target": 3}, "say what to serve"),
        ({"target": "app.py", "worker": 2}, "'worker' is no option"),
        ({"target": "app.py", "workers": "many"}, "--workers is 'many'"),
        ({"target": "app.py", "port": 80}, "port has no effect on Ray, which owns the port; see http_options"),
    ],
)
def test_what_cannot_be_meant_is_told_before_anything_starts(args: dict[str, object], sentence: str) -> None:
    with pytest.raises(SetupError, match=re.escape(sentence)):
        read(args)


def test_every_option_that_is_rays_own_is_an_option() -> None:
    assert set(RAYS_OWN) <= {option.name for option in options()}


def test_a_node_that_is_set_up_has_no_findings() -> None:
    assert list(findings({HAPROXY: "1", OPTIMIZED: "1"})) == []


def test_each_finding_names_the_variable_to_set_and_all_are_told_at_once() -> None:
    assert [f"{HAPROXY}=1" in sentence for sentence in findings({OPTIMIZED: "1"})] == [True]
    assert [f"{OPTIMIZED}=1" in sentence for sentence in findings({HAPROXY: "1"})] == [True]
    assert len(list(findings({}))) == 2


def test_the_page_names_every_variable_that_the_tests_and_the_benchmark_set_on_a_node() -> None:
    page = PAGE.read_text().replace('"', "")
    assert [name for name, value in NODE.items() if f"{name}={value}" not in page] == []
