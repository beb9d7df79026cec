"""JSON schemas: ours beside the bare grammar libraries, on labelled real schemas and the official test suite.

    python -m benchmarks.schemas --data ../shared/data/json_schemas [--tokenizer MODEL] [--engines ours,llguidance]

Engines: `ours`, as `--grammar-backend auto` serves schemas; `backend`, as `--grammar-backend xgrammar` does; and
the libraries on their own: `llguidance`, `xgrammar`, and `strict`, xgrammar with the `strict_mode` that it is
mostly served with, where undeclared keys are forbidden. `backend` and the last two need the extra `xgrammar`.
An instance counts as accepted when every token of its text is in the mask at its place and the text may end there.
Texts use the separators `, ` and `: ` for every engine. Since an engine may fix the order of keys, a wrong reject
counts only if the instance in the order of the schema's `properties` is refused as well. Times are CPU times of
one thread. Columns: see `main`.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llguidance
import numpy as np

from radixlang.grammar.errors import GrammarError
from radixlang.grammar.limits import GrammarLimits
from radixlang.grammar.llg import UNCOMPARED, json_options
from radixlang.grammar.measure import measure_schema
from radixlang.grammar.native import NativeEngine
from radixlang.grammar.schema import Normalised, Residual, normalise, normalise_text
from radixlang.grammar.vocabulary import Vocabulary
from radixlang.messages import GrammarSpec

OPTIONS = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "json_allowed_escapes": 'nrbtf\\"',
}


class RefusedError(Exception):
    """The engine does not compile the schema."""


class Llguidance:
    """The library on its own."""

    def __init__(self, encode: Callable[[str], list[int]], tokenizer: Any) -> None:
        self.encode, self.tokenizer = encode, tokenizer
        self.limits = llguidance.LLParserLimits(verbose_errors=False)

    def compile(self, schema: Any, options: Any = OPTIONS) -> tuple[Any, Normalised | None]:
        if isinstance(schema, bool):
            schema = {} if schema else {"enum": []}
        text = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options)
        matcher = llguidance.LLMatcher(self.tokenizer, text, limits=self.limits)
        if matcher.is_error():
            raise RefusedError(matcher.get_error())
        return matcher, None

    def accepts(self, compiled: tuple[Any, Normalised | None], value: Any, masks: list[float]) -> bool:
        matcher, normalised = compiled
        state = matcher.deep_copy()
        for token in self.encode(dumps(value)):
            start = time.process_time_ns()
            mask = np.frombuffer(state.compute_bitmask(), dtype=np.uint8)
            masks.append((time.process_time_ns() - start) / 1e3)
            if state.is_error() or not mask[token >> 3] >> (token & 7) & 1 or not state.consume_token(token):
                return False
        if not state.is_accepting():
            return False
        return normalised is None or normalised.checks is None or valid(normalised, value)


class Ours(Llguidance):
    """The normaliser before it, the residual check behind it; small regular schemas on our own automata."""

    def __init__(self, encode: Callable[[str], list[int]], tokenizer: Any, vocabulary: Vocabulary) -> None:
        super().__init__(encode, tokenizer)
        self.native = NativeEngine(vocabulary, GrammarLimits())
        self.native.warm_up()
        self.taken = 0

    def compile(self, schema: Any, options: Any = None) -> tuple[Any, Normalised | None]:
        spec = GrammarSpec("json_schema", json.dumps(schema))
        try:
            normalised = normalise_text(spec.text)
            if self.native.supports(spec) is None:
                self.taken += 1
                return self.native.compile(spec), normalise_text(spec.text, looks=True)
        except GrammarError as error:
            raise RefusedError(str(error)) from None
        measure_schema(normalised.schema)  # as the engine does, to know whether it may force text
        try:
            return super().compile(normalised.schema, json_options(False, normalised.schema))[0], normalised
        except RefusedError as error:
            if not UNCOMPARED.search(str(error)):
                raise
        normalised = normalise(schema, patterns=False)
        return super().compile(normalised.schema, json_options(False, normalised.schema))[0], normalised

    def accepts(self, compiled: tuple[Any, Normalised | None], value: Any, masks: list[float]) -> bool:
        if isinstance(compiled[0], llguidance.LLMatcher):
            return super().accepts(compiled, value, masks)
        state, row = compiled[0].start(), np.zeros(self.native.vocabulary.words, np.int32)
        for token in self.encode(dumps(value)):
            start = time.process_time_ns()
            state.fill(row)
            masks.append((time.process_time_ns() - start) / 1e3)
            if not row[token >> 5] >> (token & 31) & 1 or not state.accept(token):
                return False
        return bool(state.can_end)


class Backend:
    """Ours through xgrammar."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        from radixlang.grammar.xgr import XgrammarEngine

        self.vocabulary = vocabulary
        self.engine = XgrammarEngine(vocabulary, GrammarLimits())
        self.row = np.zeros(vocabulary.words, np.int32)

    def compile(self, schema: Any) -> tuple[Any, Normalised | None]:
        try:
            grammar: Any = self.engine.compile(GrammarSpec("json_schema", json.dumps(schema)))
            normalised = normalise(schema)
        except (GrammarError, RecursionError) as error:
            raise RefusedError(str(error)) from None
        # What the rules do not state is checked as if the normaliser had left it.
        left = normalised.residual or tuple([Residual("", "", schema)] * (grammar.checks is not None))
        return grammar, normalised._replace(checks=grammar.checks, residual=left)

    def accepts(self, compiled: tuple[Any, Normalised | None], value: Any, masks: list[float]) -> bool:
        grammar, normalised = compiled
        state = grammar.inner.start()
        for token in self.vocabulary.encode(dumps(value)):
            start = time.process_time_ns()
            state.fill(self.row)
            masks.append((time.process_time_ns() - start) / 1e3)
            if not self.row.view(np.uint8)[token >> 3] >> (token & 7) & 1 or not state.accept(token):
                return False
        assert normalised is not None
        return state.can_end and (normalised.checks is None or valid(normalised, value))


