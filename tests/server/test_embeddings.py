"""`/v1/embeddings` through a real HTTP server over the fake engine."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
import pytest

from .fakes import HIDDEN, Live

PATH = "/v1/embeddings"


@pytest.mark.parametrize(
    ("given", "vectors", "tokens"),
    [
        ("x", 1, 2),
        (["x", "yy"], 2, 5),
        ([1, 2, 3], 1, 3),
        ([[1, 2], [3]], 2, 3),
        ([{"text": "x"}], 1, 2),
    ],
)
def test_input_forms(embedder: Live, given: Any, vectors: int, tokens: int) -> None:
    """S11."""
    answer = embedder.ok(PATH, {"input": given})
    assert answer["object"] == "list"
    assert answer["model"] == "fake/model"
    assert [item["index"] for item in answer["data"]] == list(range(vectors))
    assert {item["object"] for item in answer["data"]} == {"embedding"}
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([10**9], "1000000000"),
        ([[]], "empty"),
        ([], "empty"),
        (["x", 1], "mixture"),
        ([[1], "x"], "mixture"),
        ([{"image": "u"}], "image"),
        ([{}], "no text"),
        (None, "input"),
        ([1] * 5000, "5000 tokens"),
        (["x"] * 3000, "3000"),
    ],
)
def test_wrong_inputs(embedder: Live, given: Any, words: str) -> None:
    error = embedder.refused(PATH, {"input": given})
    assert words in error["message"]
    assert error["param"] == "input"


def test_namespaces_hold_here_too(embedder: Live) -> None:
    """A decoder that embeds has a prefix cache, and times tell what is in it."""
    names = {"extra_key": "key", "cache_salt": "salt"}
    for path, prompts in ((PATH, {"input": ["a", "b"]}), ("/encode", {"text": ["a", "b"]})):
        embedder.ok(path, prompts | names)
        assert [request.namespace for request in embedder.engine.received[-2:]] == ["3:keysalt"] * 2
    embedder.ok("/encode", {"text": ["a", "b"], "cache_salt": [None, "salt"]})
    assert [request.namespace for request in embedder.engine.received[-2:]] == ["", "0:salt"]
    assert embedder.refused("/encode", {"text": "a", "cache_salt": ["x"]})["param"] == "cache_salt"
    assert embedder.refused(PATH, {"input": "a", "cache_salt": ["x"]})["param"] == "cache_salt"


@pytest.mark.parametrize("dimensions", [None, 1, HIDDEN // 2, HIDDEN])
def test_dimensions_cut_and_normalise(embedder: Live, dimensions: int | None) -> None:
    """S12."""
    answer = embedder.ok(PATH, {"input": "hello", "dimensions": dimensions})
    vector = answer["data"][0]["embedding"]
    assert len(vector) == (dimensions or HIDDEN)
    assert math.isclose(math.hypot(*vector), 1.0, rel_tol=1e-5)
    whole = embedder.ok(PATH, {"input": "hello"})["data"][0]["embedding"]
    part = np.array(whole[: len(vector)])
    assert np.allclose(vector, part / np.linalg.norm(part), atol=1e-5)


@pytest.mark.parametrize("dimensions", [0, -1, HIDDEN + 1, 10**30, 2.5, "4"])
def test_impossible_dimensions(embedder: Live, dimensions: Any) -> None:
    assert embedder.refused(PATH, {"input": "x", "dimensions": dimensions})["param"] == "dimensions"


def test_base64_is_little_endian_float32(embedder: Live) -> None:
    plain = embedder.ok(PATH, {"input": "x"})["data"][0]["embedding"]
    packed = embedder.ok(PATH, {"input": "x", "encoding_format": "base64"})["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(packed), "<f4").tolist() == plain
    embedder.refused(PATH, {"input": "x", "encoding_format": "hex"})


def test_wrong_kind_of_model_says_what_it_can(server: Live, embedder: Live) -> None:
    assert "--is-embedding" in server.refused(PATH, {"input": "x"})["message"]
    for path, body in (
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    ):
        assert "embeddings" in embedder.refused(path, body)["message"]
    assert embedder.refused(PATH, {"input": "x", "model": "other"}, 404)["code"] == "model_not_found"
    assert embedder.http.get("/model_info").json()["is_generation"] is False
    assert embedder.http.get("/health_generate").status_code == 200
