"""Programs on the real model, in this process and over HTTP."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import time

import pytest

import radixlang as sgl
from radixlang.errors import ProgramError, RequestError
from radixlang.lang.choices import ChoicesSamplingMethod

#: about 800 tokens of prose that does not repeat
CONTEXT = " ".join(
    f"In the year {1800 + i} the village of Number {i} counted {7 * i + 3} sheep." for i in range(30)
)


@sgl.function
def chat(s, question):
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=12, temperature=0))


def test_the_text_is_what_the_model_s_own_template_makes(backend, smollm2_engine):
    state = chat.run("What is the capital of France?", backend=backend)
    assert "Paris" in state["answer"]
    tokenizer = smollm2_engine.tokenizer
    assert state.text() == tokenizer.apply_chat_template(state.messages(), add_generation_prompt=False)
    meta = state.get_meta_info("answer")
    asked = tokenizer.encode_chat(state.messages()[:2])
    assert meta["prompt_tokens"] == len(asked)


def test_a_default_system_prompt_is_the_template_s(smollm2_engine):
    @sgl.function
    def program(s):
        s += sgl.user("Hi")

    state = program.run(backend=smollm2_engine)
    wanted = smollm2_engine.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=False
    )
    assert state.text() == wanted


def test_constrained_text_is_valid(backend):
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }

    @sgl.function
    def program(s):
        s += "Ann is 31 years old.\n"
        s += "JSON: " + sgl.gen("json", max_tokens=48, json_schema=json.dumps(schema)) + "\n"
        s += "Address: " + sgl.gen("ip", max_tokens=24, regex=r"[0-9]{1,3}(\.[0-9]{1,3}){3}") + "\n"
        s += "Age: " + sgl.gen_int("age", max_tokens=4) + " Pi: " + sgl.gen("pi", dtype=float, max_tokens=8)
        s += " True?" + sgl.gen("flag", dtype=bool) + " Name:" + sgl.gen_string("name", max_tokens=64, stop="\n")

    state = program.run(backend=backend, temperature=0.3)
    assert set(json.loads(state["json"])) == {"name", "age"}
    assert re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3}){3}", state["ip"])
    int(state["age"])
    float(state["pi"])
    assert state["flag"] in ("True", "False")
    assert state["name"].startswith('"')


def test_sampling_reaches_the_model(backend):
    @sgl.function
    def program(s):
        s += "One two three" + sgl.gen("x", max_tokens=6, ignore_eos=True, return_logprob=True, top_logprobs_num=2)
        s += sgl.gen("n", n=2, max_tokens=4, ignore_eos=True)

    state = program.run(backend=backend, temperature=0)
    meta = state.get_meta_info("x")
    assert len(meta["output_token_logprobs"]) == len(meta["output_top_logprobs"]) == 6
    assert len(state["n"]) == 2
    assert state["n"][0] == state["n"][1]  # greedy


def test_a_fork_computes_what_it_shares_once(smollm2_engine):
    @sgl.function
    def program(s):
        s += CONTEXT
        forks = s.fork(8)
        forks += lambda i: f"\nQuestion {i}: how many sheep has Number {i}?\nAnswer:" + sgl.gen("a", max_tokens=3)
        forks.join()

    smollm2_engine.flush_cache()
    state = program.run(backend=smollm2_engine, temperature=0)
    metas = state.get_meta_info("a")
    assert len(state["a"]) == 8
    encode = smollm2_engine.tokenizer.encode
    shared = len(encode(CONTEXT))
    own = sum(meta["prompt_tokens"] - shared for meta in metas)
    computed = shared + sum(meta["prompt_tokens"] - meta["cached_tokens"] for meta in metas)
    assert computed <= 1.1 * (shared + own)
    [prefix] = [span for span in state.record.spans if span.kind == "prefix"]
    gens = [span for span in state.record.spans if span.kind == "gen"]
    assert all(span.started >= prefix.ended for span in gens)


def test_a_batch_shares_its_beginning(smollm2_engine):
    @sgl.function
    def program(s, context, i):
        s += context
        s += f"\nNumber {i} has" + sgl.gen("a", max_tokens=2)

    smollm2_engine.flush_cache()
    states = program.run_batch([{"context": CONTEXT, "i": i} for i in range(6)], backend=smollm2_engine)
    shared = len(smollm2_engine.tokenizer.encode(CONTEXT))
    assert all(state.get_meta_info("a")["cached_tokens"] >= 0.9 * shared for state in states)


def test_a_program_pins_its_prefix_until_it_ends(smollm2_engine, backend):
    @sgl.function
    def program(s):
        s += CONTEXT
        s += sgl.gen("a", max_tokens=2)
        s["a"]
        (pin,) = smollm2_engine.pins()
        seen.append(pin["tokens"])
        s += " and" + sgl.gen("b", max_tokens=2)
        s["b"]
        (again,) = smollm2_engine.pins()
        assert again["id"] == pin["id"]
        assert again["tokens"] >= pin["tokens"]

    seen = []
    assert pins_left(smollm2_engine) == []  # of programs that have just ended
    program.run(backend=backend, temperature=0)
    assert seen[0] >= 0.9 * len(smollm2_engine.tokenizer.encode(CONTEXT))
    assert pins_left(smollm2_engine) == []


def pins_left(engine):
    """Pins, once those of programs that have ended have had time to go."""
    end = time.monotonic() + 5
    while engine.pins() and time.monotonic() < end:
        time.sleep(0.02)
    return engine.pins()


def test_streams(backend):
    state = chat.run("Count to five.", backend=backend, stream=True)
    pieces = list(state.text_iter("answer"))
    assert "".join(pieces) == state["answer"]
    assert len(pieces) > 1
    again = chat.run("Count to five.", backend=backend, stream=True)
    assert "".join(again.text_iter()) == state.text()

    @sgl.function
    def program(s):
        s += "One two" + sgl.gen("x", max_tokens=5, ignore_eos=True, return_logprob=True)

    async def main():
        running = program.run(backend=backend, stream=True, temperature=0)
        return [pair async for pair in running.text_async_iter("x", return_meta_data=True)]

    assert len(asyncio.run(main())[-1][1]["output_token_logprobs"]) == 5


@pytest.mark.parametrize("stream", [False, True])
def test_cancelling_frees_the_engine(backend, smollm2_engine, stream):
    @sgl.function
    def program(s):
        s += "Once" + sgl.gen("x", max_tokens=4000, ignore_eos=True)

    state = program.run(backend=backend, stream=stream)
    hub = smollm2_engine.hub
    deadline = time.monotonic() + 30
    while not hub.running:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    state.cancel()
    with pytest.raises(ProgramError, match="cancelled"):
        state["x"]
    while hub.running:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    while not smollm2_engine.flush_cache():  # its pages are free
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_engine_s_sentences_reach_the_program(backend):
    @sgl.function
    def program(s):
        s += "x" + sgl.gen("y", top_p=3.0)

    with pytest.raises(ProgramError, match=r"top_p must be in \(0, 1\]") as caught:
        program.run(backend=backend)["y"]
    assert "test_real_model.py" in str(caught.value)
    if not isinstance(backend, sgl.RuntimeEndpoint):
        assert isinstance(caught.value.__cause__, RequestError)


def test_control(backend):
    assert sgl.flush_cache(backend) is True
    info = sgl.get_server_info(backend)
    assert isinstance(info, dict)
    assert "model_path" in info
    chat.cache(backend=backend)


# ---- select against transformers ----

SEAMS = {
    "words": ("The capital of France is", [" Paris", " London, the city", " Rome"]),
    "first tokens in common": ("She lives in the", [" United States", " United Kingdom", " Netherlands"]),
    "a word cut in two": ("The cat is an anim", ["al", "ation", "e film"]),
    "a space at the end": ("The answer is ", ["yes", "no", "42"]),
}


@pytest.fixture(scope="module")
def reference(smollm2_path):
    transformers = pytest.importorskip("transformers")
    import torch

    with pytest.MonkeyPatch.context() as patch:
        # It asks for a package that it then does not use for this.
        patch.setattr("transformers.modeling_utils.is_accelerate_available", lambda *_: True)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            smollm2_path.parent, gguf_file=smollm2_path.name, dtype=torch.float32
        ).eval()

    @functools.cache
    def logprobs(ids: tuple[int, ...]) -> list[float | None]:
        with torch.no_grad():
            scores = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        return [None, *(float(scores[i, token]) for i, token in enumerate(ids[1:]))]

    return lambda ids: logprobs(tuple(ids))


def expected(reference, encode, prompt, choices, method):
    """The winner and its figures, written down once more without looking at ours."""
    head = encode(prompt)
    means, rows, gains = [], [], []
    for choice in choices:
        ids = encode(prompt + choice)
        seam = next((i for i, (a, b) in enumerate(zip(head, ids, strict=False)) if a != b), len(head))
        row = reference(ids)[seam:]
        rows.append(row)
        means.append(sum(row) / len(row))
        if method is sgl.unconditional_likelihood_normalized:
            alone = [value or 0.0 for value in reference(ids[seam:])]
            gains.append(sum(a - b for a, b in zip(row, alone, strict=True)) / len(row))
    if method is sgl.token_length_normalized:
        return choices[means.index(max(means))], means
    if method is sgl.unconditional_likelihood_normalized:
        return choices[gains.index(max(gains))], gains
    width = max(map(len, rows))
    table = [row + [mean] * (width - len(row)) for row, mean in zip(rows, means, strict=True)]
    left = set(range(len(choices)))
    for column in range(width):
        best = max(table[i][column] for i in left)
        left = {i for i in left if table[i][column] > best - 1e-5}
    return choices[min(left)], means


@pytest.mark.parametrize("seam", SEAMS)
@pytest.mark.parametrize(
    "method",
    [sgl.token_length_normalized, sgl.greedy_token_selection, sgl.unconditional_likelihood_normalized],
    ids=repr,
)
def test_select_equals_transformers(smollm2_engine, reference, seam, method: ChoicesSamplingMethod):
    prompt, choices = SEAMS[seam]

    @sgl.function
    def program(s):
        s += prompt + sgl.select("x", choices, choices_method=method)

    state = program.run(backend=smollm2_engine)
    winner, scores = expected(reference, smollm2_engine.tokenizer.encode, prompt, choices, method)
    meta = state.get_meta_info("x")
    name = "normalized_prompt_logprobs"
    if method is sgl.unconditional_likelihood_normalized:
        name = "normalized_unconditional_prompt_logprobs"
    assert meta[name] == pytest.approx(scores, abs=1e-3)
    assert state["x"] == winner
    assert state.text() == prompt + winner


def test_select_over_http_equals_select_in_process(smollm2_engine, endpoint):
    @sgl.function
    def program(s):
        s += "The capital of Italy is" + sgl.select("x", [" Paris", " Rome", " a city"])

    ours, theirs = (program.run(backend=backend) for backend in (smollm2_engine, endpoint))
    assert ours["x"] == theirs["x"]
    assert json.loads(json.dumps(ours.get_meta_info("x"))) == theirs.get_meta_info("x")
