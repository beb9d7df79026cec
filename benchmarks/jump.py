"""Jump-forward: the same greedy texts with and without, and the time it saves.

    python benchmarks/jump.py [--sections equal time] [--model default] [--data FOLDER] [--out FILE]

Two engines, one with `--disable-jump-forward`, take turns in one run. `equal`: greedy texts of real schemas (the
first that compile of a shuffled set, several prompts each) are compared token by token; where two differ, the
log-probabilities of both tokens given the common beginning say whether it was a tie that a prefill and a decode
step break differently. `time`: a record of 25 long required keys with short values, its facts in the prompt, alone
and 8 at once; the order changes with every turn. Which share of tokens is forced in real instances, and whether
these are the tokenizer's, is in `benchmarks/grammar.py jump`. Exits with 1 when a bar is missed: 99 % equal, 1.3
times as fast.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from itertools import zip_longest
from pathlib import Path
from typing import Any

from common import environment

from radixlang.errors import RequestError
from radixlang.llm import Engine

EQUAL, FASTER = 0.99, 1.3
#: key → (its schema, what the prompt says)
FACTS: dict[str, tuple[dict[str, Any], str]] = {
    "shipment_reference_identifier": ({"type": "integer", "minimum": 1, "maximum": 9999}, "Shipment 4711"),
    "carrier_service_level_agreement": ({"enum": ["express", "standard", "economy"]}, "sent express"),
    "customs_declaration_required": ({"type": "boolean"}, "customs papers are needed"),
    "number_of_individual_packages": ({"type": "integer", "minimum": 0, "maximum": 99}, "12 packages"),
    "total_gross_weight_in_kilograms": ({"type": "integer", "minimum": 0, "maximum": 999}, "weighing 340 kg"),
    "temperature_controlled_transport": ({"type": "boolean"}, "cooled on the way"),
    "maximum_permitted_temperature_celsius": (
        {"type": "integer", "minimum": 0, "maximum": 30},
        "to at most 8 degrees",
    ),
    "dangerous_goods_classification": ({"enum": ["none", "flammable", "corrosive"]}, "no dangerous goods"),
    "country_of_origin_code": ({"enum": ["DE", "FR", "IT", "PL"]}, "from France (FR)"),
    "country_of_destination_code": ({"enum": ["DE", "FR", "IT", "PL"]}, "to Poland (PL)"),
    "insurance_coverage_included": ({"type": "boolean"}, "not insured"),
    "declared_value_currency_code": ({"enum": ["EUR", "USD", "PLN"]}, "priced in EUR"),
    "delivery_confirmation_signature_required": ({"type": "boolean"}, "the receiver signs"),
    "preferred_delivery_weekday": ({"enum": ["Monday", "Tuesday", "Friday"]}, "on a Tuesday"),
    "earliest_acceptable_delivery_hour": ({"type": "integer", "minimum": 0, "maximum": 23}, "not before 9"),
    "latest_acceptable_delivery_hour": ({"type": "integer", "minimum": 0, "maximum": 23}, "not after 17"),
    "return_shipment_label_enclosed": ({"type": "boolean"}, "without a return label"),
    "packaging_material_category": ({"enum": ["wood", "cardboard", "plastic"]}, "in cardboard"),
    "stackable_during_transportation": ({"type": "boolean"}, "may be stacked"),
    "number_of_loading_metres_required": ({"type": "integer", "minimum": 0, "maximum": 20}, "3 loading metres"),
    "forklift_required_for_unloading": ({"type": "boolean"}, "no forklift needed"),
    "contact_language_of_the_recipient": ({"enum": ["de", "fr", "pl", "en"]}, "the receiver speaks Polish (pl)"),
    "payment_terms_for_freight_charges": ({"enum": ["prepaid", "collect"]}, "freight is prepaid"),
    "environmental_compensation_requested": ({"type": "boolean"}, "climate compensation wanted"),
    "internal_handling_priority_level": ({"type": "integer", "minimum": 1, "maximum": 5}, "priority 2"),
}
RECORD = {
    "type": "object",
    "properties": {key: schema for key, (schema, _) in FACTS.items()},
    "required": list(FACTS),
    "additionalProperties": False,
}
PROMPT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


def engines(args: argparse.Namespace) -> dict[bool, Engine]:
    """With and without jump-forward."""
    options = {"device": args.device, "context_length": 2048, "max_running_requests": 16}
    return {jump: Engine(args.model, disable_jump_forward=not jump, **options) for jump in (True, False)}


def texts(engine: Engine, prompts: list[str], schema: Any, new: int) -> list[dict[str, Any]]:
    sampling = {"temperature": 0, "max_new_tokens": new, "json_schema": json.dumps(schema)}
    return engine.generate(prompts, sampling)


def difference(engine: Engine, prompt: str, one: list[int], other: list[int]) -> str:
    """Where two texts part, and by how much the model prefers either token there (no grammar, one prefill)."""
    pairs = zip_longest(one, other)
    at = next(i for i, (a, b) in enumerate(pairs) if a != b)
    if at >= min(len(one), len(other)):
        return f"one is longer, at token {at}"
    ids = engine.tokenizer.encode(prompt) + one[:at]  # type: ignore[union-attr]
    answer = engine.generate(
        input_ids=ids, sampling_params={"max_new_tokens": 1, "temperature": 0}, return_logprob=True,
        token_ids_logprob=[one[at], other[at]],
    )  # fmt: skip
    first, second = (entry[0] for entry in answer["meta_info"]["output_token_ids_logprobs"][0])
    names = [engine.tokenizer.decode([token]) for token in (one[at], other[at])]  # type: ignore[union-attr]
    return f"token {at}: {names[0]!r} with, {names[1]!r} without; log-probabilities {first:.4f} and {second:.4f}"


def equal(pair: dict[bool, Engine], args: argparse.Namespace) -> tuple[str, bool]:
    lines = [json.loads(line) for line in (args.data / "schemas.jsonl").read_text().splitlines()]
    random.Random(args.seed).shuffle(lines)
    same = total = tokens = 0
    notes = []
    for line in lines:
        if total >= args.texts:
            break
        about = json.dumps(line["schema"], ensure_ascii=False)[:500]
        prompts = [
            PROMPT.format(f"{about}\nWrite about {topic}.")
            for topic in ("a bakery", "the moon", "Ada Lovelace", "tea")
        ]
        try:
            both = {jump: texts(engine, prompts, line["schema"], args.new) for jump, engine in pair.items()}
        except RequestError as error:
            print(f"refused {line['id']}: {error}", file=sys.stderr)
            continue
        for prompt, with_, without in zip(prompts, both[True], both[False], strict=True):
            total += 1
            tokens += len(with_["output_ids"])
            same += with_["text"] == without["text"] and with_["output_ids"] == without["output_ids"]
            if with_["output_ids"] != without["output_ids"]:
                where = difference(pair[False], prompt, with_["output_ids"], without["output_ids"])
                notes.append(f"- {line['id']}: {where}")
        print(f"{same} of {total} equal", file=sys.stderr, flush=True)
    good = same >= EQUAL * total
    share, verdict = 100 * same / total, "pass" if good else "FAIL"
    row = f"| {total} | {tokens:,} | {same} ({share:.1f} %) | ≥ {100 * EQUAL:.0f} % | {verdict} |"
    head = "| greedy texts | tokens | equal with and without | bar | |\n|---:|---:|---:|---:|---|\n"
    return head + row + "".join("\n" + note for note in (["", *notes] if notes else [])), good


def timed(pair: dict[bool, Engine], args: argparse.Namespace) -> tuple[str, bool]:
    facts = ". ".join(fact for _, fact in FACTS.values())
    rows = [
        "| at once | tokens a text | s with jumps | s without | ratio | bar | |",
        "|---:|---:|---:|---:|---:|---:|---|",
    ]
    kept = True
    for batch in args.batches:
        seconds: dict[bool, list[float]] = {True: [], False: []}
        count = 0
        for turn in range(args.turns + 1):
            prompts = [PROMPT.format(f"Note {turn}.{i}: {facts}. Write this down as JSON.") for i in range(batch)]
            for jump in (True, False) if turn % 2 else (False, True):
                began = time.perf_counter()
                answers = texts(pair[jump], prompts, RECORD, 512)
                took = time.perf_counter() - began
                assert all(answer["meta_info"]["finish_reason"]["type"] == "stop" for answer in answers)
                if turn:  # the first compiles
                    seconds[jump].append(took)
                    count = len(answers[0]["output_ids"])
        with_, without = (statistics.median(seconds[jump]) for jump in (True, False))
        good = without / with_ >= FASTER
        kept &= good
        rows.append(f"| {batch} | {count} | {with_:.2f} | {without:.2f} | {without / with_:.2f} | ≥ {FASTER} "
                    f"| {'pass' if good else 'FAIL'} |")  # fmt: skip
    return "\n".join(rows), kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", nargs="+", choices=["equal", "time"], default=["equal", "time"])
    parser.add_argument("--model", default="default")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data" / "json_schemas"
    )
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, help="append the tables to this file")
    args = parser.parse_args()
    pair = engines(args)
    parts, kept = [environment("jump")], True
    for section in args.sections:
        text, good = {"equal": equal, "time": timed}[section](pair, args)
        parts.append(text)
        kept &= good
    for engine in pair.values():
        engine.shutdown()
    text = "\n\n".join(parts)
    print(text)
    if args.out:
        with args.out.open("a") as file:
            file.write(f"\n## Jump-forward\n{text}\n")
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
