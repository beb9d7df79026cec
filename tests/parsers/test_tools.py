"""Every tool-call syntax: samples, any split of them, malformed calls, and what its structural tag generates."""

from __future__ import annotations

import itertools
import json
import random
import re
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlang.errors import ConfigError
from radixlang.grammar.limits import GrammarLimits
from radixlang.grammar.vocabulary import Vocabulary
from radixlang.messages import GrammarSpec
from radixlang.parsers.tools import SYNTAXES, Tool, detect_syntax, find_syntax
from radixlang.parsers.tools.plain_json import PlainJson, calls_schema

from .samples import CLOCK, FIND, PARIS, PLAIN, SAMPLES, TOOLS, WEATHER, Sample

NAMES = [name for name in SYNTAXES if name not in ("hermes", "qwen25", "glm")]
ids = [f"{s.syntax}{i}" for i, s in enumerate(SAMPLES)]


def syntax_of(name):
    return PlainJson() if name == "plain" else find_syntax(name, None)[1]


def read(name, pieces, tools=TOOLS, eager=False):
    """(text, [(id, name, arguments)]) of a text in pieces; checks the order of deltas."""
    parser = syntax_of(name).parser(tools, eager)
    text, calls = "", []
    for delta in [*map(parser.feed, pieces), parser.close()]:
        text += delta.text
        for call in delta.calls:
            if call.name is not None:
                assert call.index == len(calls)
                calls.append([call.id, call.name, ""])
            assert call.index == len(calls) - 1
            calls[-1][2] += call.arguments
    return text, calls


def plain(calls):
    return [(name, json.loads(arguments)) for _, name, arguments in calls]


def cut(text, places):
    marks = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in itertools.pairwise(marks)]


@pytest.mark.parametrize("sample", SAMPLES, ids=ids)
@pytest.mark.parametrize("eager", [False, True])
def test_samples(sample: Sample, eager: bool) -> None:
    if eager and not sample.strict:
        pytest.skip("passing arguments on early is for constrained texts")
    text, calls = read(sample.syntax, [sample.text], eager=eager)
    assert (text, plain(calls)) == (sample.said, sample.calls)
    assert len({id for id, _, _ in calls}) == len(calls)
    assert read(sample.syntax, list(sample.text), eager=eager)[0] == text
    whole = syntax_of(sample.syntax).parse(sample.text)
    assert [(call.name, json.loads(call.arguments)) for call in whole.calls] == sample.calls


