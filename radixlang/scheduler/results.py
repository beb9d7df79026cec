"""What the outcome of a step means: tokens go to their rows, requests end, clients are told.

Rows that decode and go on are one operation on columns; Python looks at single requests where one begins, ends,
has a grammar, or wants log-probabilities. Must not know policies, pages or plans' making.
"""

from __future__ import annotations

import numpy as np

from radixlang.messages import Embedding
from radixlang.plan import PositionLogprobs, StepPlan, StepResult
from radixlang.scheduler.finish import News
from radixlang.scheduler.lifecycle import INTERNAL, Lifecycle, Message
from radixlang.scheduler.request import Request, State
from radixlang.scheduler.rows import Rows
from radixlang.scheduler.stats import Totals
from radixlang.scheduler.step_builder import StepBuilder
from radixlang.scheduler.turns import Turns


class Results:
    """Processes results in the order of their steps."""

    def __init__(self, rows: Rows, turns: Turns, lifecycle: Lifecycle, totals: Totals) -> None:
        self._rows = rows
        self._turns = turns
        self._lifecycle = lifecycle
        self._totals = totals

    def process(self, step: StepBuilder, plan: StepPlan, result: StepResult, now: float) -> list[Message]:
        """The messages of `result`, the outcome of the `plan` that `step` made."""
        messages: list[Message] = []
        requests = step.requests
        for index, sentence in result.failed.items():
            if requests[index].state is not State.ENDED:
                messages.append(self._lifecycle.fail(requests[index], INTERNAL, sentence, keep=False))
        for wish in plan.logprobs:
            values = result.prompt_logprobs.get(wish.index)
            logprobs = requests[wish.index].logprobs
            if values is not None and logprobs is not None:
                logprobs.keep(wish, values)
        news = News(now)
        self._take_tokens(step, plan, result, news)
        for index in step.ending:
            request = requests[index]
            if request.state is not State.ENDED:
                news.ending(request, {"type": "length", "length": 0})
                self._lifecycle.end(request)
        for index, vector in result.embeddings.items():
            request = requests[index]
            if request.state is not State.ENDED:
                data = np.asarray(vector, "<f4").tobytes()
                messages.append(Embedding(request.rid, data, request.meta()))
                self._lifecycle.end(request)
        self._totals.generation_tokens += news.size
        if news.rids:
            messages.append(news.message())
        return messages

    def _take_tokens(self, step: StepBuilder, plan: StepPlan, result: StepResult, news: News) -> None:
        """Append the step's tokens; all rows at once but for those of which more than a token is to be told."""
        columns, tokens, alone = self._rows, result.tokens, step.alone
        if alone is not None:
            at, rows = alone.places, alone.index
        else:
            (at,) = plan.samples.nonzero()
            rows = plan.rows[at].astype(np.intp)
        ended = np.zeros(len(at), np.bool_)
        if len(result.ended):
            ended[result.ended] = True
        if columns.given != step.given:
            here = columns.tenant.take(rows) == step.tenants.take(at)
            if np.count_nonzero(here) < len(here):
                # the others have ended, or lost their rows while this token was on its way
                late = (at[~here].tolist(), tokens[~here].tolist(), ended[~here].tolist())
                for index, token, end in zip(*late, strict=True):
                    request = step.requests[index]
                    if request.state is not State.ENDED and index not in step.drafts:
                        self._take_late(request, token, news, result.output_logprobs.get(index), end)
                at, rows, tokens, ended = at[here], rows[here], tokens[here], ended[here]
        if columns.bound:
            bound = columns.constrained[rows]
            for index, token in zip(at[bound].tolist(), tokens[bound].tolist(), strict=True):
                if index in step.drafts:
                    self._turns.judge(step.requests[index], token, news)
                else:
                    self._turns.take(step.requests[index], token, news, result.output_logprobs.get(index))
            at, rows, tokens, ended = at[~bound], rows[~bound], tokens[~bound], ended[~bound]
        look = columns.append(rows, tokens) | ended
        looked = np.count_nonzero(look)
        if not looked:
            known = alone.rids if alone is not None and rows is alone.index else None
            news.plain(columns.rids.take(rows).tolist() if known is None else known, tokens)
            return
        if looked < len(look):
            plain = ~look
            news.plain(columns.rids[rows[plain]].tolist(), tokens[plain])
        for index, token, end in zip(at[look].tolist(), tokens[look].tolist(), ended[look].tolist(), strict=True):
            request = step.requests[index]
            columns.looked(request)
            self._lifecycle.tell(request, [token], news, result.output_logprobs.get(index), end)

    def _take_late(
        self, request: Request, token: int, news: News, logprobs: PositionLogprobs | None, ended: bool
    ) -> None:
        """A token of a request that lost its row while it was on its way."""
        if request.surplus:
            request.surplus -= 1
            return
        request.pending -= 1
        bound = request.grammar is not None and request.table is None
        tokens = self._turns.take_late(request, token) if bound else [token]
        if tokens:
            request.tokens.extend(np.array(tokens, np.int32))
            self._lifecycle.tell(request, tokens, news, logprobs, ended)
