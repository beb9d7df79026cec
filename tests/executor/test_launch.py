"""The executor on a tiny model against a full recompute without a cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from radixlang.attention.cpu import CpuAttention
from radixlang.attention.torch import TorchAttention
from radixlang.errors import EngineError
from radixlang.executor import launch
from radixlang.plan import CopyPages, Flush
from radixlang.sampling_params import RowSampling
from tests.executor.tiny import BOMB_TOKEN, NAN_TOKEN, Host, Row, TinyModel, make_executor, wish

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [20], [33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45], [50, 51]]


def finish(executor: Any, plan: Any, rows: list[Row]) -> Any:
    """Run one plan and give its tokens to `rows` (those that sample, in plan order)."""
    result = executor.result(executor.launch(plan))
    for row, token in zip(rows, result.tokens.tolist(), strict=True):
        row.out.append(token)
        row.tokens[row.tokens.index(-1)] = token
    return result


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("backend", [TorchAttention, CpuAttention])
def test_chunked_prefill_mixed_with_decode(page_size: int, backend: Any) -> None:
    reason = backend.supports(TinyModel().spec, "cpu")
    if reason:
        pytest.skip(reason)
    model = TinyModel()
    executor = make_executor(model, page_size, attention=backend)
    host = Host(page_size)
    rows = [Row(i + 1, list(prompt)) for i, prompt in enumerate(PROMPTS)]
    a, b, c, d = rows
    finish(executor, host.plan([(a, 3), (b, 1)]), [b])
    finish(executor, host.plan([(b, 1), (a, 2), (c, 5)]), [b])
    finish(executor, host.plan([(c, 4), (a, 2), (b, 1)]), [a, b])
    finish(executor, host.plan([(a, 1), (c, 4), (d, 2)]), [a, c, d])
    for _ in range(4):
        finish(executor, host.plan([(c, 1), (a, 1), (d, 1), (b, 1)]), [c, a, d, b])
    for row, prompt in zip(rows, PROMPTS, strict=True):
        assert row.out == model.greedy(prompt, len(row.out))
        assert len(row.out) >= 5
    executor.close()


def test_tokens_come_from_the_table_while_the_host_does_not_know_them() -> None:
    """Four steps are launched before the first result is read; one mixes waiting tokens with a new prompt."""
    model = TinyModel()
    executor = make_executor(model)
    host = Host(4)
    a, b, c = (Row(i + 1, list(p)) for i, p in enumerate(PROMPTS[:3]))
    tickets = [
        executor.launch(host.plan([(a, 7), (b, 1)])),
        executor.launch(host.plan([(b, 1), (a, 1)])),
        executor.launch(host.plan([(a, 1), (c, 13), (b, 1)])),
        executor.launch(host.plan([(b, 1), (c, 1), (a, 1)])),
    ]
    got = [executor.result(ticket).tokens.tolist() for ticket in tickets]
    want_a, want_b, want_c = model.greedy(PROMPTS[0], 4), model.greedy(PROMPTS[1], 4), model.greedy(PROMPTS[2], 2)
    assert got[0] == [want_a[0], want_b[0]]
    assert got[1] == [want_b[1], want_a[1]]
    assert got[2] == [want_a[2], want_c[0], want_b[2]]
    assert got[3] == [want_b[3], want_c[1], want_a[3]]
    executor.close()


def test_shared_prefix_pages_and_copied_pages() -> None:
    model = TinyModel()
    executor = make_executor(model)
    host = Host(4)
    prompt = list(range(10, 20))
    first = Row(1, list(prompt))
    finish(executor, host.plan([(first, 10)]), [first])
    # Two full pages are shared; the third, half full one is copied before the new row writes into it.
    other = Row(2, [*prompt, 60, 61], computed=10, pages=[*first.pages[:2], 90])
    copy = CopyPages(np.array([first.pages[2]], np.int32), np.array([90], np.int32))
    plan = host.plan([(other, 2), (first, 1)], actions=(copy, Flush()))
    finish(executor, plan, [other, first])
    for _ in range(3):
        finish(executor, host.plan([(first, 1), (other, 1)]), [first, other])
    assert first.out == model.greedy(prompt, 5)
    assert other.out == model.greedy([*prompt, 60, 61], 4)
    executor.close()


def test_page_that_rows_write_together_is_copied_behind_the_step() -> None:
    """Three rows with one prompt: one computes it, the others its last token in its page; then each has a copy."""
    model = TinyModel()
    executor = make_executor(model)
    host = Host(4)
    prompt = list(range(10, 20))
    first = Row(1, list(prompt), pages=[1, 2, 3])
    others = [Row(row, list(prompt), computed=9, pages=[1, 2, 3]) for row in (2, 3)]
    copies = CopyPages(np.array([3, 3], np.int32), np.array([90, 91], np.int32))
    plan = host.plan([(first, 10), *((other, 1) for other in others)], copies=copies)
    finish(executor, plan, [first, *others])
    own = np.array([(2, 2, 90), (3, 2, 91)], np.int32)
    rows = [first, *others]
    host.next_page = 4
    finish(executor, host.plan([(row, 1) for row in rows], new_pages=own), rows)
    # Something else in the rows now, so that one would notice what another wrote.
    others[1].tokens[-1] = 60
    for _ in range(2):
        finish(executor, host.plan([(row, 1) for row in rows]), rows)
    executor.close()
    want = model.greedy(prompt, 4)
    assert first.out == want
    assert others[0].out == want
    assert others[1].out == [*want[:2], *model.greedy([*prompt, want[0], 60], 2)]


def test_a_row_that_changes_hands_and_a_retracted_one() -> None:
    model = TinyModel()
    executor = make_executor(model)
    host = Host(4)
    sampling = RowSampling(temperature=1.5, seed=5, presence_penalty=1.0, repetition_penalty=1.1)
    straight = Row(1, list(PROMPTS[0]), sampling)
    finish(executor, host.plan([(straight, 7)]), [straight])
    for _ in range(7):
        finish(executor, host.plan([(straight, 1)]), [straight])
    begun = Row(2, list(PROMPTS[0]), sampling)
    finish(executor, host.plan([(begun, 7)]), [begun])
    for _ in range(3):
        finish(executor, host.plan([(begun, 1)]), [begun])
    filler = Row(2, list(PROMPTS[2]))
    finish(executor, host.plan([(filler, 13)]), [filler])
    assert filler.out == model.greedy(PROMPTS[2], 1)
    back = Row(5, PROMPTS[0] + begun.out, sampling, prompt=7, out=list(begun.out))
    finish(executor, host.plan([(back, 11)]), [back])
    for _ in range(3):
        finish(executor, host.plan([(back, 1)]), [back])
    assert back.out == straight.out
    executor.close()


def test_masked_rows_are_sampled_when_their_masks_come() -> None:
    model = TinyModel()
    executor = make_executor(model)
    host = Host(4)
    a, b, c = (Row(i + 1, list(p)) for i, p in enumerate(PROMPTS[:3]))
    plan = host.plan([(a, 7), (c, 5), (b, 1)], masked=np.array([2], np.int32))
    ticket = executor.launch(plan)
    allowed = np.zeros((1, 128), bool)
    allowed[0, [70, 71]] = True
    executor.sample(ticket, np.packbits(allowed, axis=1, bitorder="little").view(np.int32))
    following = executor.launch(host.plan([(b, 1), (a, 1)]))
    result = executor.result(ticket)
    logits = model.naive_logits(PROMPTS[1])[-1]
    token = 70 if logits[70] > logits[71] else 71
    assert result.tokens.tolist() == [model.greedy(PROMPTS[0], 1)[0], token]
    want_b = int(model.naive_logits([*PROMPTS[1], token])[-1].argmax())
    assert executor.result(following).tokens.tolist() == [want_b, model.greedy(PROMPTS[0], 2)[1]]

    unsampled = executor.launch(host.plan([(b, 1)], masked=np.array([0], np.int32)))
    with pytest.raises(EngineError, match="never sampled"):
        executor.result(unsampled)
    executor.close()


def test_unmasked_sample_call_does_nothing() -> None:
    model = TinyModel()
    executor = make_executor(model)
    row = Row(1, [5, 6])
    ticket = executor.launch(Host(4).plan([(row, 2)]))
    executor.sample(ticket, None)
    assert executor.result(ticket).tokens.tolist() == model.greedy([5, 6], 1)
    executor.close()


def test_prompt_and_output_logprobs_across_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TinyModel()
    # Three positions a block: blocks cut through wishes.
    monkeypatch.setattr(launch, "LOGIT_BLOCK_BYTES", 3 * 4 * 97)
    executor = make_executor(model)
    host = Host(4)
    long, short = Row(1, list(PROMPTS[2])), Row(2, list(PROMPTS[0]))
    want = model.naive_logits(PROMPTS[2]).log_softmax(-1)
    ids = (3, 60)
    # Log-probabilities of long's prompt from position 4 on (logits from 3 on), in two chunks.
    first = executor.result(
        executor.launch(
            host.plan(
                [(short, 7), (long, 8)],
                logprobs=(
                    wish(0, first_logit=0, targets=np.array(PROMPTS[0][1:], np.int32), top=2),
                    wish(1, first_logit=3, targets=np.array(PROMPTS[2][4:9], np.int32), top=5, token_ids=ids),
                ),
            )
        )
    )
    second = executor.result(
        executor.launch(
            host.plan(
                [(long, 5), (short, 1)],
                logprobs=(
                    wish(
                        0,
                        first_logit=8,
                        targets=np.array(PROMPTS[2][9:], np.int32),
                        top=5,
                        token_ids=ids,
                        output=True,
                    ),
                    wish(1, output=True, top=3),
                ),
            )
        )
    )
    assert max(model.logit_rows) == 3
    for values, positions in ((first.prompt_logprobs[1], range(4, 9)), (second.prompt_logprobs[0], range(9, 13))):
        for i, position in enumerate(positions):
            row = want[position - 1]
            assert values.chosen[i] == pytest.approx(float(row[PROMPTS[2][position]]), abs=1e-5)
            np.testing.assert_allclose(values.top[i], row.topk(5).values, atol=1e-5)
            assert values.top_ids[i].tolist() == row.topk(5).indices.tolist()
            np.testing.assert_allclose(values.ids[i], row[list(ids)], atol=1e-5)
        assert len(values.chosen) == len(positions)
    mine = model.naive_logits(PROMPTS[0]).log_softmax(-1)
    np.testing.assert_allclose(
        first.prompt_logprobs[0].chosen, [mine[p - 1, PROMPTS[0][p]] for p in range(1, 7)], atol=1e-5
    )
    assert first.output_logprobs == {}
    token = second.tokens[0]
    assert second.output_logprobs[0].chosen[0] == pytest.approx(float(want[-1, token]), abs=1e-5)
    assert second.output_logprobs[0].top_ids[0, 0] == token
    grown = [*PROMPTS[0], int(first.tokens[0])]
    np.testing.assert_allclose(
        second.output_logprobs[1].top[0], model.naive_logits(grown)[-1].log_softmax(-1).topk(3).values, atol=1e-5
    )
    executor.close()


def test_output_logprobs_are_those_the_draw_was_made_from() -> None:
    model = TinyModel()
    executor = make_executor(model)
    sampling = RowSampling(temperature=0.5, seed=3, logit_bias={12: 4.0}, repetition_penalty=1.3)
    row = Row(1, list(PROMPTS[0]), sampling)
    result = finish(executor, Host(4).plan([(row, 7)], logprobs=(wish(0, output=True, top=97),)), [row])
    logits = model.naive_logits(PROMPTS[0])[-1].clone()
    seen = torch.tensor(PROMPTS[0])
    logits[seen] = torch.where(logits[seen] > 0, logits[seen] / 1.3, logits[seen] * 1.3)
    logits[12] += 4.0
    want = (logits / 0.5).log_softmax(-1)
    values = result.output_logprobs[0]
    np.testing.assert_allclose(values.top[0], want[torch.from_numpy(values.top_ids[0]).long()], atol=1e-4)
    assert values.chosen[0] == pytest.approx(float(want[result.tokens[0]]), abs=1e-4)
    executor.close()


def test_prompt_logprobs_over_a_large_vocabulary_stay_small() -> None:
    model = TinyModel(vocab=262_144)
    executor = make_executor(model)
    prompt = (np.arange(290) * 7 % 90 + 5).astype(np.int32)
    row = Row(1, prompt.tolist())
    plan = Host(4).plan([(row, 290)], logprobs=(wish(0, first_logit=0, targets=prompt[1:], top=2),))
    values = executor.result(executor.launch(plan)).prompt_logprobs[0]
    assert len(values.chosen) == 289
    assert np.isfinite(values.chosen).all()
    assert max(model.logit_rows) * 262_144 * 4 <= launch.LOGIT_BLOCK_BYTES
    executor.close()


def test_an_exception_is_raised_from_result_and_the_executor_goes_on() -> None:
    model = TinyModel()
    executor = make_executor(model)
    host = Host(4)
    bad, good = Row(1, [5, BOMB_TOKEN]), Row(2, list(PROMPTS[0]))
    failing = executor.launch(host.plan([(bad, 2)], masked=np.array([0], np.int32)))
    executor.sample(failing, np.full((1, 4), -1, np.int32))
    ticket = executor.launch(host.plan([(good, 7)]))
    with pytest.raises(RuntimeError, match="bomb"):
        executor.result(failing)
    assert executor.result(ticket).tokens.tolist() == model.greedy(PROMPTS[0], 1)
    executor.close()


def test_bad_numbers_fail_their_own_row_only_and_poison_no_page() -> None:
    model = TinyModel()
    executor = make_executor(model)
    host = Host(4)
    sick, well = Row(1, [5, NAN_TOKEN, 6]), Row(2, list(PROMPTS[0]))
    plan = host.plan(
        [(sick, 3), (well, 7)],
        logprobs=(wish(0, first_logit=0, targets=np.array([NAN_TOKEN, 6], np.int32), output=True),),
    )
    result = executor.result(executor.launch(plan))
    assert list(result.failed) == [0]
    assert result.tokens[1] == model.greedy(PROMPTS[0], 1)[0]
    # The sick row's page goes to another one, which fills it only in part.
    heir = Row(3, [8, 9], pages=list(sick.pages))
    well.out.append(int(result.tokens[1]))
    well.tokens[-1] = well.out[0]
    finish(executor, host.plan([(heir, 2), (well, 1)]), [heir, well])
    finish(executor, host.plan([(heir, 1), (well, 1)]), [heir, well])
    assert heir.out == model.greedy([8, 9], 2)
    assert well.out == model.greedy(PROMPTS[0], 3)
    executor.close()


def test_a_plan_beyond_the_table_is_refused() -> None:
    executor = make_executor(TinyModel(), rows=3)
    host = Host(4)
    with pytest.raises(EngineError, match="request table"):
        executor.result(executor.launch(host.plan([(Row(3, [5]), 1)])))
    with pytest.raises(EngineError, match="tokens"):
        executor.result(executor.launch(host.plan([(Row(1, [5, 6]), 2)], token_ids=np.array([5], np.int32))))
    executor.close()


# ---- embeddings ----


@pytest.mark.parametrize("pooling", ["last", "mean", "cls"])
def test_pooling_of_a_decoder(pooling: str) -> None:
    model = TinyModel(pooling=pooling)
    executor = make_executor(model)
    host = Host(4)
    a, b = Row(1, list(PROMPTS[0])), Row(2, list(PROMPTS[2]))
    none = {"samples": np.zeros(2, bool)}
    result = executor.result(executor.launch(host.plan([(b, 5), (a, 7)], pools=np.array([False, True]), **none)))
    hidden = model.naive(PROMPTS[0])
    want = {"last": hidden[-1], "mean": hidden.mean(0), "cls": hidden[0]}[pooling]
    np.testing.assert_allclose(result.embeddings[1], want, atol=1e-5)
    assert list(result.embeddings) == [1]
    assert len(result.tokens) == 0
    late = executor.result(executor.launch(host.plan([(b, 8)], pools=np.array([True]), samples=np.array([False]))))
    if pooling == "last":
        np.testing.assert_allclose(late.embeddings[0], model.naive(PROMPTS[2])[-1], atol=1e-5)
    else:
        assert "needs the prompt in one step" in late.failed[0]
    executor.close()


def test_an_encoder_needs_no_cache() -> None:
    model = TinyModel(pooling="mean", encoder=True)
    executor = make_executor(model)
    assert executor.pool.nbytes == 0
    a, b = Row(1, [5, 6, 7]), Row(2, [8, NAN_TOKEN])
    plan = Host(4).plan([(a, 3), (b, 2)], pools=np.ones(2, bool), samples=np.zeros(2, bool))
    result = executor.result(executor.launch(plan))
    want = (model.embed[[5, 6, 7]] + model.time[:3]).mean(0)
    np.testing.assert_allclose(result.embeddings[0], want, atol=1e-6)
    assert list(result.failed) == [1]
    executor.close()