#: pieces from which texts are put together that are nearly calls
SHARDS = [
    *{
        mark
        for s in SAMPLES
        for mark in re.findall(r"<[^<>]*>|\[[A-Z_]+\]|[{}\[\]\"',:;()= \n]|\w+|[^\w\s]", s.text)
    },
    *(sample.text for sample in SAMPLES),
]


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("name", [*NAMES, "plain"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_split_gives_the_same(name: str, eager: bool, data: st.DataObject) -> None:
    own = [s.text for s in SAMPLES if s.syntax == name] or [PLAIN]
    text = data.draw(
        st.one_of(st.sampled_from(own), st.lists(st.sampled_from(own + SHARDS), max_size=12).map("".join))
    )
    if data.draw(st.booleans()):
        text = text[: data.draw(st.integers(0, len(text)))]
    whole = read(name, [text], eager=eager)
    pieces = cut(text, data.draw(st.lists(st.integers(0, 10_000), max_size=30)))
    again = read(name, pieces, eager=eager)
    assert again[0] == whole[0]
    assert [call[1:] for call in again[1]] == [call[1:] for call in whole[1]]
    if not eager:
        for _, called, arguments in whole[1]:
            assert called in {tool.name for tool in TOOLS}
            assert isinstance(json.loads(arguments), dict)


MALFORMED = [
    ("qwen", 'a <tool_call>\n{"name": "clock", "arguments": {}\n</tool_call>'),
    ("qwen", 'a <tool_call>\n{"name": "nobody", "arguments": {}}\n</tool_call>'),
    ("qwen", "a <tool_call> is what I would write"),
    ("qwen", 'a <tool_call>\n{"name": "clock", "arguments": {"x": Infinity}}\n</tool_call>'),
    ("qwen3_coder", "a <tool_call>\n<function=clock>\n<parameter=x>\n1\n</tool_call>"),
    ("glm45", "a <tool_call>clock\n<arg_key>x</arg_key>\n</tool_call>"),
    ("llama3", '{"name": "Bob", "age": 3}'),
    ("llama3", "<|python_tag|>print(1)"),
    ("pythonic", "[1] says so"),
    ("pythonic", "[clock(1)]"),
    ("mistral", "a [TOOL_CALLS] b"),
    ("mistral", 'a [TOOL_CALLS][{"name": 3}]'),
    ("deepseekv3", "a <｜tool▁calls▁begin｜>clock"),
    ("kimi_k2", "a <|tool_calls_section_begin|><|tool_call_begin|>functions.clock:0{}"),
    ("gemma4", "a <|tool_call>call:clock{x:}<tool_call|>"),
    ("minimax-m2", "a <minimax:tool_call>\n<invoke name=clock>\n</minimax:tool_call>"),
    ("phi4", "a functools[1]"),
    ("plain", '[{"name": "nobody", "parameters": {}}]'),
]


@pytest.mark.parametrize(("name", "text"), MALFORMED)
def test_malformed_calls_stay_text(name: str, text: str) -> None:
    assert read(name, [text]) == (text, [])


def test_what_follows_a_good_call_is_kept() -> None:
    good = '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'
    text, calls = read("qwen", [good + "\n<tool_call>{broken</tool_call>" + good + " end"])
    assert [name for _, name, _ in calls] == ["clock", "clock"]
    assert text == "<tool_call>{broken</tool_call>end"


def test_arguments_arrive_while_they_are_written() -> None:
    parser = syntax_of("qwen").parser(TOOLS, eager=True)
    assert parser.feed('<tool_call>\n{"name": "search", "arg').calls == []
    assert parser.feed('uments": {"que').calls[0].arguments == '{"que'
    assert parser.feed('ry": "a').calls[0].arguments == 'ry": "a'
    assert parser.feed('b"}}').calls[0].arguments == 'b"}'
    coder = syntax_of("qwen3_coder").parser(TOOLS, eager=True)
    assert (
        coder.feed("<tool_call>\n<function=search>\n<parameter=query>\nx\n").calls[0].arguments == '{"query": "x'
    )
    assert coder.feed('"y').calls[0].arguments == '\\n\\"y'


def test_ids() -> None:
    assert re.fullmatch(r"call_[0-9a-f]{24}", read("qwen", [SAMPLES[0].text])[1][0][0])
    kimi = next(s for s in SAMPLES if s.syntax == "kimi_k2")
    assert [id for id, _, _ in read("kimi_k2", [kimi.text])[1]] == [
        "functions.get_weather:0",
        "functions.search:1",
    ]
    mistral = next(s for s in SAMPLES if s.syntax == "mistral")
    assert re.fullmatch(r"[0-9a-f]{9}", read("mistral", [mistral.text])[1][0][0])


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="known are: auto, none, hermes"):
        find_syntax("hermess", None)
    assert find_syntax("none", None) is None
    assert find_syntax("auto", "{{ messages }}") is None


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("<tool_call>\n{{ call | tojson }}\n</tool_call>", "qwen"),
        ("<tool_call>\n<function={{ name }}>", "qwen3_coder"),
        ("<tool_call>{{ name }}\n<arg_key>{{ k }}</arg_key>\n<arg_value>", "glm45"),
        ("[TOOL_CALLS] [", "mistral"),
        ("'<｜tool▁calls▁begin｜>' ```json", "deepseekv3"),
        ("'<｜tool▁calls▁begin｜>'", "deepseekv31"),
        ('Respond in the format {"name": function name, "parameters": dict}', "llama3"),
        ("{{ content }}", None),
    ],
)
def test_syntax_from_the_template(template: str, name: str | None) -> None:
    assert detect_syntax(template) == name


def test_mistral_writes_the_form_of_its_template() -> None:
    for template, begin in (
        ("[TOOL_CALLS] [", "[TOOL_CALLS] ["),
        ("[TOOL_CALLS][", "[TOOL_CALLS]["),
        ("[ARGS]", "[TOOL_CALLS]clock["),
    ):
        found = find_syntax("mistral", template)[1].structural_tag([CLOCK], at_least_one=True)
        assert (found["begin"] if "begin" in found else found["tags"][0]["begin"]).startswith(begin)


# ---- structural tags ----


@pytest.fixture(scope="module")
def tokenizer(smollm2_path):
    from radixlang.text.tokenizer import load_tokenizer

    return load_tokenizer(str(smollm2_path))


@pytest.fixture(scope="module")
def engine(tokenizer):
    from radixlang.grammar.llg import LlguidanceEngine

    return LlguidanceEngine(Vocabulary.of(tokenizer), GrammarLimits())


