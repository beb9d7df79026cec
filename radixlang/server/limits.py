"""What the loaded model can serve, and the checks of a request against it.

Every refusal is a `RequestError` whose sentence names the numbers. Must not know HTTP or messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from radixlang.config import GrammarConfig
from radixlang.errors import RequestError
from radixlang.grammar.spec import make_spec, spec_of
from radixlang.messages import GrammarSpec
from radixlang.sampling_params import SamplingParams
from radixlang.server.stream import GenerateRequest
from radixlang.text.stop_regex import compile_stop_regexes

MAX_TOP_LOGPROBS = 128
MAX_ASKED_LOGPROBS = 1024
MAX_RID = 256
_INT32 = 2**31


def complete_info(info: dict[str, Any], is_embedding: bool) -> dict[str, Any]:
    """The engine's facts with those that follow from them: tokens in the KV pool, whether text is generated.

    Page 0 of the pool is a sink and holds nothing.
    """
    out = dict(info)
    if "max_total_num_tokens" not in out and "num_pages" in out:
        out["max_total_num_tokens"] = (out["num_pages"] - 1) * out["page_size"]
    out.setdefault("is_generation", not out.get("encoder", False) and not is_embedding)
    return out


class Limits:
    """Limits of the loaded model.

    `info` (from `complete_info`): `context_length`, `max_total_num_tokens` (tokens in the KV
    pool), `vocab_size`, `is_generation`.
    """

    def __init__(
        self,
        info: dict[str, Any],
        auto_truncate: bool,
        has_tokenizer: bool,
        grammar: GrammarConfig = GrammarConfig(),
    ) -> None:
        self.vocab_size = int(info["vocab_size"])
        self.context_length = int(info["context_length"])
        self.is_generation = bool(info["is_generation"])
        # An encoder keeps no KV.
        pool = self.context_length if info.get("encoder") else int(info["max_total_num_tokens"])
        self.longest = min(self.context_length, pool)
        self.what = (
            f"the context length of {self.context_length} tokens"
            if self.longest == self.context_length
            else f"the KV pool of {pool} tokens"
        )
        self.max_req_input_len = self.longest - 1
        self.auto_truncate = auto_truncate
        self.has_tokenizer = has_tokenizer
        self._any_whitespace = grammar.constrained_json_any_whitespace
        self._refuse_residual = grammar.grammar_residual == "refuse"

    def check_kind(self, embed: bool) -> None:
        """Refuse generation on an embedding model and the reverse."""
        if embed and self.is_generation:
            raise RequestError(
                "This model generates text and makes no embeddings; serve it with --is-embedding for that."
            )
        if not embed and not self.is_generation:
            raise RequestError("This model makes embeddings and generates no text; use /v1/embeddings or /encode.")

    def check_ids(self, ids: Sequence[int] | np.ndarray, name: str = "input_ids") -> None:
        """Refuse an empty prompt and ids outside the vocabulary."""
        if not len(ids):
            raise RequestError("The prompt is empty: it has no tokens.", name)
        values = token_array(ids)
        low, high = values.min(), values.max()
        if low < 0 or high >= self.vocab_size:
            wrong = low if low < 0 else high
            raise RequestError(
                f"{name} holds token id {wrong}, outside the vocabulary of {self.vocab_size} tokens.", name
            )

    def check_size(self, text: str, longest_token: int, param: str) -> None:
        """Refuse a text that is too long whatever its tokens are, before anybody cuts it into tokens.
        `longest_token` is the length in bytes of the vocabulary's longest token."""
        most = self.longest * max(longest_token, 128)
        if len(text) > most and not self.auto_truncate:
            raise RequestError(
                f"The prompt has {len(text)} characters; {self.what} cannot hold more than {most}.", param
            )

    def fit(self, request: GenerateRequest, ids: np.ndarray) -> tuple[np.ndarray, SamplingParams]:
        """The prompt and parameters as the engine shall have them.

        Raises:
            RequestError: anything that cannot be served, in the client's words.
        """
        try:
            return self._fit(request, ids)
        except RequestError as error:
            if not request.aliases:
                raise
            text = str(error)
            for ours, theirs in request.aliases.items():
                text = text.replace(ours, theirs)
            raise RequestError(text, request.aliases.get(error.param or "", error.param)) from None

    def _fit(self, request: GenerateRequest, ids: np.ndarray) -> tuple[np.ndarray, SamplingParams]:
        param = request.param or ("input_ids" if request.input_ids is not None else "text")
        self.check_ids(ids, param)
        if not -_INT32 <= request.priority < _INT32:
            raise RequestError(f"priority must be a 32-bit integer, got {request.priority}.", "priority")
        if request.embed:
            if len(ids) > self.longest:
                if not self.auto_truncate:
                    raise RequestError(f"The input has {len(ids)} tokens, more than {self.what}.", param)
                ids = ids[: self.longest]
            return ids, request.sampling
        sampling = self._sampling(request.sampling)
        if len(ids) > self.max_req_input_len:
            if not self.auto_truncate:
                raise RequestError(
                    f"The prompt has {len(ids)} tokens; {self.what} leaves room for {self.max_req_input_len}.",
                    param,
                )
            ids = ids[: self.max_req_input_len]
        room = self.longest - len(ids)
        wanted = sampling.max_new_tokens
        if wanted is None or (wanted > room and self.auto_truncate):
            minimum = min(sampling.min_new_tokens, room) if self.auto_truncate else sampling.min_new_tokens
            sampling = msgspec.structs.replace(sampling, max_new_tokens=room, min_new_tokens=minimum)
            if minimum > room:
                raise RequestError(
                    f"min_new_tokens ({minimum}) exceeds the {room} tokens that the prompt of {len(ids)} tokens "
                    f"leaves of {self.what}.",
                    "min_new_tokens",
                )
        elif wanted > room:
            raise RequestError(
                f"The prompt has {len(ids)} tokens and max_new_tokens is {wanted}: {len(ids) + wanted} together, "
                f"more than {self.what}.",
                "max_new_tokens",
            )
        self._check_logprobs(request, len(ids))
        return ids, self._constrain(request, sampling)

    def _sampling(self, sampling: SamplingParams) -> SamplingParams:
        sampling.verify(self.vocab_size)
        compile_stop_regexes(sampling.stop_regex)
        if not self.has_tokenizer and (sampling.stop or sampling.stop_regex or sampling.min_new_tokens):
            name = "stop" if sampling.stop else "stop_regex" if sampling.stop_regex else "min_new_tokens"
            raise RequestError(f"{name} needs a tokenizer; this server runs with --skip-tokenizer-init.", name)
        # Values beyond these bounds mean the same as the bounds, and numbers in messages have 64 bits.
        changes: dict[str, Any] = {}
        if sampling.top_k >= self.vocab_size:
            changes["top_k"] = -1
        if sampling.stream_interval is not None and sampling.stream_interval >= _INT32:
            changes["stream_interval"] = _INT32 - 1
        if sampling.custom_params is not None:
            changes["custom_params"] = None
        return msgspec.structs.replace(sampling, **changes) if changes else sampling

    def spec(self, kind: str, text: str, param: str) -> GrammarSpec:
        """A constraint as this server's options have it. `param`: what the client calls it.

        Raises:
            GrammarError: it is too long, or its JSON cannot be read.
        """
        return make_spec(kind, text, self._any_whitespace, self._refuse_residual, param)

    def _constrain(self, request: GenerateRequest, sampling: SamplingParams) -> SamplingParams:
        """Give the request the constraint that its parameters hold; the parameters without it."""
        own, grammar = request.grammar, spec_of(sampling, self._any_whitespace, self._refuse_residual)
        if grammar is not None and own is not None:
            raise RequestError("A request takes one constraint, and this one has two.", grammar.kind)
        grammar = grammar or own
        if grammar is None:
            return sampling
        if not self.has_tokenizer:
            raise RequestError(
                "Constraints need a tokenizer; this server runs with --skip-tokenizer-init.", grammar.kind
            )
        request.grammar = grammar
        return msgspec.structs.replace(sampling, json_schema=None, regex=None, ebnf=None, structural_tag=None)

    def _check_logprobs(self, request: GenerateRequest, prompt_tokens: int) -> None:
        start, top = request.logprob_start_len, request.top_logprobs_num
        if not -1 <= start <= prompt_tokens:
            raise RequestError(
                f"logprob_start_len must be between -1 and the prompt's {prompt_tokens} tokens, got {start}.",
                "logprob_start_len",
            )
        most = min(MAX_TOP_LOGPROBS, self.vocab_size)
        if not 0 <= top <= most:
            raise RequestError(f"top_logprobs_num must be between 0 and {most}, got {top}.", "top_logprobs_num")
        if len(request.token_ids_logprob) > MAX_ASKED_LOGPROBS:
            raise RequestError(
                f"token_ids_logprob holds {len(request.token_ids_logprob)} ids; at most {MAX_ASKED_LOGPROBS}.",
                "token_ids_logprob",
            )
        if request.token_ids_logprob:
            self.check_ids(request.token_ids_logprob, "token_ids_logprob")


def token_array(ids: Sequence[int] | np.ndarray) -> np.ndarray:
    """The ids as an array: of int64, or of Python's ints where one is too large (and fails the checks)."""
    try:
        if isinstance(ids, np.ndarray):
            return np.asarray(ids, np.int64)
        return np.fromiter(ids, np.int64, len(ids))  # half the time of asarray
    except OverflowError:
        return np.asarray(ids, object)


def check_rid(rid: str) -> None:
    """Refuse request ids that are empty or too long for a log line."""
    if not 0 < len(rid) <= MAX_RID:
        raise RequestError(f"rid must have 1 to {MAX_RID} characters, got {len(rid)}.", "rid")
