"""`radixlang bench`: flags of the measurements in `radixlang.bench`, which know no command line.

Must not import torch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radixlang.cli.options import add_engine_flags, engine_values, open_engine
from radixlang.cli.parser import Parser, check_output
from radixlang.errors import ConfigError

if TYPE_CHECKING:
    from radixlang.bench.offline import Trace
    from radixlang.bench.report import Report

#: engine options that mean nothing at a chat's prompt but do here
_KEPT = frozenset({"skip_tokenizer_init", "random_seed"})


MOST = 2**31 - 1
"""of anything that is counted: tokens are, with 32 bits"""


def count(text: str) -> int:
    """A flag's value that is at least 1."""
    return _at_least(1, _whole(text))


def count_or_zero(text: str) -> int:
    """A flag's value that is at least 0."""
    return _at_least(0, _whole(text))


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None


def _at_least(least: int, value: int) -> int:
    if value < least:
        raise argparse.ArgumentTypeError(f"must be at least {least}, got {value}")
    if value > MOST:
        raise argparse.ArgumentTypeError(f"must be at most {MOST}, got {value}")
    return value


def counts(text: str) -> tuple[int, ...]:
    """Numbers separated by commas."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be whole numbers separated by commas, got {text!r}") from None
    return tuple(_at_least(1, value) for value in values)


def words(text: str) -> tuple[str, ...]:
    """Names separated by commas."""
    return tuple(text.split(","))


def workloads(text: str) -> tuple[str, ...]:
    """Names of workloads separated by commas, or `all`."""
    from radixlang.bench.workloads import names_of

    return names_of(text)


def _number(text: str, meant: Callable[[float], bool], rule: str) -> float:
    """A flag's value that is `meant`, which `rule` says in words."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {text!r}") from None
    if not meant(value):
        raise argparse.ArgumentTypeError(f"must be {rule}, got {text}")
    return value


def factor(text: str) -> float:
    """What lengths are multiplied by."""
    return _number(text, lambda value: 0 < value <= 1000, "above 0 and at most 1000")


def pauses(text: str) -> float:
    """What pauses are multiplied by."""
    return _number(text, lambda value: 0 <= value <= 1e6, "from 0 to 1000000")


def share(text: str) -> float:
    """A share of 1, above 0."""
    return _number(text, lambda value: 0 < value <= 1, "above 0 and at most 1")


def temperature(text: str) -> float:
    """A finite number that is not negative."""
    return _number(text, lambda value: 0 <= value < float("inf"), "0 or more")


def seconds(text: str) -> float:
    """A time that can be waited for, and in which something can happen."""
    return _number(text, lambda value: 0.001 <= value <= 1e6, "from 0.001 to 1000000 seconds")


def rate(text: str) -> float:
    """Requests or sessions a second; `inf` for all at once."""
    return _number(text, lambda value: value >= 1e-6, "at least 0.000001, or inf")


def _parser(name: str, description: str) -> Parser:
    parser = Parser(prog=f"radixlang bench {name}", description=description)
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all figures there as well")
    return parser


def _own(parser: Parser, *flags: tuple[str, Callable[[str], Any], str]) -> None:
    """Flags of a benchmark; absent ones leave no attribute behind, so that the settings' defaults hold."""
    for name, kind, text in flags:
        parser.add_argument(name, type=kind, default=argparse.SUPPRESS, metavar=name[2:].upper(), help=text)


def _add_trace(parser: Parser) -> None:
    parser.add_argument("--profile", metavar="FOLDER", help="write a trace of the first measured steps there")
    parser.add_argument("--profile-steps", type=count, default=argparse.SUPPRESS, help="steps in that trace (32)")
    parser.add_argument("--inline", action="store_true", help="engine in threads of this process, not in its own")


def _trace(args: argparse.Namespace) -> Trace | None:
    from radixlang.bench.offline import Trace

    if not args.profile:
        return None
    return Trace(str(Path(args.profile).absolute()), getattr(args, "profile_steps", Trace.steps))


