"""The golden test: whatever the settings, the engine says what a naive loop says."""

from __future__ import annotations

import itertools

import pytest

from radixlang.errors import ConfigError, EngineDeadError, ModelError, RequestError
from radixlang.llm import Engine

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

NEW = 20
VOCAB = 97


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A small Llama with random weights, wide enough apart that greedy choices are clear."""
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.4,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    folder = tmp_path_factory.mktemp("tiny")
    model.save_pretrained(folder)
    return folder, model


def naive(model, prompt, new=NEW):
    """Greedy continuation without any cache, and the smallest margin between best and second best."""
    ids, margin = list(prompt), 1e9
    with torch.inference_mode():
        for _ in range(new):
            values, best = model(torch.tensor([ids])).logits[0, -1].topk(2)
            margin = min(margin, float(values[0] - values[1]))
            ids.append(int(best[0]))
    return ids[len(prompt) :], margin


@pytest.fixture(scope="module")
def cases(tiny):
    generator = torch.Generator().manual_seed(5)
    shared = torch.randint(3, VOCAB, (40,), generator=generator).tolist()
    prompts = [
        shared[:cut] + torch.randint(3, VOCAB, (own,), generator=generator).tolist()
        for cut, own in ((0, 1), (0, 7), (16, 5), (33, 30), (40, 2), (40, 60), (17, 16), (40, 9))
    ]
    answers = []
    for prompt in prompts:
        answer, margin = naive(tiny[1], prompt)
        assert margin > 1e-4, "choose another seed: the answer is a coin toss"
        answers.append(answer)
    return prompts, answers


def engine_for(folder, **options):
    return Engine(str(folder), inline=True, skip_tokenizer_init=True, num_threads=1, **options)


def ask(engine, prompts, **sampling):
    params = {"temperature": 0, "max_new_tokens": NEW, "ignore_eos": True, **sampling}
    return engine.generate(input_ids=prompts, sampling_params=params)


CHOICES = (False, True), (8, 512), (1, 4, 16), ("torch_native", "auto")
#: in the half that is not slow any three settings meet in every way
GRID = [
    pytest.param(*setting, marks=[pytest.mark.slow] if sum(map(tuple.index, CHOICES, setting)) % 2 else [])
    for setting in itertools.product(*CHOICES)
]


@pytest.mark.parametrize(("no_overlap", "chunk", "page", "backend"), GRID)
def test_every_setting_gives_the_same_text(tiny, cases, no_overlap, chunk, page, backend):
    prompts, answers = cases
    with engine_for(
        tiny[0],
        disable_overlap_schedule=no_overlap,
        chunked_prefill_size=chunk,
        page_size=page,
        attention_backend=backend,
        max_total_tokens=1024,
        max_running_requests=6,
    ) as engine:
        for turn in range(2):
            outs = ask(engine, prompts)
            assert [out["output_ids"] for out in outs] == answers
            if turn:
                hits = [out["meta_info"]["cached_tokens"] for out in outs]
                # At least one token is computed again. Hits are whole pages, and of the rest all or half a page.
                for hit, prompt in zip(hits, prompts, strict=True):
                    part = hit - (len(prompt) - 1) // page * page
                    assert hit < len(prompt)
                    assert part == 0 or 2 * part >= page or hit == len(prompt) - 1
        engine.ring.engine.scheduler.check()


@pytest.mark.parametrize("no_overlap", [False, True])
@pytest.mark.parametrize("page", [1, 4])
def test_short_memory_retracts_and_the_text_stays(tiny, cases, no_overlap, page):
    prompts, answers = cases
    with engine_for(
        tiny[0],
        disable_overlap_schedule=no_overlap,
        page_size=page,
        max_total_tokens=160,
        chunked_prefill_size=16,
        schedule_conservativeness=0.05,
    ) as engine:
        outs = ask(engine, prompts * 3)
        assert [out["output_ids"] for out in outs] == answers * 3
        assert sum(out["meta_info"]["num_retractions"] for out in outs) > 0
        engine.ring.engine.scheduler.check()


def test_cache_off_gives_the_same_text_and_no_hits(tiny, cases):
    prompts, answers = cases
    with engine_for(tiny[0], disable_radix_cache=True) as engine:
        for _ in range(2):
            outs = ask(engine, prompts)
            assert [out["output_ids"] for out in outs] == answers
            assert not any(out["meta_info"]["cached_tokens"] for out in outs)


def test_namespaces_do_not_share(tiny, cases):
    prompts, answers = cases
    with engine_for(tiny[0], page_size=1) as engine:
        params = {"temperature": 0, "max_new_tokens": NEW, "ignore_eos": True}
        for key, hits in (("a", 0), ("b", 0), ("a", len(prompts[5]) - 1)):
            out = engine.generate(input_ids=prompts[5], sampling_params=params, extra_key=key)
            assert out["output_ids"] == answers[5]
            assert out["meta_info"]["cached_tokens"] == hits


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "priority"])
def test_policies_change_the_order_only(tiny, cases, policy):
    prompts, answers = cases
    with engine_for(tiny[0], schedule_policy=policy, max_running_requests=2) as engine:
        assert [out["output_ids"] for out in ask(engine, prompts * 2)] == answers * 2


def test_logprobs_do_not_depend_on_chunks_and_hits(tiny, cases):
    prompts, _ = cases
    prompt = prompts[5]
    with torch.inference_mode():
        logits = tiny[1](torch.tensor([prompt])).logits[0].log_softmax(-1)
    wanted = logits[torch.arange(len(prompt) - 1), torch.tensor(prompt[1:])].tolist()
    for chunk, start in itertools.product((7, 512), (0, 20, len(prompt) - 1)):
        with engine_for(tiny[0], chunked_prefill_size=chunk, page_size=4) as engine:
            for _ in range(2):
                out = engine.generate(
                    input_ids=prompt,
                    sampling_params={"temperature": 0, "max_new_tokens": 1},
                    return_logprob=True,
                    logprob_start_len=start,
                    top_logprobs_num=2,
                )
                rows = out["meta_info"]["input_token_logprobs"]
                assert [row[1] for row in rows] == prompt[start:]
                assert rows[0][0] is None
                assert [row[0] for row in rows[1:]] == pytest.approx(wanted[start:], abs=1e-4)


def test_prefill_only(tiny, cases):
    with engine_for(tiny[0]) as engine:
        out = engine.generate(
            input_ids=cases[0][3],
            sampling_params={"max_new_tokens": 0},
            return_logprob=True,
            logprob_start_len=0,
        )
        assert out["output_ids"] == []
        assert out["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
        assert len(out["meta_info"]["input_token_logprobs"]) == len(cases[0][3])
        assert out["meta_info"]["output_token_logprobs"] == []


def test_seeds(tiny, cases):
    prompts, _ = cases
    params = {"temperature": 1.5, "max_new_tokens": 12, "sampling_seed": 7, "n": 4, "ignore_eos": True}
    with engine_for(tiny[0]) as engine:
        first = [out["output_ids"] for out in engine.generate(input_ids=prompts[2], sampling_params=params)]
        assert len({tuple(ids) for ids in first}) == 4
        again = [out["output_ids"] for out in engine.generate(input_ids=prompts[2], sampling_params=params)]
        assert again == first
        other = engine.generate(input_ids=prompts[2], sampling_params={**params, "sampling_seed": 8})
        assert [out["output_ids"] for out in other] != first
        # Amid other traffic, and with a tight memory.
        busy = engine.batch_generate(
            [{"input_ids": p, "sampling_params": {"max_new_tokens": 30}} for p in prompts]
            + [{"input_ids": prompts[2], "sampling_params": params}]
        )
        assert [out["output_ids"] for out in busy[-1]] == first


class Broken:
    """An executor that raises whenever a step holds a certain token."""

    def __init__(self, inner, poison):
        self.inner, self.poison = inner, poison

    def launch(self, plan):
        return self.inner.launch(plan), bool((plan.token_ids == self.poison).any())

    def result(self, ticket):
        inner, poisoned = ticket
        result = self.inner.result(inner)
        if poisoned:
            raise RuntimeError("poisoned step")
        return result

    def close(self):
        self.inner.close()


def test_a_failing_step_fails_only_the_request_at_fault(tiny, cases):
    prompts, answers = cases
    poison = next(t for t in range(3, VOCAB) if not any(t in p + a for p, a in zip(prompts, answers, strict=True)))
    with engine_for(tiny[0], max_total_tokens=1024) as engine:
        loop = engine.ring.engine
        loop.executor = Broken(loop.executor, poison)
        bodies = [
            {"input_ids": p, "sampling_params": {"temperature": 0, "max_new_tokens": NEW, "ignore_eos": True}}
            for p in prompts
        ]
        bad = engine.async_generate(input_ids=[5, poison, 6], sampling_params={"max_new_tokens": 4})
        import asyncio

        async def both():
            return await asyncio.gather(
                *(engine.async_generate(**body) for body in bodies), bad, return_exceptions=True
            )

        *good, failure = asyncio.run(both())
        assert "poisoned step" in str(failure)
        assert [out["output_ids"] for out in good] == answers
        loop.scheduler.check()
        assert [out["output_ids"] for out in ask(engine, prompts)] == answers


def test_errors_before_anything_is_loaded(tiny, tmp_path):
    with pytest.raises(ConfigError, match="page-size"):
        engine_for(tiny[0], page_size=0)
    with pytest.raises(ConfigError, match="did you mean"):
        engine_for(tiny[0], pagesize=4)
    with pytest.raises(ModelError):
        engine_for(tmp_path / "nothing")


def test_bad_requests_leave_the_engine_alive(tiny, cases):
    with engine_for(tiny[0]) as engine:
        for fields in (
            {"input_ids": []},
            {"input_ids": [VOCAB]},
            {"input_ids": [-1]},
            {"input_ids": [5] * 257},
            {"input_ids": [5] * 200, "sampling_params": {"max_new_tokens": 100}},
            {"prompt": "text without a tokenizer"},
            {"input_ids": [5], "sampling_params": {"stop_token_ids": [10**9]}},
            {"input_ids": [5], "return_logprob": True, "logprob_start_len": 9},
        ):
            with pytest.raises(RequestError):
                engine.generate(**fields)
        assert ask(engine, cases[0])[0]["output_ids"] == cases[1][0]


def test_shutdown_is_final(tiny):
    engine = engine_for(tiny[0])
    engine.shutdown()
    engine.shutdown()
    with pytest.raises(EngineDeadError):
        engine.generate(input_ids=[5])


def test_streams_and_early_exit(tiny, cases):
    prompts, answers = cases
    with engine_for(tiny[0]) as engine:
        params = {"temperature": 0, "max_new_tokens": NEW, "ignore_eos": True}
        seen = list(engine.generate(input_ids=prompts[1], sampling_params=params, stream=True))
        assert seen[-1]["output_ids"] == answers[1]
        assert all(chunk["meta_info"]["finish_reason"] is None for chunk in seen[:-1])
        for _ in engine.generate(input_ids=prompts[1], sampling_params={"max_new_tokens": 150}, stream=True):
            break
        assert ask(engine, prompts)[2]["output_ids"] == answers[2]
