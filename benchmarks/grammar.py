"""Structured output on one CPU core and on a GPU: tables beside the libraries, in one run.

    python benchmarks/grammar.py regex [--model default --model gemma-3-270m] [--xgrammar FOLDER]
    python benchmarks/grammar.py jump [--model …] [--schemas FILE] [--limit N]
    python benchmarks/grammar.py device

`regex`: compilation, masks when a text first comes to a place and when it comes again, and the cost of asking for
forced tokens where there are none; CPU time, for the texts below. `auto` is what the server takes: the native
automata, or llguidance where they refuse. `jump`: how many tokens of valid instances of real schemas are forced,
and whether these are the tokenizer's; how many drafts hold, and how many tokens need no step of their own for
either reason (each step draws one). `device`: masking and stepping by automata that live on the GPU, as a step
of a CUDA graph has them (needs a GPU). `--xgrammar`: that library too, alone and as our backend; a folder that
holds the package, if it is not installed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import environment

from radixlang.errors import RadixLangError
from radixlang.grammar.canonical import CanonicalState
from radixlang.grammar.errors import GrammarError
from radixlang.grammar.limits import GrammarLimits
from radixlang.grammar.llg import LlguidanceEngine
from radixlang.grammar.native import NativeEngine
from radixlang.grammar.vocabulary import Vocabulary
from radixlang.grammar.xgr import XgrammarEngine
from radixlang.hub_files import resolve_model_path
from radixlang.messages import GrammarSpec
from radixlang.text.tokenizer import load_tokenizer

SCHEMAS = Path(__file__).parents[2] / "shared" / "data" / "json_schemas" / "schemas.jsonl"
_NAME = r"[\w\d\s]{1,16}"
RECORD = (
    r'\{\n  "name": "' + _NAME + r'",\n  "house": "(North|South|East|West)",\n  "status": "(new|known|lost)",\n'
    r'  "work": "(pupil|teacher|keeper of keys|head of the house)",\n  "tool": \{\n    "wood": "' + _NAME + r'",\n'
    r'    "core": "' + _NAME + r'",\n    "length": [0-9]{1,2}\.[0-9]{0,2}\n  \},\n  "alive": "(yes|no)",\n'
    r'  "friend": "' + _NAME + r'",\n  "fear": "' + _NAME + r'"\n\}'
)
RECORD_TEXT = (
    '{\n  "name": "Ada Lovelace",\n  "house": "North",\n  "status": "known",\n  "work": "keeper of keys",\n'
    '  "tool": {\n    "wood": "holly",\n    "core": "feather",\n    "length": 11.25\n  },\n  "alive": "yes",\n'
    '  "friend": "a silver otter",\n  "fear": "moths"\n}'
)
FLAT = (
    r'\{"name": "[^"\\\x00-\x1f]{1,40}", "age": (0|[1-9][0-9]{0,2}), '
    r'"city": "[^"\\\x00-\x1f]*", "member": (true|false)\}'
)
BYTE = r"(25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)"
REGEXES = {
    "ipv4": (rf"({BYTE}\.){{3}}{BYTE}", "192.168.17.254"),
    "phone": (r"\([0-9]{3}\) [0-9]{3}-[0-9]{4}", "(555) 123-4567"),
    "choice of 5": (["positive", "negative", "neutral", "mixed", "not applicable"], "not applicable"),
    "email": (r"[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,}", "ada.lovelace@analytical.engine.org"),
    "(a|aa)*b(a|b){12}c": (r"(a|aa)*b(a|b){12}c", "aaaab" + "abbab" * 2 + "aa" + "c"),
    "record, 5 × \\w{1,16}": (RECORD, RECORD_TEXT),
    "flat JSON": (FLAT, '{"name": "Ada Lovelace", "age": 36, "city": "London", "member": true}'),
    '"[^"\\\\]{0,200}"': (r'"[^"\\]{0,200}"', '"' + "a sentence of some length, and " * 6 + '"'),
    "Reasoning: [^\\n]{1,300}": (
        r"Reasoning: [^\n]{1,300}",
        "Reasoning: " + "one step follows from another; " * 9,
    ),
}


def cpu(work: Callable[[], Any]) -> tuple[Any, float]:
    """→ (the result, CPU seconds)."""
    before = time.process_time()
    return work(), time.process_time() - before


def load(model: str) -> Vocabulary:
    return Vocabulary.of(load_tokenizer(resolve_model_path(model)))


# ---- regular expressions ----


def xgrammar_states(vocabulary: Vocabulary) -> Callable[[GrammarSpec], Callable[[], Any]]:
    """Compiles like our engines; states have `fill` and `accept`."""
    import xgrammar as xgr

    words = [token or f"<{index}>".encode() for index, token in enumerate(vocabulary.tokens)]
    info = xgr.TokenizerInfo(words, xgr.VocabType.RAW, stop_token_ids=list(vocabulary.eos_ids))
    compiler = xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    class State:
        def __init__(self, compiled: Any) -> None:
            self.matcher = xgr.GrammarMatcher(compiled)

        def fill(self, row: np.ndarray) -> None:
            import torch

            self.matcher.fill_next_token_bitmask(torch.from_numpy(row[None]))

        def accept(self, token: int) -> bool:
            return self.matcher.accept_token(token)

    def compiled(spec: GrammarSpec) -> Callable[[], Any]:
        if spec.kind == "regex":
            grammar = compiler.compile_regex(spec.text)
        else:
            choices = " | ".join(json.dumps(one) for one in json.loads(spec.text))
            grammar = compiler.compile_grammar(f"root ::= {choices}")
        return lambda: State(grammar)

    return compiled


def regex_rows(vocabulary: Vocabulary, xgrammar: bool) -> Iterator[str]:
    native, llg = NativeEngine(vocabulary, GrammarLimits()), LlguidanceEngine(vocabulary, GrammarLimits())
    native.warm_up()
    vocabulary.encode("")

    engines: dict[str, Callable[[GrammarSpec], Callable[[], Any] | None]] = {
        "native": lambda spec: native.compile(spec).start if native.supports(spec) is None else None,
        "llguidance": lambda spec: llg.compile(spec).start,
    }
    if xgrammar:
        backend = XgrammarEngine(vocabulary, GrammarLimits())
        engines["xgrammar backend"] = lambda spec: backend.compile(spec).start
        engines["xgrammar"] = xgrammar_states(vocabulary)
    row = np.zeros(vocabulary.words, np.int32)
    for name, (pattern, text) in REGEXES.items():
        kind = "regex" if isinstance(pattern, str) else "choice"
        spec = GrammarSpec(kind, pattern if isinstance(pattern, str) else json.dumps(pattern))
        tokens = vocabulary.encode(text)
        for engine, compile_ in engines.items():
            times, begin = [], None
            for _ in range(3):
                native._regex.cache_clear()
                try:
                    begin, took = cpu(lambda: compile_(spec))  # noqa: B023
                except Exception as error:
                    print(f"{engine} on {name}: {error}", file=sys.stderr)
                    begin, took = None, 0.0
                times.append(took)
            compiling = f"{1e3 * statistics.median(times):.1f}"
            if begin is None:
                yield f"| {name} | {engine} | refused in {compiling} | | | | | |"
                continue
            cold, again, accepts, asks = [], [], [], []
            state = begin()
            for token in tokens:
                cold.append(cpu(lambda: state.fill(row))[1])  # noqa: B023
                assert state.accept(token), (engine, name, token)
            for repeat in range(20):
                state = begin()
                if engine != "xgrammar":
                    state = CanonicalState(state, vocabulary)
                for token in tokens:
                    if engine != "xgrammar":
                        forced, took = cpu(state.forced)
                        if repeat and not forced:
                            asks.append(took)
                    inner = state._inner if engine != "xgrammar" else state
                    again.append(cpu(lambda: inner.fill(row))[1])  # noqa: B023
                    accepts.append(cpu(lambda: state.accept(token))[1])  # noqa: B023
            columns = (cold, again, accepts, asks)
            micro = [f"{1e6 * statistics.median(values):.1f}" if values else "–" for values in columns]
            total = f"{1e3 * sum(cold):.2f} ({len(tokens)})"
            yield f"| {name} | {engine} | {compiling} | {total} | {' | '.join(micro)} |"


def regexes(models: list[str], xgrammar: str | None) -> None:
    if xgrammar:
        sys.path.append(xgrammar)
    clock = statistics.median(cpu(lambda: None)[1] for _ in range(1000))
    print(f"CPU time of one core; {1e6 * clock:.1f} µs of each measurement are the clock's.\n")
    for model in models:
        vocabulary = load(model)
        print(f"**{model}, {vocabulary.size} tokens**\n")
        heads = ["all first masks ms (tokens)", "first mask µs", "again µs", "accept µs", "forced(), none µs"]
        print(f"| text | engine | compile ms | {' | '.join(heads)} |")
        print("|---|---|---|---|---|---|---|---|")
        for line in regex_rows(vocabulary, xgrammar is not None):
            print(line, flush=True)
        print()


# ---- forced tokens ----


def strict(schema: Any) -> Any:
    """All declared keys required and no others allowed."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: strict(value) if key not in ("enum", "const", "default", "examples") else value
           for key, value in schema.items()}  # fmt: skip
    if isinstance(schema.get("properties"), dict):
        out |= {"required": list(schema["properties"]), "additionalProperties": False}
    return out


