"""`Runtime`: a server of our own in a process beside the program, and the endpoint that goes to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import AsyncIterator
from typing import Any

from radixlang.errors import BackendError
from radixlang.lang import loop
from radixlang.lang.backends.runtime_endpoint import RuntimeEndpoint

_READY = re.compile(r"ready in .*: (https?://\S+) serves")
#: characters of the server's output shown when it does not start
_LAST_OUTPUT = 2000
#: seconds for running requests to end when it is shut down
_GRACE = 30.0


class Runtime:
    """Starts `python -m radixlang.launch_server` with the server's options as arguments (`model_path=…`) and waits
    until it is ready. Use as a context manager or call `shutdown()`; it leaves with the program at the latest.

    Raises:
        BackendError: it did not become ready within `launch_timeout` seconds; with what it said last.
    """

    def __init__(self, log_level: str = "error", launch_timeout: float = 300.0, *args: Any, **kwargs: Any) -> None:
        from radixlang.config import Config

        model = {"model_path": args[0]} if args else {}
        Config.from_flat(**model, **kwargs)  # unknown names are found before a process starts
        # The line that says it is ready is logged at this level.
        options = {"port": 0, "disable_access_log": True, **model, **kwargs, "log_level": "info"}
        self._output = tempfile.NamedTemporaryFile("w+", prefix="radixlang-", suffix=".log")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "radixlang.launch_server", *_flags(options)],
            stdout=self._output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._finalizer = weakref.finalize(self, _stop, self._process)
        try:
            self.url = self._wait(launch_timeout)
            self.endpoint = RuntimeEndpoint(self.url, api_key=kwargs.get("api_key"))
        except BaseException:
            self.shutdown()
            raise
        if log_level in ("info", "debug"):
            print(self._said(), file=sys.stderr)

    def _wait(self, timeout: float) -> str:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            match = _READY.search(self._said())
            if match:
                return match.group(1)
            code = self._process.poll()
            if code is not None:
                raise BackendError(f"The server left with code {code}: {self._said()[-_LAST_OUTPUT:].strip()}")
            time.sleep(0.05)
        said = self._said()[-_LAST_OUTPUT:].strip()
        raise BackendError(f"The server was not ready after {timeout:.0f} s (launch_timeout): {said}")

    def _said(self) -> str:
        with open(self._output.name, errors="replace") as file:
            return file.read()

    # ---- as SGLang's class has them ----

    def generate(
        self,
        prompt: str | list[str],
        sampling_params: dict[str, Any] | None = None,
        return_logprob: bool | list[bool] | None = False,
        logprob_start_len: int | list[int] | None = None,
        top_logprobs_num: int | list[int] | None = None,
        lora_path: Any = None,
    ) -> str:
        """The answer of `/generate`, as a JSON string."""
        body = {
            "text": prompt,
            "sampling_params": sampling_params,
            "return_logprob": return_logprob,
            "logprob_start_len": logprob_start_len,
            "top_logprobs_num": top_logprobs_num,
            "lora_path": lora_path,
        }
        return json.dumps(loop.call(self.endpoint.post(body)))

    def encode(self, prompt: str | list[str]) -> str:
        """The answer of `/encode`, as a JSON string."""
        return json.dumps(loop.call(self.endpoint.encode(prompt)))

    async def async_generate(
        self, prompt: str, sampling_params: dict[str, Any] | None = None, session_id: str | None = None
    ) -> AsyncIterator[str]:
        """The text of an answer, piece by piece."""
        queue: asyncio.Queue[Any] = asyncio.Queue()
        here = asyncio.get_running_loop()
        body = {"text": prompt, "sampling_params": sampling_params, "session_id": session_id, "stream": True}

        async def pump() -> None:
            seen = 0
            async for answer in self.endpoint.post_stream(body):
                whole = len(answer["output_ids"]) == answer["meta_info"]["completion_tokens"]
                text = answer["text"][seen:] if whole else answer["text"]
                seen += len(text)
                here.call_soon_threadsafe(queue.put_nowait, text)

        future = loop.submit(pump())
        future.add_done_callback(lambda done: here.call_soon_threadsafe(queue.put_nowait, done))
        try:
            while isinstance(item := await queue.get(), str):
                if item:
                    yield item
            item.result()
        finally:
            future.cancel()

    add_request = async_generate

    def cache_prefix(self, prefix: str) -> None:
        """Compute `prefix`, so that prompts that begin with it start faster."""
        loop.call(self.endpoint.cache_prefix(prefix))

    def flush_cache(self) -> bool:
        """Empty the prefix cache."""
        return loop.call(self.endpoint.flush_cache())

    async def get_server_info(self) -> dict[str, Any] | bool:
        """Configuration and state of the server."""
        return await asyncio.wrap_future(loop.submit(self.endpoint.server_info()))

    def get_tokenizer(self) -> Any:
        """The model's tokenizer."""
        from radixlang.hub_files import resolve_model_path
        from radixlang.text.tokenizer import load_tokenizer

        info = self.endpoint.model_info
        return load_tokenizer(resolve_model_path(info["model_path"]), resolve_model_path(info["tokenizer_path"]))

    def start_profile(self) -> Any:
        """Begin a trace of the engine."""
        return loop.call(self.endpoint.start_profile())

    def stop_profile(self) -> Any:
        """Write the trace."""
        return loop.call(self.endpoint.stop_profile())

    def shutdown(self) -> None:
        """End the server; harmless when called twice."""
        endpoint = getattr(self, "endpoint", None)
        if endpoint is not None:
            loop.call(endpoint.close())
        self._finalizer()
        self._output.close()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()


def _flags(options: dict[str, Any]) -> list[str]:
    """Options as the command line takes them."""
    flags = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            flags.append(flag)
        elif isinstance(value, list | tuple):
            flags += [flag, *map(str, value)]
        elif value is not None and value is not False:
            flags += [flag, str(value)]
    return flags


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
