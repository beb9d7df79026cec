"""How a program runs: each branch has a queue of statements, executed in order on the language's loop.

Submitting returns at once, so that branches, and programs whose function has returned, go on beside each other;
who reads a variable waits for that variable only. Declared names are known when a statement is submitted, in the
program's order; text and turns when it has run. A program that fails gives its error to everything unread.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
from typing import TYPE_CHECKING, Any

from radixlang.errors import ProgramError
from radixlang.lang import ir
from radixlang.lang.backends.base import Piece, Prompt
from radixlang.lang.loop import Watched, get_loop
from radixlang.lang.params import SamplingParams
from radixlang.lang.prefix import SharedPrefix
from radixlang.lang.record import Span
from radixlang.lang.transcript import Transcript
from radixlang.lang.values import Value, gathered
from radixlang.lang.where import error_of, program_line
from radixlang.parsers.reasoning import parse_reasoning, thinking_format

if TYPE_CHECKING:
    from radixlang.lang.program import Program


@dataclasses.dataclass
class Statement:
    """One expression of a program, the variables it declares, and the line it stands on."""

    expr: ir.Expr | _Fork | _Join | _Flush
    where: str
    values: list[Value] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class _Fork:
    branches: list[Branch]


@dataclasses.dataclass
class _Join:
    branches: list[Branch]
    append: bool


@dataclasses.dataclass
class _Flush:
    """A value of a turn that is collected for one call is read before the turn ends."""


class Branch(Watched):
    """One line of execution: the program itself, or one branch of a fork."""

    __slots__ = (
        "_cached",
        "_prefix",
        "_queue",
        "_scopes",
        "_started",
        "_submitted",
        "_task",
        "_turn",
        "done",
        "error",
        "fork_index",
        "names",
        "past",
        "program",
        "span",
        "transcript",
    )

    def __init__(self, program: Program, parent: Branch | None, fork_index: int) -> None:
        super().__init__()
        self.program = program
        self.fork_index = fork_index
        self.names: dict[str, Value] = dict(parent.names) if parent else {}
        self.transcript = Transcript(program.template)
        self.past = self.transcript  # as it was at the fork
        self.error: ProgramError | None = None
        self.done = 0  # statements that have run
        self.span: Span = program.record.begin(
            "branch" if parent else "program",
            parent.span.id if parent else None,
            name=program.name,
            fork_index=fork_index if parent else None,
        )
        self._submitted = 0
        self._queue: collections.deque[Statement] = collections.deque()
        self._started = parent is None  # a branch waits for its fork to be executed
        self._task: asyncio.Task[None] | None = None
        self._prefix: SharedPrefix | None = None
        self._cached = 0  # characters of the text that the backend has seen
        self._scopes: dict[str, list[int]] = {}  # where the open ones of a name began, the innermost last
        self._turn: list[tuple[str, None] | tuple[Statement, SamplingParams]] | None = None
        program.branches.append(self)

    # ---- called by the program's thread ----

    def submit(self, expr: Any) -> None:
        """Queue an expression; its variables can be read from now on."""
        where = program_line()
        parts = expr.items if isinstance(expr, ir.ExprList) else [expr]
        statements = [Statement(part, where, self._declare(part)) for part in parts]
        self._submitted += len(statements)
        self._queue.extend(statements)
        get_loop().call_soon_threadsafe(self._go_on)

    def _declare(self, expr: Any) -> list[Value]:
        if isinstance(expr, ir.SeparateReasoning):
            names = [
                name
                for part in _parts_of(expr.expr)
                if isinstance(part, ir.Gen | ir.Select) and part.name
                for name in (part.name, f"{part.name}_reasoning_content")
            ]
        elif isinstance(expr, ir.Gen | ir.Select | ir.VarScopeEnd):
            if expr.name is None:
                return [Value()]
            names = [expr.name]
        else:
            return []
        for name in names:
            self.names[name] = Value()
            self.changed()
        return [self.names[name] for name in names]

    def set(self, name: str, result: Any) -> None:
        """Set a variable, from this point of the program on."""
        self.names[name] = Value.of(result)
        self.changed()

    def fork(self, size: int) -> list[Branch]:
        """New branches that begin where this one is when it gets here."""
        branches = [Branch(self.program, self, index) for index in range(size)]
        self.submit(_Fork(branches))
        return branches

    def join(self, branches: list[Branch], append: bool) -> None:
        """Go on when `branches` are done: their new variables become lists here, or their texts are appended."""
        if not append:
            known = set(self.names)
            new: dict[str, list[Value]] = {}
            for branch in branches:
                for name, value in list(branch.names.items()):
                    if name not in known:
                        new.setdefault(name, []).append(value)
            for name, parts in new.items():
                self.names[name] = whole = Value()
                get_loop().call_soon_threadsafe(_fill, whole, parts)
        self.submit(_Join(list(branches), append))

    def flush(self) -> None:
        """See `_Flush`."""
        if self.program.by_turns:
            self.submit(_Flush())

    # ---- what others wait for ----

    @property
    def busy(self) -> bool:
        """Whether a statement has not run. A branch whose fork never came is not busy once the program failed."""
        return self.error is None and self.done < self._submitted

    def idle(self) -> bool | None:
        """For `wait`: all that was submitted has run, or the branch has failed."""
        return None if self.busy else True

    def over(self) -> bool:
        """Nothing more will come."""
        return self.error is not None or self.program.ended or (self.program.returned and not self.busy)

    # ---- on the loop's thread ----

    def fail(self, error: ProgramError) -> None:
        """Give up: the running call is cancelled, unread variables get the error."""
        if self.error is None and (self.busy or not self.program.returned):
            self.error = error
        self._queue_fails(error)
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        for value in list(self.names.values()):
            value.fail(error)
        self.changed()

    def _queue_fails(self, error: ProgramError) -> None:
        while self._queue:
            statement = self._queue.popleft()
            for value in statement.values:
                value.fail(error)
            _never_begin(statement, error)

    def _go_on(self) -> None:
        if self.error is not None:
            self._queue_fails(self.error)
            self.changed()
            self.program.look_for_end()
        elif self._started and self._task is None and self._queue:
            self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        try:
            while self._queue and self.error is None:
                await self._step(self._queue.popleft())
                self.done += 1
                if not self._queue:
                    self.changed()
        finally:
            self._task = None
            self.changed()
            self.program.look_for_end()

    async def _step(self, statement: Statement) -> None:
        try:
            await self._execute(statement)
        except asyncio.CancelledError:
            reason = self.error or ProgramError("The program was cancelled", statement.where)
            self._fail_statement(statement, reason)
            raise
        except Exception as cause:
            error = error_of(cause, statement.where)
            self._fail_statement(statement, error)
            # A branch fails alone; its parent does when it joins. The program fails with its root.
            if self.program.root is self:
                self.program.error = self.program.error or error

    def _fail_statement(self, statement: Statement, error: ProgramError) -> None:
        self.error = self.error or error
        for value in statement.values:
            value.fail(error)
        _never_begin(statement, error)
        for part, _ in self._turn or ():
            if isinstance(part, Statement):
                for value in part.values:
                    value.fail(error)
        self._queue_fails(error)

    async def _execute(self, statement: Statement) -> None:
        match statement.expr:
            case ir.ConstantText(value=text):
                self._say(text)
            case ir.Gen() as gen:
                await self._gen(gen, statement)
            case ir.Select() as select:
                await self._select(select, statement)
            case ir.RoleBegin(role=role):
                self.transcript.begin(role)
                if role == "assistant" and self.program.by_turns:
                    self._turn = []
                self.changed()
            case ir.RoleEnd(role=role):
                await self._make_turn()
                self._turn = None
                self.transcript.end(role)
                self.changed()
            case ir.Image(source=source):
                self.transcript.show(source)
            case ir.Video(path=path, num_frames=frames):
                self.transcript.play(path, frames)
            case ir.VarScopeBegin(name=name):
                await self._make_turn()
                self._scopes.setdefault(name, []).append(len(self.transcript.text))
            case ir.VarScopeEnd(name=name):
                await self._make_turn()
                statement.values[0].finish(self.transcript.text[self._scopes[name].pop() :], None)
            case ir.SeparateReasoning() as separate:
                await self._separate(separate, statement)
            case ir.ExprList(items=items):
                for item in items:
                    await self._execute(Statement(item, statement.where))
            case _Fork(branches=branches):
                self._start(branches, statement.where)
            case _Join(branches=branches, append=append):
                await self._join(branches, append)
            case _Flush():
                await self._make_turn()
            case other:
                raise TypeError(f"{type(other).__name__} cannot be executed; it belongs to a traced program.")

    def _say(self, text: str) -> None:
        if self._turn is not None:
            self._turn.append((text, None))
            return
        self.transcript.say(text)
        if self.program.stream:
            self.changed()

    # ---- calls ----

    def _params(self, set_by_gen: dict[str, Any]) -> SamplingParams:
        params = ir.resolve_dtype(self.program.defaults.updated(set_by_gen))
        if self.program.template.stop:
            params = dataclasses.replace(params, stop=[*params.stops, *self.program.template.stop])
        return params

    def _prompt(self) -> Prompt:
        transcript = self.transcript
        return Prompt(
            transcript.text,
            transcript.messages_so_far(),
            list(transcript.images),
            list(transcript.videos),
            self.program.id,
            transcript.open.role if transcript.open else None,
        )

    async def _ready(self) -> Prompt:
        await self.program.begin()
        if self._prefix is not None:
            await self._prefix.ready(self.program)
            self._prefix = None
        return self._prompt()

    def _begin_span(self, kind: Any, name: str | None, prompt: str, where: str) -> Span:
        return self.program.record.begin(kind, self.span.id, name=name or "", prompt=prompt, where=where)

    async def _gen(self, gen: ir.Gen, statement: Statement) -> None:
        params = self._params(gen.sampling)
        if self._turn is not None:
            self._turn.append((statement, params))
            return
        prompt = await self._ready()
        value = statement.values[0] if statement.values else Value()
        record = self.program.record
        span = self._begin_span("gen", gen.name, prompt.text, statement.where)
        try:
            if self.program.stream and params.n == 1:
                pieces = [await self._stream(prompt, params, value, span)]
            else:
                pieces = await self.program.backend.generate(prompt, params)
                self.transcript.say(pieces[0].text)
        except BaseException as error:
            record.end(span, value.text, error=str(error) or type(error).__name__)
            raise
        self._cached = len(self.transcript.text)
        record.end(span, pieces[0].text, pieces[0].meta)
        _finish(value, pieces)

    async def _stream(self, prompt: Prompt, params: SamplingParams, value: Value, span: Span) -> Piece:
        meta: dict[str, Any] = {}
        text = ""
        stream = self.program.backend.stream(prompt, params)
        try:
            async for piece in stream:
                self.program.record.first(span)
                text += piece.text
                meta = piece.meta or meta
                self.transcript.say(piece.text)
                value.grow(piece.text, meta)
                self.changed()
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()
        return Piece(text, meta)

    async def _select(self, select: ir.Select, statement: Statement) -> None:
        if self._turn is not None:
            await self._make_turn()
        if select.temperature > 1e-5:
            raise ValueError(f"select takes the best choice; its temperature must be 0, got {select.temperature}.")
        prompt = await self._ready()
        span = self._begin_span("select", select.name, prompt.text, statement.where)
        record = self.program.record
        try:
            decision = await self.program.backend.select(prompt, select.choices, select.method)
        except BaseException as error:
            record.end(span, error=str(error) or type(error).__name__)
            raise
        record.end(span, decision.decision, {"choices": list(select.choices), **decision.meta_info})
        self.transcript.say(decision.decision)
        self._cached = len(self.transcript.text)
        value = statement.values[0] if statement.values else Value()
        value.finish(decision.decision, decision.meta_info)
        self.changed()

    async def _make_turn(self) -> None:
        """Make the collected part of the assistant's turn in one call."""
        if not self._turn or not any(isinstance(part, Statement) for part, _ in self._turn):
            for part, _ in self._turn or ():
                assert isinstance(part, str)
                self.transcript.say(part)
            if self._turn:
                self._turn = []
            return
        prompt = await self._ready()
        parts = [part if isinstance(part, str) else params for part, params in self._turn]
        blanks = [part for part, _ in self._turn if isinstance(part, Statement)]
        names = ", ".join(blank.expr.name or "" for blank in blanks if isinstance(blank.expr, ir.Gen))
        span = self._begin_span("gen", names, prompt.text, blanks[0].where)
        try:
            answers = await self.program.backend.assistant_turn(prompt, parts)  # type: ignore[arg-type]
        except BaseException as error:
            self.program.record.end(span, error=str(error) or type(error).__name__)
            raise
        self.program.record.end(span, " … ".join(answer[0].text for answer in answers), answers[-1][0].meta)
        filled = iter(answers)
        for part, _ in self._turn:
            if isinstance(part, str):
                self.transcript.say(part)
            else:
                pieces = next(filled)
                self.transcript.say(pieces[0].text)
                _finish(part.values[0], pieces)
        self._turn = []
        self._cached = len(self.transcript.text)
        self.changed()

    async def _separate(self, separate: ir.SeparateReasoning, statement: Statement) -> None:
        values = iter(statement.values)
        for part in _parts_of(separate.expr):
            if not isinstance(part, ir.Gen | ir.Select):
                await self._execute(Statement(part, statement.where))
                continue
            visible, hidden = (next(values), next(values)) if part.name else (Value(), Value())
            if self.program.stream:  # the text has been handed out as it came
                await self._execute(Statement(part, statement.where, [visible]))
                hidden.finish("", None)
                continue
            await self._make_turn()
            start = len(self.transcript.text)
            raw = Value()
            await self._execute(Statement(part, statement.where, [raw]))
            await self._make_turn()
            reasoning, answer = parse_reasoning(thinking_format(separate.model_type), raw.text)
            self.transcript.replace_tail(start, answer)
            self._cached = min(self._cached, start)
            visible.finish(answer, raw.meta)
            hidden.finish(reasoning, None)

    # ---- forks ----

    def _start(self, branches: list[Branch], where: str) -> None:
        text = self.transcript.text
        prefix = self._prefix
        if len(branches) > 1 and self.program.backend.capabilities.prefix_cache and not self.transcript.images:
            prefix = SharedPrefix(
                text, self._prefix, self._cached, lambda: self._begin_span("prefix", None, text, where)
            )
        for branch in branches:
            branch.transcript = self.transcript.copy()
            branch.past = self.transcript.copy()
            branch.span.prompt = text
            branch._prefix = prefix
            branch._cached = self._cached if prefix is self._prefix else len(text)
            branch._started = True
            branch._go_on()

    async def _join(self, branches: list[Branch], append: bool) -> None:
        for branch in branches:
            await branch.wait_async(branch.idle)
            if branch.error is not None:
                raise branch.error
        for branch in branches if append else ():
            self.transcript.append_from(branch.transcript, branch.past)
        self.changed()


def _never_begin(statement: Statement, error: ProgramError) -> None:
    """If the statement is a fork: its branches will not run, whatever is submitted to them."""
    if isinstance(statement.expr, _Fork):
        for branch in statement.expr.branches:
            branch.error = branch.error or error
            branch.fail(error)


def _finish(value: Value, pieces: list[Piece]) -> None:
    if len(pieces) == 1:
        value.finish(pieces[0].text, pieces[0].meta)
    else:
        value.finish([piece.text for piece in pieces], [piece.meta for piece in pieces])


def _fill(whole: Value, parts: list[Value]) -> None:
    source = gathered(parts)
    source.then(lambda done: whole.fail(done.error) if done.error else whole.finish(done.result, done.meta))


def _parts_of(expr: ir.Expr | None) -> list[ir.Expr]:
    if expr is None:
        return []
    return expr.items if isinstance(expr, ir.ExprList) else [expr]
