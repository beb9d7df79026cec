"""`radixlang chat`: a conversation in the terminal, streamed.

Works in a pipe as well: each line of standard input is then a message and each answer is printed plainly.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.text import Text

from radixlang.cli.chat_source import EngineSource, Messages, Piece, ServerSource, Source
from radixlang.cli.options import add_engine_flags, add_sampling_flags, open_engine, sampling_values
from radixlang.cli.parser import Parser
from radixlang.errors import ConfigError, EngineDeadError, RadixLangError

HELP = """/help           this text
/reset          forget the conversation
/system TEXT    set the system message (none: remove it) and forget the conversation
/save FILE      write the conversation to FILE as JSON
/quit           leave (Ctrl-D as well)
Ctrl-C stops an answer."""

#: a chat wants answers as long as the context allows, and steadier ones than the API's temperature of 1
DEFAULT_SAMPLING = {"max_new_tokens": None, "temperature": 0.6}


def build_parser() -> Parser:
    """The flags of `chat`."""
    parser = Parser(
        prog="radixlang chat",
        description="Chat with a model: on a running server (--url), or in this process.",
        epilog="Defaults of a chat: temperature 0.6, answers as long as the context. /help lists its commands.",
    )
    parser.add_argument("--url", default=None, help="a running server, for example http://127.0.0.1:30000")
    parser.add_argument(
        "--api-key", default=os.environ.get("RADIXLANG_API_KEY"), help="its key (default $RADIXLANG_API_KEY)"
    )
    parser.add_argument("--system", default=None, metavar="TEXT", help="system message")
    add_sampling_flags(parser)
    add_engine_flags(parser)
    return parser


class Interrupt:
    """True once Ctrl-C was pressed inside `catching()`; a second press raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self._hit = False

    def __bool__(self) -> bool:
        return self._hit

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._hit:
            raise KeyboardInterrupt
        self._hit = True

    @contextmanager
    def catching(self) -> Iterator[None]:
        """Turn the first SIGINT into the flag: the engine must not be torn open in the middle of a step."""
        self._hit = False
        old = signal.signal(signal.SIGINT, self._handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, old)