class Xgrammar:
    """The library on its own."""

    def __init__(self, vocabulary: Vocabulary, strict: bool) -> None:
        import xgrammar

        self.library, self.vocabulary, self.strict = xgrammar, vocabulary, strict
        stops = list(vocabulary.eos_ids)
        kind = xgrammar.VocabType.RAW
        info = xgrammar.TokenizerInfo(vocabulary.tokens, kind, vocab_size=vocabulary.size, stop_token_ids=stops)
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.row = np.zeros(vocabulary.words, np.int32)

    def compile(self, schema: Any) -> tuple[Any, Normalised | None]:
        text = json.dumps(schema)
        try:
            layout = {"any_whitespace": False, "separators": (", ", ": ")}
            return self.compiler.compile_json_schema(text, strict_mode=self.strict, **layout), None
        except RuntimeError as error:
            raise RefusedError(str(error)) from None

    def accepts(self, compiled: tuple[Any, Normalised | None], value: Any, masks: list[float]) -> bool:
        matcher = self.library.GrammarMatcher(compiled[0])
        for token in self.vocabulary.encode(dumps(value)):
            start = time.process_time_ns()
            matcher.fill_next_token_bitmask(self.row[None])
            masks.append((time.process_time_ns() - start) / 1e3)
            if not self.row.view(np.uint8)[token >> 3] >> (token & 7) & 1 or not matcher.accept_token(token):
                return False
        return matcher.is_completed()


def valid(normalised: Normalised, value: Any) -> bool:
    """The verdict of the residual check on a whole text (it vetoes the last token of a wrong one)."""
    checks = normalised.checks
    assert checks is not None

    def walk(nodes: Any, value: Any) -> bool:
        if isinstance(value, dict):
            below = [walk(checks.property(nodes, key), item) for key, item in value.items()]
        else:
            items = value if isinstance(value, list) else []
            below = [walk(checks.item(nodes, index), item) for index, item in enumerate(items)]
        return all(below) and checks.valid(checks.due(nodes), value)

    return walk(checks.root, value)


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def instances(line: dict[str, Any]) -> Iterator[tuple[bool, Any, Any]]:
    for test in line["tests"]:
        yield test["valid"], test["data"], test.get("data_ordered", test["data"])


def excused(value: Any) -> bool:
    """An integer in exponent notation is a question of spelling, not of value."""
    return "e+" in dumps(value)


def quantiles(values: list[float]) -> str:
    if not values:
        return "-"
    ordered = sorted(values)
    return " / ".join(f"{ordered[min(int(len(ordered) * q), len(ordered) - 1)]:.3g}" for q in (0.5, 0.9, 0.99, 1))


def real(name: str, engine: Any, lines: list[dict[str, Any]], verbose: bool) -> str:
    compiled = exact = right = accepts = rejects = negative = positive = excuses = 0
    masks: list[float] = []
    times: list[float] = []
    normal: list[float] = []
    for line in lines:
        gc.collect(1)
        start = time.process_time_ns()
        try:
            one = engine.compile(line["schema"])
        except RefusedError as error:
            times.append((time.process_time_ns() - start) / 1e6)
            if verbose:
                print(f"  {name} refuses {line['id']}: {str(error)[:300]}")
            continue
        times.append((time.process_time_ns() - start) / 1e6)
        if one[1] is not None:
            start = time.process_time_ns()
            normalise(line["schema"])
            normal.append((time.process_time_ns() - start) / 1e6)
        compiled += 1
        exact += one[1] is None or not one[1].residual
        if verbose and one[1] is not None and one[1].residual:
            print(f"  residual {line['id']}: {[(r.pointer, r.keyword) for r in one[1].residual][:4]}")
        wrong = 0
        for label, value, ordered in instances(line):
            verdict = engine.accepts(one, value, masks)
            if label and not verdict and ordered is not value:
                verdict = engine.accepts(one, ordered, masks)
            negative, positive = negative + (not label), positive + label
            if verdict != label:
                if label and excused(value):
                    excuses += 1
                    continue
                wrong += 1
                accepts, rejects = accepts + verdict, rejects + (not verdict)
                if verbose:
                    print(f"  {name} {'accepts' if verdict else 'rejects'} {line['id']}: {dumps(value)[:300]}")
        right += not wrong
    count = len(lines)
    shares = " | ".join(f"{100 * n / count:.1f} %" for n in (compiled, exact, right))
    return (
        f"| {name} | {shares} | {accepts} / {negative} | {rejects} / {positive} ({excuses} excused) "
        f"| {quantiles(times)} | {quantiles(normal)} | {quantiles(masks)} |"
    )


