"""The classical workloads of prefix caching, made from a seed: who asks what, after which answer, how much later.

A session is a few requests that depend on each other; a prompt is made of pieces: texts, which are a key and a
length (`content` turns them into token ids of any vocabulary), and the answers of earlier requests of the
session. So the same workload feeds an engine, a server and a simulator, and a million requests take no memory
before they are sent. Must not know who answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta

from radixlang.errors import ConfigError
from radixlang.plan import Ints

_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_A, _B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S32 = (np.uint64(n) for n in (30, 27, 31, 32))


class Text(NamedTuple):
    """`length` tokens of the endless text `key`, from token `start` on."""

    key: int
    length: int
    start: int = 0


Piece: TypeAlias = Text | int
"""a text, or the whole answer to the session's request of this index"""


class Request(NamedTuple):
    """One request of a session. It is sent `delay` seconds after the answers to all of `after` are complete."""

    prompt: tuple[Piece, ...]
    output: int
    after: tuple[int, ...] = ()
    delay: float = 0.0


class Session(NamedTuple):
    """Requests of one client; those that wait for nothing are sent at `start` (seconds)."""

    start: float
    requests: tuple[Request, ...]


def content(texts: Sequence[Text], vocab: int) -> Ints:
    """Token ids (int32) of the texts, one after the other."""
    if not texts:
        return np.zeros(0, np.int32)
    keys, lengths, starts = np.array(texts, np.uint64).T
    sizes = lengths.astype(np.int64)
    ends = lengths.cumsum()
    position = np.arange(ends[-1], dtype=np.uint64) + (starts + lengths - ends).repeat(sizes)
    return tokens_at(keys.repeat(sizes), position, vocab)


def tokens_at(key: np.ndarray | np.uint64, position: np.ndarray, vocab: int) -> Ints:
    """The token at each position (uint64) of the texts `key` (uint64, broadcast): the finaliser of SplitMix64
    (Steele et al. 2014) over a counter, scaled to the vocabulary."""
    x = (position + np.uint64(1)) * np.uint64(_GOLDEN) + key
    x ^= x >> _S30
    x *= _A
    x ^= x >> _S27
    x *= _B
    x ^= x >> _S31
    x >>= _S32
    x *= np.uint64(vocab)
    x >>= _S32
    return x.astype(np.int32)


def key_of(*parts: int) -> int:
    """A key that no other tuple of numbers has, for all that matters."""
    x = 0
    for part in parts:
        x = (x ^ part) * 0x2545F4914F6CDD1D + _GOLDEN & _WORD
        x ^= x >> 29
    return x >> 1


class Maker:
    """What a generator draws from. `scale` multiplies all lengths, `rate` is sessions a second (infinite: all
    start at 0), `think` multiplies the pauses between an answer and what follows it."""

    def __init__(self, seed: int, scale: float = 1.0, rate: float = math.inf, think: float = 1.0) -> None:
        self.seed = seed
        self._scale = scale
        self._rate = rate
        self._think = think
        self.random = np.random.default_rng(seed)
        self._texts = count()
        self._now = 0.0

    def start(self) -> float:
        """When the next session begins: exponential pauses (a Poisson process)."""
        if math.isfinite(self._rate):
            self._now += float(self.random.exponential(1 / self._rate))
        return self._now

    def size(self, tokens: float) -> int:
        return max(1, round(tokens * self._scale))

    def between(self, low: int, high: int) -> int:
        """A length between two lengths, both scaled."""
        return self.size(float(self.random.uniform(low, high)))

    def new(self, length: int) -> Text:
        """A text that nobody else has."""
        return Text(key_of(self.seed, next(self._texts)), length)

    def shared(self, kind: int, index: int, length: int) -> Text:
        """Text `index` of a kind, the same whenever it is asked for."""
        return Text(key_of(self.seed, -1 - kind, index), length)

    def pause(self, mean: float) -> float:
        """Seconds that somebody thinks."""
        return self._think * float(self.random.exponential(mean)) if self._think else 0.0

    def zipf(self, items: int, exponent: float) -> Callable[[], int]:
        """Draws 0 … items - 1, item i with a probability proportional to 1 / (i + 1) ** exponent."""
        weights = np.cumsum(1 / np.arange(1, items + 1) ** exponent)
        return lambda: int(np.searchsorted(weights, self.random.uniform(0, weights[-1])))


def chat(make: Maker) -> Iterator[Session]:
    """Conversations: a system prompt that all share, 3 to 8 turns, each after the answer and some thought."""
    system = make.shared(0, 0, make.size(256))
    while True:
        requests: list[Request] = []
        history: tuple[Piece, ...] = (system,)
        for turn in range(int(make.random.integers(3, 9))):
            history = (*history, make.new(make.between(24, 160)))
            after, pause = ((turn - 1,), make.pause(8.0)) if turn else ((), 0.0)
            requests.append(Request(history, make.between(48, 256), after, pause))
            history = (*history, turn)
        yield Session(make.start(), tuple(requests))


def few_shot(make: Maker) -> Iterator[Session]:
    """Single questions behind the examples of one of four tasks."""
    while True:
        examples = make.shared(1, int(make.random.integers(4)), make.size(1024))
        prompt = (examples, make.new(make.between(24, 64)))
        yield Session(make.start(), (Request(prompt, make.between(8, 32)),))


def rag(make: Maker) -> Iterator[Session]:
    """Questions about one of 64 documents: instructions, the document, the question. Popularity is Zipf's with
    exponent 1, as measured for web documents (Breslau et al. 1999 found 0.6 to 0.9 for caches behind others)."""
    draw = make.zipf(64, 1.0)
    system = make.shared(2, 0, make.size(256))
    while True:
        prompt = (system, make.shared(3, draw(), make.size(1024)), make.new(make.between(16, 40)))
        yield Session(make.start(), (Request(prompt, make.between(24, 96)),))


