"""The requests of a step that raised: nobody knows which of them is at fault, so each has to show that it is not.

Must not know why the step raised.
"""

from __future__ import annotations

from radixlang.scheduler.admission import Admission
from radixlang.scheduler.grants import Grants
from radixlang.scheduler.lifecycle import Lifecycle
from radixlang.scheduler.phases import Phases
from radixlang.scheduler.request import Request, State
from radixlang.scheduler.step_builder import StepBuilder


class Suspects:
    """They run one at a time, nothing beside them, until each has got through its prompt."""

    def __init__(self, phases: Phases, grants: Grants, admission: Admission, lifecycle: Lifecycle) -> None:
        self._phases = phases
        self._grants = grants
        self._admission = admission
        self._lifecycle = lifecycle
        self._line: list[Request] = []

    @property
    def first(self) -> Request | None:
        """Whose turn it is; None when nobody is suspected."""
        while self._line and self._line[0].state is State.ENDED:
            del self._line[0]
        return self._line[0] if self._line else None

    def add(self, requests: list[Request]) -> None:
        """They wait; some may be suspected already. One that no memory can hold, after a jump, is not suspected:
        it would never get its row, and the others none behind it. Admission ends it when its turn comes."""
        self._line += [
            request for request in requests if request not in self._line and self._admission.could_hold(request)
        ]

    def grant(self, step: StepBuilder, request: Request, now: float) -> None:
        """Let the first suspect go on; no other step is on its way."""
        if request.state is State.RUNNING:
            self._grants.prompts(step)
        else:
            self._admission.admit_alone(step, request, now)

    def clear(self) -> None:
        """A step went well. A suspect that got through its prompt waits, its KV cached, for the others."""
        request = self.first
        if request is not None and (request.row in self._phases.decoding or request.row in self._phases.jumping):
            self._lifecycle.leave_row(request)
            self._lifecycle.put_back(request)
            self._line.remove(request)
