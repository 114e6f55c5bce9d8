"""A vehicle that is stuck or has crashed frees itself, in the world as in training: nobody puts it back.

The state machine of FastRLAP (Stachowicz et al. 2023, arXiv 2304.09831): who wants to drive and gets nowhere is stuck,
who is hit hard has crashed; both back out and drive on, and in the end wait for help. Theirs steers at random. Ours
turns to where its policy steers, or else to any side, and keeps to it, as in a three-point turn; it goes ahead when
something is behind it, too, and turns at random when that did not help. Whose policy wanted to stand never goes ahead,
since it may have stopped for what is there: it backs out to the other side. A person who takes over is not judged.

What is commanded meanwhile passes the guard as everything does: within the robot's limits, and not while it is stopped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from sim.spec import Group, Signal

Array = NDArray[Any]
Bools = NDArray[np.bool_]

STATES = ("driving", "stuck", "crashed", "recovering", "teleoperated", "lost")
DRIVING, STUCK, CRASHED, RECOVERING, TELEOPERATED, LOST = range(6)
UNDECIDED = 0.05  # of the steering's limit: below, a policy does not say to which side
SHARP = 0.7, 1.0  # of that limit: how it turns
STANDS = 0.5  # of `slow`: a policy that asks for less wants to stand; who then moves at all may be odometry's noise
CREEPS = 0.2  # of the time that is driven below `slow`, as told, counts for being free
ALGORITHM = 3  # of the rules' meaning, for who computes a drive again; logs with 1 do not say so
# "stuck" and "crashed" last one control step: the one at which it is noticed, and at which a learner's episode ends.


@runtime_checkable
class Restartable(Protocol):
    """A policy that can begin anew with some of its robots."""

    def restart(self, robots: Bools) -> None:
        """With those in the mask (n,), while the others go on."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How one kind of robot notices that it is stuck, and what it does then."""

    drives: str  # the command that drives it (1,): a speed (m/s), or what goes with one
    steers: str  # the command that steers it (1,)
    back: float  # of `drives`, to back out
    forth: float  # of `drives`, where it cannot back out
    moves: str = "speed"  # the signal that says how fast it is (k,), m/s
    slow: float = 0.1  # m/s: below, it gets nowhere; of who is told less than twice that: below half of what it is told
    stuck_s: float = 1.5  # s without getting anywhere, though it wants to drive
    stands_s: float = 0.0  # s for which a policy may want to stand, then it is driven against its will; 0: for ever
    sees: str = ""  # a signal that changes when it moves, as distances do; wheels that spin do not count then
    still: float = 0.05  # the mean change of that below which it does not get anywhere
    feels: str = ""  # the signal that says its acceleration (k,), m/s^2
    hard: float = 20.0  # m/s^2, forward and to the side: it has crashed
    recover_s: float = 1.0  # s of an attempt to get free
    blocked_s: float = 0.8  # s of an attempt without getting anywhere, after which it tries another way; above its lags
    wheels: bool = True  # `steers` is an angle of wheels, which turns it the other way when it backs; or a rate
    free_s: float = 1.0  # s of driving after which it is free
    attempts: int = 8  # without getting free, before it waits for help
    teleoperated_s: float = 0.5  # s for which whoever has taken over is waited for

    def __post_init__(self) -> None:
        seconds = ("stuck_s", "recover_s", "blocked_s", "free_s", "teleoperated_s")
        if not 0.0 <= self.stands_s < math.inf:
            raise ValueError(f"recovery: stands_s must be 0 or positive, got {self.stands_s!r}")
        for name in ("slow", "still", "hard", "attempts", *seconds):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
                raise ValueError(f"recovery: {name} must be positive, got {value!r}")
        if self.blocked_s >= self.recover_s:
            raise ValueError(f"recovery: blocked_s must be below recover_s {self.recover_s:g}, got {self.blocked_s:g}")
        if not self.back < 0.0 < self.forth:
            raise ValueError(f"recovery: needs back < 0 < forth, got {self.back} and {self.forth}")

    @property
    def needs(self) -> tuple[str, ...]:
        """The signals that they read."""
        return tuple(name for name in (self.moves, self.sees, self.feels) if name)

    @classmethod
    def from_table(cls, told: Mapping[str, Any]) -> Rules:
        """Of a file's table, or a robot's own; ValueError when it is not what it should be."""
        known = {f.name: f for f in fields(cls)}
        if unknown := told.keys() - known:
            raise ValueError(f"recovery: unknown {', '.join(sorted(unknown))}; known: {', '.join(known)}")
        for name, value in told.items():
            wanted = {"str": str, "int": int, "bool": bool}.get(str(known[name].type), (int, float))
            if isinstance(value, bool) != (wanted is bool) or not isinstance(value, wanted):
                raise ValueError(f"recovery: {name} is a {known[name].type}, got {value!r}")
        try:
            return cls(**told)
        except TypeError as error:
            raise ValueError(f"recovery: {error}") from None


