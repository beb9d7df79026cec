"""What `chat` and `generate` share: sampling flags, engine flags, and an engine in this process.

Must not import torch; the engine does, when it is opened.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from radixlang.config import add_arguments, flat_names, options, read_file
from radixlang.errors import ConfigError
from radixlang.hub_files import resolve_model_path

if TYPE_CHECKING:
    from radixlang.llm import Engine

#: (flag names, type, help) of what a person at a terminal turns; the API has all parameters
_SAMPLING: tuple[tuple[tuple[str, ...], type, str], ...] = (
    (("--max-new-tokens", "--max-tokens"), int, "longest answer in tokens"),
    (("--temperature",), float, "0 takes the likeliest token, 1 samples as the model says"),
    (("--top-p",), float, "sample from the likeliest tokens of this total probability"),
    (("--top-k",), int, "sample from this many likeliest tokens; -1 from all"),
    (("--min-p",), float, "drop tokens below this share of the likeliest one's probability"),
    (("--frequency-penalty",), float, "lower each token by its count so far"),
    (("--presence-penalty",), float, "lower each token that has occurred"),
    (("--repetition-penalty",), float, "divide the scores of tokens that have occurred"),
    (("--sampling-seed", "--seed"), int, "same seed, same text"),
)

#: what means nothing without a server or without text, and `--seed`, which is a sampling flag here
_NOT_LOCAL = frozenset({"server"})
_SKIPPED = frozenset({"random_seed", "served_model_name", "weight_version", "skip_tokenizer_init", "is_embedding"})


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """Add the sampling flags; absent ones leave no attribute behind."""
    group = parser.add_argument_group("Sampling")
    for names, kind, text in _SAMPLING:
        group.add_argument(*names, type=kind, default=argparse.SUPPRESS, metavar=kind.__name__.upper(), help=text)
    group.add_argument(
        "--stop",
        action="append",
        default=argparse.SUPPRESS,
        metavar="TEXT",
        help="end before this text; repeatable",
    )
    group.add_argument(
        "--ignore-eos", action="store_true", default=argparse.SUPPRESS, help="go on after the model's end token"
    )


def sampling_values(args: argparse.Namespace) -> dict[str, Any]:
    """The sampling parameters that were given, under the names of the native API."""
    names = [flags[0][2:].replace("-", "_") for flags, _, _ in _SAMPLING] + ["stop", "ignore_eos"]
    return {name: getattr(args, name) for name in names if hasattr(args, name)}


def add_engine_flags(parser: argparse.ArgumentParser, keep: frozenset[str] = frozenset()) -> None:
    """Add the options of an engine without a server; `keep` names options that are otherwise left out."""
    skip = ({f.name for group, f, _ in options() if group in _NOT_LOCAL} | _SKIPPED) - keep
    add_arguments(parser, skip=tuple(sorted(skip)))


def engine_values(args: argparse.Namespace) -> dict[str, Any]:
    """The engine's options in the parsed flags and their `--config` file, the model's files found.

    Raises:
        ConfigError, ModelError: the file or the model cannot be had.
    """
    known = set(flat_names())
    values = read_file(args.config) if hasattr(args, "config") else {}
    values |= {name: value for name, value in vars(args).items() if name in known}
    named = values.get("model_path") or "default"
    values["model_path"] = resolve_model_path(named, values.get("download_dir"), values.pop("revision", None))
    if values.get("tokenizer_path") == named:
        values["tokenizer_path"] = values["model_path"]
    return values


def open_engine(args: argparse.Namespace, inline: bool = True) -> Engine:
    """An engine for the parsed flags, in this process unless told; the default model if none is named.

    Raises:
        ConfigError, ModelError: what is wrong with the flags or the model.
    """
    values = engine_values(args)
    from radixlang.llm import Engine

    # Ranks are processes; one alone needs none.
    return Engine(inline=inline and values.get("tp_size", 1) == 1, **values)


def chat_ids(engine: Engine, messages: list[dict[str, str]]) -> list[int]:
    """The conversation as the model's template writes it, up to where its answer begins.

    Raises:
        RadixLangError: the model has no chat template, or the engine runs without a tokenizer.
    """
    if engine.tokenizer is None:
        raise ConfigError("A chat needs a tokenizer, but --skip-tokenizer-init is set.")
    return engine.tokenizer.encode_chat(messages)