def _make_folder(flag: str, path: str) -> None:
    """Before the run, which may be long.

    Raises:
        ConfigError: there can be no such folder.
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{flag} {path} cannot be written to: {error.strerror}.") from None


def _given(args: argparse.Namespace, settings: Any) -> dict[str, Any]:
    """The fields of `settings` that have a flag among `args`."""
    return {name: getattr(args, name) for name in settings.__dataclass_fields__ if hasattr(args, name)}


def throughput_parser() -> Parser:
    """The flags of `bench throughput`."""
    parser = _parser("throughput", "Tokens a second of an engine that has many requests at once.")
    _own(
        parser,
        ("--num-prompts", count, "requests (16; 256 on an accelerator)"),
        ("--input-len", count, "tokens of a prompt (64; 1,024)"),
        ("--output-len", count, "tokens of an answer (32; 256)"),
        ("--shared-len", count_or_zero, "leading tokens that all prompts share (0)"),
        ("--runs", count, "how often (1)"),
        ("--warmup", count_or_zero, "requests before the first run (2)"),
        ("--prompt-seed", count_or_zero, "of the random prompts (0)"),
    )
    parser.add_argument(
        "--keep-cache", action="store_true", help="later runs find the prompts of the first cached"
    )
    _add_trace(parser)
    add_engine_flags(parser, _KEPT)
    return parser


def throughput(args: argparse.Namespace) -> Report:
    """Run it."""
    from radixlang.bench.throughput import Settings, measure

    settings = Settings(**_given(args, Settings), trace=_trace(args))
    with open_engine(args, args.inline) as engine:
        return measure(engine, settings)


def latency_parser() -> Parser:
    """The flags of `bench latency`."""
    parser = _parser("latency", "The wait for the first token and the time of a decode step, by batch size.")
    _own(
        parser,
        ("--batch-sizes", counts, "separated by commas (1,4,16; on an accelerator 1,8,32,64,128,256)"),
        ("--input-len", count, "tokens of a prompt (64; 1,024)"),
        ("--output-len", count, "tokens of an answer (24; 128)"),
        ("--runs", count, "runs per batch size, of which the median counts (3)"),
        ("--prompt-seed", count_or_zero, "of the random prompts (0)"),
    )
    _add_trace(parser)
    add_engine_flags(parser, _KEPT)
    return parser


def latency(args: argparse.Namespace) -> Report:
    """Run it."""
    from radixlang.bench.latency import Settings, measure

    settings = Settings(**_given(args, Settings), trace=_trace(args))
    with open_engine(args, args.inline) as engine:
        return measure(engine, settings)


def step_parser() -> Parser:
    """The flags of `bench step`."""
    parser = _parser("step", "Where the time of a decode step goes, on the host and on the device.")
    _own(
        parser,
        ("--batch-sizes", counts, "separated by commas (1,4,16; on an accelerator 1,8,32,64,128,256)"),
        ("--input-len", count, "tokens of a prompt (64; 1,024)"),
        ("--steps", count, "decode steps per batch size (40; 200)"),
        ("--temperature", temperature, "of all requests; 0 is greedy (0)"),
        ("--prompt-seed", count_or_zero, "of the random prompts (0)"),
    )
    add_engine_flags(parser, _KEPT)
    return parser


def step(args: argparse.Namespace) -> Report:
    """Run it."""
    from radixlang.bench.step import Settings, measure

    return _with_config(args, Settings(**_given(args, Settings)), measure)


def _with_config(args: argparse.Namespace, settings: Any, measure: Callable[..., Report]) -> Report:
    """Measure the parts of an engine, which are put together in this process."""
    from radixlang.cli.serve import StartProgress
    from radixlang.config import Config
    from radixlang.log import configure

    values = engine_values(args)
    config = Config.from_flat(**{"log_level": "error", **values}).resolve()
    configure(config.log.log_level, "engine")
    progress = StartProgress()
    try:
        return measure(config, settings, progress)
    finally:
        progress.finish()


def serving_parser() -> Parser:
    """The flags of `bench serving`."""
    parser = _parser("serving", "Load on an OpenAI-compatible server, and what its clients see.")
    _own(
        parser,
        ("--base-url", str, "where it listens (http://127.0.0.1:30000)"),
        ("--api-key", str, "sent as a bearer token"),
        ("--model", str, "name of the model (the first that the server lists)"),
        ("--num-prompts", count, "requests (32)"),
        ("--input-len", count, "tokens of a prompt, or words with --text (128)"),
        ("--output-len", count, "tokens of an answer (32)"),
        ("--shared-len", count_or_zero, "leading tokens or words that all prompts share (0)"),
        ("--vocab-size", count, "random token ids stay below this (10000)"),
        ("--request-rate", rate, "requests a second on average, or inf: all at once (inf)"),
        ("--max-concurrency", count, "most requests at a time (no limit)"),
        ("--warmup", count_or_zero, "requests before the load, one after the other (2)"),
        ("--temperature", temperature, "of all requests (0)"),
        ("--timeout", seconds, "seconds that a request may take (600)"),
        ("--prompt-seed", count_or_zero, "of the random prompts and arrivals (0)"),
    )
    parser.add_argument("--text", action="store_true", help="send words instead of token ids")
    parser.add_argument(
        "--no-ignore-eos",
        dest="ignore_eos",
        action="store_false",
        help="let answers end early; for servers that do not know the field ignore_eos",
    )
    return parser


def serving(args: argparse.Namespace) -> Report:
    """Run it."""
    from radixlang.bench.serving import Settings, measure

    return measure(Settings(**_given(args, Settings)))


def prefix_parser() -> Parser:
    """The flags of `bench prefix`."""
    parser = _parser("prefix", "What the prefix cache is worth on seven classical workloads.")
    add_workload_flags(parser, "12; 256 on an accelerator", "0.25; 1", "4; 64; no limit with --rate", "0")
    _own(
        parser,
        ("--policy", words, "eviction orders to compare, separated by commas (--radix-eviction-policy)"),
        ("--memory-share", share, "KV memory as a share of each workload's working set (all there is)"),
        ("--record", Path, "write every step's work and time there, for `radixlang simulate`"),
        ("--base-url", str, "measure this server instead (/generate; ours or SGLang), as it was started"),
        ("--api-key", str, "sent to the server as a bearer token"),
        ("--vocab-size", count, "random token ids for the server stay below this (10000)"),
    )
    parser.add_argument(
        "--no-baseline", dest="baseline", action="store_false", help="leave out the runs without the cache"
    )
    add_engine_flags(parser, _KEPT)
    return parser


#: flags of a run on a server; all others are for an engine
_OF_SERVER = frozenset(
    (
        *("--workload", "--sessions", "--scale", "--concurrency", "--rate", "--think", "--prompt-seed"),
        *("--base-url", "--api-key", "--vocab-size", "--json"),
    )
)


def _check_prefix(given: list[str]) -> None:
    """Refuse what would have no effect: each run has a scheduler of its own, over the device's cache alone."""
    if "--base-url" in given:
        for flag in (flag for flag in given if flag not in _OF_SERVER):
            raise ConfigError(
                f"{flag} needs an engine, not a server at --base-url, which is measured as it was started."
            )
        return
    for flag in given:
        if flag in ("--api-key", "--vocab-size"):
            raise ConfigError(f"{flag} needs --base-url: an engine asks for no key and knows its vocabulary.")
        if flag in ("--disable-radix-cache", "--no-enable-prefix-caching"):
            raise ConfigError(f"{flag} must be left out: the runs without the cache are beside those with it.")
        if flag.startswith(("--hicache-", "--cache-dir", "--enable-hierarchical-cache")):
            raise ConfigError(f"{flag} needs a server that was started with it, and --base-url.")