class Walk(NamedTuple):
    """Tokens of one text: `forced` ones, `others` of these that are not the tokenizer's, drafts that hold
    (`right`) and that do not, and those that need no step of their own (`spared`)."""

    forced: int
    others: int
    right: int
    wrong: int
    spared: int


def walk(state: CanonicalState, tokens: list[int], row: np.ndarray) -> Walk | None:
    """None where the text is refused."""
    at = forced_tokens = others = right = wrong = spared = 0
    drawn = True  # in the first step, too, something is drawn; forced tokens may stand before it
    while at < len(tokens):
        forced = state.forced()
        same = next((i for i, pair in enumerate(zip(forced, tokens[at:], strict=False)) if pair[0] != pair[1]),
                    min(len(forced), len(tokens) - at))  # fmt: skip
        if same < len(forced):
            data = b"".join(state._vocabulary.tokens[token] for token in forced)
            rest = b"".join(state._vocabulary.tokens[token] for token in tokens[at:])
            if not rest.startswith(data):
                return None
            others += 1
        forced_tokens += same
        spared += same - (same > 0 and not drawn)  # the step of a draft draws what follows it
        drawn |= same > 0
        if not same:
            guess = state.draft()[:1] if drawn else []
            hit = guess == tokens[at : at + 1]
            right += hit
            spared += hit
            wrong += bool(guess) and not hit
            drawn = not hit
        for token in tokens[at : at + max(1, same)]:
            if not same:
                state.fill(row)
                if not int(row.view(np.uint32)[token >> 5]) >> (token & 31) & 1:
                    return None
            if not state.accept(token):
                return None
        at += max(1, same)
    return Walk(forced_tokens, others, right, wrong, spared) if state.can_end else None


