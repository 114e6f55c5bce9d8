"""Random flights through guard and ladder; FUZZ: fifty times how many. Signals, clock and humans do as they like.

Whatever they do: what is sent is finite, within the robot's limits and of the right shape; a robot that was stopped
never flies by its policy again, and never climbs the ladder; a stopped robot's motors are off for good, unless a human
takes it up; an emergency stop is off at once.
"""

import os
from typing import Any

import numpy as np
import pytest

from deploy.guard import HOLD, LANDING, OVERRIDE, PASS, REASONS, SAFE, STAYING, Guard
from deploy.policy_file import PolicyFile
from deploy.safety.envelope import Envelope
from deploy.safety.ladder import Ladder
from sim.spec import Signal

MANY = int(os.environ.get("FUZZ", "1250")) // 50
STEPS = 400
RATE = 100.0
BATTERY = Signal("battery_voltage", (1,), "V", max_age=2.0)
NONSENSE: tuple[Any, ...] = (
    None,
    np.nan,
    np.inf,
    -1e39,
    "a word",
    [[1.0, 2.0], [3.0]],
    np.zeros((7, 5), np.float32),
    np.zeros((0,), np.float32),
    {"position": 1.0},
    np.array(["x"]),
    True,
    1j,
)
AGES: tuple[Any, ...] = (0.0, 0.05, 0.2, 3.0, -1.0, 1e9, np.nan, np.inf, -np.inf)
RUNGS = [PASS, STAYING, LANDING, SAFE]


