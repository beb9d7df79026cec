"""`radixlang generate`: one prompt in, its continuation out; made for scripts and pipes."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from radixlang.cli.options import add_engine_flags, add_sampling_flags, chat_ids, open_engine, sampling_values
from radixlang.cli.parser import Parser
from radixlang.errors import ConfigError


def build_parser() -> Parser:
    """The flags of `generate`."""
    parser = Parser(
        prog="radixlang generate",
        description="Continue one prompt with a model in this process; only the new text is printed.",
    )
    parser.add_argument("prompt", nargs="?", default="-", help="the text to continue; absent or -: standard input")
    parser.add_argument("--chat", action="store_true", help="treat the prompt as a user's message to a chat model")
    parser.add_argument("--stream", action="store_true", help="print the text as it is made")
    parser.add_argument(
        "--json", action="store_true", help="print the whole answer (text, ids, meta_info) as JSON"
    )
    add_sampling_flags(parser)
    add_engine_flags(parser)
    return parser


def run(argv: Sequence[str]) -> int:
    """Generate and print."""
    args = build_parser().parse(argv)
    if args.stream and args.json:
        raise ConfigError("--stream and --json exclude each other.")
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    if not prompt:
        raise ConfigError("The prompt is empty; give one as the argument or on standard input.")
    sampling = sampling_values(args)
    with open_engine(args) as engine:
        what: dict[str, Any] = {"prompt": prompt}
        if args.chat:
            what = {"input_ids": chat_ids(engine, [{"role": "user", "content": prompt}])}
        if args.stream:
            shown = ""
            for answer in engine.generate(**what, sampling_params=sampling, stream=True):
                print(answer["text"][len(shown) :], end="", flush=True)
                shown = answer["text"]
            print()
        else:
            answer = engine.generate(**what, sampling_params=sampling)
            print(json.dumps(answer) if args.json else answer["text"])
    return 0
