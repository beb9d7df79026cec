"""The real `openai` client against a real HTTP server over the fake engine."""

from __future__ import annotations

import asyncio

import pytest

from .fakes import HIDDEN, FakeEngine, Live, live

openai = pytest.importorskip("openai")


def client_of(server: Live, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=server.base + "/v1", api_key=key, max_retries=0)


def test_chat(server: Live) -> None:
    with client_of(server) as client:
        model = client.models.list().data[0].id
        messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "[say:Good day]"}]
        answer = client.chat.completions.create(model=model, messages=messages, logprobs=True, top_logprobs=2)
        choice = answer.choices[0]
        assert choice.message.content == "Good day"
        assert choice.message.tool_calls is None
        assert choice.finish_reason == "stop"
        assert choice.logprobs.content[0].token == "G"
        assert len(choice.logprobs.content[0].top_logprobs) == 2
        assert answer.usage.prompt_tokens_details.cached_tokens == 0
        messages += [choice.message, {"role": "user", "content": "[say:Again]"}]
        assert client.chat.completions.create(model=model, messages=messages).choices[0].message.content == (
            "Good day"
        )  # the mark in the history comes first


def test_chat_stream(server: Live) -> None:
    with client_of(server) as client:
        stream = client.chat.completions.create(
            model="fake/model",
            messages=[{"role": "user", "content": "[say:Good day]"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Good day"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage.completion_tokens == 9


def test_stream_helper_puts_the_chunks_together(server: Live) -> None:
    with (
        client_of(server) as client,
        client.chat.completions.stream(
            model="fake/model", messages=[{"role": "user", "content": "[say:Good day]"}]
        ) as stream,
    ):
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "Good day"


def test_completions(server: Live) -> None:
    with client_of(server) as client:
        answer = client.completions.create(model="fake/model", prompt=["[say:a]", "[say:b]"], logprobs=1)
        assert [c.text for c in answer.choices] == ["a", "b"]
        stream = client.completions.create(model="fake/model", prompt="[say:abc]", stream=True)
        assert "".join(c.choices[0].text for c in stream) == "abc"


def test_embeddings_use_base64_by_default(embedder: Live) -> None:
    with client_of(embedder) as client:
        answer = client.embeddings.create(model="fake/model", input=["a", "b"])
        assert [len(item.embedding) for item in answer.data] == [HIDDEN, HIDDEN]
        plain = client.embeddings.create(model="fake/model", input="a", encoding_format="float", dimensions=3)
        assert len(plain.data[0].embedding) == 3


def test_errors_become_the_clients_exceptions() -> None:
    with live(api_key="secret") as server:
        messages = [{"role": "user", "content": "x"}]
        with client_of(server) as client, pytest.raises(openai.AuthenticationError):
            client.models.list()
        with client_of(server, "secret") as client:
            with pytest.raises(openai.NotFoundError) as missing:
                client.chat.completions.create(model="gpt-9", messages=messages)
            assert missing.value.code == "model_not_found"
            with pytest.raises(openai.BadRequestError) as bad:
                client.chat.completions.create(model="fake/model", messages=messages, top_p=7)
            assert bad.value.param == "top_p"
            with pytest.raises(openai.BadRequestError):
                client.chat.completions.create(model="fake/model", messages=messages, top_p=7, stream=True)
            with pytest.raises(openai.InternalServerError):
                client.completions.create(model="fake/model", prompt="[fail:503]")
            with pytest.raises(openai.APIError, match="half-way"):
                list(client.completions.create(model="fake/model", prompt="[mid]", stream=True))


def test_many_async_clients_and_one_that_breaks_off() -> None:
    async def run(server: Live) -> list[str]:
        async with openai.AsyncOpenAI(base_url=server.base + "/v1", api_key="none", max_retries=0) as client:

            async def one(i: int) -> str:
                stream = await client.completions.create(
                    model="fake/model", prompt=f"[say:answer {i}]", stream=True, max_tokens=20
                )
                return "".join([c.choices[0].text async for c in stream])

            broken = await client.completions.create(model="fake/model", prompt="x", stream=True, max_tokens=900)
            await broken.__anext__()
            answers = await asyncio.gather(*(one(i) for i in range(30)))
            await broken.close()
            return list(answers)

    with live(engine=FakeEngine(delay=0.002)) as server:
        assert asyncio.run(run(server)) == [f"answer {i}" for i in range(30)]
        server.until(lambda: server.hub.running == 0 and not server.engine.running)
