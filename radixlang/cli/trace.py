"""`radixlang trace`: run a Python file of programs and write a page that shows what they did."""

from __future__ import annotations

import os
import runpy
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from radixlang.cli.parser import Parser, check_output
from radixlang.errors import ConfigError

#: seconds between looks at programs that still run when the file has ended
_LOOK = 0.02


def build_parser() -> Parser:
    """The flags of `trace`; all others belong to the file that is run."""
    parser = Parser(
        prog="radixlang trace",
        usage="radixlang trace [-h] [-o FILE] [--backend URL|MODEL] [--title TEXT] [--graph] program.py [args …]",
        description="Run a Python file and write one HTML page about the programs that ran in it: their calls over"
        " time, forks side by side, texts, tokens, cache hits, errors. Arguments that are not listed here, and all"
        " after --, go to the file.",
        allow_abbrev=False,
    )
    parser.add_argument("program", help="the Python file")
    parser.add_argument("-o", "--output", metavar="FILE", help="the page (default: the file's name, .trace.html)")
    parser.add_argument(
        "--backend",
        metavar="URL|MODEL",
        help="where programs run that choose no backend: a server's URL, or a model to load in this process",
    )
    parser.add_argument("--title", metavar="TEXT", help="title of the page (default: the programs' names)")
    parser.add_argument(
        "--graph",
        action="store_true",
        help="run no program: print the graph of each that the file defines (its __main__ part is skipped)",
    )
    return parser


def run(argv: Sequence[str]) -> int:
    """Run the file and write the page, however the file ends."""
    words = list(argv)
    cut = words.index("--") if "--" in words else len(words)
    args, given = build_parser().parse_known_args(words[:cut])
    given += words[cut + 1 :]
    file = Path(args.program)
    if not file.is_file():
        raise ConfigError(f"There is no file {args.program!r}.")
    if args.graph:
        return _print_graphs(file, given)
    output = Path(args.output) if args.output else Path(f"{file.stem}.trace.html")
    check_output("--output", output)

    from radixlang.lang.page import page
    from radixlang.lang.record import keeping
    from radixlang.lang.show import write_page

    with _default_backend(args.backend), keeping() as records:
        code, names = _run_file(file, given, "__main__")
        try:
            while not all(record.ended for record in records):
                time.sleep(_LOOK)
        except KeyboardInterrupt:
            code = 130
        if not records:
            raise ConfigError(f"{args.program} ran no program.")
        written = write_page(page(records, args.title), output, file.stem)
        # Only now: a program whose last state goes is given up.
        del names
    calls = sum(span.kind in ("gen", "select") for record in records for span in record.spans)
    print(f"{len(records)} programs, {calls} calls: {written}", file=sys.stderr)
    return code


def _run_file(file: Path, given: list[str], name: str) -> tuple[int, dict[str, Any]]:
    """Run `file` as Python would with the arguments `given`; returns its exit code and its names."""
    before = sys.argv, list(sys.path)
    sys.argv = [str(file), *given]
    sys.path.insert(0, str(file.absolute().parent))
    try:
        return 0, runpy.run_path(str(file), run_name=name)
    except SystemExit as leave:
        if isinstance(leave.code, str):
            print(leave.code, file=sys.stderr)
        return (leave.code if isinstance(leave.code, int) else int(bool(leave.code))), {}
    except KeyboardInterrupt:
        return 130, {}
    except Exception as error:
        # What Python would print, without our own frames and runpy's.
        frames = traceback.extract_tb(error.__traceback__)
        own = [i for i, frame in enumerate(frames) if os.path.abspath(frame.filename) == str(file.absolute())]
        trace = error.__traceback__
        for _ in range(own[0] if own else 0):
            trace = trace.tb_next if trace is not None else None
        traceback.print_exception(type(error), error, trace)
        return 1, {}
    finally:
        sys.argv, sys.path[:] = before


def _print_graphs(file: Path, given: list[str]) -> int:
    from radixlang.lang.function import SglFunction

    code, names = _run_file(file, given, "radixlang_trace")
    programs = [value for value in names.values() if isinstance(value, SglFunction)]
    if code == 0 and not programs:
        raise ConfigError(f"{file} defines no program (a function under @function).")
    print("\n\n".join(str(program.trace()) for program in programs))
    return code


@contextmanager
def _default_backend(where: str | None) -> Iterator[None]:
    """The default backend for the block: a server, or an engine that is shut down after it."""
    if where is None:
        yield
        return
    from radixlang.lang.api import set_default_backend
    from radixlang.lang.global_config import global_config

    before = global_config.default_backend
    engine = None
    if where.startswith(("http://", "https://")):
        from radixlang.lang.backends.runtime_endpoint import RuntimeEndpoint

        set_default_backend(RuntimeEndpoint(where))
    else:
        from radixlang.hub_files import resolve_model_path
        from radixlang.llm import Engine

        engine = Engine(resolve_model_path(where))
        set_default_backend(engine)
    try:
        yield
    finally:
        set_default_backend(before)
        if engine is not None:
            engine.shutdown()
