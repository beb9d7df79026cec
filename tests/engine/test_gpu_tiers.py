"""Tiers below a GPU's memory: whatever moves where, the texts stay."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radixlang.executor.copies import CudaCopies
from radixlang.llm import Engine

pytestmark = pytest.mark.gpu

NEW = 16


def engine_for(path, **options):
    values = {"inline": True, "dtype": "float32", "context_length": 2048, **options}
    return Engine(str(path), device="cuda", skip_tokenizer_init=True, **values)


def ask(engine, prompts):
    sampling = {"temperature": 0, "max_new_tokens": NEW, "ignore_eos": True}
    outs = engine.generate(input_ids=prompts, sampling_params=sampling)
    found = {"device": 0, "host": 0, "storage": 0}
    for out in outs:
        for tier in found:
            found[tier] += (out["meta_info"]["cached_tokens_details"] or {}).get(tier, 0)
    return [out["output_ids"] for out in outs], found


@pytest.fixture(scope="module")
def prompts():
    rng = np.random.default_rng(3)
    return [rng.integers(10, 40000, 300).tolist() for _ in range(24)]


@pytest.fixture(scope="module")
def answers(smollm2_path, prompts):
    with engine_for(smollm2_path, max_total_tokens=20000) as engine:
        return ask(engine, prompts)[0]


@pytest.mark.parametrize("policy", ["write_through", "write_through_selective", "write_back"])
@pytest.mark.parametrize(
    "options", [{}, {"disable_overlap_schedule": True}, {"page_size": 1, "disable_cuda_graph": True}]
)
def test_a_working_set_beyond_the_pool(smollm2_path, prompts, answers, policy, options):
    """24 prompts of 300 tokens through a pool of 2,400, three times."""
    tiers = {"enable_hierarchical_cache": True, "hicache_size": 2, "hicache_write_policy": policy}
    with engine_for(smollm2_path, max_total_tokens=2400, **tiers, **options) as engine:
        found = {}
        for _ in range(3):
            texts, found = ask(engine, prompts)
            assert texts == answers
        if policy != "write_through_selective":  # hardly anything is used twice before it is evicted
            assert found["host"] > 0.8 * 300 * len(prompts)
        assert engine.flush_cache()
        engine.ring.engine.scheduler.check()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"disable_overlap_schedule": True},
        {"disable_cuda_graph": True},
        {"page_size": 1, "disable_cuda_graph": True, "disable_overlap_schedule": True},
    ],
)
def test_pages_that_come_layer_by_layer(smollm2_path, prompts, answers, options, monkeypatch):
    """One request at a time, so that its pages come with its first step; every part of them some milliseconds
    late."""
    load, begin, layered = CudaCopies._load, CudaCopies._begin_layered, []

    def late(self, *args):
        torch.cuda._sleep(5_000_000)
        load(self, *args)

    def noted(self, loads):
        layered.append(len(loads))
        begin(self, loads)

    tiers = {"enable_hierarchical_cache": True, "hicache_size": 2}
    with engine_for(smollm2_path, max_total_tokens=2400, **tiers, **options) as engine:
        monkeypatch.setattr(CudaCopies, "_load", late)
        monkeypatch.setattr(CudaCopies, "_begin_layered", noted)
        found = 0
        for _ in range(2):
            found = 0
            for prompt, answer in zip(prompts, answers, strict=True):
                texts, tiers_of = ask(engine, [prompt])
                assert texts == [answer]
                found += tiers_of["host"]
        assert found > 0.8 * 300 * len(prompts)
        assert len(layered) > 0.8 * len(prompts)
        assert engine.flush_cache()
        engine.ring.engine.scheduler.check()


def test_what_a_restart_finds_on_disk(smollm2_path, prompts, answers, tmp_path):
    options = {"max_total_tokens": 20000, "cache_dir": str(tmp_path)}
    options["hicache_storage_prefetch_policy"] = "wait_complete"
    with engine_for(smollm2_path, **options) as engine:
        assert ask(engine, prompts) == (answers, {"device": 0, "host": 0, "storage": 0})
    with engine_for(smollm2_path, **options) as engine:
        texts, found = ask(engine, prompts)
        assert texts == answers
        assert found["storage"] > 0.9 * 300 * len(prompts)
