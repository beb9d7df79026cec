"""What a loader hands to `Tokenizer`: one record, whatever file the vocabulary came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tokenizers

from radixlang.errors import ModelError, RequestError
from radixlang.sampling_params import ADVISED, SamplingParams


@dataclass(slots=True)
class TokenizerParts:
    """`backend` does the encoding; `templates`: name -> Jinja source ("default" is the usual one);
    `named_tokens`: what templates may refer to (`bos_token`, `eos_token`, ...); `generation_config`: the
    sampling its makers advise (`advice_of`)."""

    backend: tokenizers.Tokenizer
    source: str
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    adds_bos: bool = False
    templates: dict[str, str] = field(default_factory=dict)
    named_tokens: dict[str, str] = field(default_factory=dict)
    generation_config: dict[str, Any] = field(default_factory=dict)


def advice_of(values: dict[str, Any], source: str) -> dict[str, Any]:
    """The sampling that `values` of the file `source` advise, which requests start from.

    Raises:
        ModelError: a value that no request may have.
    """
    advice = {name: values[name] for name in ADVISED if values.get(name) is not None}
    if advice.get("top_k") == 0:  # how generation configs spell "all tokens"
        del advice["top_k"]
    try:
        SamplingParams.parse(advice).verify(0)
    except RequestError as error:
        text = str(error).removesuffix(".")
        raise ModelError(f"{source} advises sampling that cannot be done ({text}): correct the file.") from None
    return advice


def frame(
    backend: tokenizers.Tokenizer, bos_id: int | None, eos_id: int | None, add_bos: bool, add_eos: bool
) -> None:
    """Makes `backend` put bos in front of, and eos behind, every text encoded with special tokens."""
    before = [(backend.id_to_token(bos_id), bos_id)] if add_bos and bos_id is not None else []
    after = [(backend.id_to_token(eos_id), eos_id)] if add_eos and eos_id is not None else []
    single = [*(token for token, _ in before), "$A", *(token for token, _ in after)]
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single=single, pair=[*single, "$B"], special_tokens=[*before, *after]
    )