def jumps(models: list[str], path: Path, limit: int) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()][:limit]
    print("| tokens | schemas | instances | tokens of these | of all tokens forced | mean of instances | "
          "not the tokenizer's | drafts, right | without a step | walk µs a token |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|")
    for model in models:
        vocabulary = load(model)
        engine = LlguidanceEngine(vocabulary, GrammarLimits())
        row = np.zeros(vocabulary.words, np.int32)
        for label, change in (("as written", lambda schema: schema), ("all keys required", strict)):
            schemas = instances = total = forced = others = right = drafts = spared = 0
            spent, shares = 0.0, []
            for line in lines:
                try:
                    grammar = engine.schema(GrammarSpec("json_schema", json.dumps(change(line["schema"]))))
                except (GrammarError, RadixLangError):
                    continue
                schemas += 1
                for test in line["tests"]:
                    if not test["valid"] or test["origin"] != "maskbench":
                        continue
                    text = json.dumps(test.get("data_ordered", test["data"]), ensure_ascii=False)
                    tokens = vocabulary.encode(text)
                    try:
                        found, took = cpu(lambda: walk(CanonicalState(grammar.start(), vocabulary), tokens, row))  # noqa: B023
                    except RadixLangError:
                        continue
                    if found is None:
                        continue
                    instances += 1
                    total += len(tokens)
                    spent += took
                    forced += found.forced
                    others += found.others
                    right += found.right
                    drafts += found.right + found.wrong
                    spared += found.spared
                    shares.append(found.forced / len(tokens))
            percent = f"{100 * forced / total:.1f} % | {100 * statistics.mean(shares):.1f} %"
            counts = f"{schemas} | {instances} | {total}"
            held = f"{drafts}, {100 * right / drafts:.1f} % | {100 * spared / total:.1f} %"
            micro = f"{1e6 * spent / total:.0f}"
            print(f"| {model}, {label} | {counts} | {percent} | {others} | {held} | {micro} |", flush=True)


