"""Constraints through the whole engine: whatever the settings, it says what a naive loop says, and it is valid."""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from radixlang.errors import RequestError
from radixlang.grammar.manager import GrammarManager
from radixlang.grammar.spec import spec_of
from radixlang.grammar.vocabulary import Vocabulary
from radixlang.llm import Engine
from radixlang.sampling.noise import uniforms
from radixlang.sampling_params import SamplingParams
from radixlang.scheduler.arrivals import mixed_seed
from tests.engine.text_model import WIDTH, make_text_model


@pytest.fixture(autouse=True, scope="module")
def drafts_in_any_company() -> Iterator[None]:
    """Whatever runs beside: the more turns a text takes, the more can go wrong."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("radixlang.scheduler.drafts.DRAFTING", 1000)
        yield


torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
jsonschema_rs = pytest.importorskip("jsonschema_rs")

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "orderId": {"type": "integer", "minimum": 0, "maximum": 999},
        "city": {"enum": ["London", "Paris"]},
    },
    "required": ["name", "orderId", "city"],
    "additionalProperties": False,
}
UNIQUE = {
    "type": "array",
    "items": {"enum": ["red", "green", 1, 2]},
    "minItems": 2,
    "maxItems": 4,
    "uniqueItems": True,
}
CONSTRAINTS = {
    "regex": {"regex": r"(yes|no|maybe later), [0-9]{2,4}"},
    "choice": {"regex": r"(because of the order|because it says no|red)"},
    "schema": {"json_schema": json.dumps(PERSON)},
    "residual": {"json_schema": json.dumps(UNIQUE)},
    "ebnf": {"ebnf": 'root ::= "{" [a-c] ": " ("true" | "false") ("; " root)? "}"'},
}
PROMPTS = [[40, 41, 42], list(range(50, 90)), [*range(50, 85), 7, 8]]
NEW = 40


def complete(kind: str, text: str) -> bool:
    if kind in ("regex", "choice"):
        return re.fullmatch(CONSTRAINTS[kind]["regex"], text) is not None
    if kind == "ebnf":
        return text.startswith("{") and text.count("{") == text.count("}")
    return jsonschema_rs.is_valid({"schema": PERSON, "residual": UNIQUE}[kind], json.loads(text))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    return folder, make_text_model(folder)


@pytest.fixture(scope="module")
def manager(model):
    from radixlang.text.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(str(model[0]))
    manager = GrammarManager(lambda: Vocabulary.of(tokenizer, WIDTH))
    yield manager
    manager.close()


def state_of(manager, constraint):
    spec = spec_of(SamplingParams(**constraint))
    return manager.start(spec, manager.get(spec).result(60))


def naive(model, manager, prompt, constraint, most=NEW, temperature=0.0, seed=0):
    """One token after the other: mask, draw, accept. → (tokens, finish reason's type)"""
    state, out, row = state_of(manager, constraint), [], np.zeros(manager.vocabulary.words, np.int32)
    while len(out) < most:
        state.fill(row)
        allowed = np.unpackbits(row.view(np.uint8), bitorder="little")[:WIDTH].astype(bool)
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + out])).logits[0, -1].double().numpy()
        logits[~allowed] = -np.inf
        if temperature == 0:
            token = int(logits.argmax())
        else:
            weights = np.exp((logits - logits.max()) / temperature).cumsum()
            noise = float(uniforms(np.array([seed], np.uint64), np.array([len(out)]))[0])
            token = int(np.searchsorted(weights, noise * weights[-1], side="right"))
        if not state.accept(token):
            undone = state.backtrack()
            out = out[: len(out) - undone]
            continue
        out.append(token)
        if state.finished:
            return out, "stop"
    return out, "length"


