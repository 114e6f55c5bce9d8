"""What a policy on board and the PID controller beside it ask for: log variables as comma-separated values.

The form is that of Bitcraze's client (its log tab writes such files too): a line of names, then a line per packet, of
which the first number is the time in ms.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.crazyflie.guard import FLYING, REASONS, STATES
from deploy.system.files import replace_all

Array = NDArray[Any]

TIME = "Timestamp"  # ms
FORCES = tuple(f"policy.force_{k}" for k in range(4))
PID = tuple(f"policy.pid_{k}" for k in range(4))
STATE, REASON = "policy.state", "policy.reason"
# As the radio carries them.
ASKED = dict.fromkeys((*FORCES, *PID), "FP16")
STATUS = dict.fromkeys((STATE, REASON), "uint8_t")
VARIABLES = (*ASKED, *STATUS)


class BoardLog:
    """Keeps one line for every packet that arrives; `close` writes them."""

    def __init__(self, path: str) -> None:
        """ValueError when the file is there already, or its folder is not."""
        self.path = Path(path)
        if self.path.exists():
            raise ValueError(f"{path}: exists; a log is not overwritten")
        if not self.path.parent.is_dir():
            raise ValueError(f"{path}: there is no such folder")
        self._lines = [",".join((TIME, *VARIABLES))]
        self._last = self._began = -math.inf

    def note(self, when: float, values: Mapping[str, float]) -> None:
        """The values that arrived at `when` (s); those that were noted before are not noted again."""
        if when == self._last:
            return
        self._began = when if self._last == -math.inf else self._began
        self._last = when
        numbers = [f"{values[name]:.6g}" for name in VARIABLES]
        self._lines.append(",".join((str(round(1e3 * (when - self._began))), *numbers)))

    def close(self) -> list[str]:
        """Write the file; what to say of it."""
        replace_all([(self.path, ("\n".join(self._lines) + "\n").encode())])
        return [f"board log        {self.path}, {len(self._lines) - 1} lines"]


@dataclass(frozen=True)
class Board:
    """A log that was read, of n packets."""

    time: Array  # (n,) s since the first
    force: Array  # (n, 4) what the policy asks of the rotors, 0..1
    pid: Array  # (n, 4) what the PID controller asks; NaN while the policy flies alone
    state: Array  # (n,) index into STATES
    reason: Array  # (n,) index into REASONS


def read(path: str) -> Board:
    """ValueError says what is missing in the file, or wrong with it."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
    except csv.Error as error:
        raise ValueError(f"{path}: {error}") from None
    names = [name.strip() for name in rows[0]] if rows else []
    missing = [name for name in (TIME, *VARIABLES) if name not in names]
    if missing:
        raise ValueError(f"{path}: has no {', '.join(missing)}: a log of a policy on board needs a column of each")
    try:
        values = np.array([[float(value) for value in row] for row in rows[1:] if row], np.float64)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if values.ndim != 2 or values.shape[1] != len(names) or len(values) < 2:
        raise ValueError(f"{path}: needs at least two lines of {len(names)} numbers")
    state, reason = (values[:, names.index(name)] for name in (STATE, REASON))
    if not (np.isin(state, range(len(STATES))).all() and np.isin(reason, range(len(REASONS))).all()):
        raise ValueError(f"{path}: states are 0..{len(STATES) - 1}, reasons 0..{len(REASONS) - 1}")
    time = values[:, names.index(TIME)]
    columns = ([names.index(name) for name in group] for group in (FORCES, PID))
    force, pid = (values[:, group] for group in columns)
    pid[state == FLYING] = np.nan
    return Board(1e-3 * (time - time[0]), force, pid, state.astype(np.int64), reason.astype(np.int64))