def add_workload_flags(parser: Parser, sessions: str, scale: str, concurrency: str, think: str) -> None:
    """What to play; the texts are the defaults."""
    _own(
        parser,
        ("--workload", workloads, "names separated by commas, or all (all)"),
        ("--sessions", count, f"sessions of each ({sessions})"),
        ("--scale", factor, f"multiplies the length of all texts ({scale})"),
        ("--concurrency", count, f"most sessions at a time ({concurrency})"),
        ("--rate", rate, "sessions a second on average, or inf: as --concurrency lets through (inf)"),
        ("--think", pauses, f"multiplies the pauses between an answer and the next request ({think})"),
        ("--prompt-seed", count_or_zero, "of everything that is drawn (0)"),
    )


def prefix(args: argparse.Namespace) -> Report:
    """Run it."""
    from radixlang.bench.prefix import Settings, measure

    given = _given(args, Settings)
    for flag, field in (("workload", "workloads"), ("policy", "policies")):
        if hasattr(args, flag):
            given[field] = getattr(args, flag)
    settings = Settings(**given)
    if hasattr(args, "base_url"):
        from radixlang.bench.prefix_http import measure_server

        vocab = getattr(args, "vocab_size", 10_000)
        return measure_server(args.base_url, getattr(args, "api_key", None), vocab, settings)
    if settings.record is not None:
        check_output("--record", settings.record)
    return _with_config(args, settings, measure)


#: name → (its flags, what it does)
BENCHMARKS: dict[str, tuple[Callable[[], Parser], Callable[[argparse.Namespace], Report]]] = {
    "throughput": (throughput_parser, throughput),
    "latency": (latency_parser, latency),
    "serving": (serving_parser, serving),
    "step": (step_parser, step),
    "prefix": (prefix_parser, prefix),
}


def usage() -> str:
    """The text of `radixlang bench --help`."""
    lines = "\n".join(f"  {name:<12}{parser().description}" for name, (parser, _) in BENCHMARKS.items())
    return (
        f"usage: radixlang bench NAME [options]\n\n{lines}\n\n"
        "Each prints a Markdown table. `radixlang bench NAME --help` lists the options."
    )


def run(argv: Sequence[str]) -> int:
    """Measure and print."""
    if argv and argv[0] in ("-h", "--help"):
        print(usage())
        raise SystemExit(0)
    if not argv or argv[0] not in BENCHMARKS:
        got = repr(argv[0]) if argv else "nothing"
        raise ConfigError(f"`radixlang bench` takes one of {', '.join(BENCHMARKS)}, got {got}.")
    make, measure = BENCHMARKS[argv[0]]
    parser = make()
    args = parser.parse(argv[1:])
    if argv[0] == "prefix":
        _check_prefix(parser.given(argv[1:]))
    if args.json is not None:
        check_output("--json", args.json)
    if hasattr(args, "profile_steps") and not args.profile:
        raise ConfigError("--profile-steps has no effect without --profile; add that, or leave it out.")
    if hasattr(args, "vocab_size") and getattr(args, "text", False):
        raise ConfigError("--vocab-size has no effect with --text; leave one of the two out.")
    if getattr(args, "profile", None) is not None:
        _make_folder("--profile", args.profile)
    report = measure(args)
    print(report.markdown())
    if args.json is not None:
        report.write(args.json)
        print(f"\nAll figures: {args.json}", file=sys.stderr)
    return 0