def compiled(engine, syntax, tools, **options):
    tag = {"type": "structural_tag", "format": syntax.structural_tag(tools, **options)}
    return engine.compile(GrammarSpec("structural_tag", json.dumps(tag)))


def accepted(grammar, tokenizer, text: str) -> bool:
    state = grammar.start()
    return all(state.accept(token) for token in tokenizer.encode_plain(text)) and state.can_end


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.strict], ids=lambda s: s.syntax)
def test_tags_accept_the_samples(sample: Sample, engine, tokenizer) -> None:
    syntax = syntax_of(sample.syntax)
    assert accepted(compiled(engine, syntax, TOOLS), tokenizer, sample.text)
    forced = compiled(engine, syntax, TOOLS, at_least_one=True)
    rest = sample.text.partition("\n\n")[2] if sample.said else sample.text
    assert accepted(forced, tokenizer, rest) == bool(sample.calls and sample.text[:14] != "<|python_tag|>")
    assert not accepted(forced, tokenizer, "No.")
    if len(sample.calls) > 1:
        assert not accepted(compiled(engine, syntax, TOOLS, at_least_one=True, parallel=False), tokenizer, rest)
        assert not accepted(compiled(engine, syntax, [WEATHER], at_least_one=True), tokenizer, rest)


@pytest.mark.parametrize("name", NAMES)
def test_tags_let_text_pass(name: str, engine, tokenizer) -> None:
    text = "It is 3 [sic] {so} <b>far</b>: 'x'.\n\n[1] a"
    if name == "gpt-oss":
        text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>" + text
    assert accepted(compiled(engine, syntax_of(name), TOOLS), tokenizer, text)


CLOSED = Tool(
    "set",
    {
        "type": "object",
        "properties": {
            "mode": {"enum": ["on", "off", 'näch"t']},
            "level": {"type": "integer", "minimum": 0, "maximum": 99},
            "flag": {"type": "boolean"},
            "maybe": {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 9}, {"type": "null"}]},
            "deep": {
                "type": "object",
                "properties": {"tag": {"const": "</parameter>"}, "on": {"type": "boolean"}},
                "required": ["tag"],
                "additionalProperties": False,
            },
        },
        "required": ["level", "deep"],
        "additionalProperties": False,
    },
)
LOOSE = Tool(
    "loose",
    {
        "type": "object",
        "properties": {"a": {"enum": [1, 2]}, "b": {"type": "boolean"}},
        "additionalProperties": False,
    },
)


def generate(grammar, vocabulary, rng: random.Random, most: int = 300) -> str | None:
    """A random text of the grammar; None when it does not end in time."""
    state, row, out = grammar.start(), np.zeros(vocabulary.words, np.int32), []
    for _ in range(most):
        if state.can_end and (state.finished or rng.random() < 0.5):
            return b"".join(vocabulary.tokens[token] for token in out).decode()
        state.fill(row)
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        token = int(rng.choice(allowed))
        if token in vocabulary.eos_ids:
            continue
        assert state.accept(token)
        out.append(token)
    return None


@pytest.mark.parametrize("name", NAMES)
def test_what_tags_generate_is_read_back(name: str, engine) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    syntax, tools = syntax_of(name), [CLOSED, LOOSE, CLOCK]
    schemas = {tool.name: tool.parameters for tool in tools}
    rng = random.Random(name)
    seen = 0
    if name == "gpt-oss":
        tags = {
            "type": "structural_tag",
            "format": {"type": "or", "elements": [syntax.tag(tool) for tool in tools]},
        }
        grammar = engine.compile(GrammarSpec("structural_tag", json.dumps(tags)))
    else:
        grammar = compiled(engine, syntax, tools, at_least_one=True)
    for _ in range(12):
        text = generate(grammar, engine.vocabulary, rng)
        if text is None:
            continue
        for eager in (True, False):
            if not eager and name in ("qwen3_coder", "minimax-m2") and "</parameter>" in text:
                continue  # unconstrained text may not quote the end mark inside of a value
            said, calls = read(name, [text], tools, eager)
            assert said == "", text
            assert calls
            for _, called, arguments in calls:
                jsonschema.validate(json.loads(arguments), schemas[called])
            seen += len(calls)
    assert seen > 5


