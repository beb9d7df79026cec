"""The tokenizer that is stored in the metadata of a GGUF file."""

from __future__ import annotations

from typing import Any

from radixlang.errors import ModelError, UnsupportedModelError
from radixlang.gguf_file import read_gguf
from radixlang.hub_files import advised_sampling
from radixlang.text.parts import TokenizerParts, advice_of, frame
from radixlang.text.pretokenizers import split_for
from radixlang.text.vocabulary import CONTROL, NORMAL, USER_DEFINED, byte_level_bpe, sentencepiece_bpe

# Tokens that end a turn or a text in the common chat formats. A GGUF file names one or two of its end tokens;
# models end their turns with others of these as well.
END_TOKENS = (
    "<|im_end|>",
    "<end_of_turn>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|eot|>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
)


def load_gguf_tokenizer(path: str) -> TokenizerParts:
    """Reads the metadata only. Raises ModelError when the file holds no vocabulary, or one of another kind."""
    metadata = read_gguf(path, metadata_only=True).metadata
    kind = metadata.get("tokenizer.ggml.model")
    if kind is None or "tokenizer.ggml.tokens" not in metadata:
        raise ModelError(f"{path} holds no tokenizer: give a folder with a tokenizer.json as --tokenizer-path.")
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    types = _column(metadata, "token_type", len(tokens), NORMAL, path)
    if kind == "gpt2":
        split = split_for(metadata.get("tokenizer.ggml.pre", "default"), path)
        if "tokenizer.ggml.merges" not in metadata:
            raise ModelError(f"{path} has a byte-level vocabulary without tokenizer.ggml.merges: fetch it again.")
        backend = byte_level_bpe(tokens, types, metadata["tokenizer.ggml.merges"], split)
        add_bos = split.add_bos
    elif kind == "llama":
        scores = _column(metadata, "scores", len(tokens), 0.0, path)
        prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
        backend = sentencepiece_bpe(tokens, types, scores, prefix)
        add_bos = True
    else:
        raise UnsupportedModelError(
            f"{path} has a tokenizer of the kind {kind!r}; gpt2 and llama can be read: "
            "give a folder with a tokenizer.json as --tokenizer-path."
        )

    def token(name: str) -> int | None:
        value = metadata.get(f"tokenizer.ggml.{name}_token_id")
        return int(value) if value is not None and 0 <= int(value) < len(tokens) else None

    bos, eos = token("bos"), token("eos")
    add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", add_bos)) and bos is not None
    add_eos = bool(metadata.get("tokenizer.ggml.add_eos_token", False))
    frame(backend, bos, eos, add_bos, add_eos)
    ends = [eos, token("eot"), token("eom")]
    ends += [index for name in END_TOKENS if (index := _marker(backend.token_to_id(name), types)) is not None]
    names = {"bos": bos, "eos": eos, "unk": token("unknown"), "pad": token("padding"), "sep": token("seperator")}
    return TokenizerParts(
        backend=backend,
        source=path,
        bos_id=bos,
        eos_ids=tuple(dict.fromkeys(index for index in ends if index is not None)),
        adds_bos=add_bos,
        templates=_templates(metadata),
        named_tokens={f"{name}_token": tokens[index] for name, index in names.items() if index is not None},
        generation_config=_sampling(metadata, path),
    )


def gguf_sampling(path: str) -> dict[str, Any]:
    """The sampling that a GGUF file, or else its makers elsewhere, advise. Raises ModelError for what cannot be
    done."""
    return _sampling(read_gguf(path, metadata_only=True).metadata, path)


def _sampling(metadata: dict[str, Any], path: str) -> dict[str, Any]:
    names = {"temp": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p"}
    found = {new: metadata[key] for old, new in names.items() if (key := f"general.sampling.{old}") in metadata}
    return advice_of({**advised_sampling(path), **found}, path)


def _column(metadata: dict[str, Any], name: str, size: int, default: Any, path: str) -> list[Any]:
    values = metadata.get(f"tokenizer.ggml.{name}")
    if values is None:
        return [default] * size
    if len(values) != size:
        raise ModelError(f"{path} is damaged: {size} tokens, but {len(values)} entries in tokenizer.ggml.{name}.")
    return values.tolist()


def _marker(index: int | None, types: list[int]) -> int | None:
    """`index` if that token is a marker and not the accidental piece of ordinary text."""
    return index if index is not None and types[index] in (CONTROL, USER_DEFINED) else None


def _templates(metadata: dict[str, Any]) -> dict[str, str]:
    prefix = "tokenizer.chat_template"
    templates = {key[len(prefix) + 1 :]: value for key, value in metadata.items() if key.startswith(prefix + ".")}
    if prefix in metadata:
        templates["default"] = metadata[prefix]
    return templates