@pytest.fixture(scope="module")
def cases(model, manager):
    """(kind, prompt, sampling parameters, tokens, how they end), each from the naive loop."""
    rng, out = random.Random(4), []
    for kind, constraint in CONSTRAINTS.items():
        for prompt in PROMPTS:
            seed, temperature = rng.randrange(1 << 30), rng.choice([0.0, 0.9, 1.6])
            most = rng.choice([3, 7, NEW, NEW])
            tokens, ending = naive(model[1], manager, prompt, constraint, most, temperature, seed)
            params = {"max_new_tokens": most, "temperature": temperature, "sampling_seed": seed, **constraint}
            out.append((kind, prompt, params, tokens, ending))
    assert {ending for *_, ending in out} == {"stop", "length"}
    return out


def engine_for(folder, **options):
    return Engine(str(folder), inline=True, num_threads=1, **{"max_total_tokens": 1200, **options})


SETTINGS = [
    {},
    {"disable_overlap_schedule": True},
    {"disable_jump_forward": True, "page_size": 4},
    {"disable_jump_forward": True, "disable_overlap_schedule": True, "page_size": 16},
    {"page_size": 4, "chunked_prefill_size": 5},
    {"page_size": 4, "enable_mixed_chunk": False, "chunked_prefill_size": 16},
    {"page_size": 1, "max_total_tokens": 128, "schedule_conservativeness": 0.05},
    {"page_size": 4, "max_total_tokens": 144, "schedule_conservativeness": 0.05, "enable_mixed_chunk": False},
]


@pytest.mark.parametrize("options", SETTINGS, ids=lambda options: ",".join(options) or "as they are")
def test_every_setting_says_what_the_naive_loop_says(model, manager, cases, options, monkeypatch):
    if "chunked_prefill_size" in options:  # as with many requests: forced tokens are found with the masks
        monkeypatch.setattr("radixlang.scheduler.constraints.SEARCHING", 0)
    with engine_for(model[0], **options) as engine:
        answers = engine.batch_generate([{"input_ids": p, "sampling_params": s} for _, p, s, *_ in cases * 2])
        for (kind, _, params, tokens, ending), answer in zip(cases * 2, answers, strict=True):
            meta = answer["meta_info"]
            assert answer["output_ids"] == tokens, kind
            assert meta["finish_reason"]["type"] == ending
            assert meta["completion_tokens"] == len(tokens)
            if ending == "stop":
                assert complete(kind, answer["text"])
                continue
            assert meta["finish_reason"]["length"] == params["max_new_tokens"]
            state = state_of(manager, CONSTRAINTS[kind])
            assert all(state.accept(token) for token in tokens), "cut texts are beginnings of complete ones"
        if "schedule_conservativeness" in options:
            assert sum(answer["meta_info"]["num_retractions"] for answer in answers) > 0
        forced = engine.ring.engine.scheduler.stats(0.0).counters["grammar_forced_tokens_total"]
        assert (forced == 0) == ("disable_jump_forward" in options)
        drafted = engine.ring.engine.scheduler.stats(0.0).counters["grammar_drafted_tokens_total"]
        assert (drafted == 0) == ("disable_jump_forward" in options)
        engine.ring.engine.scheduler.check()


@pytest.fixture(scope="module")
def engine(model):
    with engine_for(model[0], page_size=4) as engine:
        yield engine


def test_samples_of_one_prompt(model, manager, engine):
    constraint = CONSTRAINTS["schema"]
    params = {"max_new_tokens": NEW, "temperature": 1.2, "sampling_seed": 5, "n": 3, **constraint}
    answers = engine.generate(input_ids=PROMPTS[0], sampling_params=params)
    for index, answer in enumerate(answers):
        seed = mixed_seed(5, index)
        assert answer["output_ids"] == naive(model[1], manager, PROMPTS[0], constraint, NEW, 1.2, seed)[0]