def test_plain_calls(engine) -> None:
    assert plain(read("plain", list(PLAIN), eager=True)[1]) == [PARIS, FIND]
    refers = Tool(
        "tree",
        {
            "$defs": {
                "n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}, "required": ["next"]}
            },
            "type": "object",
            "properties": {"root": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}, {"$ref": "#/$defs/m"}]}},
        },
    )
    refers.parameters["$defs"]["m"] = {"type": "integer"}
    refers.parameters["$defs"]["n"]["properties"]["next"] = {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}
    schema = calls_schema([refers, CLOCK])
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate([{"name": "tree", "parameters": {"root": {"next": {"next": None}}}}], schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate([{"name": "clock", "parameters": {"root": 1}}], schema)
    engine.compile(GrammarSpec("json_schema", json.dumps(schema)))
    assert calls_schema([CLOCK], parallel=False)["maxItems"] == 1


@pytest.mark.parametrize(
    "draft", ["http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#", None]
)
@pytest.mark.parametrize("reference", ["#/definitions/d", "#"])
@pytest.mark.parametrize("root", [False, True])
def test_plain_calls_keep_references(draft: str | None, reference: str, root: bool, engine) -> None:
    if root and reference == "#":
        pytest.skip("refers to nothing but itself")
    parameters = {"definitions": {"d": {"type": "object", "properties": {"x": {"type": "integer"}}}}}
    parameters |= {"$ref": reference} if root else {"type": "object", "properties": {"a": {"$ref": reference}}}
    parameters |= {"$schema": draft} if draft else {}
    for tools in ([Tool("f", parameters)], [CLOCK, Tool("f", parameters)]):
        engine.compile(GrammarSpec("json_schema", json.dumps(calls_schema(tools))))


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.strict and "metric" in s.text], ids=lambda s: s.syntax)
def test_tags_hold_calls_in_free_text_to_the_schema(sample: Sample, engine, tokenizer) -> None:
    grammar = compiled(engine, syntax_of(sample.syntax), TOOLS)
    assert not accepted(grammar, tokenizer, sample.text.replace("metric", "kelvin"))
    unknown = accepted(grammar, tokenizer, sample.text.replace("get_weather", "get_water"))
    assert unknown == (sample.syntax == "pythonic")  # there it is text like any other


@pytest.mark.parametrize("name", NAMES)
def test_names_that_begin_alike(name: str, engine) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "boolean"}}, "additionalProperties": False}
    tools = [Tool(name, parameters) for name in ("get", "get_more", "g")]
    format = syntax_of(name).structural_tag(tools, at_least_one=True)
    if name == "gpt-oss":
        format = format["elements"][1]
    grammar = engine.compile(GrammarSpec("structural_tag", json.dumps({"format": format})))
    rng, seen = random.Random(5), set()
    for _ in range(30):
        text = generate(grammar, engine.vocabulary, rng)
        if text is not None:
            said, calls = read(name, [text], tools, eager=True)
            assert said == ""
            seen |= {called for _, called, _ in calls}
    assert seen == {"get", "get_more", "g"}


def test_hostile_texts_are_read_in_time() -> None:
    for name in NAMES:
        for mark in syntax_of(name).triggers:
            for text in (mark * 3_000, (mark + "{[<") * 3_000, mark + "{" * 10_000, mark + "[f(" * 3_000):
                began = time.process_time()
                read(name, [text])
                assert time.process_time() - began < 2, (name, mark)


@pytest.mark.parametrize("name", ["gemma4", "pythonic"])
def test_a_tag_is_not_larger_than_can_be_read(name: str) -> None:
    """Where all arguments may be left out, each may be the first: formats are written down once more for each."""
    text = {"type": "string"}

    def of(properties: dict) -> Tool:
        return Tool("f", {"type": "object", "properties": properties, "additionalProperties": False})

    nested = text
    for _ in range(5):
        nested = of(dict.fromkeys("abcdef", nested)).parameters
    chain = {str(i): of({key: {"$ref": f"#/$defs/{i + 1}"} for key in "abcdefgh"}).parameters for i in range(7)}
    shared = Tool("f", of({"x": {"$ref": "#/$defs/0"}}).parameters | {"$defs": chain | {"7": text}})
    syntax = find_syntax(name, None)[1]
    assert syntax.states(of(dict.fromkeys("abcdefgh", text)))
    assert not syntax.states(of({f"a{i}": text for i in range(600)}))
    for tool in (Tool("f", nested), shared):
        assert not syntax.states(tool) or len(json.dumps(syntax.structural_tag([tool]))) < 1 << 22


def test_definitions_stand_only_where_they_are_referred_to() -> None:
    properties = {"a": {"type": "string"}, "b": {"$ref": "#/$defs/x"}}
    tool = Tool("f", {"type": "object", "properties": properties, "$defs": {"x": {"enum": ["y"]}}})
    tag = syntax_of("pythonic").structural_tag([tool], at_least_one=True, parallel=False)
    assert json.dumps(tag).count('"y"') == 2
