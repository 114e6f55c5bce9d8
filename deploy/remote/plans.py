"""The plan in a policy file: all commands that it would carry out from what is seen now on, if it did not look again.

A file that plans says under "plan" how far ("horizon") and how often ("replan"), and keeps what is left of its plan as
state: "chunk", the next action first, (horizon * actions) in [-1, 1]; "left", how many of them are still carried out
before it plans anew. Whoever writes these two has it plan whenever he likes, from what he says is committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.policy_file import PolicyFile, PolicyFileError
from sim import spec

AnyArray = NDArray[Any]
CHUNK, LEFT = "chunk", "left"
REMEMBERED = ("draw", "words", "told")  # other states that a plan leads to by itself: nothing of what was executed
LIKE = 1e-5  # share of a command's range by which what a file plans may differ from what it then commands


class Plans:
    """Plans of a file, one at a time. `remembered` is what the file keeps from one plan of a flight to the next."""

    def __init__(self, file: PolicyFile) -> None:
        """PolicyFileError when the file does not plan, or its plans are not to be had."""
        path, shapes = file.path, {s.name: s.initial.shape for s in file.state}
        if "plan" not in file.metadata:
            raise PolicyFileError(f"{path} plans nothing ahead: its commands are for now only")
        self.file, self.horizon = file, int(file.metadata["plan"].get("horizon", 0))
        self.replan = int(file.metadata["plan"].get("replan", 0))
        self.low, self.high = spec.limits(file.outputs)  # (k,)
        if not (1 <= self.replan <= self.horizon and self.shape[0] * self.shape[1] <= spec.size(file.outputs) * 10**4):
            raise PolicyFileError(f"{path}: plans of {self.horizon} steps, renewed after {self.replan}, are none")
        if shapes.get(CHUNK) != (self.horizon * self.shape[1],) or shapes.get(LEFT) != (1,):
            raise PolicyFileError(f"{path} does not keep what is left of its plan as the states {CHUNK} and {LEFT}")
        if others := [name for name in shapes if name not in (CHUNK, LEFT, *REMEMBERED)]:
            raise PolicyFileError(f"{path} is told what was executed ({', '.join(others)}): it plans where it runs")
        self._check()

    @property
    def shape(self) -> tuple[int, int]:
        """Control steps and commands (k) of a plan."""
        return self.horizon, spec.size(self.file.outputs)

    def _check(self) -> None:
        """What is planned must be what the file commands, for as long as it does not plan anew."""
        seen = {name: value[:1] for name, value in self.file.vectors.inputs.items()}
        planned = self.plan(seen, None, {})[0][0]
        self.file.reset(1)
        for step in range(self.replan):
            said = spec.pack(self.file.outputs, self.file.step(seen))[0]
            if not (np.abs(said - planned[step]) <= LIKE * (self.high - self.low)).all():
                raise PolicyFileError(
                    f"{self.file.path}: its commands at step {step} of a plan are not the planned ones"
                )

    def plan(
        self, signals: Mapping[str, AnyArray], committed: AnyArray | None, remembered: Mapping[str, AnyArray]
    ) -> tuple[NDArray[np.float32], dict[str, AnyArray]]:
        """Commands (n, horizon, k) in their units, the first for now, and what to remember.

        Of signals (n, *shape) by name, and of the commands (n, horizon, k) that are going to be executed meanwhile,
        the first of them now; None where nothing is executed yet.
        """
        file, n = self.file, len(next(iter(signals.values())))
        file.reset(n)
        file.put(remembered)
        if committed is not None:
            actions = 2.0 * (committed - self.low) / (self.high - self.low) - 1.0
            file.put({CHUNK: actions.clip(-1.0, 1.0).reshape(n, -1), LEFT: np.zeros((n, 1), np.float32)})
        first = spec.pack(file.outputs, file.step(signals))[:, None]
        after = file.states()
        rest = 0.5 * (after[CHUNK].reshape(n, *self.shape)[:, :-1] + 1.0) * (self.high - self.low) + self.low
        made = np.concatenate([first, rest.clip(self.low, self.high)], axis=1, dtype=np.float32)
        return made, {name: value for name, value in after.items() if name in REMEMBERED}