def test_penalties_and_bias_see_forced_tokens(model, engine):
    params = {
        "max_new_tokens": NEW, "temperature": 1.3, "sampling_seed": 9, "frequency_penalty": 1.5,
        "repetition_penalty": 1.3, "logit_bias": {"30": 4.0, "31": 4.0, "2": -5.0}, **CONSTRAINTS["schema"],
    }  # fmt: skip
    one = engine.generate(input_ids=PROMPTS[0], sampling_params=params)
    with engine_for(model[0], disable_jump_forward=True) as other:
        assert other.generate(input_ids=PROMPTS[0], sampling_params=params)["output_ids"] == one["output_ids"]


def test_streams_and_stop_strings_in_forced_texts(engine):
    params = {"max_new_tokens": NEW, "temperature": 0, **CONSTRAINTS["schema"]}
    chunks = list(engine.generate(input_ids=PROMPTS[0], sampling_params=params, stream=True))
    whole = chunks[-1]["text"]
    assert all(whole.startswith(chunk["text"]) for chunk in chunks)
    assert len(chunks) < chunks[-1]["meta_info"]["completion_tokens"], "forced tokens come together"
    stopped = engine.generate(input_ids=PROMPTS[0], sampling_params={**params, "stop": ["der"]})
    assert stopped["text"] == whole[: whole.index("der")]
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": "der"}


@pytest.mark.parametrize("kind", ["schema", "residual"])
def test_log_probabilities_of_every_token(engine, kind):
    params = {"max_new_tokens": NEW, "temperature": 0, **CONSTRAINTS[kind]}
    answer = engine.generate(input_ids=PROMPTS[0], sampling_params=params, return_logprob=True)
    rows = answer["meta_info"]["output_token_logprobs"]
    assert [row[1] for row in rows] == answer["output_ids"]
    assert answer["output_ids"] == engine.generate(input_ids=PROMPTS[0], sampling_params=params)["output_ids"]


def test_free_rows_beside_bound_ones_keep_their_text(engine):
    free = {
        "input_ids": PROMPTS[2],
        "sampling_params": {"temperature": 0, "max_new_tokens": 20, "ignore_eos": True},
    }
    alone = engine.batch_generate([free])[0]["output_ids"]
    bound = [{"input_ids": p, "sampling_params": {"temperature": 0, **CONSTRAINTS["schema"]}} for p in PROMPTS]
    assert engine.batch_generate([bound[0], free, *bound[1:]])[1]["output_ids"] == alone


def test_a_wrong_constraint_is_refused_and_harms_nobody(engine):
    for constraint in ({"regex": "("}, {"ebnf": "root ::= nothing"}, {"json_schema": '{"type": "never"}'}):
        with pytest.raises(RequestError) as caught:
            engine.generate(input_ids=PROMPTS[0], sampling_params=constraint)
        assert caught.value.status == 400
    assert engine.generate(input_ids=PROMPTS[0], sampling_params=CONSTRAINTS["regex"])["text"]


def test_large_numbers_are_refused_without_being_taken_back(engine):
    """Every digit behind `1e308` may be refused in turn; what clients have stays."""
    for seed in range(4):
        bias = {str(engine.tokenizer.encode_plain(text)[0]): 30.0 for text in ("e", "9")}
        params = {"temperature": 2.0, "sampling_seed": seed, "max_new_tokens": 30, "logit_bias": bias}
        params["json_schema"] = '{"type": "number"}'
        answer = engine.generate(input_ids=PROMPTS[0], sampling_params=params)
        if answer["meta_info"]["finish_reason"]["type"] == "stop":
            assert np.isfinite(float(answer["text"]))


def test_no_thread_outlives_the_engine(model):
    before = set(threading.enumerate())
    with engine_for(model[0]) as engine:
        bodies = [{"input_ids": p, "sampling_params": CONSTRAINTS["regex"]} for p in PROMPTS * 2]
        engine.batch_generate(bodies)
        assert any(thread.name.startswith("grammar") for thread in threading.enumerate())
    left = [
        thread.name
        for thread in set(threading.enumerate()) - before
        if thread.name.startswith(("grammar", "masks"))
    ]
    assert not left
