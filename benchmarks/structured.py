"""Constrained texts of a model, judged by other programs: every finished one is right, every cut one could go on.

    python benchmarks/structured.py --data FOLDER [--schemas 100] [--generations 1000] [--out FILE]

Draws schemas (the first that compile, of a shuffled set), regular expressions, choices and grammars, and generates
at temperatures 0, 0.8 and 2 from the packaged model and from one of random weights with the same tokenizer.
Judges: for schemas `json` (neither NaN nor Infinity; keys that come twice are counted) and jsonschema-rs with the
schema's draft, for regular expressions `re.fullmatch`, for choices the list, for grammars a regular expression
that says the same. A text that ends by `length` must be taken token by token by a fresh state of its grammar,
which must allow something after it. A request that fails is a dead end. Exits with 1 on any wrong text or dead
end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np
from common import TINY, environment

from radixlang.grammar.errors import GrammarError, GrammarFailure
from radixlang.grammar.manager import GrammarManager
from radixlang.grammar.vocabulary import Vocabulary
from radixlang.hub_files import resolve_model_path
from radixlang.llm import Engine
from radixlang.messages import GrammarSpec
from radixlang.sampling_params import SamplingParams
from radixlang.server.stream import GenerateRequest
from radixlang.text.tokenizer import load_tokenizer

TEMPERATURES = (0.0, 0.8, 2.0)
TOPICS = [
    "a bakery",
    "a lighthouse",
    "the moon",
    "a lost dog",
    "Ada Lovelace",
    "a football club",
    "tea",
    "a bug report",
]
REGEXES = [
    r"(25[0-5]|2[0-4]\d|1?\d?\d)(\.(25[0-5]|2[0-4]\d|1?\d?\d)){3}",
    r"\(\d{3}\) \d{3}-\d{4}",
    r"[a-z0-9._%+-]{1,20}@[a-z0-9-]{1,12}\.(com|org|net)",
    r"(yes|no), because [\w ,']{10,60}\.",
    r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])",
    r"[À-ÿĀ-ſ]{3,9}( [一-龥]{1,4})?",
    r"(?i:error|warning): [^\n]{5,40}",
    r"#[0-9a-fA-F]{6}",
    r"(ab|a)(bc|c)*d?",
    r"[^\x00-\x7f]{1,4}",
]
CHOICES = [
    ["positive", "negative", "neutral"],
    ["a", "ab", "abc", "b"],
    ["größer", "gleich", "kleiner", "日本語"],
    ["yes", "no"],
    [f"option {i}" for i in range(300)],
    ['say "hi"', "a\\b", "line\nbreak", "{}"],
]
#: a grammar, and a regular expression that says the same
GRAMMARS = [
    ('root ::= "x" [0-9]+ ("," [0-9]+)* ";"', r"x[0-9]+(,[0-9]+)*;"),
    ('root ::= sign? digit digit? "." digit\nsign ::= [+-]\ndigit ::= [0-9]', r"[+-]?[0-9][0-9]?\.[0-9]"),
    ('root ::= "SELECT " col (", " col)* " FROM " ("users" | "orders")\ncol ::= "id" | "name" | "total"',
     r"SELECT (id|name|total)(, (id|name|total))* FROM (users|orders)"),
    ('start: "(" WORD (" " WORD)* ")"\nWORD: /[a-zé]{1,6}/', r"\([a-zé]{1,6}( [a-zé]{1,6})*\)"),
]  # fmt: skip


@dataclass
class Case:
    """One constraint. `judge` says what is wrong with a finished text, None when nothing is."""

    kind: str
    name: str
    spec: GrammarSpec
    judge: Callable[[str], str | None]
    about: str


class Repeated(Counter[str]):
    """Keys that came twice, over all texts."""


def strict(text: str, repeated: Repeated) -> Any:
    """The value of a JSON text as the standard has it."""

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    def finite(text: str) -> float:
        if not math.isfinite(value := float(text)):
            raise ValueError(f"{text} is no finite number")
        return value

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        repeated.update(key for key, count in Counter(key for key, _ in items).items() if count > 1)
        return dict(items)

    return json.loads(text, parse_constant=refuse, parse_float=finite, object_pairs_hook=pairs)


def schema_case(line: dict[str, Any], repeated: Repeated) -> Case:
    schema = line["schema"]
    validator = jsonschema_rs.validator_for(schema)

    def judge(text: str) -> str | None:
        try:
            value = strict(text, repeated)
        except ValueError as error:
            return f"no JSON: {error}"
        return next((f"invalid: {error.message[:200]}" for error in validator.iter_errors(value)), None)

    about = json.dumps(schema, ensure_ascii=False)[:600]
    return Case("json_schema", line["id"], GrammarSpec("json_schema", json.dumps(schema)), judge, about)


def other_cases() -> Iterator[Case]:
    def matched(pattern: str) -> Callable[[str], str | None]:
        return lambda text: None if re.fullmatch(pattern, text) else "does not match"

    for pattern in REGEXES:
        yield Case("regex", pattern, GrammarSpec("regex", pattern), matched(pattern), "A short answer.")
    for texts in CHOICES:
        listed = matched("|".join(map(re.escape, texts)))
        yield Case("choice", texts[0], GrammarSpec("choice", json.dumps(texts)), listed, "Choose one.")
    for grammar, pattern in GRAMMARS:
        yield Case("ebnf", pattern, GrammarSpec("ebnf", grammar), matched(pattern), "A short line.")


def compiled(cases: Iterator[Case], manager: GrammarManager, wanted: int, refused: list[str]) -> list[Case]:
    """The first `wanted` that compile; why others do not goes to `refused`."""
    out: list[Case] = []
    for case in cases:
        if len(out) == wanted:
            break
        try:
            manager.get(case.spec).result()
            out.append(case)
        except GrammarError as error:
            refused.append(f"{case.name}: {error}")
    return out


def viable(ids: list[int], grammar: Any, words: int) -> str | None:
    """Why the tokens of a cut text are not the beginning of a right one."""
    state, row = grammar.start(), np.zeros(words, np.int32)
    try:
        for at, token in enumerate(ids):
            state.fill(row)
            if not row.view(np.uint32)[token >> 5] >> (token & 31) & 1:
                return f"token {at} is not in the mask"
            if not state.accept(token):
                return f"token {at} is refused"
        state.fill(row)
    except GrammarFailure as error:
        return str(error)
    return None


def random_model(folder: Path, packaged: str) -> str:
    """A small model of random weights that has the packaged model's tokenizer."""
    tokenizer = load_tokenizer(packaged)
    (folder / "tokenizer.json").write_text(tokenizer.backend.to_str())
    config = {key: value for key, value in TINY.items() if key != "name"}
    config |= {
        "vocab_size": len(tokenizer.vocab_bytes()),
        "eos_token_id": list(tokenizer.eos_ids),
        "hidden_act": "silu",
    }
    (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": "float32"}))
    return str(folder)


def prompt(case: Case, turn: int) -> str:
    topic = TOPICS[turn % len(TOPICS)]
    return f"<|im_start|>user\n{case.about}\nWrite about {topic}.<|im_end|>\n<|im_start|>assistant\n"


async def generate(engine: Engine, work: list[tuple[Case, float, int]], args: argparse.Namespace) -> list[Any]:
    """The answers (or exceptions) of all, `args.batch` at a time."""
    gate = asyncio.Semaphore(args.batch)

    async def one(case: Case, temperature: float, turn: int) -> Any:
        sampling = SamplingParams(
            temperature=temperature, max_new_tokens=args.max_tokens, sampling_seed=args.seed + turn
        )
        request = GenerateRequest(text=prompt(case, turn), sampling=sampling, grammar=case.spec)
        async with gate:
            try:
                return (await engine.hub.generate([request]).collect())[0]
            except Exception as error:
                return error

    return await asyncio.gather(*(one(*item) for item in work))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with schemas.jsonl")
    parser.add_argument("--schemas", type=int, default=100)
    parser.add_argument("--generations", type=int, default=1000, help="of each model from schemas")
    parser.add_argument("--others", type=int, default=180, help="generations of each model from each other kind")
    parser.add_argument("--models", nargs="+", default=["default", "random"])
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--show", type=int, default=20, help="wrong texts to print")
    parser.add_argument("--out", type=Path, help="append the table to this file")
    args = parser.parse_args()
    packaged = str(resolve_model_path("default"))
    vocabulary = Vocabulary.of(load_tokenizer(packaged))
    manager = GrammarManager(lambda: vocabulary)
    repeated, refused, bad = Repeated(), [], 0
    lines = [json.loads(line) for line in (args.data / "schemas.jsonl").read_text().splitlines()]
    random.Random(args.seed).shuffle(lines)
    cases = {
        "json_schema": compiled((schema_case(line, repeated) for line in lines), manager, args.schemas, refused)
    }
    for case in compiled(other_cases(), manager, 1 << 30, refused):
        cases.setdefault(case.kind, []).append(case)
    head = "| model | kind | constraints | temperature | texts | finished | of these right "
    table = [head + "| cut by length | of these viable | dead ends | tokens | s |", "|---|---|" + "---:|" * 10]
    for name in args.models:
        with tempfile.TemporaryDirectory() as where:
            model = random_model(Path(where), packaged) if name == "random" else name
            options = {"load_format": "dummy"} if name == "random" else {}
            engine = Engine(model, device="cpu", max_running_requests=args.batch, context_length=2048, **options)
            with engine:
                for kind, members in cases.items():
                    count = args.generations if kind == "json_schema" else args.others
                    for part, temperature in enumerate(TEMPERATURES):
                        turns = range(part, count, len(TEMPERATURES))
                        work = [
                            (members[turn // len(TEMPERATURES) % len(members)], temperature, turn)
                            for turn in turns
                        ]
                        began = time.perf_counter()
                        answers = engine._call(generate(engine, work, args))
                        seconds = time.perf_counter() - began
                        tally, wrong = judged(work, answers, manager, vocabulary.words)
                        bad += len(wrong)
                        for text in wrong[: args.show]:
                            print(f"WRONG {name} {text}", file=sys.stderr, flush=True)
                        cells = [name, kind, len(members), temperature, len(work), tally["stop"], tally["right"],
                                 tally["length"], tally["viable"], tally["dead"], tally["tokens"],
                                 f"{seconds:.0f}"]  # fmt: skip
                        table.append("| " + " | ".join(map(str, cells)) + " |")
                        print(table[-1], file=sys.stderr, flush=True)
    notes = (
        f"Keys that came twice: {repeated.total()}. Constraints refused with a sentence before enough were found: "
    )
    notes += f"{len(refused)}" + "".join(f"\n- {text[:300]}" for text in refused)
    text = f"{environment('structured')}\n" + "\n".join(table) + f"\n\n{notes}\n"
    print(text)
    if args.out:
        with args.out.open("a") as file:
            file.write(f"\n## Constrained texts, judged\n{text}")
    manager.close()
    return int(bad > 0)


def judged(
    work: list[tuple[Case, float, int]], answers: list[Any], manager: GrammarManager, words: int
) -> tuple[Counter[str], list[str]]:
    """(counts, what is wrong)."""
    tally: Counter[str] = Counter()
    wrong: list[str] = []
    for (case, temperature, turn), answer in zip(work, answers, strict=True):
        at = f"{case.kind} {case.name} t={temperature} #{turn}"
        if isinstance(answer, Exception):
            tally["dead"] += 1
            wrong.append(f"{at}: {type(answer).__name__}: {answer}")
            continue
        reason = answer.finish_reason["type"]
        tally[reason] += 1
        tally["tokens"] += len(answer.ids)
        if reason == "stop":
            complaint = case.judge(answer.text)
            tally["right"] += complaint is None
        else:
            complaint = viable(answer.ids, manager.get(case.spec).result(), words)
            tally["viable"] += complaint is None
        if complaint:
            wrong.append(f"{at}: {complaint}: {answer.text!r}")
    return tally, wrong


if __name__ == "__main__":
    sys.exit(main())
