"""Agent frameworks against the CPU server with the real model; skipped where they are not installed."""

from __future__ import annotations

import pytest

pydantic = pytest.importorskip("pydantic")


class Person(pydantic.BaseModel):
    """A person."""

    name: str = pydantic.Field(max_length=30)
    age: int


@pytest.fixture(scope="module")
def chat(server):
    langchain_openai = pytest.importorskip("langchain_openai")

    def make(**fields):
        return langchain_openai.ChatOpenAI(
            base_url=server.url + "/v1",
            api_key="none",
            model="smol",
            temperature=0,
            max_tokens=200,
            max_retries=0,
            **fields,
        )

    return make


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_structured_output(chat, method):
    model = chat().with_structured_output(Person, method=method)
    question = 'Alice is 34 years old. Answer as JSON: {"name": ..., "age": ...}'
    assert isinstance(model.invoke(question), Person)
    *_, last = model.stream(question)
    assert isinstance(last, Person)


def test_langchain_forced_tools(chat):
    from langchain_core.tools import tool

    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    model = chat().bind_tools([add], tool_choice="add", strict=True, parallel_tool_calls=False)
    (call,) = model.invoke("What is 2 + 3?").tool_calls
    assert call["name"] == "add"
    assert isinstance(add.invoke(call["args"]), int)
    whole = None
    for chunk in model.stream("What is 2 + 3?"):
        whole = chunk if whole is None else whole + chunk
    assert whole.tool_calls[0]["args"] == call["args"]


def test_langchain_agent(chat):
    """The first turn is made to call the tool, the second one answers."""
    agents = pytest.importorskip("langchain.agents")
    middleware = pytest.importorskip("langchain.agents.middleware")
    from langchain_core.messages import ToolMessage
    from langchain_core.tools import tool

    seen = []

    @tool
    def get_weather(city: str) -> str:
        """The weather in a city."""
        seen.append(city)
        return f"It is sunny in {city}."

    @middleware.wrap_model_call
    def first_calls(request, handler):
        called = any(isinstance(message, ToolMessage) for message in request.messages)
        return handler(request.override(tool_choice="none" if called else "required"))

    agent = agents.create_agent(
        chat(model_kwargs={"parallel_tool_calls": False}), [get_weather], middleware=[first_calls]
    )
    out = agent.invoke({"messages": [{"role": "user", "content": "What is the weather in Paris?"}]})
    kinds = [message.type for message in out["messages"]]
    assert kinds == ["human", "ai", "tool", "ai"]
    assert seen
    assert out["messages"][-1].content


def test_llama_index_structured_prediction(server):
    openai_like = pytest.importorskip("llama_index.llms.openai_like")
    prompts = pytest.importorskip("llama_index.core.prompts")
    llm = openai_like.OpenAILike(
        api_base=server.url + "/v1",
        api_key="none",
        model="smol",
        is_chat_model=True,
        is_function_calling_model=True,
        temperature=0,
        max_tokens=200,
        max_retries=0,
    )
    prompt = prompts.PromptTemplate("{text} Who is it?")
    assert isinstance(llm.structured_predict(Person, prompt, text="Alice is 34 years old."), Person)
    program = llm.as_structured_llm(Person)
    from llama_index.core.llms import ChatMessage

    assert isinstance(program.chat([ChatMessage(role="user", content="Alice is 34 years old.")]).raw, Person)
