"""Every public name, parameter and default of the frontend exists: by a copy in this file, and by the table beside
the checkout where there is one."""

from __future__ import annotations

import inspect
import re

import pytest

import radixlang as sgl
from radixlang.lang import ir
from radixlang.lang.chat_templates import TEMPLATES
from radixlang.lang.function import SglFunction
from radixlang.lang.global_config import GlobalConfig
from radixlang.lang.params import SamplingParams
from radixlang.lang.state import ProgramState, ProgramStateGroup
from tests.conftest import SHARED

TABLE = SHARED / "INTERFACE.md"
#: backends of remote services, which have their own tests
REMOTE = {"Anthropic", "Crusoe", "LiteLLM", "OpenAI", "VertexAI"}

NAMES = [
    "Engine",
    "Runtime",
    "RuntimeEndpoint",
    "ServerArgs",
    "__version__",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_server_info",
    "global_config",
    "greedy_token_selection",
    "image",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
    "video",
]

GEN = [
    "name",
    "max_tokens",
    "min_tokens",
    "n",
    "stop",
    "stop_token_ids",
    "stop_regex",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "ignore_eos",
    "return_logprob",
    "logprob_start_len",
    "top_logprobs_num",
    "return_text_in_logprobs",
    "dtype",
    "choices",
    "choices_method",
    "regex",
    "json_schema",
]
NOT_IN_TYPED = {"min_tokens", "dtype", "choices", "choices_method", "regex", "json_schema"}

RUN = {
    "max_new_tokens": 128,
    "n": 1,
    "stop": None,
    "stop_token_ids": None,
    "stop_regex": None,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "ignore_eos": False,
    "return_logprob": None,
    "logprob_start_len": None,
    "top_logprobs_num": None,
    "return_text_in_logprobs": None,
}

SAMPLING = {
    **RUN,
    "min_new_tokens": 0,
    "stop": (),
    "stop_token_ids": (),
    "stop_regex": (),
    "json_schema": None,
    "dtype": None,
    "regex": None,
}


