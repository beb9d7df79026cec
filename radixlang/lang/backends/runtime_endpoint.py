"""A RadixLang server over HTTP.

A server that has gone is noticed within `PATIENCE` seconds, however long an answer may take: while nothing comes,
its `/health` is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from radixlang.bearer import bearer
from radixlang.errors import BackendError, RadixLangError
from radixlang.lang import loop
from radixlang.lang.backends.native import NativeBackend, template_of_facts
from radixlang.lang.chat_templates import ChatTemplate, get_chat_template
from radixlang.url import check_url

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

#: seconds for a connection, and for an answer that needs no model
PATIENCE = 10.0
_HERE = ("127.0.0.1", "localhost", "::1")


class RuntimeEndpoint(NativeBackend):
    """The server at `base_url`. `verify` is a file with the certificates to trust, or False.

    Raises:
        ConfigError: no URL, or a key that no header can hold. BackendError: there is no server, or it refuses
            the key.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: str | bool | None = None,
        chat_template_name: str | None = None,
    ) -> None:
        super().__init__()
        parts = check_url("base_url", base_url)
        self._host = parts.hostname
        self.base_url = parts.geturl()
        self.name = f"The server at {self.base_url}"
        self._headers = bearer(api_key, "api_key")
        self._verify = verify
        self._http: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.model_info: dict[str, Any] = loop.call(self._get_json("/get_model_info"))
        path = str(self.model_info.get("model_path", ""))
        if chat_template_name is not None:
            self._template: ChatTemplate = get_chat_template(chat_template_name)
        else:
            self._template = template_of_facts(self.model_info, path)

    def get_model_name(self) -> str:
        """Path of the model that is served."""
        return str(self.model_info["model_path"])

    def chat_template(self) -> ChatTemplate:
        return self._template

    # ---- calls ----

    async def post(self, body: dict[str, Any]) -> Any:
        return await self._post_json("/generate", body)

    async def post_stream(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        client = self._client()
        with self._sentences():
            request = client.build_request("POST", "/generate", json=body)
            response = await self._alive(client.send(request, stream=True))
            try:
                if response.status_code != 200:
                    await response.aread()
                    self._check_status(response)
                lines = response.aiter_lines().__aiter__()
                while True:
                    try:
                        line = await self._alive(lines.__anext__())
                    except StopAsyncIteration:
                        raise BackendError(f"{self.name} closed a stream before its end.") from None
                    if line == "data: [DONE]":
                        return
                    if line.startswith("data: "):
                        answer = json.loads(line.removeprefix("data: "))
                        if "error" in answer:
                            raise BackendError(f"{self.name}: {answer['error'].get('message', answer['error'])}")
                        yield answer
            finally:
                await response.aclose()

    async def unpin(self, names: list[str]) -> None:
        await self._post_json("/unpin", {"id": names})

    async def tokenize(self, texts: list[str]) -> list[list[int]]:
        answer = await self._post_json("/tokenize", {"prompt": texts})
        tokens: list[list[int]] = answer["tokens"]
        return tokens

    async def encode(self, text: str | list[str]) -> Any:
        """Embeddings, as `/encode` gives them."""
        return await self._post_json("/encode", {"text": text})

    # ---- control ----

    async def flush_cache(self) -> bool:
        with self._sentences():
            response = await self._client().post("/flush_cache", timeout=PATIENCE)
        return response.status_code == 200

    async def server_info(self) -> dict[str, Any] | bool:
        info: dict[str, Any] = await self._get_json("/server_info")
        return info

    async def start_profile(self) -> Any:
        """Begin a trace of the engine."""
        return await self._post_json("/start_profile", {})

    async def stop_profile(self) -> Any:
        """Write the trace."""
        return await self._post_json("/stop_profile", {})

    async def close(self) -> None:
        if self._http is not None:
            client, self._http = self._http, None
            await client.aclose()

    # ---- HTTP ----

    def _client(self) -> httpx.AsyncClient:
        """The connections; they belong to the language's loop, which a forked process has anew."""
        import httpx

        running = asyncio.get_running_loop()
        if self._http is None or self._loop is not running:
            self._loop = running
            self._http = httpx.AsyncClient(
                base_url=self.base_url,
                headers=self._headers,
                verify=self._trust(),
                timeout=httpx.Timeout(None, connect=PATIENCE),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=256),
                # A proxy of the environment is no way to a server on this machine.
                trust_env=self._host not in _HERE,
            )
        return self._http

    def _trust(self) -> ssl.SSLContext | bool:
        """Certificates to trust: the system's, those of a file, or (False) any."""
        if isinstance(self._verify, str):
            return ssl.create_default_context(cafile=self._verify)
        return self._verify is not False

    async def _get_json(self, path: str) -> Any:
        with self._sentences():
            response = await self._client().get(path, timeout=PATIENCE)
            self._check_status(response)
            return response.json()

    async def _post_json(self, path: str, body: dict[str, Any]) -> Any:
        with self._sentences():
            response = await self._alive(self._client().post(path, json=body))
            self._check_status(response)
            return response.json()

    async def _alive(self, work: Awaitable[T]) -> T:
        """The result of `work`, however long it takes, as long as the server is alive."""
        task: asyncio.Future[T] = asyncio.ensure_future(work)
        try:
            while True:
                await asyncio.wait({task}, timeout=PATIENCE)
                if task.done():
                    return task.result()
                try:
                    await self._client().get("/health", timeout=PATIENCE)
                except Exception as error:
                    if task.done():
                        return task.result()
                    raise BackendError(
                        f"{self.name} has not answered for {2 * PATIENCE:.0f} s and its /health fails "
                        f"({type(error).__name__})."
                    ) from error
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def _check_status(self, response: httpx.Response) -> None:
        """Turn an error of the server into ours."""
        if response.status_code < 400:
            return
        try:
            error = response.json()["error"]
            message = error["message"] if isinstance(error, dict) else str(error)
        except (ValueError, KeyError, TypeError):
            message = response.text[:500] or response.reason_phrase
        raise BackendError(f"{self.name} answered {response.status_code}: {message}")

    @contextlib.contextmanager
    def _sentences(self) -> Iterator[None]:
        """Errors of the transport as ours, which say all that a hundred lines of its traceback would."""
        import httpx

        try:
            yield
        except RadixLangError:
            raise
        except httpx.ConnectError as error:
            raise BackendError(f"{self.name} cannot be reached ({error}); is it running there?") from None
        except httpx.TimeoutException:
            raise BackendError(f"{self.name} did not answer within {PATIENCE:.0f} s.") from None
        except httpx.HTTPError as error:
            detail = str(error) or type(error).__name__
            raise BackendError(f"{self.name} broke the connection ({detail}).") from None
