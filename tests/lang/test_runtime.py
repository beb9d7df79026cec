"""`Runtime`: our server as a child of the program."""

from __future__ import annotations

import asyncio
import json

import pytest

import radixlang as sgl
from radixlang.errors import BackendError, ConfigError, RadixLangError
from tests.conftest import POOL


def test_a_runtime_serves_programs_and_leaves(smollm2_path):
    with sgl.Runtime(model_path=str(smollm2_path), max_running_requests=8, max_total_tokens=POOL) as runtime:
        answer = runtime.generate("The capital of France is", {"temperature": 0, "max_new_tokens": 2})
        assert isinstance(answer, str)
        assert json.loads(answer)["meta_info"]["completion_tokens"] == 2
        assert runtime.url.startswith("http://127.0.0.1:")

        @sgl.function
        def program(s):
            s += "One, two," + sgl.gen("x", max_tokens=2)

        assert program.run(backend=runtime, temperature=0)["x"]
        runtime.cache_prefix("Once upon a time")

        async def read():
            pieces = [piece async for piece in runtime.add_request("One, two,", {"max_new_tokens": 4})]
            return pieces, await runtime.get_server_info()

        pieces, info = asyncio.run(read())
        assert pieces
        assert info["max_running_requests"] == 8
        assert runtime.get_tokenizer().encode("hello")
        with pytest.raises(RadixLangError, match="embeddings"):
            runtime.encode("hello")
        process = runtime._process
    assert process.poll() == 0
    with pytest.raises(RadixLangError):
        program.run(backend=runtime)["x"]


def test_a_runtime_that_cannot_start_says_why(tmp_path):
    with pytest.raises(BackendError, match="left with code 2"):
        sgl.Runtime(model_path=str(tmp_path / "nothing"))
    with pytest.raises(ConfigError):
        sgl.Runtime(model_path="default", no_such_option=1)
