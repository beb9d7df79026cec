"""The server's own OpenAPI description, and requests made up from it: none may end in a fault of ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

from radixlang.server.app import ROUTES

from .fakes import Live, live

schemathesis = pytest.importorskip("schemathesis")


@pytest.fixture(scope="module")
def small() -> Iterator[Live]:
    """A server with a short context: no made-up request takes long."""
    with live(info={"context_length": 200}, health_timeout=1.0) as server:
        yield server


@pytest.fixture(scope="module")
def small_embedder() -> Iterator[Live]:
    with live(info={"context_length": 200, "is_generation": False}) as server:
        yield server


few = hypothesis.settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)


def check(response: Any) -> None:
    assert response.status_code < 500, response.text[:300]
    assert response.status_code != 422
    if response.status_code >= 400:
        error = response.json()["error"]
        own = "/v1/messages" in response.request.url  # the API has a shape of its own
        assert set(error) == ({"message", "type"} if own else {"message", "type", "param", "code"})
        assert error["message"]


def try_operation(server: Live, path: str, method: str, mode: Any) -> None:
    """Send made-up requests of one operation; `mode` says whether they follow the description or break it."""
    operation = schemathesis.openapi.from_url(server.base + "/openapi.json")[path][method]
    try:
        cases = operation.as_strategy(generation_mode=mode)
        cases.validate()
    except hypothesis.errors.Unsatisfiable:
        return

    @few
    @hypothesis.given(case=cases)
    def send(case: Any) -> None:
        check(case.call())
        assert server.hub.running == 0
        assert not server.engine.running

    try:
        send()
    except hypothesis.errors.Unsatisfiable:
        # Without parameters or a body there is nothing to get wrong.
        assert mode is schemathesis.GenerationMode.NEGATIVE
        assert operation.body == [] or not list(operation.body)


OPERATIONS = [(route.path.replace(":path", ""), method) for route in ROUTES for method in route.methods]
MODES = list(schemathesis.GenerationMode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_no_request_is_a_fault_of_ours(small: Live, path: str, method: str, mode: Any) -> None:
    try_operation(small, path, method, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("path", ["/v1/embeddings", "/encode"])
def test_no_embedding_request_is_a_fault_of_ours(small_embedder: Live, path: str, mode: Any) -> None:
    try_operation(small_embedder, path, "POST", mode)


def test_description_covers_every_route(server: Live) -> None:
    document = server.http.get("/openapi.json").json()
    described = {(path, method.upper()) for path, item in document["paths"].items() for method in item}
    served = {(route.path.replace(":path", ""), method) for route in ROUTES for method in route.methods}
    assert described == served
    names = [o["operationId"] for item in document["paths"].values() for o in item.values()]
    assert len(names) == len(set(names))


def test_description_names_types_and_required_fields(server: Live) -> None:
    schemas = server.http.get("/openapi.json").json()["components"]["schemas"]
    assert schemas["ChatBody"]["required"] == ["messages"]
    assert schemas["CompletionBody"]["required"] == ["prompt"]
    assert {"text", "input_ids", "sampling_params"} <= set(schemas["GenerateBody"]["properties"])
    assert {"type": "integer", "minimum": 1, "maximum": 128} in schemas["ChatBody"]["properties"]["n"]["anyOf"]
