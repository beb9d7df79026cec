"""The parts that need no program: choices, reasoning, templates, tracing, media."""

from __future__ import annotations

import pytest

import radixlang as sgl
from radixlang.errors import ConfigError
from radixlang.lang.backends.native import template_of_facts
from radixlang.lang.chat_templates import TEMPLATES, get_chat_template, template_for
from radixlang.lang.media import image_url
from radixlang.lang.tracer import common_arguments, constant_prefix
from radixlang.lang.transcript import Transcript
from radixlang.parsers.reasoning import parse_reasoning, thinking_format


def row(*pairs):
    """Token log-probabilities from (value, id) pairs."""
    return [[value, token, None] for value, token in pairs]


def decide(method, rows, unconditional=None):
    means = [sum(value or 0 for value, *_ in each) / len(each) for each in rows]
    return method(
        choices=[f"c{i}" for i in range(len(rows))],
        normalized_prompt_logprobs=means,
        input_token_logprobs=rows,
        output_token_logprobs=[[] for _ in rows],
        unconditional_token_logprobs=unconditional,
    )


def test_the_mean_ignores_the_length():
    rows = [row((-1.0, 1)), row((-0.5, 2), (-0.9, 3)), row((-2.0, 4))]
    chosen = decide(sgl.token_length_normalized, rows)
    assert chosen.decision == "c1"
    assert set(chosen.meta_info) == {"normalized_prompt_logprobs", "input_token_logprobs", "output_token_logprobs"}


def test_greedy_decides_token_by_token():
    # The first token of c0 is worse, though its mean is better.
    rows = [row((-1.0, 1), (0.0, 2)), row((-0.9, 3), (-5.0, 4))]
    chosen = decide(sgl.greedy_token_selection, rows)
    assert chosen.decision == "c1"
    assert chosen.meta_info["greedy_logprob_matrix"] == [[-1.0, 0.0], [-0.9, -5.0]]


def test_greedy_goes_on_with_a_short_choice_s_mean():
    rows = [row((-1.0, 1)), row((-1.0, 1), (-2.0, 2)), row((-1.0, 1), (-0.5, 3))]
    chosen = decide(sgl.greedy_token_selection, rows)
    assert chosen.meta_info["greedy_logprob_matrix"] == [[-1.0, -1.0], [-1.0, -2.0], [-1.0, -0.5]]
    assert chosen.decision == "c2"


def test_greedy_ties_survive_the_last_digit():
    rows = [row((-1.0000001, 1), (-3.0, 2)), row((-1.0, 1), (-4.0, 3))]
    assert decide(sgl.greedy_token_selection, rows).decision == "c0"


def test_unconditional_counts_a_missing_first_value_as_zero():
    rows = [row((-1.0, 1), (-1.0, 2)), row((-1.5, 3), (-1.5, 4))]
    without = [row((None, 1), (-1.0, 2)), row((None, 3), (-4.0, 4))]
    chosen = decide(sgl.unconditional_likelihood_normalized, rows, without)
    assert chosen.decision == "c1"
    assert chosen.meta_info["normalized_unconditional_prompt_logprobs"] == [-0.5, 0.5]
    with pytest.raises(ValueError, match="without the prompt"):
        decide(sgl.unconditional_likelihood_normalized, rows)


@pytest.mark.parametrize(
    ("syntax", "text", "wanted"),
    [
        (None, "<think>a</think>\nb", ("a", "b")),
        ("qwen3", "plain", ("", "plain")),
        ("deepseek-r1", "a</think>b", ("a", "b")),
        ("deepseek-r1", "never ends", ("never ends", "")),
        ("kimi", "◁think▷a◁/think▷b", ("a", "b")),
    ],
)
def test_reasoning(syntax, text, wanted):
    assert parse_reasoning(thinking_format(syntax), text) == wanted


def test_an_unknown_reasoning_syntax():
    with pytest.raises(ValueError, match="qwen3"):
        thinking_format("nothing")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-chat"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3-instruct"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama-4"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen"),
        ("Qwen/Qwen2-VL-7B-Instruct", "qwen2-vl"),
        ("google/gemma-3-4b-it", "gemma-it"),
        ("lmsys/vicuna-7b-v1.5", "vicuna_v1.1"),
        ("liuhaotian/llava-v1.6-34b", "chatml-llava"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("ibm-granite/granite-3.0-8b-instruct", "granite-3-instruct"),
        ("CohereForAI/c4ai-command-r-v01", "c4ai-command-r"),
        ("OpenGVLab/InternVL2_5-8B", "internvl-2-5"),
        ("gpt2", "default"),
    ],
)
def test_the_template_follows_from_the_path(path, name):
    assert template_for(path).name == name