class MarkdownStream:
    """Shows growing Markdown: finished paragraphs are printed for good, the last one is redrawn as it grows."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._open = ""
        self._live = Live(console=console, transient=True, auto_refresh=False)

    def __enter__(self) -> MarkdownStream:
        self._live.start()
        return self

    def feed(self, text: str) -> None:
        """Add `text`."""
        self._open += text
        done, self._open = split_paragraphs(self._open)
        if done:
            self._console.print(Markdown(done))
        # Only what fits on the screen can be redrawn.
        lines = Text(self._open).wrap(self._console, self._console.width)
        self._live.update(Text("\n").join(lines[-max(3, self._console.height - 2) :]), refresh=True)

    def __exit__(self, *_: object) -> None:
        self._live.update("")
        self._live.stop()
        if self._open.strip():
            self._console.print(Markdown(self._open))


def split_paragraphs(text: str) -> tuple[str, str]:
    """(complete paragraphs, the rest): cut at the last blank line that is not inside a code fence."""
    fenced = False
    cut = position = 0
    for line in text.splitlines(keepends=True):
        position += len(line)
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and line == "\n":
            cut = position
    return text[:cut], text[cut:]


class Chat:
    """The conversation and its commands."""

    def __init__(self, source: Source, console: Console, sampling: dict[str, Any], system: str | None) -> None:
        self.source = source
        self.console = console
        self.sampling = sampling
        self.system = system
        self.messages: Messages = []
        self.interrupt = Interrupt()

    def command(self, line: str) -> bool:
        """Carry out a `/command`; returns False when the chat is to end."""
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        if word in ("/quit", "/exit", "/q"):
            return False
        if word == "/help":
            self.say(HELP)
        elif word == "/reset":
            self.messages.clear()
            self.say("The conversation is forgotten.")
        elif word == "/system":
            self.system = rest or None
            self.messages.clear()
            self.say(f"System message: {self.system}" if self.system else "No system message.")
        elif word == "/save":
            self.save(rest)
        else:
            self.say(f"Unknown command {word}; /help lists them.")
        return True

    def save(self, name: str) -> None:
        """Write the conversation to the file `name`."""
        if not name:
            self.say("Give a file: /save chat.json")
            return
        path = Path(name).expanduser()
        try:
            path.write_text(json.dumps(self._conversation(), indent=2, ensure_ascii=False) + "\n")
        except OSError as error:
            self.say(f"{path} cannot be written: {error.strerror}.")
        else:
            self.say(f"Saved to {path}.")

    def say(self, text: str) -> None:
        """A word of the program's own, which is no answer."""
        if self.console.is_terminal:
            self.console.print(text, style="dim", markup=False, highlight=False)
        else:
            print(text, file=sys.stderr)

    def ask(self, text: str) -> None:
        """Send `text`, show the answer as it comes, and remember both."""
        self.messages.append({"role": "user", "content": text})
        answer = ""
        last = Piece()
        started = time.perf_counter()
        first: float | None = None
        try:
            with self.interrupt.catching(), closing(self._pieces()) as pieces, self._view() as show:
                for piece in pieces:
                    if piece.completion_tokens is not None:
                        last = piece
                    if piece.text:
                        first = first or time.perf_counter()
                        answer += piece.text
                        show(piece.text)
                    if self.interrupt:
                        break
        except EngineDeadError:
            raise
        except RadixLangError as error:
            # The question could not be answered: forget it, the conversation goes on.
            self.messages.pop()
            self.say(f"error: {error}")
            return
        except KeyboardInterrupt:
            pass
        self.messages.append({"role": "assistant", "content": answer})
        self.say(("Stopped. " if self.interrupt else "") + figures(last, started, first, time.perf_counter()))

    def _conversation(self) -> Messages:
        return ([{"role": "system", "content": self.system}] if self.system else []) + self.messages

    def _pieces(self) -> Generator[Piece, None, None]:
        yield from self.source.answer(self._conversation(), self.sampling)

    @contextmanager
    def _view(self) -> Iterator[Callable[[str], Any]]:
        """Yields the function that shows new text."""
        if self.console.is_terminal:
            with MarkdownStream(self.console) as stream:
                yield stream.feed
        else:
            yield lambda text: print(text, end="", flush=True)
            print(flush=True)

    def lines(self) -> Iterator[str]:
        """What the user types, until the end of input."""
        if not sys.stdin.isatty():
            yield from sys.stdin
            return
        with suppress(ImportError):
            import readline  # noqa: F401  (line editing and history for input())
        while True:
            try:
                yield input(">>> ")
            except KeyboardInterrupt:
                print("  (/quit or Ctrl-D leaves)")
            except EOFError:
                print()
                return

    def loop(self) -> None:
        """Read and answer until the user leaves."""
        for line in self.lines():
            line = line.strip()
            if line.startswith("/"):
                if not self.command(line):
                    return
            elif line:
                self.ask(line)


def figures(last: Piece, started: float, first: float | None, ended: float) -> str:
    """One line on speed and cache: times are `time.perf_counter()` values."""
    parts = []
    if last.completion_tokens is not None:
        parts.append(f"{last.completion_tokens} tokens")
        if first and last.completion_tokens > 1 and ended > first:
            parts.append(f"{(last.completion_tokens - 1) / (ended - first):.1f} tok/s")
    if first:
        parts.append(f"first after {first - started:.2f} s")
    if last.prompt_tokens is not None:
        parts.append(f"{last.cached_tokens or 0} of {last.prompt_tokens} prompt tokens cached")
    return ", ".join(parts) or "No answer."


def run(argv: Sequence[str]) -> int:
    """Chat until the input ends."""
    args = build_parser().parse(argv)
    if args.url and hasattr(args, "model_path"):
        raise ConfigError("--url and --model exclude each other: the server has its model.")
    console = Console()
    source: Source
    if args.url:
        source = ServerSource(args.url, args.api_key)
    else:
        with Console(stderr=True).status("Loading the model"):
            source = EngineSource(open_engine(args), getattr(args, "model_path", None) or "default")
    try:
        chat = Chat(source, console, DEFAULT_SAMPLING | sampling_values(args), args.system)
        if console.is_terminal:
            chat.say(f"Chatting with {source.name}. /help lists the commands.")
        chat.loop()
    finally:
        source.close()
    return 0