# ---- automata on the device ----


def device() -> None:
    import torch

    from radixlang.grammar.tables import automaton_table
    from radixlang.platforms.accelerator import AcceleratorPlatform
    from radixlang.sampling.automata import Automata

    vocabulary = load("default")
    spec = GrammarSpec("regex", "(positive)*")  # the token leads back to where it began
    table = automaton_table(NativeEngine(vocabulary, GrammarLimits()).compile(spec))
    assert table is not None
    letters = np.frombuffer(b"".join(vocabulary.tokens), np.uint8)
    ends = np.cumsum([0, *vocabulary.lengths], dtype=np.int32)
    print("| rows | vocabulary | rows with an automaton | mask µs | step µs |")
    print("|---|---|---|---|---|")
    for size in (vocabulary.size, 151_936):
        automata = Automata(512, size, AcceleratorPlatform("cuda"), 1)
        automata.load_tokens(letters, np.append(ends, np.full(size - vocabulary.size, ends[-1], np.int32)))
        masks = np.zeros((len(table.masks), automata.words), np.int32)
        masks[:, : vocabulary.words] = table.masks
        automata.load(0, table.next_byte.ravel(), table.mask_row, masks.ravel())
        for count in (1, 64, 256):
            logits = torch.zeros((count, size), device="cuda")
            rows = torch.arange(count, dtype=torch.int32, device="cuda")
            drawn = torch.full((count,), vocabulary.encode("positive")[0], device="cuda")
            flags = torch.zeros(count, dtype=torch.int32, device="cuda")

            def place(held: int, automata: Automata = automata, count: int = count) -> None:
                for row in range(count):
                    automata.setup(row, (0, 0) if row < held else None)
                automata.settle()

            steps: list[Callable[[], None]] = [
                lambda: automata.mask(logits, rows),  # noqa: B023
                lambda: automata.advance(drawn, rows, flags),  # noqa: B023
            ]
            for held in (0, count):
                place(held)
                micro = []
                for work in steps:
                    work()
                    torch.cuda.synchronize()
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph):
                        for _ in range(100):
                            work()
                    place(held)
                    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    graph.replay()
                    begin.record()
                    graph.replay()
                    end.record()
                    torch.cuda.synchronize()
                    micro.append(f"{10 * begin.elapsed_time(end):.2f}")
                print(f"| {count} | {size} | {held} | {' | '.join(micro)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("section", choices=["regex", "jump", "device"])
    parser.add_argument("--model", action="append")
    parser.add_argument("--xgrammar")
    parser.add_argument("--schemas", type=Path, default=SCHEMAS)
    parser.add_argument("--limit", type=int, default=1_000_000)
    options = parser.parse_args()
    models = options.model or ["default", "gemma-3-270m"]
    print(environment("grammar") + "\n")
    if options.section == "regex":
        regexes(models, options.xgrammar)
    elif options.section == "jump":
        jumps(models, options.schemas, options.limit)
    else:
        device()


if __name__ == "__main__":
    main()