def defaults(function) -> dict[str, object]:
    """Parameter → default, those without one and `self` left out."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def names(function) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


@pytest.mark.parametrize("name", NAMES)
def test_the_name_exists(name):
    assert getattr(sgl, name) is not None
    assert name in sgl.__all__
    assert name in dir(sgl)


def test_gen():
    assert names(sgl.gen) == GEN
    assert set(defaults(sgl.gen).values()) == {None}
    for typed in (sgl.gen_int, sgl.gen_string):
        assert names(typed) == [name for name in GEN if name not in NOT_IN_TYPED]
        assert set(defaults(typed).values()) == {None}


def test_other_primitives():
    assert defaults(sgl.function) == {"func": None, "num_api_spec_tokens": None}
    assert defaults(sgl.select) == {
        "name": None,
        "choices": None,
        "temperature": 0.0,
        "choices_method": sgl.token_length_normalized,
    }
    assert names(sgl.image) == ["expr"]
    assert names(sgl.video) == ["path", "num_frames"]
    for role in (sgl.system, sgl.user, sgl.assistant):
        assert defaults(role) == {"expr": None}
    assert defaults(sgl.separate_reasoning) == {"expr": None, "model_type": None}
    assert names(sgl.set_default_backend) == ["backend"]
    for call in (sgl.flush_cache, sgl.get_server_info):
        assert defaults(call) == {"backend": None}


def test_functions_of_programs():
    assert defaults(SglFunction.run) == {**RUN, "stream": False, "backend": None, "use_thread": True}
    assert defaults(SglFunction.run_batch) == {
        **RUN,
        "backend": None,
        "num_threads": "auto",
        "progress_bar": False,
        "generator_style": False,
    }
    assert (
        inspect.signature(SglFunction.run_batch).parameters["max_new_tokens"].kind
        == inspect.Parameter.KEYWORD_ONLY
    )
    assert defaults(SglFunction.trace) == {"backend": None}
    assert defaults(SglFunction.cache) == {"backend": None}


def test_states():
    assert defaults(ProgramState.fork) == {"size": 1, "position_ids_offset": None}
    assert defaults(ProgramState.text_iter) == {"var_name": None}
    assert defaults(ProgramState.text_async_iter) == {"var_name": None, "return_meta_data": False}
    assert defaults(ProgramStateGroup.join) == {"mode": "gather_variable"}
    for name in ("copy", "text", "messages", "sync", "error", "get_var", "set_var", "get_meta_info", "var_scope"):
        assert callable(getattr(ProgramState, name))


def test_backends():
    assert defaults(sgl.RuntimeEndpoint) == {"api_key": None, "verify": None, "chat_template_name": None}
    assert defaults(sgl.Runtime) == {"log_level": "error", "launch_timeout": 300.0}
    for name in [
        "shutdown",
        "start_profile",
        "stop_profile",
        "cache_prefix",
        "get_tokenizer",
        "async_generate",
        "add_request",
        "generate",
        "encode",
        "get_server_info",
    ]:
        assert callable(getattr(sgl.Runtime, name))


def test_sampling_defaults():
    assert defaults(SamplingParams) == SAMPLING
    params = SamplingParams(top_k=5, stop="x", json_schema={"type": "object"})
    openai = params.to_openai_kwargs()
    assert openai["max_tokens"] == openai["max_completion_tokens"] == 128
    assert "top_k" not in openai
    assert params.to_srt_kwargs()["stop"] == ["x"]
    assert params.to_srt_kwargs()["json_schema"] == '{"type": "object"}'
    assert params.to_anthropic_kwargs()["stop_sequences"] == ["x"]
    assert params.to_vertexai_kwargs()["max_output_tokens"] == 128
    assert params.to_litellm_kwargs()["top_k"] == 5


def test_constants():
    assert ir.REGEX_INT == r"[-+]?[0-9]+[ \n]*"
    assert ir.REGEX_FLOAT == r"[-+]?[0-9]*\.?[0-9]+[ \n]*"
    assert ir.REGEX_BOOL == r"(True|False)"
    assert ir.REGEX_STR == r"\"[\w\d\s]*\""
    assert defaults(GlobalConfig) == {
        "verbosity": 0,
        "default_backend": None,
        "skip_special_tokens_in_output": True,
        "spaces_between_special_tokens_in_out": True,
        "enable_precache_with_tracing": True,
        "enable_parallel_encoding": True,
    }


def chapter() -> str:
    """Chapter 1 of the table."""
    if not TABLE.exists():
        pytest.skip("the interface table is not beside this checkout")
    text = TABLE.read_text()
    return text[text.index("## 1. Frontend language") : text.index("## 2. ")]


def test_names_of_the_table():
    listed = re.search(r"### 1\.1 .*?\n(`.*?`)\.", chapter(), re.S)
    assert listed
    wanted = set(listed.group(1).replace("`", "").replace("\n", " ").split(", "))
    assert {name.strip() for name in wanted} - REMOTE == set(NAMES)


def test_gen_of_the_table():
    row = re.search(r"`gen\(([^)]*)\)`", chapter())
    assert row
    assert [name.strip() for name in row.group(1).split(",")] == GEN


def test_run_of_the_table():
    row = re.search(r"\| `run` \| `\(\*args, (.*?), \*\*kwargs\)`", chapter())
    assert row
    wanted = dict(part.split("=") for part in row.group(1).split(", "))
    assert {name: repr(value) for name, value in defaults(SglFunction.run).items()} == wanted


def test_sampling_defaults_of_the_table():
    row = re.search(r"\(`SglSamplingParams`\): `(.*?)`\.", chapter(), re.S)
    assert row
    wanted = dict(part.split(" ") for part in row.group(1).replace("\n", " ").split(", "))
    assert {name: repr(value) for name, value in defaults(SamplingParams).items()} == wanted


def test_templates_of_the_table():
    row = re.search(r"\(28: (.*?)\)", chapter())
    assert row
    assert set(row.group(1).split(", ")) == set(TEMPLATES)
