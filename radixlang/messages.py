"""The messages that go round the ring of processes: server → engine → detokenizer → server.

One direction only. Tagged `msgspec.Struct`s, one per step and not one per token; token ids travel as int32
bytes. Must not know tokenizers, torch or HTTP.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
import numpy as np

from radixlang.sampling_params import SamplingParams

_ID = np.dtype("<i4")


def pack_ids(ids: Any) -> bytes:
    """Token ids (list or array) as little-endian int32 bytes."""
    return np.asarray(ids, _ID).tobytes()


def unpack_ids(data: bytes) -> np.ndarray:
    """int32 array of the packed ids (read-only view)."""
    return np.frombuffer(data, _ID)


# ---- server → engine ----


class GrammarSpec(msgspec.Struct, frozen=True, array_like=True):
    """A constraint on a text. `kind` json_schema, regex, choice, ebnf or structural_tag; `text` is the schema's
    JSON, the pattern, a JSON list of choices, a GBNF or Lark grammar, or the tag's JSON. The kind `any` holds
    nothing back: it is for thoughts that have a budget.
    """

    kind: str
    text: str
    any_whitespace: bool = False
    """JSON may be laid out freely; otherwise its separators are exactly `, ` and `: `"""
    refuse_residual: bool = False
    """refuse a schema that no grammar can state exactly, instead of checking values as they are completed"""
    thinking_end: tuple[int, ...] = ()
    """the text begins with thoughts, which end with these token ids; the constraint holds after them"""
    thinking_budget: int | None = None
    """most tokens of the thoughts; then their end is forced"""
    thinking_start: int | None = None
    """there are thoughts only if this token comes first; None: there always are"""


class PinWish(msgspec.Struct, frozen=True, array_like=True):
    """Keep the pages that a request leaves behind under the pin `name`, which then ends in `seconds`."""

    name: str
    seconds: float


class Generate(msgspec.Struct, tag=True, array_like=True):
    """Start one sequence (the server has already expanded `n` and batches)."""

    rid: str
    input_ids: bytes
    sampling: SamplingParams
    namespace: str = ""
    priority: int = 0
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    token_ids_logprob: tuple[int, ...] = ()
    embed: bool = False
    #: which of the n samples of one prompt this is; enters the seed so that samples differ
    sample_index: int = 0
    received: float = 0.0
    #: ids that end a text, as the tokenizer's files name them; empty: the model's config decides
    eos_ids: tuple[int, ...] = ()
    grammar: GrammarSpec | None = None
    pin: PinWish | None = None


class Abort(msgspec.Struct, tag=True, array_like=True):
    """End the request `rid` wherever it is; unknown ids are ignored. `quiet`: nobody waits for an ending
    (the client left, or the text was ended by a stop string)."""

    rid: str
    quiet: bool = True
    message: str = "Aborted."


class Control(msgspec.Struct, tag=True, array_like=True):
    """Call a method of the engine's control table; answered by one `Reply` with the same id."""

    id: int
    method: str
    arguments: dict[str, Any] = {}


class Drain(msgspec.Struct, tag=True, array_like=True):
    """Admit nothing new; when the last request has ended, stop."""


ToEngine: TypeAlias = Generate | Abort | Control | Drain


# ---- engine → detokenizer → server ----


class Logprobs(msgspec.Struct, array_like=True):
    """n positions: chosen token's log-probability (float32 bytes), k best (ids, values), asked-for ids."""

    ids: bytes
    chosen: bytes
    top_ids: bytes
    top: bytes
    asked: bytes


class Opened(msgspec.Struct, tag=True, array_like=True):
    """The engine took the request over: what the detokenizer needs for its text."""

    rid: str
    prompt_tail: bytes
    sampling: SamplingParams


class Tokens(msgspec.Struct, tag=True, array_like=True):
    """New tokens of one step for many requests, column-wise.

    `counts[i]` tokens of `ids` belong to `rids[i]`. `finishes[i]` is None while the request goes on, else the
    finish reason as clients see it (`{"type": "stop", "matched": 2}`, `{"type": "length", "length": 64}`).
    `metas[i]` is sent with a request's first tokens and with its last (see `RequestMeta`).
    """

    rids: list[str]
    counts: list[int]
    ids: bytes
    finishes: list[dict[str, Any] | None]
    metas: list[RequestMeta | None]
    prompt_logprobs: dict[int, Logprobs] = {}
    output_logprobs: dict[int, Logprobs] = {}


class RequestMeta(msgspec.Struct, array_like=True):
    """Counts and times of one request (seconds since the epoch)."""

    prompt_tokens: int
    cached_tokens: int
    num_retractions: int = 0
    queue_time: float = 0.0
    first_token_time: float = 0.0
    #: those of `cached_tokens` that were found in host memory, and in storage
    cached_host: int = 0
    cached_storage: int = 0


class Embedding(msgspec.Struct, tag=True, array_like=True):
    """The answer to a `Generate(embed=True)`: float32 bytes, unit length not yet enforced."""

    rid: str
    vector: bytes
    meta: RequestMeta


class Failed(msgspec.Struct, tag=True, array_like=True):
    """The one ending of a request that could not be served."""

    rid: str
    status: int
    message: str
    constraint: bool = False
    """it was the request's constraint that failed"""
    running: bool = False
    """the engine still works on it: the server sends an `Abort`"""


class Reply(msgspec.Struct, tag=True, array_like=True):
    """The answer to a `Control`; without `ok` the value is a sentence, `status` says whose fault it is and
    `param` which argument's."""

    id: int
    ok: bool
    value: Any
    status: int = 500
    param: str | None = None


class Stats(msgspec.Struct, tag=True, array_like=True):
    """A snapshot for the metrics page, sent at most a few times a second and when the engine falls idle.

    `gauges` are values as they are now, `counters` totals since the start, `times` durations in seconds since the
    last snapshot, by the name of their histogram.
    """

    gauges: dict[str, float]
    counters: dict[str, float]
    idle: bool = False
    times: dict[str, list[float]] = {}


class Ready(msgspec.Struct, tag=True, array_like=True):
    """A process has started. `info` is what `/server_info` shows of it."""

    process: str
    info: dict[str, Any] = {}


class Progress(msgspec.Struct, tag=True, array_like=True):
    """How far a long start-up task is: shown on the terminal. `total` 0 means unknown."""

    task: str
    done: int
    total: int


class Dead(msgspec.Struct, tag=True, array_like=True):
    """A process ends because of an error; the traceback is for the log, the message for the terminal."""

    process: str
    message: str
    traceback: str
    config_fault: bool = False
    follows: bool = False
    """because another process has died, which is the news"""


class Stopped(msgspec.Struct, tag=True, array_like=True):
    """The engine has drained and is about to leave."""


FromEngine: TypeAlias = Opened | Tokens | Embedding | Failed | Reply | Stats | Ready | Progress | Dead | Stopped


class Texts(msgspec.Struct, tag=True, array_like=True):
    """`Tokens` with its text: the detokenizer's output, column-wise like it.

    `ids`/`counts` may be fewer than the engine made: what follows a stop string is cut. A request ended here by
    a stop string has `ends[i]` True while the engine still knows it: the server sends an `Abort`.
    """

    rids: list[str]
    texts: list[str]
    counts: list[int]
    ids: bytes
    finishes: list[dict[str, Any] | None]
    metas: list[RequestMeta | None]
    ends: list[bool]
    prompt_logprobs: dict[int, Logprobs] = {}
    output_logprobs: dict[int, Logprobs] = {}


ToServer: TypeAlias = Texts | Embedding | Failed | Reply | Stats | Ready | Progress | Dead | Stopped
