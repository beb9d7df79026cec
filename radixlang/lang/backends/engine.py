"""The in-process backend: an `Engine` object, without HTTP between."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from radixlang.errors import BackendError
from radixlang.lang.backends.native import NativeBackend, template_of_facts
from radixlang.lang.chat_templates import ChatTemplate, get_chat_template

if TYPE_CHECKING:
    from radixlang.llm import Engine

_known: weakref.WeakKeyDictionary[Any, EngineBackend] = weakref.WeakKeyDictionary()


def backend_of_engine(engine: Engine) -> EngineBackend:
    """The backend of an engine; always the same one."""
    if engine not in _known:
        _known[engine] = EngineBackend(engine)
    return _known[engine]


class EngineBackend(NativeBackend):
    """`engine` stays the caller's to shut down."""

    name = "the engine"

    def __init__(self, engine: Engine, chat_template_name: str | None = None) -> None:
        super().__init__()
        # Weak, so that an engine that its owner forgets is shut down although the table above knows it.
        self._ref = weakref.ref(engine)
        if chat_template_name is not None:
            self._template: ChatTemplate = get_chat_template(chat_template_name)
        else:
            self._template = template_of_facts(engine.get_model_info(), engine.config.model.model_path)

    @property
    def _engine(self) -> Engine:
        engine = self._ref()
        if engine is None:
            raise BackendError("The engine of the program does not exist any more; keep a reference to it.")
        return engine

    def chat_template(self) -> ChatTemplate:
        return self._template

    async def post(self, body: dict[str, Any]) -> Any:
        return await self._engine.async_generate(body.pop("text", None), **body)

    async def post_stream(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        answers = await self._engine.async_generate(body.pop("text", None), **body)
        try:
            async for answer in answers:
                yield answer
        finally:
            await answers.aclose()

    async def tokenize(self, texts: list[str]) -> list[list[int]]:
        encode = self._engine.hub.need_tokenizer().encode
        return [encode(text) for text in texts]

    async def unpin(self, names: list[str]) -> None:
        await self._engine.async_unpin(names)

    async def flush_cache(self) -> bool:
        return bool(await asyncio.to_thread(self._engine.flush_cache))

    async def server_info(self) -> dict[str, Any] | bool:
        info: dict[str, Any] = await asyncio.to_thread(self._engine.get_server_info)
        return info