def test_templates_by_name():
    assert get_chat_template("chatml") is TEMPLATES["chatml"]
    with pytest.raises(ConfigError, match="chatml"):
        get_chat_template("nothing")


def test_a_system_text_opens_the_first_turn_of_llama_2():
    transcript = Transcript(TEMPLATES["llama-2-chat"])
    for role, text in (("system", "S"), ("user", "U"), ("assistant", "A"), ("user", "V")):
        transcript.begin(role)
        transcript.say(text)
        transcript.end(role)
    assert transcript.text == "[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST]A </s><s>[INST] V [/INST]"


def test_text_between_turns_stays():
    transcript = Transcript(TEMPLATES["chatml"])
    transcript.say("head ")
    transcript.begin("user")
    transcript.say("a")
    transcript.end("user")
    transcript.say("between ")
    transcript.begin("user")
    transcript.say("b")
    transcript.end("user")
    turn = "<|im_start|>user\n{}<|im_end|>\n"
    assert transcript.text == "head " + turn.format("a") + "between " + turn.format("b")


def test_turns_of_branches_are_appended():
    @sgl.function
    def program(s):
        s += sgl.user("a")
        forks = s.fork(2)
        forks += lambda i: sgl.assistant(f"b{i}")
        forks.join("concate_and_append")
        s += sgl.user("c")

    from tests.lang.fakes import FakeBackend

    state = program.run(backend=FakeBackend())
    assert [message["content"] for message in state.messages()] == ["a", "b0", "b1", "c"]
    assert state.text().endswith("b1<|im_end|>\n<|im_start|>user\nc<|im_end|>\n")


@pytest.mark.parametrize(
    ("model", "named"),
    [("smollm2_path", None), ("qwen_path", None), ("gemma3_path", "gemma-it"), ("qwen_path", "llama-2")],
)
def test_turns_are_what_the_model_s_template_makes(model, named, request):
    from radixlang.text.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(request.getfixturevalue(model), chat_template=named)
    facts = {**tokenizer.template_facts(), "options": {}}
    transcript = Transcript(template_of_facts({"chat_template": facts}, "unknown"))
    said = []

    def begun() -> str:
        """What the server would build up to here."""
        return tokenizer.apply_chat_template(said, add_generation_prompt=True).removeprefix(facts["bos"])

    for role, text in (("system", "S"), ("user", "U"), ("assistant", "A"), ("user", "V")):
        transcript.begin(role)
        if role == "assistant":
            assert transcript.text == begun()
        transcript.say(text)
        transcript.end(role)
        said.append({"role": role, "content": text})
    transcript.begin("assistant")
    assert transcript.text == begun()


def prefix_of(func, names, **known):
    return constant_prefix(func, names, known, TEMPLATES["chatml"])


def test_the_constant_prefix_ends_at_the_first_unknown():
    def program(s, q, k):
        s += "always "
        s += "this " + q + " never"

    assert prefix_of(program, ["q", "k"]) == "always this "
    assert prefix_of(program, ["q", "k"], q="Q") == "always this Q never"

    def branching(s, q):
        s += "a"
        if q == "x":
            s += "b"

    assert prefix_of(branching, ["q"]) == "a"

    def formatted(s, q):
        s += "a"
        s += f"b {q}"

    assert prefix_of(formatted, ["q"]) == "a"

    def shown(s, q):
        s += "a"
        s += f"b {[q]}"

    assert prefix_of(shown, ["q"]) == "a"

    def careless(s, q):
        s += "a"
        try:
            len(q)
        except Exception:
            s += "b"

    assert prefix_of(careless, ["q"]) == "a"

    def failing(s, q):
        s += "a"
        raise ValueError

    assert prefix_of(failing, ["q"]) == "a"

    def calling(s, q):
        s += "a"
        s += sgl.gen("x")
        s += s["x"]

    assert prefix_of(calling, ["q"]) == "a"


def test_common_arguments():
    items = [{"a": 1, "b": "x", "c": [1]}, {"a": 1, "b": "y", "c": [1]}]
    assert common_arguments(items) == {"a": 1}
    assert common_arguments([{"a": 1}, {"a": True}]) == {}


def test_async_programs_cannot_be_traced():
    @sgl.function
    async def program(s):
        s += "x"

    with pytest.raises(ConfigError, match="coroutine"):
        program.trace()


def test_pictures(tmp_path):
    assert image_url("https://a/b.png") == "https://a/b.png"
    assert image_url(b"x") == "data:image/png;base64,eA=="
    assert image_url("eA==") == "data:image/png;base64,eA=="
    (tmp_path / "a.jpg").write_bytes(b"x")
    assert image_url(tmp_path / "a.jpg") == "data:image/jpeg;base64,eA=="
    with pytest.raises(TypeError, match="int"):
        image_url(3)
