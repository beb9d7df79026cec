"""The shapes graphs are captured for. (That graphs give the same tokens: test_step_graphs.py and, on a GPU,
tests/engine/test_gpu.py.)"""

from __future__ import annotations

import itertools

import pytest

from radixlang.config import DeviceConfig
from radixlang.executor.shapes import (
    FEW_ROWS,
    MAX_BATCH,
    MAX_TOKENS,
    Shape,
    decode_shapes,
    graph_bytes,
    graph_shapes,
    prompt_shapes,
    prompt_tokens,
    tree_shapes,
)
from radixlang.kernels.tree_work import SLOTS
from tests.executor.tiny import TinyModel


@pytest.mark.parametrize("largest", [1, 3, 8, 100, 256, 300, MAX_BATCH])
def test_decode_ladder(largest: int) -> None:
    shapes = decode_shapes(largest)
    assert all(shape.decodes for shape in shapes)
    sizes = [shape.rows for shape in shapes]
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == largest
    assert sizes[0] == 1
    for smaller, larger in itertools.pairwise(sizes):
        padded = larger - smaller - 1
        assert padded <= max(3, larger // 8, 7), f"a step of {smaller + 1} rows would run as {larger}"


@pytest.mark.parametrize(("largest", "rows"), [(2048, 256), (2048, 8), (400, 256), (16, 1), (5000, 512)])
def test_prompt_ladder(largest: int, rows: int) -> None:
    shapes = prompt_shapes(largest, rows)
    assert len(shapes) < 100
    assert not any(shape.decodes for shape in shapes)
    assert all(1 <= shape.rows < shape.tokens <= largest and shape.rows <= rows for shape in shapes)
    for tokens in range(2, max(shape.tokens for shape in shapes) + 1):
        for wish in {1, min(FEW_ROWS, rows, tokens // 2)}:
            best = next(shape for shape in shapes if shape.tokens >= tokens and shape.rows >= wish)
            assert best.tokens - tokens < max(32, tokens / 8), f"{tokens} tokens would run as {best.tokens}"
    if largest >= 1024:
        assert Shape(1024, min(rows, FEW_ROWS)) in shapes
        assert Shape(1024, rows) in shapes


def test_no_prompt_graphs() -> None:
    assert prompt_shapes(0, 256) == []
    assert prompt_shapes(15, 256) == []


@pytest.mark.parametrize("running", [1, 8, 100, 256])
def test_steps_that_bring_more_tokens_than_rows_have_shapes(running: int) -> None:
    def of(spread: bool, **flags: int) -> set[Shape]:
        return set(graph_shapes(DeviceConfig(**flags), running, 0, spread=spread))

    more = of(True) - of(False)
    assert all(shape.decodes and running < shape.rows <= 1.5 * running for shape in more)
    assert max(shape.rows for shape in of(True)) == running + running // 2
    assert of(True, cuda_graph_max_bs=running // 2 or 1) - of(False, cuda_graph_max_bs=running // 2 or 1) <= more


@pytest.mark.parametrize("largest", [1, 8, 100, 256, MAX_BATCH])
def test_tree_ladder(largest: int) -> None:
    shapes = tree_shapes(largest)
    assert all(shape.tree and shape.decodes for shape in shapes)
    sizes = [shape.rows for shape in shapes]
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == largest
    assert all(larger - smaller <= 32 for smaller, larger in itertools.pairwise(sizes))
    assert len(sizes) < 1.5 * len(decode_shapes(largest)) / 2 + 2


def test_tree_attention_is_captured_where_the_backend_knows_it() -> None:
    def of(tree: bool, **flags: bool) -> set[Shape]:
        return {shape for shape in graph_shapes(DeviceConfig(**flags), 64, 0, tree) if shape.tree}

    assert of(True) == set(tree_shapes(64))
    assert of(False) == of(True, disable_tree_attention=True) == set()
    spec, without = TinyModel().spec, graph_shapes(DeviceConfig(), 64, 0)
    more = graph_bytes(spec, graph_shapes(DeviceConfig(), 64, 0, True), 2) - graph_bytes(spec, without, 2)
    assert more > 64 * spec.num_heads * SLOTS * spec.head_dim * 4


def test_flags_bound_the_shapes() -> None:
    shapes = graph_shapes(DeviceConfig(cuda_graph_max_bs=3), running=200, prompt_tokens=64)
    assert max(shape.rows for shape in shapes if shape.decodes) == 3
    assert max(shape.tokens for shape in shapes) == 64


def test_prompts_are_in_graphs_where_launching_takes_longer_than_computing() -> None:
    auto = DeviceConfig()
    small, large = prompt_tokens(auto, 1_200_000_000, 28), prompt_tokens(auto, 16_000_000_000, 32)
    assert small == MAX_TOKENS
    assert 1024 <= large < MAX_TOKENS
    assert prompt_tokens(DeviceConfig(cuda_graph_max_bs_prefill=0), 1, 1) == 0
    assert prompt_tokens(DeviceConfig(cuda_graph_max_bs_prefill=4096), 16_000_000_000, 32) == 4096


def test_more_and_larger_graphs_take_more_memory() -> None:
    spec = TinyModel().spec
    sizes = [graph_bytes(spec, prompt_shapes(tokens, 64), 2) for tokens in (64, 512, 2048)]
    assert sizes == sorted(sizes)
    assert sizes[0] > 0
