"""A byte tokenizer, an engine of asyncio tasks that answers by rule, and a real HTTP server around them.

The engine's answer depends on the prompt alone: it goes through the alphabet from a letter that the prompt
decides. Marks in the prompt change that: `[say:TEXT]` says TEXT and ends, `[eos:N]` ends after N letters,
`[fail:STATUS]` is refused, `[mid]` fails after three letters, `[wait]` never says anything.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

from radixlang.cache import make_cache
from radixlang.cache.view import tree_view
from radixlang.config import Config
from radixlang.errors import RequestError
from radixlang.messages import (
    Abort,
    Control,
    Embedding,
    Failed,
    Generate,
    Logprobs,
    Reply,
    RequestMeta,
    Stats,
    Texts,
    pack_ids,
    unpack_ids,
)
from radixlang.server.app import create_app
from radixlang.server.connection import http_server
from radixlang.server.hub import Hub
from radixlang.text.chat_template import ChatTemplate
from radixlang.text.parts import advice_of

EOS, BOS = 256, 257
TEMPLATE = ChatTemplate(
    "<bos>{% if tools %}tools={{ tools | tojson }}\n{% endif %}"
    "{% if mood is defined %}mood={{ mood }}\n{% endif %}"
    "{% for message in messages %}"
    "{% if loop.first and message.role == 'assistant' %}{{ raise_exception('The user speaks first') }}{% endif %}"
    "<{{ message.role }}>{{ message.content }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %}{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
    {},
)
VOCAB = 258
CONTEXT = 1000
HIDDEN = 8


class ByteTokenizer:
    """One token a byte; encode adds a begin-of-text token like many real tokenizers."""

    vocab_size = VOCAB
    eos_ids = (EOS,)
    chat_template = "fake"

    def __init__(self, generation_config: dict[str, Any] | None = None, marks: Sequence[str] = ()) -> None:
        """`marks`: texts that are one token each."""
        self.marks = {mark: VOCAB + i for i, mark in enumerate(marks)}
        self.generation_config = advice_of(generation_config or {}, "the fake")
        self.threads: list[str] = []

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.threads.append(threading.current_thread().name)
        return [BOS] * add_special_tokens + self.ids(text)

    def ids(self, text: str) -> list[int]:
        parts = re.split(f"({'|'.join(map(re.escape, ['<bos>', *self.marks]))})", text)
        ids = [[BOS] if p == "<bos>" else [self.marks[p]] if p in self.marks else [*p.encode()] for p in parts]
        return [token for part in ids for token in part]

    def encode_batch(self, texts: list[str], add_special_tokens: bool = True) -> list[list[int]]:
        return [self.encode(text, add_special_tokens) for text in texts]

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return b"".join(self.token_bytes(i) for i in ids if i < 256 or not skip_special_tokens).decode(
            "utf-8", "replace"
        )

    def token_bytes(self, token: int) -> bytes:
        names = {EOS: "<eos>", BOS: "<bos>"} | {token: mark for mark, token in self.marks.items()}
        return bytes([token]) if token < 256 else names[token].encode()

    def template_facts(self) -> dict[str, Any] | None:
        return {"source": "{{ messages[0].content }}", "variables": {}, "bos": ""}

    def apply_chat_template(
        self,
        messages: list[dict[str, Any]],
        tools: Any = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        return TEMPLATE.render(messages, tools, add_generation_prompt, continue_final_message, kwargs)


@dataclass
class Running:
    message: Generate
    prompt: list[int]
    script: list[int]
    fail_after: int | None = None
    decoder: Any = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))
    made: int = 0
    held: str = ""
    first: bool = True


class FakeEngine:
    """Engine and detokenizer in one; `send` is what the hub writes to."""

    def __init__(self, delay: float = 0.0, max_running: int = 10_000) -> None:
        self.delay = delay
        self.max_running = max_running
        self.hub: Hub
        self.running: dict[str, Running] = {}
        self.waiting: dict[str, Running] = {}
        self.received: list[Generate] = []
        self.aborts: list[Abort] = []
        self.cached = 0
        self.tree = make_cache(16)
        """what `/cache_tree` shows; nothing else goes by it"""
        self.looks = 0
        self.pins: dict[str, dict[str, Any]] = {}
        self.profiles: list[dict[str, Any]] = []
        self._task: asyncio.Task[None] | None = None

    # ---- what the hub sends ----

    def send_all(self, messages: Sequence[Any]) -> None:
        for message in messages:
            self.send(message)

    def send(self, message: Any) -> None:
        if isinstance(message, Generate):
            self.received.append(message)
            if (pin := message.pin) is not None and len(message.input_ids) >= 4 * 16:
                tokens = len(message.input_ids) // 4
                self.pins[pin.name] = {"id": pin.name, "tokens": tokens, "branches": 1, "expires": pin.seconds}
            asyncio.get_running_loop().call_soon(self._start, message)
        elif isinstance(message, Abort):
            self.aborts.append(message)
            gone = self.running.pop(message.rid, None) or self.waiting.pop(message.rid, None)
            if gone is not None and not message.quiet:
                asyncio.get_running_loop().call_soon(
                    self.hub.dispatch, [Failed(message.rid, 499, message.message)]
                )
        elif isinstance(message, Control):
            asyncio.get_running_loop().call_soon(self.hub.dispatch, [self._control(message)])

    def _control(self, message: Control) -> Reply:
        if message.method == "flush_cache":
            return Reply(message.id, True, not self.running)
        if message.method == "cache_tree":
            return self._answer(message, lambda: tree_view(self.tree, **message.arguments))
        if message.method == "requests":
            return self._answer(message, lambda: self._requests(message.arguments["limit"]))
        if message.method == "server_info":
            return Reply(message.id, True, {"running": len(self.running)})
        if message.method == "pins":
            name = message.arguments.get("name")
            return Reply(message.id, True, [pin for pin in self.pins.values() if name in (None, pin["id"])])
        if message.method == "unpin":
            gone = [self.pins.pop(name, None) for name in message.arguments["names"]]
            return Reply(message.id, True, sum(pin is not None for pin in gone))
        if message.method == "start_profile":
            self.profiles.append(message.arguments)
            return Reply(
                message.id, True, {"path": "x.trace.json.gz", "num_steps": message.arguments["num_steps"]}
            )
        if message.method == "stop_profile":
            if not self.profiles:
                return Reply(message.id, False, "No profile is running.", 400)
            self.profiles.pop()
            return Reply(message.id, True, {"path": "x.trace.json.gz"})
        return Reply(message.id, False, f"Unknown control method {message.method!r}.")

    def _answer(self, message: Control, work: Callable[[], Any]) -> Reply:
        self.looks += 1
        try:
            return Reply(message.id, True, work())
        except RequestError as error:
            return Reply(message.id, False, str(error), error.status, error.param)

    def _requests(self, limit: int) -> dict[str, Any]:
        def facts(run: Running) -> dict[str, Any]:
            prompt, most = len(run.prompt), run.message.sampling.max_new_tokens or 0
            common = {"rid": run.message.rid, "received": run.message.received, "priority": 0, "retractions": 0}
            return common | {
                "prompt_tokens": prompt,
                "tokens": prompt + run.made,
                "limit": prompt + most,
                "constrained": False,
                "cached_tokens": min(self.cached, prompt - 1),
                "computed_tokens": prompt + run.made - 1,
                "waits": [],
            }

        return {
            "running": [facts(run) for run in list(self.running.values())[:limit]],
            "waiting": [facts(run) for run in list(self.waiting.values())[:limit]],
            "num_running": len(self.running),
            "num_waiting": len(self.waiting),
        }

    def _start(self, message: Generate) -> None:
        prompt = unpack_ids(message.input_ids).tolist()
        spelled = [
            bytes([i]) if i < 256 else self.hub.tokenizer.token_bytes(i) for i in prompt if i not in (EOS, BOS)
        ]
        text = b"".join(spelled).decode("utf-8", "replace")
        if message.embed:
            angles = np.arange(1, HIDDEN + 1) * (sum(prompt) + 1)
            vector = (10 * np.sin(angles)).astype("<f4").tobytes()
            meta = RequestMeta(len(prompt), min(self.cached, len(prompt) - 1))
            self.hub.dispatch([Embedding(message.rid, vector, meta)])
            return
        if refused := re.search(r"\[fail:(\d+)\]", text):
            held = message.grammar is not None
            self.hub.dispatch([Failed(message.rid, int(refused[1]), "Refused by the fake engine.", held)])
            return
        if len(self.running) >= self.max_running:
            self.hub.dispatch([Failed(message.rid, 503, f"The queue holds {self.max_running} requests.")])
            return
        start = sum(prompt) + message.sample_index
        script = [97 + (start + i) % 26 for i in range(CONTEXT)]
        if said := re.search(r"\[say:(.*?)\]", text, re.S):
            tokenizer = self.hub.tokenizer
            script = [*(tokenizer.ids(said[1]) if tokenizer else said[1].encode()), EOS]
        elif ends := re.search(r"\[eos:(\d+)\]", text):
            script[int(ends[1])] = EOS
        run = Running(message, prompt, script, 3 if "[mid]" in text else None)
        if "[wait]" in text:
            self.waiting[message.rid] = run
            return
        self.running[message.rid] = run
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._loop())

    # ---- the loop ----

    async def _loop(self) -> None:
        while self.running:
            self._step()
            await asyncio.sleep(self.delay)
        self.hub.dispatch([self._stats(idle=True)])

    def _stats(self, idle: bool) -> Stats:
        return Stats(
            {
                "num_running_reqs": float(len(self.running)),
                "num_queue_reqs": 0.0,
                "gen_throughput": 0.0 if idle else 9.0,
            },
            {"num_retracted_requests_total": 2.0},
            idle,
        )

    def _step(self) -> None:
        out = Texts([], [], [], b"", [], [], [])
        failed = []
        for rid, run in list(self.running.items()):
            if run.fail_after is not None and run.made == run.fail_after:
                failed.append(Failed(rid, 500, "Broke half-way."))
                del self.running[rid]
                continue
            self._advance(rid, run, out)
        self.hub.dispatch([out, *failed, self._stats(idle=False)])

    def _advance(self, rid: str, run: Running, out: Texts) -> None:
        message, sampling = run.message, run.message.sampling
        row = len(out.rids)
        meta = RequestMeta(len(run.prompt), min(self.cached, len(run.prompt) - 1))
        ids: list[int] = []
        finish: dict[str, Any] | None = None
        end = False
        limit = sampling.max_new_tokens
        assert limit is not None
        if limit:
            token = run.script[run.made]
            ids = [token]
            run.made += 1
            text = run.decoder.decode(bytes([token])) if token < 256 else ""
            if token >= VOCAB:
                text += self.hub.tokenizer.token_bytes(token).decode()
            run.held += text
            if (token == EOS and not sampling.ignore_eos) or token in sampling.stop_token_ids:
                finish = {"type": "stop", "matched": token}
        for stop in sampling.stop:
            if (at := run.held.find(stop)) >= 0:
                run.held = run.held[: at + (len(stop) if sampling.no_stop_trim else 0)]
                finish, end = {"type": "stop", "matched": stop}, True
        if finish is None and run.made >= limit:
            finish = {"type": "length", "length": limit}
        keep = 0 if finish else max((len(stop) - 1 for stop in sampling.stop), default=0)
        cut = max(len(run.held) - keep, 0)
        out.rids.append(rid)
        out.texts.append(run.held[:cut])
        run.held = run.held[cut:]
        out.counts.append(len(ids))
        out.ids += pack_ids(ids)
        out.finishes.append(finish)
        out.metas.append(meta if run.first or finish else None)
        out.ends.append(end)
        if message.return_logprob:
            out.output_logprobs[row] = self._logprobs(message, ids)
            if run.first and message.logprob_start_len >= 0:
                prompt = run.prompt[message.logprob_start_len + 1 :]
                out.prompt_logprobs[row] = self._logprobs(message, prompt)
        run.first = False
        if finish is not None and not end:
            self.running.pop(rid, None)

    def _logprobs(self, message: Generate, ids: list[int]) -> Logprobs:
        chosen = np.array([-0.5 - i / 1000 for i in ids], dtype="<f4")
        k = message.top_logprobs_num
        top_ids = [(i + j) % VOCAB for i in ids for j in range(k)]
        top = [-0.5 - i / 1000 - j for i in ids for j in range(k)]
        asked = [-t / 100 for _ in ids for t in message.token_ids_logprob]
        return Logprobs(
            pack_ids(ids),
            chosen.tobytes(),
            pack_ids(top_ids),
            np.array(top, dtype="<f4").tobytes(),
            np.array(asked, dtype="<f4").tobytes(),
        )


def make_hub(
    engine: FakeEngine | None = None,
    generation_config: dict[str, Any] | None = None,
    info: dict[str, Any] | None = None,
    tokenizer: bool = True,
    marks: Sequence[str] = (),
    **flags: Any,
) -> tuple[Hub, FakeEngine, Config]:
    engine = engine or FakeEngine()
    config = Config.from_flat(**{"model_path": "fake/model", **flags})
    facts = {
        "context_length": CONTEXT,
        "vocab_size": VOCAB + len(marks),
        "max_total_num_tokens": 4096,
        "page_size": 16,
        "num_pages": 256,
        "eos_ids": [EOS],
        "is_generation": True,
        "hidden_size": HIDDEN,
        "device": "cpu",
        "architecture": "FakeForCausalLM",
        "weight_bytes": 2**30,
        **(info or {}),
    }
    hub = Hub(config, ByteTokenizer(generation_config, marks) if tokenizer else None, facts, engine)
    engine.hub = hub
    return hub, engine, config


class Live:
    """A uvicorn server in a thread."""

    def __init__(self, hub: Hub, engine: FakeEngine, config: Config) -> None:
        self.hub, self.engine, self.config = hub, engine, config
        self._server = http_server(create_app(hub, config))
        self._server.config.port = 0
        self.loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        end = time.monotonic() + 10
        while not self._server.started:
            assert time.monotonic() < end, "the server did not start"
            time.sleep(0.005)
        self.port: int = self._server.servers[0].sockets[0].getsockname()[1]
        self.base = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.base, timeout=20)

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        await self._server.serve()

    def on_loop(self, function: Callable[[], Any]) -> None:
        """Run `function` on the server's loop and wait for it."""
        done = threading.Event()
        self.loop.call_soon_threadsafe(lambda: (function(), done.set()))
        assert done.wait(5)

    def post(self, path: str, body: Any, **kwargs: Any) -> httpx.Response:
        return self.http.post(path, json=body, **kwargs)

    def ok(self, path: str, body: Any) -> Any:
        response = self.post(path, body)
        assert response.status_code == 200, response.text[:300]
        return response.json()

    def refused(self, path: str, body: Any, status: int = 400) -> dict[str, Any]:
        """The error object of a request that must be refused."""
        response = self.post(path, body)
        assert response.status_code == status, (response.status_code, response.text[:300])
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        return error

    def events(self, path: str, body: Any) -> list[Any]:
        """The chunks of a stream; checks the framing and the one [DONE]."""
        response = self.post(path, {**body, "stream": True})
        assert response.status_code == 200, response.text[:300]
        assert response.headers["content-type"].startswith("text/event-stream")
        blocks = response.text.split("\n\n")
        assert blocks.pop() == ""
        assert blocks.pop() == "data: [DONE]"
        assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
        return [json.loads(block[6:]) for block in blocks]

    def until(self, condition: Any, seconds: float = 5.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "the awaited state did not come"
            time.sleep(0.01)

    def close(self) -> None:
        self.http.close()
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(10)
        self.hub.close()


@contextlib.contextmanager
def live(**options: Any) -> Iterator[Live]:
    server = Live(*make_hub(**options))
    try:
        yield server
    finally:
        server.close()
