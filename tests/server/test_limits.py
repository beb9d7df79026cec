"""What follows from the engine's facts, and the bounds they set."""

from __future__ import annotations

import pytest

from radixlang.errors import RequestError
from radixlang.sampling_params import SamplingParams
from radixlang.server.limits import Limits, complete_info
from radixlang.server.stream import GenerateRequest

SHAPE = {"vocab_size": 100, "context_length": 200, "num_pages": 11, "page_size": 8, "encoder": False}


def limits(auto_truncate: bool = False, is_embedding: bool = False, **changes: object) -> Limits:
    return Limits(complete_info({**SHAPE, **changes}, is_embedding), auto_truncate, has_tokenizer=True)


def request(tokens: int, new: int | None, least: int = 0, **fields: object) -> GenerateRequest:
    sampling = SamplingParams(max_new_tokens=new, min_new_tokens=least)
    return GenerateRequest(input_ids=[1] * tokens, sampling=sampling, **fields)  # type: ignore[arg-type]


def fitted(bounds: Limits, asked: GenerateRequest) -> tuple[int, int | None]:
    ids, sampling = bounds.fit(asked, asked.input_ids or [])
    return len(ids), sampling.max_new_tokens


def test_the_sink_page_holds_nothing() -> None:
    info = complete_info(SHAPE, False)
    assert info["max_total_num_tokens"] == 80
    assert info["is_generation"] is True
    assert complete_info({**SHAPE, "encoder": True}, False)["is_generation"] is False
    assert complete_info(SHAPE, True)["is_generation"] is False
    assert complete_info({**SHAPE, "is_generation": True}, True)["is_generation"] is True


def test_the_smaller_of_context_and_pool_counts() -> None:
    assert limits().longest == 80
    assert limits(num_pages=1000).longest == 200
    assert limits(num_pages=1, encoder=True).longest == 200
    assert limits(is_embedding=True).longest == 80


@pytest.mark.parametrize(("tokens", "new"), [(79, 1), (1, 79), (40, 40), (79, 0)])
def test_what_just_fits(tokens: int, new: int) -> None:
    assert fitted(limits(), request(tokens, new)) == (tokens, new)


@pytest.mark.parametrize(("tokens", "new"), [(79, 2), (80, 0), (81, 0), (1, 80)])
def test_what_just_does_not(tokens: int, new: int) -> None:
    with pytest.raises(RequestError, match=str(tokens)):
        fitted(limits(), request(tokens, new))


def test_no_limit_means_what_is_left() -> None:
    assert fitted(limits(), request(30, None)) == (30, 50)
    with pytest.raises(RequestError, match="min_new_tokens"):
        fitted(limits(), request(30, None, least=51))


def test_truncation() -> None:
    bounds = limits(auto_truncate=True)
    assert fitted(bounds, request(500, 10)) == (79, 1)
    assert fitted(bounds, request(70, 50)) == (70, 10)
    asked = request(70, 50, least=20)
    assert bounds.fit(asked, asked.input_ids or [])[1].min_new_tokens == 10
    embed = request(500, None, embed=True)
    assert len(bounds.fit(embed, embed.input_ids or [])[0]) == 80


def test_sampling_is_not_changed_in_place() -> None:
    asked = request(30, None)
    limits().fit(asked, asked.input_ids or [])
    assert asked.sampling.max_new_tokens is None
