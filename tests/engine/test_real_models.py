"""Greedy text of real models, token for token, against reference data made with transformers."""

from __future__ import annotations

import pytest

from radixlang.llm import Engine
from tests.conftest import POOL, reference

#: of log-probabilities; 16-bit activations keep the text but not the fourth digit
TOLERANCE = {"float32": 1e-3, "auto": 1e-2}
#: two best tokens closer than this may change places
TIE = 1e-3


def check(engine, cases, new=64):
    tolerance = TOLERANCE[engine.config.model.dtype]
    outs = engine.generate(
        input_ids=[case["prompt_ids"] for case in cases],
        sampling_params={"temperature": 0, "max_new_tokens": new, "ignore_eos": True},
        return_logprob=True,
        logprob_start_len=0,
        top_logprobs_num=5,
    )
    for case, out in zip(cases, outs, strict=True):
        compare(case, out, new, tolerance)
    return outs


def compare(case, out, new, tolerance):
    name = case["id"]
    meta = out["meta_info"]
    for step, (got, want) in enumerate(zip(out["output_ids"], case["greedy_ids"][:new], strict=True)):
        if got != want:
            assert case["top1_minus_top2"][step] < TIE, f"{name}: token {step} differs"
            return
        assert meta["output_token_logprobs"][step][0] == pytest.approx(
            case["greedy_logprobs"][step], abs=tolerance
        )
        if step < len(case["top5_first8"]):
            top = {token: value for value, token, _ in meta["output_top_logprobs"][step]}
            best = [pair for pair in case["top5_first8"][step] if pair[0] in top]
            assert len(best) >= 4  # the fifth may change places with the sixth
            for token, value in best:
                assert top[token] == pytest.approx(value, abs=tolerance), f"{name}: top logprob at {step}"
    prompt = [row[0] for row in meta["input_token_logprobs"]]
    assert prompt[0] is None
    assert prompt[1:] == pytest.approx(case["prompt_logprobs"][1:], abs=tolerance)


def test_text_in_and_text_out(smollm2_engine):
    for case in reference("smollm2")["cases"][:4]:
        ids = smollm2_engine.tokenizer.encode(case["prompt_text"], add_special_tokens=False)
        assert ids == case["prompt_ids"]
        out = smollm2_engine.generate(
            case["prompt_text"], {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
        )
        assert out["output_ids"] == case["greedy_ids"][:24]


def test_smollm2_default_mode(smollm2_path):
    with Engine(str(smollm2_path), inline=True, max_total_tokens=POOL) as engine:
        check(engine, reference("smollm2")["cases"][:6], 32)


@pytest.mark.slow
@pytest.mark.parametrize("page", [1, 16, 64])
@pytest.mark.parametrize("dtype", ["float32", "auto"])
def test_smollm2_pages_chunks_hits_and_company(smollm2_path, page, dtype):
    cases = reference("smollm2")["cases"]
    with Engine(str(smollm2_path), inline=True, dtype=dtype, page_size=page, chunked_prefill_size=32) as engine:
        check(engine, cases)
        again = check(engine, cases)
        if page == 1:
            assert sum(out["meta_info"]["cached_tokens"] for out in again) == 0  # logprobs from 0 on: no hits
        hits = engine.generate(
            input_ids=[case["prompt_ids"] for case in cases],
            sampling_params={"temperature": 0, "max_new_tokens": 64, "ignore_eos": True},
        )
        assert sum(out["meta_info"]["cached_tokens"] for out in hits) > 0
        for case, out in zip(cases, hits, strict=True):
            differing = [
                i for i, (a, b) in enumerate(zip(out["output_ids"], case["greedy_ids"], strict=True)) if a != b
            ]
            assert not differing or case["top1_minus_top2"][differing[0]] < TIE


@pytest.mark.slow
def test_smollm2_among_32_others(smollm2_path):
    cases = reference("smollm2")["cases"]
    noise = [{"input_ids": [300 + i] * (5 + 3 * i), "sampling_params": {"max_new_tokens": 80}} for i in range(32)]
    mine = [
        {
            "input_ids": case["prompt_ids"],
            "sampling_params": {"temperature": 0, "max_new_tokens": 64, "ignore_eos": True},
        }
        for case in cases
    ]
    with Engine(str(smollm2_path), inline=True, dtype="float32") as engine:
        outs = engine.batch_generate(noise + mine)[len(noise) :]
        for case, out in zip(cases, outs, strict=True):
            assert out["output_ids"] == case["greedy_ids"]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "auto"])
def test_gemma3(gemma3_path, dtype):
    with Engine(str(gemma3_path), inline=True, dtype=dtype) as engine:
        check(engine, reference("gemma3-270m")["cases"])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "auto"])
def test_qwen25_coder(qwen_path, dtype):
    with Engine(str(qwen_path), inline=True, dtype=dtype) as engine:
        check(engine, reference("qwen2.5-coder-0.5b")["cases"])
