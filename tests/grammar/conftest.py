"""The packaged models' tokens, small made-up vocabularies, and a walk that an end token follows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from radixlang.grammar.schema import Obligations
from radixlang.grammar.vocabulary import Vocabulary
from tests.conftest import real_tokenizer


@pytest.fixture(scope="session")
def tokenizer(smollm2_path):
    return real_tokenizer(smollm2_path)


@pytest.fixture(scope="session")
def vocabulary(tokenizer) -> Vocabulary:
    return Vocabulary.of(tokenizer)


@pytest.fixture(scope="session")
def gemma(gemma3_path) -> Vocabulary:
    return Vocabulary.of(real_tokenizer(gemma3_path))


@pytest.fixture(scope="session")
def qwen(qwen_path) -> Vocabulary:
    return Vocabulary.of(real_tokenizer(qwen_path))


def small_vocabulary(*tokens: str | bytes) -> Vocabulary:
    """These tokens and an end token, the last id. Encodes by always taking the longest token that fits."""
    words = [token.encode() if isinstance(token, str) else token for token in tokens]
    by_length = sorted(range(len(words)), key=lambda index: -len(words[index]))

    def encode(text: str) -> list[int]:
        data, out = text.encode(), []
        while data:
            token = next(index for index in by_length if words[index] and data.startswith(words[index]))
            out.append(token)
            data = data[len(words[token]) :]
        return out

    return Vocabulary([*words, b"</s>"], (len(words),), encode)


def bits(mask: np.ndarray) -> np.ndarray:
    """For each token, uint8: whether a mask allows it."""
    return np.unpackbits(mask.view(np.uint8), bitorder="little")


def allowed(mask: np.ndarray) -> set[int]:
    """The tokens of a mask."""
    return set(np.flatnonzero(bits(mask)).tolist())


def passes(checks: Obligations, value: Any) -> bool:
    """Whether all that a value's parts owe by the residual check holds."""

    def walk(nodes: Any, value: Any) -> bool:
        if isinstance(value, dict):
            below = [walk(checks.property(nodes, key), item) for key, item in value.items()]
        else:
            items = value if isinstance(value, list) else []
            below = [walk(checks.item(nodes, index), item) for index, item in enumerate(items)]
        return all(below) and checks.valid(checks.due(nodes), value)

    return walk(checks.root, value)


def at_once(run: Callable[[], None], count: int) -> None:
    """Call `run` in so many threads and wait for them."""
    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
