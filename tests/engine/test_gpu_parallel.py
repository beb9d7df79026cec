"""Tensor parallelism on GPUs of one host; needs two of them."""

from __future__ import annotations

import pytest

from radixlang.llm import Engine

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

PROMPTS = ["def quicksort(items):", "import os\n\n", "class Stack:\n    def", "# The answer to everything is"]


def texts(path, **options):
    values = {"dtype": "float32", "max_total_tokens": 8192, "context_length": 2048, **options}
    with Engine(str(path), device="cuda", **values) as engine:
        outs = engine.generate(PROMPTS, {"temperature": 0, "max_new_tokens": 48, "ignore_eos": True})
        drawn = engine.generate(PROMPTS, {"temperature": 0.8, "sampling_seed": 3, "max_new_tokens": 48})
    return [out["output_ids"] for out in outs], [out["output_ids"] for out in drawn]


def test_two_gpus_say_what_one_says(qwen_path):
    greedy, drawn = texts(qwen_path)
    for graphs in (True, False):
        greedy_2, drawn_2 = texts(qwen_path, tp_size=2, disable_cuda_graph=not graphs)
        assert greedy_2 == greedy
        assert sum(a == b for a, b in zip(drawn, drawn_2, strict=True)) >= 3, (
            "only a close call may fall otherwise"
        )
