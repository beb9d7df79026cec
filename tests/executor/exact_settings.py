"""Random ways to compute the same sequences, as `--enable-deterministic-inference` promises to survive them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from radixlang.executor.launch import DeviceExecutor
from radixlang.sampling_params import RowSampling
from tests.executor.tiny import Host, Row, wish


def logprobs_of(executor: DeviceExecutor, host: Host, grants: list[tuple[Row, int]]) -> dict[int, np.ndarray]:
    """Run one step; → the best log-probabilities, as bits, of the rows that sample, by index."""
    plan = host.plan(grants)
    wishes = tuple(wish(i, output=True, top=20) for i in np.flatnonzero(plan.samples))
    plan = host_with(plan, logprobs=wishes)
    result = executor.result(executor.launch(plan))
    assert not result.failed
    for i, token in zip(np.flatnonzero(plan.samples), result.tokens, strict=True):
        row = grants[i][0]
        row.tokens[-1] = int(token)
        row.out.append(int(token))
    return {
        i: np.concatenate([part.top.ravel(), part.chosen.ravel()]).view(np.int32)
        for i, part in result.output_logprobs.items()
    }


def host_with(plan: Any, **values: Any) -> Any:
    return type(plan)(**{name: getattr(plan, name) for name in plan.__dataclass_fields__} | values)


class Settings:
    """Sequences of an executor, first each alone and in one go, then at random."""

    def __init__(self, executor: DeviceExecutor, page_size: int, lengths: list[int], new: int, seed: int) -> None:
        self.executor, self.page_size, self.new = executor, page_size, new
        self.random = random.Random(seed)
        vocab = executor.spec.vocab_size
        self.prompts = [[self.random.randrange(3, vocab) for _ in range(n)] for n in lengths]
        self.samplings = [
            RowSampling(temperature=0.0 if i % 2 else 0.8, seed=100 + i) for i in range(len(lengths))
        ]
        self.alone = [self._alone(i) for i in range(len(lengths))]

    def _alone(self, i: int) -> tuple[list[int], list[np.ndarray]]:
        host = Host(self.page_size)
        row = Row(1, list(self.prompts[i]), self.samplings[i])
        seen = [logprobs_of(self.executor, host, [(row, len(self.prompts[i]))])[0]]
        seen += [logprobs_of(self.executor, host, [(row, 1)])[0] for _ in range(self.new)]
        return row.out, seen

    def try_one(self) -> int:
        """Some sequences together, in chunks, now and then retracted in part. → positions compared."""
        draw, host, size = self.random, Host(self.page_size), self.page_size
        chosen = draw.sample(range(len(self.prompts)), draw.randint(1, len(self.prompts)))
        rows = {i: Row(1 + place, list(self.prompts[i]), self.samplings[i]) for place, i in enumerate(chosen)}
        compared = 0
        while any(len(row.out) <= self.new for row in rows.values()):
            live = [i for i in rows if len(rows[i].out) <= self.new]
            grants = []
            for i in draw.sample(live, draw.randint(1, len(live))):
                row = rows[i]
                if row.out and draw.random() < 0.15:  # retracted: all or a part of its pages is lost
                    kept = draw.randint(0, row.computed // size)
                    row.pages, row.fresh = row.pages[:kept], True
                    row.computed = kept * size
                left = len(row.tokens) - row.computed
                grants.append((i, row, left if draw.random() < 0.4 else draw.randint(1, left)))
            got = logprobs_of(self.executor, host, [(row, count) for _, row, count in grants])
            for at, bits in got.items():
                i, row = grants[at][0], grants[at][1]
                tokens, seen = self.alone[i]
                place = len(row.out) - 1
                assert np.array_equal(bits, seen[place]), f"sequence {i}, token {place}: other log-probabilities"
                assert row.out == tokens[: place + 1], f"sequence {i} drew another token {place}"
                compared += 1
        return compared