def suite(name: str, engine: Any, lines: list[dict[str, Any]], verbose: bool) -> str:
    handled = exact = accepts = rejects = negative = positive = count = 0
    for line in lines:
        if line["keyword"].startswith(("optional", "format")):
            continue
        count += 1
        try:
            one = engine.compile(line["schema"])
        except RefusedError as error:
            satisfiable = any(test["valid"] for test in line["tests"])
            handled += not satisfiable  # nothing to generate: refusing is the right answer
            if verbose and satisfiable:
                print(f"  {name} refuses {line['keyword']}, {line['description']}: {str(error)[:200]}")
            continue
        handled += 1
        exact += one[1] is None or not one[1].residual
        for test in line["tests"]:
            verdict = engine.accepts(one, test["data"], [])
            negative, positive = negative + (not test["valid"]), positive + test["valid"]
            if verdict != test["valid"]:
                accepts, rejects = accepts + verdict, rejects + (not verdict)
                if verbose:
                    print(
                        f"  {name} {verdict} {line['keyword']}, {line['description']}: {dumps(test['data'])[:100]}"
                    )
    return (
        f"| {name} | {100 * handled / count:.1f} % of {count} | {100 * exact / count:.1f} % "
        f"| {accepts} / {negative} | {rejects} / {positive} |"
    )


class _Bytes:
    """A vocabulary of single bytes, where no tokenizer is at hand."""

    eos_token_id, bos_token_id = 256, None
    tokens = [bytes([i]) for i in range(256)] + [b"\xff[256]"]
    special_token_ids = (256,)

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with schemas.jsonl and test_suite_*.jsonl"
    )
    parser.add_argument("--tokenizer", help="a model: GGUF file or folder; single bytes without it")
    parser.add_argument("--engines", default="ours,llguidance")
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--verbose", action="store_true", help="print every refusal and every wrong verdict")
    args = parser.parse_args()
    if args.tokenizer:
        from radixlang.text.tokenizer import load_tokenizer

        loaded = load_tokenizer(args.tokenizer)
        vocabulary = Vocabulary.of(loaded)
        library = loaded.backend
        tokenizer = llguidance.LLTokenizer(library.to_str())
        encode: Callable[[str], list[int]] = lambda text: library.encode(text, add_special_tokens=False).ids  # noqa: E731
    else:
        tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()))
        encode = _Bytes()
        vocabulary = Vocabulary([*_Bytes.tokens[:256], b""], (256,), encode)
    makers: dict[str, Callable[[], Any]] = {
        "ours": lambda: Ours(encode, tokenizer, vocabulary),
        "llguidance": lambda: Llguidance(encode, tokenizer),
        "backend": lambda: Backend(vocabulary),
        "xgrammar": lambda: Xgrammar(vocabulary, strict=False),
        "strict": lambda: Xgrammar(vocabulary, strict=True),
    }
    engines = {name: makers[name]() for name in args.engines.split(",")}
    gc.collect()
    gc.freeze()
    gc.disable()  # as engine processes do, which collect when they are idle: here, between two schemas
    for path in sorted(args.data.glob("*schemas*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().strip().split("\n")][: args.limit]
        print(f"\n{path.name}: {len(lines)} schemas; times p50 / p90 / p99 / max\n")
        print("| engine | compiles | exact | fully right | wrong accepts | wrong rejects | compile ms | ours ms "
              "| mask µs |\n|" + " --- |" * 9)  # fmt: skip
        for name, engine in engines.items():
            print(real(name, engine, lines, args.verbose))
        if isinstance(engines.get("ours"), Ours):
            print(f"\nours: {engines['ours'].taken} of them on our own automata")
    for path in sorted(args.data.glob("test_suite*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().strip().split("\n")]
        print(
            f"\n{path.name}, core groups\n\n| engine | handled | exact | wrong accepts | wrong rejects |\n|"
            + " --- |" * 5
        )
        for name, engine in engines.items():
            print(suite(name, engine, lines, args.verbose))


if __name__ == "__main__":
    main()
