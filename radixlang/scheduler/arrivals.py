"""Turns a `Generate` into a `Request`, or refuses it in one sentence. The server has checked most of this; the
engine checks again because a bad request must never reach a step. Must not know queues or pages.
"""

from __future__ import annotations

import random

import msgspec

from radixlang.errors import RequestError
from radixlang.messages import Generate, unpack_ids
from radixlang.plan import Ints
from radixlang.sampling_params import SEED_MASK, RowSampling
from radixlang.scheduler.limits import SchedulerLimits
from radixlang.scheduler.request import Request

_WORD = (1 << 64) - 1


def mixed_seed(seed: int, index: int) -> int:
    """The seed of sample `index` of a prompt: the client's own for index 0, unrelated ones for the others
    (the finaliser of SplitMix64, Steele et al. 2014)."""
    if index == 0:
        return seed & SEED_MASK
    x = (seed + index * 0x9E3779B97F4A7C15) & _WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return (x ^ (x >> 31)) & SEED_MASK


class Arrivals:
    """Makes requests; draws seeds for those that bring none."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self._limits = limits
        self._random = random.Random(limits.random_seed)

    def request(self, message: Generate, now: float) -> Request:
        """The request of `message`.

        Raises:
            RequestError: it can never be served.
        """
        tokens: Ints = unpack_ids(message.input_ids)
        limit = self._limit(message, tokens)
        params = message.sampling
        eos_ids = message.eos_ids or self._limits.eos_ids
        drawn = self._random.getrandbits(63)
        seed = drawn if params.sampling_seed is None else mixed_seed(params.sampling_seed, message.sample_index)
        sampling = msgspec.structs.replace(RowSampling.of(params, eos_ids, 0), seed=seed)
        if message.grammar is not None:
            # The masks see to it (see `Constraints.masks`): the device does not know where a grammar must end.
            sampling = msgspec.structs.replace(sampling, min_new_tokens=0)
        request = Request(message, tokens, limit, sampling, eos_ids, now)
        if self._limits.low_values_first:
            request.priority = -request.priority
        return request

    def _limit(self, message: Generate, tokens: Ints) -> int:
        """Number of tokens, prompt and output, at which the request ends; checks that it can get there."""
        limits = self._limits
        size = len(tokens)
        if size == 0:
            raise RequestError("The prompt has no tokens; send at least one.", "input_ids")
        if limits.vocab_size and not (tokens.min() >= 0 and tokens.max() < limits.vocab_size):
            raise RequestError(
                f"The prompt holds a token id outside the vocabulary of {limits.vocab_size} tokens.", "input_ids"
            )
        if size > limits.capacity:
            raise RequestError(
                f"The prompt has {size} tokens, but the KV cache holds only {limits.capacity}; shorten the prompt "
                "or start the server with more KV memory.",
                "input_ids",
            )
        if size > limits.context_length:
            raise RequestError(
                f"The prompt has {size} tokens, but the context length is {limits.context_length}.", "input_ids"
            )
        if message.return_logprob and message.logprob_start_len > size:
            raise RequestError(
                f"logprob_start_len is {message.logprob_start_len}, beyond the prompt of {size} tokens.",
                "logprob_start_len",
            )
        if message.embed:
            return size
        if limits.encoder:
            raise RequestError("This model embeds texts and cannot generate any; use the embeddings API.")
        new = message.sampling.max_new_tokens
        if new is None:
            return max(size, min(limits.context_length, limits.capacity + 1))
        if size + new > limits.context_length:
            raise RequestError(
                f"The prompt has {size} tokens and max_new_tokens is {new}, together {size + new}, but the "
                f"context length is {limits.context_length}.",
                "max_new_tokens",
            )
        return size + new