class Recovery:
    """What happens to `n` robots of one kind, control step by control step."""

    def __init__(self, rules: Rules, rate_hz: float, commands: Group, seed: int = 0) -> None:
        """`commands` with the robot's own limits; ValueError when the rules need others, or more than those."""
        self.rules, self.rate_hz, self.commands, self.seed = rules, rate_hz, commands, seed
        if not (math.isfinite(rate_hz) and rate_hz > 0.0):
            raise ValueError(f"recovery needs a rate in Hz, got {rate_hz}")
        self.period = 1.0 / rate_hz
        told = {s.name: s for s in commands}
        for name in (rules.drives, rules.steers):
            if name not in told or told[name].size != 1:
                raise ValueError(f"recovery needs the command {name!r} (1,); there are: {', '.join(sorted(told))}")
        self._steer, drive = told[rules.steers], told[rules.drives]
        if not drive.low <= rules.back < rules.forth <= drive.high:
            raise ValueError(
                f"recovery drives with {rules.back:g} and {rules.forth:g}, beyond {drive.name} {drive.low:g} .. "
                f"{drive.high:g}"
            )
        if not math.isfinite(self._steer.high - self._steer.low):
            raise ValueError(f"recovery steers at random, and {rules.steers} has no limits")
        self.reset(1)

    def reset(self, n: int) -> None:
        """Begin a drive of `n` robots; each decides as the first one did."""
        self.n = n
        self.counts = dict.fromkeys(("stuck", "crashed", "freed", "lost"), 0)  # in this drive
        self._rng = np.random.default_rng(self.seed)
        self.state = np.full(n, DRIVING, np.int8)
        # s: got nowhere and wanted to; was still, driving or getting free; to go; drives freely
        self._idle, self._stood, self._left, self._away = (np.zeros(n) for _ in range(4))
        self._attempts = np.zeros(n, np.int64)
        self._may, self._other = np.zeros(n, bool), np.zeros(n, bool)  # go ahead; this attempt tries something else
        self._turn = np.zeros(n, np.float32)  # to the left, -1 to 1, while it gets free
        self._seen: Array | None = None  # what it saw when it last moved

    @property
    def frees(self) -> Bools:
        """(n,): who does what it says, and not what its policy does."""
        frees: Bools = (self.state != DRIVING) & (self.state != TELEOPERATED)
        return frees

    @property
    def ahead(self) -> Bools:
        """(n,): who would get free going ahead."""
        ahead: Bools = self._may & self._other
        return ahead

    @property
    def returns(self) -> Bools:
        """(n,): whom its policy drives again from the next control step on, unless it is blocked by then."""
        busy = self.frees & (self.state != LOST)
        returns: Bools = busy & (self._left - self.period <= 0.5 * self.period)
        return returns

    def hand_back(self, policy: object) -> None:
        """Have the policy begin anew with whom it drives from the next control step on; to be called at every one.

        What it remembers is of commands that were not carried out: an integral has wound up, a network takes its last
        command for what moved the robot. So it gets a robot back as an episode begins, and as a learner sees it, whose
        episodes end where a robot is stuck. A policy that cannot begin anew with single robots goes on.
        """
        if isinstance(policy, Restartable) and (returns := self.returns).any():
            policy.restart(returns)

    def restart(self) -> None:
        """A person commands: nobody is judged, and what was wrong before is forgotten."""
        self.state[:] = TELEOPERATED
        self._left[:] = self.rules.teleoperated_s
        self._idle[:], self._stood[:], self._away[:], self._attempts[:] = 0.0, 0.0, 0.0, 0

    def step(
        self, signals: Mapping[str, Array], wanted: Mapping[str, Array], stopped: Bools, bridged: Bools | None = None
    ) -> dict[str, Array]:
        """Commands (n, *shape): the policy's, or what frees a robot.

        Who is `stopped` (n,) is not judged, and what it did before is forgotten. Who is `bridged`, because signals or
        its policy are bad just now, is not judged at this step: nothing is counted, and nothing forgotten.
        """
        names = self.rules.drives, self.rules.steers
        drive, steer = (np.nan_to_num(np.asarray(wanted[k], np.float64).reshape(self.n)) for k in names)
        waits = np.zeros(self.n, bool) if bridged is None else bridged & ~stopped
        asked = np.abs(drive) > STANDS * self.rules.slow
        still, fast = self._moves(signals, np.where(asked, drive, np.inf))
        self._judge(asked, still, fast, self._hit(signals), stopped, waits, steer)
        return {s.name: self._of(s, np.asarray(wanted[s.name], np.float32)) for s in self.commands}

    def _moves(self, signals: Mapping[str, Array], drive: Array) -> tuple[Bools, Bools]:
        """Whether each robot gets nowhere, and whether it is fast: not below `slow`.

        `drive` (n,) is what its policy asks for: infinite where that wants to stand.
        """
        rules = self.rules
        speed = np.linalg.norm(np.asarray(signals[rules.moves], np.float64).reshape(self.n, -1), axis=1)
        told = np.abs(np.where(self.frees, np.where(self.ahead, rules.forth, rules.back), drive))
        moves, fast = speed > 0.5 * np.clip(told, rules.slow, 2.0 * rules.slow), speed > rules.slow
        if rules.sees:
            sight = np.asarray(signals[rules.sees], np.float32).reshape(self.n, -1)
            if self._seen is None:
                self._seen = sight.copy()
            moves = np.abs(sight - self._seen).mean(axis=1) > rules.still
            self._seen[moves] = sight[moves]
        return ~moves, fast

    def _hit(self, signals: Mapping[str, Array]) -> Bools:
        """Whether each robot was hit hard."""
        if not self.rules.feels:
            return np.zeros(self.n, bool)
        felt = np.asarray(signals[self.rules.feels], np.float64).reshape(self.n, -1)[:, :2]
        hard: Bools = np.linalg.norm(felt, axis=1) > self.rules.hard
        return hard

    def _judge(
        self, asked: Bools, still: Bools, fast: Bools, hit: Bools, stopped: Bools, waits: Bools, steer: Array
    ) -> None:
        rules, state, half = self.rules, self.state, 0.5 * self.period  # sums of periods are not exact
        state[(state == STUCK) | (state == CRASHED)] = RECOVERING
        busy = (state == RECOVERING) | (state == TELEOPERATED)
        self._left[busy] -= self.period
        done = busy & (self._left <= half)
        state[done], self._stood[done] = DRIVING, 0.0
        drives, judged = state == DRIVING, ~(stopped | waits)

        def counted(seconds: Array, which: Bools, share: Array | float = 1.0) -> Array:
            return np.where(waits, seconds, np.where(which & ~stopped, seconds + share * self.period, 0.0))

        self._stood = counted(self._stood, (drives | (state == RECOVERING)) & still)
        self._idle = counted(self._idle, drives & asked & still)
        self._away = counted(self._away, drives & ~still, np.where(fast, 1.0, CREEPS))
        free = (self._attempts > 0) & (self._away >= rules.free_s - half)
        self._attempts[free] = 0
        self.counts["freed"] += int(free.sum())
        blocked = judged & (state == RECOVERING) & ~self._other & (self._stood >= rules.blocked_s - half)
        idle = stands = self._idle >= rules.stuck_s - half
        if rules.stands_s:
            stands = idle | (self._stood >= rules.stands_s - half)
        crashed, stuck = judged & drives & hit, judged & drives & stands & ~hit
        for which, noticed in ((crashed, CRASHED), (stuck, STUCK)):
            state[which] = noticed
            self.counts[STATES[noticed]] += int(which.sum())
        begins = crashed | stuck
        self._may = np.where(begins, np.where(crashed, asked, idle), self._may)
        self._other = (self._other & ~begins) | blocked
        self._turn = np.where(blocked & ~self._may, -self._turn, self._turn)  # backs out to the other side
        self._choose(begins | (blocked & self._may & (self._attempts > rules.attempts // 2)), steer)
        self._try(begins)
        self._left[blocked], self._stood[blocked] = rules.recover_s, 0.0  # the same attempt

    def _choose(self, which: Bools, steer: Array) -> None:
        """To which side they turn: the same until they are free, or else who changes its mind would turn back."""
        middle, most = 0.5 * (self._steer.high + self._steer.low), 0.5 * (self._steer.high - self._steer.low)
        random, size = self._rng.choice((-1.0, 1.0), self.n), self._rng.uniform(*SHARP, self.n)
        says = np.where(np.abs(steer - middle) > UNDECIDED * most, np.sign(steer - middle), random)
        side = np.where(self._attempts == 0, says, np.sign(self._turn))
        side = np.where(self._attempts < self.rules.attempts // 2, side, random)
        self._turn = np.where(which, side * size, self._turn).astype(np.float32)

    def _try(self, which: Bools) -> None:
        """An attempt to get free, of those who have one left."""
        self._attempts[which] += 1
        lost = which & (self._attempts > self.rules.attempts)
        self.state[lost] = LOST
        self.counts["lost"] += int(lost.sum())
        self._left[which] = self.rules.recover_s
        self._idle[which], self._stood[which], self._away[which] = 0.0, 0.0, 0.0

    def _of(self, signal: Signal, wanted: Array) -> Array:
        """Of one command (n, *shape): the policy's for those who drive; who is lost stands."""
        rules, rest = self.rules, np.full(self.n, min(max(0.0, signal.low), signal.high), np.float32)
        own = rest
        if signal.name == rules.drives:
            own = np.where(self.ahead, rules.forth, rules.back).astype(np.float32)
        if signal.name == rules.steers:
            middle, most = np.float32(0.5 * (signal.high + signal.low)), np.float32(0.5 * (signal.high - signal.low))
            turns = np.where(self.ahead | (not rules.wheels), self._turn, -self._turn)
            own = np.clip(middle + most * turns, np.float32(signal.low), np.float32(signal.high))
        own = np.where(self.state == LOST, rest, own)
        rows = (self.n, *[1] * (wanted.ndim - 1))
        return np.where(self.frees.reshape(rows), own.reshape(rows), wanted)

    def to_json(self) -> dict[str, Any]:
        """What makes another one decide alike."""
        described = {"rules": asdict(self.rules), "rate_hz": self.rate_hz, "seed": self.seed}
        return {**described, "algorithm": ALGORITHM}

    @classmethod
    def from_json(cls, items: Mapping[str, Any], commands: Group) -> Recovery:
        """The inverse of `to_json`, by way of JSON; ValueError when it is malformed, or another algorithm's."""
        if (told := items.get("algorithm", 1)) != ALGORITHM:
            raise ValueError(
                f"its recovery is algorithm {told}, this program has {ALGORITHM}: take the sim2metal that recorded it"
            )
        return cls(Rules.from_table(items["rules"]), float(items["rate_hz"]), commands, int(items["seed"]))
