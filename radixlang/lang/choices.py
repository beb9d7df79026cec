"""The three ways to choose among strings by their log-probabilities.

A method is called with keyword arguments and returns a `ChoicesDecision`. Token log-probabilities are lists of
`[logprob or None, token id, text or None]`, one list per choice. Pure arithmetic: no backend, no tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

TokenLogprobs = Sequence[Sequence[Any]]


@dataclass
class ChoicesDecision:
    """The winner, and the figures behind it."""

    decision: str
    meta_info: dict[str, Any] = field(default_factory=dict)


class ChoicesSamplingMethod(ABC):
    """How scores become a choice. `requires_unconditional_logprobs`: those without the prompt are needed too."""

    @property
    def requires_unconditional_logprobs(self) -> bool:
        return False

    @abstractmethod
    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[TokenLogprobs],
        output_token_logprobs: list[TokenLogprobs],
        unconditional_token_logprobs: list[TokenLogprobs] | None = None,
    ) -> ChoicesDecision: ...

    def __repr__(self) -> str:
        return type(self).__name__


def mean_logprob(tokens: TokenLogprobs) -> float:
    """Mean over the tokens that have a value."""
    values = [token[0] for token in tokens if token[0] is not None]
    return sum(values) / len(values) if values else 0.0


def _meta(
    normalized: list[float], inputs: list[TokenLogprobs], outputs: list[TokenLogprobs], **more: Any
) -> dict[str, Any]:
    return {
        "normalized_prompt_logprobs": normalized,
        "input_token_logprobs": inputs,
        "output_token_logprobs": outputs,
        **more,
    }


def _best(choices: list[str], scores: Sequence[float]) -> str:
    return choices[max(range(len(choices)), key=scores.__getitem__)]


class TokenLengthNormalized(ChoicesSamplingMethod):
    """The highest mean log-probability of the choice's tokens."""

    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[TokenLogprobs],
        output_token_logprobs: list[TokenLogprobs],
        unconditional_token_logprobs: list[TokenLogprobs] | None = None,
    ) -> ChoicesDecision:
        meta = _meta(normalized_prompt_logprobs, input_token_logprobs, output_token_logprobs)
        return ChoicesDecision(_best(choices, normalized_prompt_logprobs), meta)


class GreedyTokenSelection(ChoicesSamplingMethod):
    """Token by token, the choices with the best value stay; a shorter choice goes on with its own mean."""

    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[TokenLogprobs],
        output_token_logprobs: list[TokenLogprobs],
        unconditional_token_logprobs: list[TokenLogprobs] | None = None,
    ) -> ChoicesDecision:
        matrix = _logprob_matrix(input_token_logprobs)
        left = list(range(len(choices)))
        for column in range(len(matrix[0])):
            best = max(matrix[row][column] for row in left)
            left = [row for row in left if matrix[row][column] == best]
            if len(left) == 1:
                break
        meta = _meta(
            normalized_prompt_logprobs, input_token_logprobs, output_token_logprobs, greedy_logprob_matrix=matrix
        )
        return ChoicesDecision(choices[left[0]], meta)


def _logprob_matrix(rows: list[TokenLogprobs]) -> list[list[float]]:
    """One row per choice, as long as the longest. Where choices begin with the same tokens they share the values
    of the first: rows of a batch may differ in the last digit, and a tie must stay a tie."""
    length = max(len(row) for row in rows)
    seen: dict[tuple[Any, ...], float] = {}
    matrix = []
    for row in rows:
        mean = mean_logprob(row)
        ids = tuple(tuple(token[1:]) for token in row)  # id and text: a remote backend knows texts alone
        values = [mean if token[0] is None else token[0] for token in row]
        shared = [seen.setdefault(ids[: i + 1], value) for i, value in enumerate(values)]
        matrix.append(shared + [mean] * (length - len(shared)))
    return matrix


class UnconditionalLikelihoodNormalized(ChoicesSamplingMethod):
    """The highest mean of what the prompt adds to the log-probability of the choice's tokens."""

    @property
    def requires_unconditional_logprobs(self) -> bool:
        return True

    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[TokenLogprobs],
        output_token_logprobs: list[TokenLogprobs],
        unconditional_token_logprobs: list[TokenLogprobs] | None = None,
    ) -> ChoicesDecision:
        if unconditional_token_logprobs is None:
            raise ValueError("unconditional_likelihood_normalized needs the log-probabilities without the prompt.")
        scores = [
            sum((own[0] or 0.0) - (other[0] or 0.0) for own, other in zip(with_it, without, strict=True))
            / len(with_it)
            for with_it, without in zip(input_token_logprobs, unconditional_token_logprobs, strict=True)
        ]
        meta = _meta(
            normalized_prompt_logprobs,
            input_token_logprobs,
            output_token_logprobs,
            unconditional_token_logprobs=unconditional_token_logprobs,
            normalized_unconditional_prompt_logprobs=scores,
        )
        return ChoicesDecision(_best(choices, scores), meta)


token_length_normalized = TokenLengthNormalized()
greedy_token_selection = GreedyTokenSelection()
unconditional_likelihood_normalized = UnconditionalLikelihoodNormalized()
