"""What a step costs: a linear model of its work, fitted to recorded steps, and the file that keeps it.

Must not know schedulers.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from radixlang.bench.steps import Work
from radixlang.errors import ConfigError
from radixlang.scheduler import SchedulerLimits


@dataclass(frozen=True)
class CostModel:
    """Seconds of a step and of each unit of its work; none is negative."""

    decode_step: float
    """a step without prompts"""
    prompt_step: float
    """a step with prompts"""
    prompt_token: float
    prompt_pair: float
    row: float
    """a row that computes one token"""
    context: float
    """a token whose KV such a row reads"""

    def seconds(self, work: Work) -> float:
        """The time of one step."""
        step = self.prompt_step if work.prompt_tokens else self.decode_step
        prompts = self.prompt_token * work.prompt_tokens + self.prompt_pair * work.prompt_pairs
        return step + prompts + self.row * work.rows + self.context * work.context

    def decode_seconds(self, rows: int, context: int, steps: int) -> np.ndarray:
        """float64 [steps]: of `steps` decode steps in a row, the first of which reads `context` tokens."""
        return self.decode_step + self.row * rows + self.context * (context + rows * np.arange(steps))

    @classmethod
    def fit(cls, steps: Sequence[Sequence[float]]) -> CostModel:
        """The least squares with no negative coefficient, from rows of `Work`'s fields and seconds."""
        table = np.array(steps, np.float64).reshape(len(steps), len(Work._fields) + 1)
        prompts = table[:, 0] > 0
        features = np.column_stack([~prompts, prompts, table[:, :-1]]).astype(np.float64)
        return cls(*non_negative_least_squares(features, table[:, -1]).tolist())


def non_negative_least_squares(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The x >= 0 with the smallest |a x - b|, for a few columns: the best of all choices of columns whose ordinary
    least squares has no negative entry. (The optimum's positive entries are such a choice.)"""
    scale = np.maximum(np.abs(a).max(axis=0, initial=0.0), 1e-300)
    gram, right = (a / scale).T @ (a / scale), (a / scale).T @ b
    best, least = np.zeros(a.shape[1]), 0.0
    for size in range(1, a.shape[1] + 1):
        for chosen in itertools.combinations(range(a.shape[1]), size):
            index = list(chosen)
            x = np.linalg.lstsq(gram[np.ix_(index, index)], right[index], rcond=None)[0]
            loss = float(x @ gram[np.ix_(index, index)] @ x - 2 * x @ right[index])
            if (x >= 0).all() and loss < least:
                least = loss
                best = np.zeros(a.shape[1])
                best[index] = x
    return best / scale


@dataclass(frozen=True)
class EngineModel:
    """One engine as the simulator sees it: its limits, whether it overlaps, what its steps cost."""

    limits: SchedulerLimits
    cost: CostModel
    overlap: bool = True
    device: str = ""

    def write(self, path: Path) -> None:
        """Keep it as JSON.

        Raises:
            ConfigError: the file cannot be written.
        """
        data = {"kind": "costs", **dataclasses.asdict(self)}
        try:
            path.write_text(json.dumps(data, indent=2) + "\n")
        except OSError as error:
            raise ConfigError(f"--save-costs {path} cannot be written: {error.strerror}.") from None

    @classmethod
    def read(cls, path: Path) -> EngineModel:
        """From a file of `write`, or fitted to one of `radixlang bench prefix --record`.

        Raises:
            ConfigError: the file cannot be read, or is neither.
        """
        data = read_json(path)
        try:
            limits = dict(data["limits"])
            limits["eos_ids"] = tuple(limits["eos_ids"])
            if data["kind"] == "steps":
                steps = [step for run in data["runs"] for step in run["steps"]]
                cost = CostModel.fit(steps)
            else:
                cost = CostModel(**data["cost"])
            return cls(SchedulerLimits(**limits), cost, bool(data["overlap"]), str(data["device"]))
        except (KeyError, TypeError, ValueError):
            raise ConfigError(
                f"--costs {path} is neither a record of `radixlang bench prefix` nor a file of --save-costs."
            ) from None


def read_json(path: Path) -> Any:
    """The file's content.

    Raises:
        ConfigError: it cannot be read, or is no JSON.
    """
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"--costs {path} cannot be read: {error}.") from None
