"""`select` on completion models of OpenAI's API: by an echoed prompt's log-probabilities, or by biased tokens.

Must not know chat models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixlang.errors import BackendError
from radixlang.lang.backends.remote import client_library
from radixlang.lang.choices import ChoicesDecision, ChoicesSamplingMethod, TokenLogprobs, mean_logprob

if TYPE_CHECKING:
    from radixlang.lang.backends.openai import OpenAI

#: a bias that leaves nothing else a chance
_FORCED = 100


async def by_echo(
    backend: OpenAI, prompt: str, choices: list[str], method: ChoicesSamplingMethod
) -> ChoicesDecision | None:
    """All choices behind the prompt in one batch, scored by the tokens that reach behind the prompt's end (the
    first may begin in it: the tokenizer may merge across the seam). None when the API does not do this.

    Raises:
        BackendError: the call failed for another reason.
        UnsupportedError: the choices have other tokens without the prompt than behind it.
    """
    scored = await _echoed(backend, prompt, choices)
    if scored is None:
        return None
    unconditional = None
    if method.requires_unconditional_logprobs:
        unconditional = await _echoed(backend, "", choices)
        if unconditional is None:
            return None
        for with_prompt, without in zip(scored, unconditional, strict=True):
            if [token[2] for token in with_prompt] != [token[2] for token in without]:
                raise backend.unsupported(
                    f"choices_method={method} for these choices (their tokens change without the prompt)",
                    "use token_length_normalized, or end the prompt at the end of a token",
                )
    return method(
        choices=choices,
        normalized_prompt_logprobs=[mean_logprob(tokens) for tokens in scored],
        input_token_logprobs=scored,
        output_token_logprobs=[[] for _ in choices],
        unconditional_token_logprobs=unconditional,
    )


async def _echoed(backend: OpenAI, prompt: str, choices: list[str]) -> list[TokenLogprobs] | None:
    """`[logprob, None, text]` of the tokens of `prompt + choice` that end behind the prompt, for each choice."""
    texts = [prompt + choice for choice in choices]
    try:
        answer = await backend.completion(prompt=texts, max_tokens=0, echo=True, logprobs=0, temperature=0)
    except BackendError as error:
        if backend.is_refusal(error.__cause__):
            return None
        raise
    rows: list[TokenLogprobs] = []
    for choice, told in zip(choices, sorted(answer.choices, key=lambda one: one.index), strict=False):
        values = told.logprobs
        if values is None or not values.tokens:
            return None
        row: list[list[Any]] = []
        # From the end: some servers count a token in front of the prompt that the text does not show.
        missing = len(choice)
        for value, text in zip(reversed(values.token_logprobs), reversed(values.tokens), strict=True):
            if missing <= 0:
                break
            row.insert(0, [value, None, text])
            missing -= len(text)
        rows.append(row)
    return rows if len(rows) == len(choices) else None


async def by_logit_bias(
    backend: OpenAI, prompt: str, choices: list[str], method: ChoicesSamplingMethod
) -> ChoicesDecision:
    """Token by token: the model draws its most likely token among those with which a choice still left goes on.

    The answer has no log-probabilities; the result is that of `greedy_token_selection`.

    Raises:
        UnsupportedError: the method needs log-probabilities without the prompt.
        BackendError: the model broke out of the bias.
    """
    if method.requires_unconditional_logprobs:
        raise backend.unsupported(f"choices_method={method}", "use token_length_normalized")
    encoding = encoding_of(backend)
    ids = [encoding.encode(choice) for choice in choices]
    written: list[int] = encoding.encode(prompt)
    left = list(range(len(choices)))
    column = 0
    while len(left) > 1:
        allowed = {ids[i][column] for i in left if column < len(ids[i])}
        if len(allowed) == 1:
            token = allowed.pop()
        else:
            answer = await backend.completion(
                prompt=written,
                max_tokens=1,
                temperature=0,
                logit_bias={str(token): _FORCED for token in allowed},
            )
            token = _drawn(encoding, answer.choices[0].text, allowed)
            if token is None:
                raise BackendError(f"{backend.name} drew {answer.choices[0].text!r} against the bias of a select.")
        # A choice that ends here is a beginning of the others, and loses to them: nothing can be drawn against it.
        left = [i for i in left if column < len(ids[i]) and ids[i][column] == token]
        written.append(token)
        column += 1
        if all(len(ids[i]) <= column for i in left):
            break
    scores = [1.0 if i == left[0] else 0.0 for i in range(len(choices))]
    return ChoicesDecision(choices[left[0]], {"scores": scores})


def encoding_of(backend: OpenAI) -> Any:
    """The model's tokenizer (package `tiktoken`)."""
    tiktoken = client_library("tiktoken", "openai", type(backend).__name__)
    try:
        return tiktoken.encoding_for_model(backend.model_name)
    except KeyError:
        return tiktoken.get_encoding("cl100k_base")


def _drawn(encoding: Any, text: str, allowed: set[int]) -> int | None:
    return next((token for token in allowed if encoding.decode([token]) == text), None)
