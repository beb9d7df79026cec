"""The tokenizer of a Hugging Face folder: `tokenizer.json` and the small files around it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from radixlang.errors import ModelError
from radixlang.text.parts import TokenizerParts, advice_of, frame
from radixlang.text.sentencepiece_file import load_sentencepiece

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def load_folder_tokenizer(folder: Path) -> TokenizerParts:
    """Raises ModelError naming the file that is missing or cannot be read."""
    config = _json(folder / "tokenizer_config.json")
    backend = _backend(folder)
    _add_declared(backend, config.get("added_tokens_decoder"), folder)
    named = {}
    for source in (_json(folder / "special_tokens_map.json"), config):
        for name in _NAMED:
            text = _content(source.get(name))
            if text is not None:
                named[name] = text

    def token(name: str) -> int | None:
        return backend.token_to_id(named[name]) if name in named else None

    bos, eos = token("bos_token"), token("eos_token")
    backend.no_truncation()
    backend.no_padding()
    adds_bos, adds_eos = _frame_of(backend, bos, eos)
    add_bos = config["add_bos_token"] if isinstance(config.get("add_bos_token"), bool) else adds_bos
    add_eos = config["add_eos_token"] if isinstance(config.get("add_eos_token"), bool) else adds_eos
    add_bos, add_eos = add_bos and bos is not None, add_eos and eos is not None
    if (add_bos, add_eos) != (adds_bos, adds_eos):
        frame(backend, bos, eos, add_bos, add_eos)
    return TokenizerParts(
        backend=backend,
        source=str(folder),
        bos_id=bos,
        eos_ids=tuple(dict.fromkeys([*folder_eos_ids(folder), *([eos] if eos is not None else [])])),
        adds_bos=add_bos,
        templates=_templates(folder, config),
        named_tokens=named,
        generation_config=folder_sampling(folder),
    )


def folder_eos_ids(folder: Path) -> list[int]:
    """End tokens that a model folder declares: `generation_config.json` first, then `config.json`."""
    config = _json(folder / "config.json")
    found: list[int] = []
    for source in (_json(folder / "generation_config.json"), config, config.get("text_config")):
        ids = source.get("eos_token_id") if isinstance(source, dict) else None
        found += [index for index in (ids if isinstance(ids, list) else [ids]) if type(index) is int]
    return list(dict.fromkeys(found))


def folder_sampling(folder: Path) -> dict[str, Any]:
    """The sampling that a model folder advises. Raises ModelError for what cannot be done."""
    file = folder / "generation_config.json"
    return advice_of(_json(file), str(file))


def _backend(folder: Path) -> Tokenizer:
    fast, pieces = folder / "tokenizer.json", folder / "tokenizer.model"
    if fast.is_file():
        try:
            return Tokenizer.from_file(str(fast))
        except Exception as error:  # the library raises bare Exception for every kind of damage
            raise ModelError(f"{fast} cannot be read ({error}): fetch it again.") from error
    if pieces.is_file():
        return load_sentencepiece(pieces)
    raise ModelError(
        f"{folder} holds neither tokenizer.json nor tokenizer.model: give a folder that does as --tokenizer-path."
    )


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    text = _text(path)
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON ({error}): fetch it again.") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} must hold a JSON object: fetch it again.")
    return value


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ModelError(f"{path} is not UTF-8 text ({error}): fetch it again.") from error


def _content(token: Any) -> str | None:
    """A token is written as its text, or as an object with its text under `content`."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _add_declared(backend: Tokenizer, declared: Any, folder: Path) -> None:
    """Adds tokens that only tokenizer_config.json knows, in the order of their ids."""
    if not isinstance(declared, dict):
        return
    wrong = next((key for key in declared if not key.isdecimal()), None)
    if wrong is not None:
        file = folder / "tokenizer_config.json"
        raise ModelError(f"{file} has an added_tokens_decoder whose key {wrong!r} is no token id: fetch it again.")
    for index, entry in sorted((int(key), entry) for key, entry in declared.items() if isinstance(entry, dict)):
        text = _content(entry)
        if text is None or backend.token_to_id(text) is not None or index < backend.get_vocab_size():
            continue
        special = bool(entry.get("special", False))
        token = AddedToken(
            text,
            special=special,
            normalized=bool(entry.get("normalized", not special)),
            lstrip=bool(entry.get("lstrip", False)),
            rstrip=bool(entry.get("rstrip", False)),
            single_word=bool(entry.get("single_word", False)),
        )
        backend.add_special_tokens([token]) if special else backend.add_tokens([token])


def _frame_of(backend: Tokenizer, bos: int | None, eos: int | None) -> tuple[bool, bool]:
    """Whether the tokenizer.json itself adds bos and eos."""
    ids = backend.encode("", add_special_tokens=True).ids
    return bos is not None and ids[:1] == [bos], eos is not None and ids[-1:] == [eos] and len(ids) > (bos == eos)


def _templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Chat templates by name; files of their own win over tokenizer_config.json."""
    templates: dict[str, str] = {}
    for inside in (config.get("chat_template"), _json(folder / "chat_template.json").get("chat_template")):
        if isinstance(inside, str):
            templates["default"] = inside
        elif isinstance(inside, list):
            for one in inside:
                name, text = (one.get("name"), one.get("template")) if isinstance(one, dict) else (None, None)
                if not isinstance(name, str) or not isinstance(text, str):
                    raise ModelError(
                        f"{folder} has a list of chat templates with an entry that is not a name and a template: "
                        "correct tokenizer_config.json, or give one with --chat-template."
                    )
                templates[name] = text
    for place in ("chat_templates", "additional_chat_templates"):
        for file in sorted((folder / place).glob("*.jinja")):
            templates[file.stem] = _text(file)
    file = folder / "chat_template.jinja"
    if file.is_file():
        templates["default"] = _text(file)
    return templates
