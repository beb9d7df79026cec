"""Crusoe's managed inference: OpenAI's API at another address, in front of servers that chat. Extra `openai`."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from radixlang.errors import ConfigError
from radixlang.lang.backends.openai import OpenAI
from radixlang.lang.chat_templates import ChatTemplate

BASE_URL = "https://api.inference.crusoecloud.com/v1"


class Crusoe(OpenAI):
    """A chat model at Crusoe. The key comes from `CRUSOE_API_KEY` when it is not given."""

    vendor: ClassVar[str] = "Crusoe"

    def __init__(
        self,
        model_name: str,
        api_key: str | None = None,
        base_url: str = BASE_URL,
        chat_template: ChatTemplate | str | None = None,
        **kwargs: Any,
    ) -> None:
        key = api_key or os.environ.get("CRUSOE_API_KEY")
        if not key:
            raise ConfigError(f"Crusoe({model_name!r}): give api_key=… or set CRUSOE_API_KEY.")
        kwargs.setdefault("is_chat_model", True)
        super().__init__(model_name, chat_template=chat_template, api_key=key, base_url=base_url, **kwargs)