def agent(make: Maker) -> Iterator[Session]:
    """An agent with tools: their descriptions, a task, then 3 to 8 calls, each followed by the tool's result."""
    tools = make.shared(4, 0, make.size(1024))
    while True:
        history: tuple[Piece, ...] = (tools, make.new(make.between(48, 160)))
        requests: list[Request] = []
        for call in range(int(make.random.integers(3, 9))):
            after, pause = ((call - 1,), make.pause(0.5)) if call else ((), 0.0)
            requests.append(Request(history, make.between(24, 64), after, pause))
            history = (*history, call, make.new(make.between(64, 384)))
        yield Session(make.start(), tuple(requests))


def tree_of_thought(make: Maker) -> Iterator[Session]:
    """Three levels: 3 thoughts from each of the 2 best ones before, each rated by a request of its own; a level
    begins when the whole level before is rated (Yao et al. 2023)."""
    instructions = make.shared(5, 0, make.size(512))
    rate = make.shared(6, 0, make.size(32))
    while True:
        requests: list[Request] = []
        kept: list[tuple[Piece, ...]] = [(instructions, make.new(make.between(64, 192)))]
        rated: tuple[int, ...] = ()
        for _ in range(3):
            paths: list[tuple[Piece, ...]] = []
            ratings = []
            for path in kept:
                for _ in range(3):
                    thought = len(requests)
                    requests.append(Request(path, make.between(48, 96), rated))
                    paths.append((*path, thought))
                    ratings.append(len(requests))
                    requests.append(Request((*paths[-1], rate), make.size(8), (thought,)))
            rated = tuple(ratings)
            kept = [paths[i] for i in sorted(make.random.permutation(len(paths))[:2].tolist())]
        yield Session(make.start(), tuple(requests))


def self_consistency(make: Maker) -> Iterator[Session]:
    """Eight answers to one question at once, behind worked examples (Wang et al. 2022)."""
    examples = make.shared(7, 0, make.size(768))
    while True:
        prompt = (examples, make.new(make.between(64, 160)))
        yield Session(make.start(), tuple(Request(prompt, make.between(64, 160)) for _ in range(8)))


def long_document(make: Maker) -> Iterator[Session]:
    """Four to eight questions about a document of one's own, one after the other; none repeats the one before."""
    system = make.shared(8, 0, make.size(64))
    while True:
        document = make.new(make.between(4096, 8192))
        requests: list[Request] = []
        for index in range(int(make.random.integers(4, 9))):
            after, pause = ((index - 1,), make.pause(8.0)) if index else ((), 0.0)
            question = make.new(make.between(16, 48))
            requests.append(Request((system, document, question), make.between(32, 96), after, pause))
        yield Session(make.start(), tuple(requests))


WORKLOADS: dict[str, Callable[[Maker], Iterator[Session]]] = {
    "chat": chat,
    "few-shot": few_shot,
    "rag": rag,
    "agent": agent,
    "tree-of-thought": tree_of_thought,
    "self-consistency": self_consistency,
    "long-document": long_document,
}


def generator_of(name: str) -> Callable[[Maker], Iterator[Session]]:
    """The workload called `name`.

    Raises:
        ConfigError: there is none.
    """
    if name not in WORKLOADS:
        raise ConfigError(f"--workload {name!r} is not known; known are: {', '.join(WORKLOADS)}, all.")
    return WORKLOADS[name]


def names_of(text: str) -> tuple[str, ...]:
    """The workloads in a list separated by commas; `all` are all.

    Raises:
        ConfigError: one is not known.
    """
    names = tuple(WORKLOADS) if text == "all" else tuple(text.split(","))
    for name in names:
        generator_of(name)
    return names


class _Line(msgspec.Struct):
    """A line of a trace. Times are those of a clock or of a stopwatch, up to the year 5138."""

    timestamp: Annotated[float, Meta(ge=0, le=1e14)]
    input_length: Annotated[int, Meta(ge=1, le=1 << 24)]
    output_length: Annotated[int, Meta(ge=0, le=1 << 24)]
    hash_ids: list[int]


def read_trace(path: Path, block: int = 512) -> Iterator[Session]:
    """Sessions of one request each from a file of the Mooncake kind: a JSON object a line with `timestamp` (ms),
    `input_length`, `output_length` and `hash_ids`, one id for each `block` tokens of the prompt; equal ids after
    equal ids are equal text (Qin et al. 2024). Empty lines are passed over.

    Raises:
        ConfigError: the file cannot be read, or a line is not of this kind.
    """
    now = -math.inf
    decoder = msgspec.json.Decoder(_Line)
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    entry = decoder.decode(line)
                except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                    fields = "timestamp, input_length, output_length and hash_ids"
                    raise ConfigError(f"--trace {path}, line {number}: needs {fields}: {error}.") from None
                left, pieces = entry.input_length, []
                for block_id in entry.hash_ids:
                    pieces.append(Text(key_of(block_id), min(block, left)))
                    left -= pieces[-1].length
                if left > 0:  # ids may cover whole blocks only
                    pieces.append(Text(key_of(-1, number), left))
                prompt = tuple(piece for piece in pieces if piece.length > 0)
                before, now = now, entry.timestamp / 1000
                if now < before:
                    raise ConfigError(f"--trace {path}, line {number}: its timestamp is before the line's above.")
                yield Session(now, (Request(prompt, max(1, entry.output_length)),))
    except OSError as error:
        raise ConfigError(f"--trace {path} cannot be read: {error.strerror}.") from None