class Hostile:
    """One flight of a few robots: what its signals, its clock, its policy and its human do at every control step."""

    def __init__(self, policy: PolicyFile, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.n = int(self.rng.integers(1, 4))
        self.calm = float(self.rng.choice([1.0, 0.1, 0.01]))  # mostly sound, so that one thing comes at a time
        self.slow = float(self.rng.choice([0.0, 0.9]))  # share of missed deadlines
        fence = ((-5.0,) * 3, (5.0,) * 3)
        envelope = Envelope(
            fence_low=fence[0], fence_high=fence[1], max_tilt=100.0, max_speed=8.0, max_body_rate=35.0,
            min_voltage=3.2, max_change=float(self.rng.choice([0.05, 0.3, 1.0])), safe={"motor_command": (0.0,) * 4},
        )  # fmt: skip
        self.low, self.high = 0.0, float(self.rng.choice([0.5, 1.0]))
        reach = tuple(Signal(s.name, s.shape, s.unit, low=self.low, high=self.high) for s in policy.outputs)
        self.ladder = Ladder(policy.inputs, RATE, 0.0, fence)
        self.guard = Guard(policy.inputs, reach, envelope, (*policy.inputs, BATTERY), self.ladder, reach)
        self.guard.reset(self.n)
        self.speechless = 0  # control steps for which the policy says nothing sound
        self.inputs, self.now, self.lost = policy.inputs, 0.0, dict[str, Any]()
        self.place = self.rng.uniform(-1.0, 3.0, (self.n, 3)).astype(np.float32)

    def likely(self, share: float) -> bool:
        """Whether something happens now; in a calm flight it does less often."""
        return bool(self.rng.random() < share * self.calm)

    def nonsense(self, shape: tuple[int, ...]) -> Any:
        """Anything but what is expected; or that with one wrong number."""
        if self.rng.random() < 0.5:
            return NONSENSE[self.rng.integers(len(NONSENSE))]
        value = self.rng.normal(size=shape) * 10.0 ** self.rng.integers(-40, 40)
        value.flat[self.rng.integers(value.size)] = self.rng.choice([np.nan, np.inf, 1e39, 0.0])
        return value

    def signals(self) -> dict[str, Any]:
        """What is measured."""
        self.place = self.place + self.rng.normal(scale=0.02, size=self.place.shape).astype(np.float32)
        values: dict[str, Any] = {s.name: np.zeros((self.n, *s.shape), np.float32) for s in (*self.inputs, BATTERY)}
        values["position"] = self.place.copy()
        values["rotation"][:] = np.eye(3, dtype=np.float32).reshape(9)
        values["battery_voltage"][:] = 3.0 if self.likely(0.01) else 3.9
        for name in values:
            if self.likely(0.005):  # gone for a while
                self.lost[name] = int(self.rng.integers(1, 200))
        for name, left in [*self.lost.items()]:
            values[name] = self.nonsense(values[name].shape)
            self.lost[name] = left - 1
            if left <= 1:
                del self.lost[name]
        if self.likely(0.02):
            values.pop(str(self.rng.choice([*values])))
        return values

    def ages(self, names: Any) -> dict[str, Any]:
        """Of what is measured."""
        found: dict[str, Any] = dict.fromkeys(names, 0.01)
        for name in names:
            if self.likely(0.01):
                found[name] = AGES[self.rng.integers(len(AGES))]
            elif self.likely(0.005):
                found[name] = self.rng.choice([0.0, 5.0], self.n)
        return found

    def commands(self) -> dict[str, Any]:
        """What the policy says."""
        if self.likely(0.02):
            self.speechless = int(self.rng.integers(1, 30))
        self.speechless -= 1
        if self.likely(0.03) or self.speechless > 0:
            return {"motor_command": self.nonsense((self.n, 4))} if self.rng.random() < 0.8 else {}
        return {"motor_command": self.rng.uniform(-0.2, 1.2, (self.n, 4)).astype(np.float32)}

    def human(self) -> dict[str, Any] | None:
        """A human's commands, some of which are nonsense."""
        if not self.likely(0.02):
            return None
        sound = self.rng.random() < 0.7
        return {"motor_command": self.rng.uniform(-1.0, 2.0, (self.n, 4)) if sound else self.nonsense((self.n, 4))}

    def happens(self) -> None:
        """To the guard, before a control step."""
        self.now += float(self.rng.choice([0.01, 3.0, -1.0])) if self.likely(0.005) else 0.01
        self.guard.tick(self.now, self.likely(self.slow))
        if self.likely(0.003):
            self.guard.abandon(str(self.rng.choice(["policy late", "asked to land"])))
        if self.likely(0.02):
            self.guard.blame("policy failed")
        if self.likely(0.002):
            self.guard.stop()
        elif self.guard.emergency and self.rng.random() < 0.05:
            self.guard.release()


def fly(policy: PolicyFile, seed: int) -> set[tuple[str, int]]:
    """A flight; which reasons led to which verdicts."""
    flight, seen = Hostile(policy, seed), set[tuple[str, int]]()
    guard, n = flight.guard, flight.n
    before = np.full(n, PASS)
    for _ in range(STEPS):
        flight.happens()
        values = flight.signals()
        screened = guard.screen(values, flight.ages(values))
        for s in flight.inputs:
            assert screened[s.name].shape == (n, *s.shape)
            assert np.isfinite(screened[s.name]).all()
        human = flight.human()
        sent = guard.filter(flight.commands(), human, float(flight.rng.choice([0.0, 0.001, 0.5], p=[0.5, 0.49, 0.01])))
        command, verdict = sent["motor_command"], guard.verdict.copy()
        assert command.shape == (n, 4) and command.dtype == np.float32
        assert np.isfinite(command).all()
        assert (command >= flight.low).all() and (command <= np.float32(flight.high)).all()
        if guard.emergency:
            assert not command.any()
            assert (verdict == SAFE).all()
        for robot in range(n):
            seen.add((REASONS[guard.latched[robot]], int(verdict[robot])))
            if verdict[robot] == OVERRIDE:
                assert human is not None
            elif guard.latched[robot]:
                assert verdict[robot] in RUNGS[1:]
                if before[robot] in RUNGS[1:]:
                    assert RUNGS.index(verdict[robot]) >= RUNGS.index(before[robot])  # never back up
                if verdict[robot] == SAFE:
                    assert not command[robot].any()
            else:
                assert verdict[robot] in (PASS, HOLD)
        before = verdict
    return seen


@pytest.fixture(scope="module")
def policy() -> PolicyFile:
    return PolicyFile.load("quad_any")


def test_random_flights_stay_within_what_is_safe(policy: PolicyFile) -> None:
    seen: set[tuple[str, int]] = set()
    for seed in range(MANY):
        try:
            seen |= fly(policy, seed)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    reasons = {reason for reason, _ in seen} - {"none"}
    assert {verdict for _, verdict in seen} == {PASS, HOLD, SAFE, OVERRIDE, STAYING, LANDING}
    assert {"stale signal", "non-finite signal", "malformed signal", "non-finite command", "emergency stop"} <= reasons
    assert {"deadlines missed", "clock jump", "asked to land"} <= reasons
