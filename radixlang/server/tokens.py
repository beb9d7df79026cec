"""`/tokenize` and `/detokenize`: the model's tokenizer over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from radixlang.errors import RequestError
from radixlang.server.openai.chat import default_variables, render_messages
from radixlang.server.openai.protocol import DetokenizeBody, TokenizeBody
from radixlang.server.openai.tools import check_tools
from radixlang.server.web import Server, check_batch, json_response


async def tokenize(server: Server, request: Request, body: TokenizeBody) -> Response:
    """`/tokenize`."""
    hub = server.hub
    server.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("Exactly one of prompt and messages is required.", "prompt")
    tokens: Any
    if body.messages is not None:
        check_tools(body.tools)
        variables = default_variables(hub) | (body.chat_template_kwargs or {})
        add_prompt = body.add_generation_prompt is not False
        prompt = render_messages(hub, body.messages, body.tools or None, add_prompt, False, variables)
        tokens = await hub.encode(prompt, add_special_tokens=False)
    else:
        prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt or []
        check_batch(len(prompts), "prompt")
        special = body.add_special_tokens is not False
        tokens = [await hub.encode(text, special) for text in prompts]
        if isinstance(body.prompt, str):
            tokens = tokens[0]
    several = isinstance(body.prompt, list)
    count = [len(item) for item in tokens] if several else len(tokens)
    return json_response({"tokens": tokens, "count": count, "max_model_len": hub.limits.context_length})


async def detokenize(server: Server, request: Request, body: DetokenizeBody) -> Response:
    """`/detokenize`."""
    hub = server.hub
    server.check_model(body.model)
    tokenizer = hub.need_tokenizer()
    several = bool(body.tokens) and isinstance(body.tokens[0], list)
    if any(isinstance(item, list) != several for item in body.tokens):
        raise RequestError("tokens must be a list of ids or a list of such lists, not both.", "tokens")
    lists: list[Any] = list(body.tokens) if several else [body.tokens]
    for ids in lists:
        if ids:
            hub.limits.check_ids(ids, "tokens")
    skip = body.skip_special_tokens is not False
    check_batch(len(lists), "tokens")
    # In a thread: millions of ids take seconds.
    texts = await asyncio.to_thread(lambda: [tokenizer.decode(ids, skip_special_tokens=skip) for ids in lists])
    return json_response({"text": texts if several else texts[0]})
