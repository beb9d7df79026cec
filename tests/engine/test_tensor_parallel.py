"""`tp_size` through the whole engine, on CPU processes over Gloo: the same text, and clear ends."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from radixlang import ring
from radixlang.channel import LocalChannel
from radixlang.config import Config
from radixlang.errors import ConfigError, EngineDeadError, ModelError
from radixlang.llm import Engine
from radixlang.messages import Dead, Stopped
from tests.conftest import reference
from tests.engine.test_real_models import check
from tests.engine.text_model import make_text_model
from tests.models.test_parity import GEMMA, make

torch = pytest.importorskip("torch")

NEW = 12
CASES = {
    "llama": (2, "Llama", {}),
    "qwen2": (2, "Qwen2", {"tie_word_embeddings": True}),
    "gemma3": (2, "Gemma3", GEMMA | {"num_hidden_layers": 7, "num_key_value_heads": 1}),
    "llama-three": (3, "Llama", {"num_attention_heads": 6, "head_dim": 8}),
}
PROMPTS = [[5, 9, 13], list(range(3, 40)), [*range(3, 36), 50, 51, 52], [7] * 20, list(range(3, 40))]


def run(folder, **options):
    """Greedy and drawn tokens, log-probabilities included, over pages, chunks and shared prefixes."""
    options = {"page_size": 4, "chunked_prefill_size": 16, "max_total_tokens": 800, "num_threads": 1, **options}
    with Engine(str(folder), skip_tokenizer_init=True, dtype="float32", random_seed=3, **options) as engine:
        out = []
        for extra in ({"temperature": 0}, {"temperature": 1.2, "top_k": 20, "presence_penalty": 0.5}):
            answers = engine.generate(
                input_ids=PROMPTS,
                sampling_params={"max_new_tokens": NEW, "ignore_eos": True, **extra},
                return_logprob=True,
                logprob_start_len=0,
            )
            out += [(answer["output_ids"], answer["meta_info"]["output_token_logprobs"]) for answer in answers]
        info = engine.get_server_info()
        pids = engine.get_all_child_pids()
    for pid in pids:
        with pytest.raises(OSError, match="No such process"):
            os.kill(pid, 0)
    return out, info, pids


# Three ranks, and Llama's, are tested as threads in tests/models/test_shards.py as well.
@pytest.mark.parametrize(
    "case", ["qwen2", "gemma3", *(pytest.param(case, marks=pytest.mark.slow) for case in ("llama", "llama-three"))]
)
def test_the_same_text_as_on_one_device(case, tmp_path):
    size, *what = CASES[case]
    make(*what, tmp_path)
    want, alone, pids = run(tmp_path, inline=True)
    got, together, pids = run(tmp_path, tp_size=size)
    assert len(pids) == size + 1, "a process for each rank, and the detokenizer"
    for (ids, logprobs), (want_ids, want_logprobs) in zip(got, want, strict=True):
        assert ids == want_ids
        for (value, *_), (want_value, *_) in zip(logprobs, want_logprobs, strict=True):
            assert value == pytest.approx(want_value, abs=1e-4)
    assert together["weight_bytes"] < 0.75 * alone["weight_bytes"]
    if case in ("llama", "qwen2"):  # the others hold copies of KV heads
        assert together["kv_bytes"] * 2 == alone["kv_bytes"]


UNIQUE = {"items": {"enum": ["red", 1, 2, 3]}, "minItems": 3, "maxItems": 3, "uniqueItems": True, "type": "array"}


def test_masks_and_forced_tokens_on_all_ranks(tmp_path):
    """Ranks that drew from different masks, or went on from different tokens, would soon say different things."""
    make_text_model(tmp_path)
    constraints = [
        {"regex": "(yes|no), because of the order [0-9]{3,9}"},
        {"json_schema": json.dumps(UNIQUE)},
    ]
    bodies = [
        {
            "input_ids": prompt,
            "sampling_params": {"temperature": heat, "sampling_seed": 7, "max_new_tokens": 40} | c,
        }
        for prompt in PROMPTS[:3]
        for heat in (0, 1.3)
        for c in (*constraints, {})
    ]
    out = []
    for options in ({"inline": True}, {"tp_size": 2}):
        options |= {"page_size": 4, "max_total_tokens": 800, "num_threads": 1, "dtype": "float32"}
        with Engine(str(tmp_path), **options) as engine:
            out.append([answer["output_ids"] for answer in engine.batch_generate(bodies)])
            counters = engine.get_server_info()
            assert counters["grammar_forced_tokens_total"] > 0
            assert counters["grammar_vetoed_tokens_total"] > 0
    assert out[0] == out[1]


@pytest.mark.slow
def test_a_real_model_of_blocks(smollm2_path):
    """Nine heads and three KV heads on three ranks, from quantised blocks."""
    options = {"num_threads": 1, "max_total_tokens": 4000, "context_length": 2048}
    with Engine(str(smollm2_path), tp_size=3, **options) as engine:
        check(engine, reference("smollm2")["cases"][:2], 12)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    make("Llama", {}, folder)
    return folder


def start(folder, **options):
    return Engine(str(folder), skip_tokenizer_init=True, num_threads=1, max_total_tokens=800, tp_size=2, **options)


@pytest.mark.parametrize(("victim", "named"), [("engine rank 1", "engine rank 1"), ("engine", "engine rank 0")])
def test_a_rank_that_dies_ends_the_ring(tiny, victim, named):
    """With a sentence about that rank, and not about what the others noticed of it."""
    said = rf"The {named} process was killed by SIGKILL, and the others cannot go on .*; start again\. .*memory"
    with start(tiny) as engine:
        children = engine.ring._children
        stream = engine.generate(
            input_ids=[5, 6, 7], sampling_params={"max_new_tokens": 120, "ignore_eos": True}, stream=True
        )
        next(stream)
        children[victim].send_signal(signal.SIGKILL)
        with pytest.raises(EngineDeadError, match=said):
            list(stream)
        with pytest.raises(EngineDeadError, match=said):
            engine.generate(input_ids=[5], sampling_params={"max_new_tokens": 1})
        began = time.monotonic()
    assert all(child.poll() is not None for child in children.values())
    assert time.monotonic() - began < 8


class Ring:
    """What has happened to its processes, and what they still say."""

    def __init__(self, problem=None, words=(), killed=None):
        self.problem = problem
        self.killed = lambda: killed
        self.from_ring = LocalChannel()
        for message in words:
            self.from_ring.send(message)

    def dead(self):
        return self.problem


def test_of_several_that_die_the_first_is_named(monkeypatch):
    monkeypatch.setattr(ring, "LAST_WORDS_WAIT", 0.05)
    lost, raised = Dead("engine", "", "", follows=True), Dead("engine rank 1", "ValueError: 5", "trace")
    assert ring.first_cause(Ring(), lost, raised) is raised
    assert ring.first_cause(Ring(words=[Stopped(), raised]), lost) is raised
    assert ring.first_cause(Ring("exited"), lost) == "exited"
    assert ring.first_cause(Ring(killed="killed"), raised, lost) == "killed"
    assert ring.first_cause(Ring(), lost) is lost  # nobody knows better, and nobody waits for ever


def test_a_rank_that_cannot_start_ends_the_start(tiny, monkeypatch):
    """Its words reach the caller, and the others do not wait for it."""
    real = ring.spawn

    def spawn(module, start):
        if start.rank == 1:
            start.config = start.config.replace(model_path=str(tiny / "missing"))
        return real(module, start)

    monkeypatch.setattr(ring, "spawn", spawn)
    with pytest.raises(ModelError, match="missing"):
        start(tiny)


def test_heads_that_do_not_divide_are_named_before_weights_load(tiny):
    with pytest.raises(ModelError, match="--tp-size 3 does not divide the 4 attention heads"):
        Engine(str(tiny), skip_tokenizer_init=True, num_threads=1, tp_size=3)


def test_inline_has_one_rank(tiny):
    with pytest.raises(ConfigError, match="--tp-size 2 needs a process for each rank"):
        start(tiny, inline=True)


@pytest.mark.parametrize("name", ["dp_size", "pp_size", "ep_size", "nnodes", "node_rank"])
def test_other_ways_to_spread_are_still_one(name):
    flag = f"--{name.replace('_', '-')}"
    none = 0 if name == "node_rank" else 1
    Config.from_flat(model_path="m", **{name: none}).resolve()
    with pytest.raises(ConfigError, match=f"{flag} must be {none} in this version"):
        Config.from_flat(model_path="m", **{name: none + 1}).resolve()
