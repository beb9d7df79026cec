"""Constraints that the device follows by itself, through the whole engine: it says what the host's masks say.

A CPU's executor is given slots here; the kernels' twins mask and step. `test_gpu.py` has the same on a GPU.
"""

from __future__ import annotations

import re

import pytest

from radixlang.llm import Engine
from tests.engine.text_model import make_text_model

pytest.importorskip("torch")
pytest.importorskip("transformers")

CONSTRAINTS = [
    {"regex": r"(yes|no|maybe), [0-9]{2,4}"},
    {"regex": r"[a-z]{3,30}"},
    {"regex": r"((red|green|blue), )*"},
    {"regex": "(because|red|brown fox|reason)"},  # what `choice` becomes
]
EXACT = [{}, CONSTRAINTS[1], CONSTRAINTS[3]]
"""those whose tables leave open nothing that the host narrows: every token is the same"""
PROMPTS = [[40, 41, 42], list(range(50, 90)), [*range(50, 85), 7, 8]]
MORE = [
    {"temperature": 0},
    {"temperature": 1.1, "frequency_penalty": 0.9, "logit_bias": {"30": 3.0, "2": -4.0}},
    {"temperature": 1.5, "ignore_eos": True},
    {"temperature": 0.9, "min_new_tokens": 4},
    {"temperature": 0.7, "stop_token_ids": [70, 71, 72, 73]},
]
BODIES = [
    {
        "input_ids": prompt,
        "sampling_params": {"max_new_tokens": 24, "sampling_seed": 10 * i + j, **more, **constraint},
        "return_logprob": (i + j) % 4 == 0,
    }
    for i, constraint in enumerate([*CONSTRAINTS, {}])
    for j, (more, prompt) in enumerate(zip(MORE, PROMPTS * 2, strict=False))
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    make_text_model(folder)
    return folder


def answers(folder, **options):
    """Of all bodies at once, when the tables are made → (answers, counters)."""
    with Engine(str(folder), inline=True, num_threads=1, **{"max_total_tokens": 1200, **options}) as engine:
        for constraint in CONSTRAINTS:
            for _ in range(2):
                engine.generate(input_ids=[5], sampling_params={"max_new_tokens": 1, **constraint})
        scheduler = engine.ring.engine.scheduler
        scheduler._constraints._manager._table_pool.submit(lambda: None).result(30)
        out = engine.batch_generate(BODIES)
        scheduler.check()
        return out, scheduler.stats(0.0).counters


@pytest.fixture(scope="module")
def expected(folder):
    out, counters = answers(folder)
    assert counters["num_grammar_device_total"] == 0, "a CPU's rows are the host's matter"
    return out


SHORT = {"max_total_tokens": 128, "schedule_conservativeness": 0.05}
"""of memory: rows are retracted"""


@pytest.mark.parametrize(
    ("slots", "options"),
    [
        (8, {"page_size": 4, "enable_mixed_chunk": False, **SHORT}),
        (8, {"disable_overlap_schedule": True, "chunked_prefill_size": 5}),
        (1, SHORT),
    ],
    ids=str,
)
def test_the_device_says_what_the_host_says(folder, expected, monkeypatch, options, slots):
    monkeypatch.setattr("radixlang.executor.build.AUTOMATA_WITHOUT_KERNELS", slots)
    out, counters = answers(folder, **options)
    for body, mine, theirs in zip(BODIES, out, expected, strict=True):
        reason, expression = mine["meta_info"]["finish_reason"], body["sampling_params"].get("regex")
        assert mine["meta_info"]["completion_tokens"] == len(mine["output_ids"])
        if expression and reason.get("matched") == 2:
            assert re.fullmatch(expression, mine["text"])
        if expression and {"regex": expression} not in EXACT:
            continue
        assert mine["output_ids"] == theirs["output_ids"], body
        assert mine["text"] == theirs["text"]
        assert reason == theirs["meta_info"]["finish_reason"]
        if body["return_logprob"]:
            values = [one[0] for one in mine["meta_info"]["output_token_logprobs"]]
            assert values == pytest.approx([o[0] for o in theirs["meta_info"]["output_token_logprobs"]], abs=1e-3)
    bound = [body for body in BODIES if "regex" in body["sampling_params"]]
    able = sum("min_new_tokens" not in body["sampling_params"] for body in bound)
    assert counters["num_grammar_device_total"] == able if slots == 8 else counters["num_grammar_device_total"] > 0
    if SHORT.items() <= options.items():
        assert sum(answer["meta_info"]["num_retractions"] for answer in out) > 0
