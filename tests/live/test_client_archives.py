"""`tb.Client` and a model archive, whose server says errors in TorchServe's form."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from tests.live.serving import Serving
from tests.models import archives

from timebound import Client
from timebound.client import BadRequest, ModelFailed, NotFound

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("archives")
    archive = archives.custom(folder)
    with Serving(archive, "--workers", "1", environment={"XDG_CACHE_HOME": str(folder)}) as serving:
        yield serving


def asked_to(do: str) -> bytes:
    return urlencode({"do": do}).encode()


FORM = "application/x-www-form-urlencoded"


def test_what_a_handler_raises_reaches_a_client_at_once_and_is_not_sent_again(served: Serving) -> None:
    with Client(served.url, deadline=20.0) as client:
        for do, status, said in (("raise", 503, "Prediction failed"), ("memory", 507, "Out of resources")):
            with pytest.raises(ModelFailed) as failed:
                client.ask("custom", asked_to(do), content_type=FORM)
            error = failed.value
            assert (error.status, error.code, error.detail, error.attempts) == (status, "model_failed", said, 1)


def test_what_a_handler_refuses_is_told_in_its_own_words(served: Serving) -> None:
    with Client(served.url, deadline=20.0) as client:
        with pytest.raises(BadRequest, match="not that one") as refused:
            client.ask("custom", asked_to("prediction"), content_type=FORM)
        assert refused.value.status == 422
        with pytest.raises(NotFound, match="Model version: 9 does not exist for model: custom") as missing:
            client.ask("custom", b"x", version="9")
        assert missing.value.code == "unknown_model"
