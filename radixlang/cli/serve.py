"""`radixlang serve`: flags → configuration → `launch.serve`, with progress on the terminal.

Flag names follow SGLang's. Must not import torch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from radixlang.cli.parser import Parser
from radixlang.config import Config, add_arguments, from_namespace
from radixlang.errors import ConfigError
from radixlang.hub_files import DEFAULT_MODEL


def build_parser(prog: str = "radixlang serve") -> Parser:
    """All options of the configuration, in their groups."""
    parser = Parser(
        prog=prog,
        usage=f"{prog} [MODEL] [options]",
        description="Serve a model over HTTP: the OpenAI API and the native one.",
        epilog="Without a model, `radixlang serve` fetches and serves the small default one.",
    )
    parser.add_argument("model", nargs="?", default=None, metavar="MODEL", help="Same as --model-path MODEL.")
    parser.add_argument("--require-model", action="store_true", help=argparse.SUPPRESS)
    add_arguments(parser)
    return parser


def configuration(argv: Sequence[str]) -> Config:
    """The checked configuration for `argv`.

    Raises:
        ConfigError: a flag, a value or a combination that cannot work.
    """
    strict = "--require-model" in argv
    args = build_parser("python -m radixlang.launch_server" if strict else "radixlang serve").parse(argv)
    config = from_namespace(args)
    if args.model:
        if config.model.model_path:
            raise ConfigError(f"Two models are named, {args.model} and {config.model.model_path}; give one.")
        config = config.replace(model_path=args.model)
    if not config.model.model_path and not strict:
        print(f"No model named: serving {DEFAULT_MODEL.about}.", file=sys.stderr)
        config = config.replace(model_path="default")
    return config.resolve()


class StartProgress:
    """Shows how far the start is: a line that is redrawn on a terminal, nothing elsewhere (the log tells)."""

    def __init__(self) -> None:
        self._shown = False
        self._on = sys.stderr.isatty()

    def __call__(self, task: str, done: int, total: int) -> None:
        """Show `done` of `total` (0: unknown) of `task`."""
        if not self._on:
            return
        share = f" {100 * done // total:3d} %" if total else ""
        print(f"\r\x1b[K{task}{share}", end="", file=sys.stderr, flush=True)
        self._shown = True

    def finish(self) -> None:
        """Clear the line."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = False


def run(argv: Sequence[str]) -> int:
    """Serve until told to stop; returns the server's exit code."""
    config = configuration(argv)
    from radixlang.launch import serve

    progress = StartProgress()

    def ready(url: str) -> None:
        progress.finish()
        print(f"Open {url}/docs in a browser, or run: radixlang chat --url {url}", flush=True)

    try:
        return serve(config, progress, ready)
    finally:
        progress.finish()
