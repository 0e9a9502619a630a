"""A run's requests for other tools: files that their readers take, with what would be sent."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from timebound.errors import SetupError
from timebound.lab.bench import Plan
from timebound.lab.export import Asked, Route, check_ending, write
from timebound.lab.load.client import Address
from timebound.lab.load.requests import Form, Payload

ADDRESS = Address("127.0.0.1", 8000, "models.test", "models.test:8000")
PAYLOAD = Payload(b'{"id": "{uuid}", "n": {i}, "text": "a < b & \xc3\xa9"}', has_places=True)
ASKED = Asked(ADDRESS, Form(ADDRESS.host_header, "/predict?x=1", "POST", [("Idempotency-Key", "{uuid}")]), PAYLOAD)
ROUTES = [Route("asked", "POST", "/predict?x=1", PAYLOAD), Route("server", "GET", "/readyz")]


def plan_for_jmeter(plan: Plan, asked: Asked = ASKED) -> ET.Element:
    return ET.fromstring(write(Path("plan.jmx"), asked, ROUTES, plan))


def value(root: ET.Element, name: str) -> str | None:
    (found,) = root.findall(f".//*[@name='{name}']")
    return found.text


def test_a_plan_for_jmeter_asks_the_same_in_jmeters_words() -> None:
    root = plan_for_jmeter(Plan(clients=7, seconds=20.0, timeout_s=2.0))
    assert (root.tag, root[0].tag, root[0][0].tag) == ("jmeterTestPlan", "hashTree", "TestPlan")
    wanted = {
        "HTTPSampler.domain": "models.test", "HTTPSampler.port": "8000", "HTTPSampler.path": "/predict?x=1",
        "HTTPSampler.method": "POST", "HTTPSampler.protocol": "http", "HTTPSampler.response_timeout": "2000",
        "ThreadGroup.num_threads": "7", "ThreadGroup.duration": "20", "ThreadGroup.scheduler": "true",
        "Argument.value": '{"id": "${__UUID()}", "n": ${__counter(FALSE,)}, "text": "a < b & \u00e9"}',
    }  # fmt: skip
    assert {name: value(root, name) for name in wanted} == wanted
    headers = root.findall(".//collectionProp[@name='HeaderManager.headers']/elementProp")
    assert [[each.text for each in header] for header in headers] == [
        ["Idempotency-Key", "${__UUID()}"],
        ["Content-Type", "application/json"],
    ]


def test_each_element_of_a_plan_has_a_tree_of_its_own_behind_it() -> None:
    for tree in plan_for_jmeter(Plan(rate=50.0)).iter("hashTree"):
        kinds = [child.tag for child in tree]
        assert kinds[1::2] == ["hashTree"] * (len(kinds) // 2)


def test_a_rate_is_kept_by_a_timer_and_a_number_of_requests_by_loops() -> None:
    assert value(plan_for_jmeter(Plan(rate=50.0)), "throughput") == "3000"
    counted = plan_for_jmeter(Plan(clients=10, requests=95, seconds=None))
    assert (value(counted, "LoopController.loops"), value(counted, "ThreadGroup.scheduler")) == ("10", "false")


def test_a_collection_for_postman_has_every_route_in_the_folder_of_its_model() -> None:
    collection = json.loads(write(Path("c.json"), ASKED, ROUTES, Plan()))
    assert collection["info"]["schema"].endswith("/v2.1.0/collection.json")
    assert collection["variable"] == [{"key": "server", "value": "http://models.test:8000"}]
    asked, server = collection["item"]
    assert (asked["name"], server["name"]) == ("asked", "server")
    (request,) = [each["request"] for each in asked["item"]]
    assert request["url"]["raw"] == "{{server}}/predict?x=1"
    assert (request["url"]["path"], request["url"]["query"]) == (["predict"], [{"key": "x", "value": "1"}])
    assert request["body"]["raw"] == '{"id": "{{$guid}}", "n": {{$randomInt}}, "text": "a < b & \u00e9"}'
    assert {"key": "Idempotency-Key", "value": "{{$guid}}"} in request["header"]
    assert "body" not in server["item"][0]["request"]


@pytest.mark.parametrize("name", ["plan.jmx", "collection.json"])
def test_bytes_that_are_no_text_are_refused(name: str) -> None:
    asked = Asked(ADDRESS, ASKED.form, Payload(b"\xff\xd8", "image/jpeg"))
    with pytest.raises(SetupError, match="takes bytes that are none"):
        write(Path(name), asked, [Route("asked", "POST", "/", asked.payload)], Plan())


def test_a_name_that_says_no_tool_is_refused() -> None:
    with pytest.raises(SetupError, match=r"\.jmx for JMeter or \.json for Postman"):
        check_ending(Path("plan.xml"))
