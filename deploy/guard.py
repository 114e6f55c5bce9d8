"""The envelope around a controller. Whatever it is fed, what leaves here is finite and within limits.

Per robot and control step: pass the command on, hold the last good one for a few steps, or stop the robot. A flying
robot that is stopped goes down the ladder (`deploy/safety/ladder.py`): it holds its place, lands, and its motors are
off; any other gets its safe command. It stays stopped until `reset`: no robot starts again by itself.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.safety.dead_reckoning import SENSED
from deploy.safety.envelope import LAST, Envelope, check
from deploy.safety.fallback import COMMAND
from deploy.safety.ladder import HOLD as STAY
from deploy.safety.ladder import LAND, Ladder
from deploy.safety.received import received
from deploy.safety.recovery import Recovery
from sim import spec
from sim.spec import Group

AnyArray = NDArray[Any]
Bools = NDArray[np.bool_]

REASONS = (
    "none",
    "stale signal",
    "non-finite signal",
    "signal out of range",
    "non-finite command",
    "geofence",
    "tilt",
    "speed",
    "body rate",
    "low battery",
    "deadlines missed",
    "clock jump",
    "emergency stop",
    "malformed signal",
    "policy failed",
    "policy late",
    "asked to land",
)
_CODE = {reason: code for code, reason in enumerate(REASONS)}
PASS, HOLD, SAFE, OVERRIDE, STAYING, LANDING = range(6)
VERDICTS = ("pass", "hold", "safe", "override", "stay", "land")
_OF_RUNG = np.array([SAFE, STAYING, LANDING, SAFE], np.int8)
WINDOW = 100  # control steps in which `missed_of_100` counts


def _norm(value: AnyArray) -> AnyArray:
    """(n,) lengths; in float64, where the square of a float32 cannot overflow."""
    return np.asarray(np.sqrt(np.square(value, dtype=np.float64).sum(axis=-1)))


class Guard:
    """Watches signals and commands of `n` robots. Per control step: `screen`, then the policy, then `filter`."""

    def __init__(
        self,
        inputs: Group,
        outputs: Group,
        envelope: Envelope | None = None,
        offered: Group | None = None,
        ladder: Ladder | None = None,
        reach: Group | None = None,
        recovery: Recovery | None = None,
    ) -> None:
        """`inputs` and `outputs` of the policy; `offered`: all signals of the driver, where it has more than those.

        With a `ladder`, robots that are stopped go down it; without, they get the safe command. By `recovery` vehicles
        free themselves. `reach`: the commands with the robot's own limits, for all that is not the policy's.
        """
        self.envelope, self.ladder, self.recovery = envelope or Envelope(), ladder, recovery
        self._parts: list[Ladder | Recovery] = [part for part in (ladder, recovery) if part is not None]
        self.inputs, self.outputs = inputs, outputs
        self.emergency = False
        known = {s.name: s for s in (*(offered or ()), *inputs)}
        self._places = self.envelope.places()
        needs = self.envelope.needs() | {f"the safe {command}": name for command, name in self._places.items()}
        needs |= {f"recovery by {name}": name for name in (recovery.rules.needs if recovery else ())}
        check(needs, known)
        if ladder is not None:
            needs |= {f"the ladder's {name}": name for name in SENSED}
        read = {s.name for s in inputs}
        self.watched = inputs + tuple(known[n] for n in dict.fromkeys(needs.values()) if n not in read)
        self._bounded = {s.name for s in self.watched if math.isfinite(s.low) or math.isfinite(s.high)}
        for name in self.envelope.safe:
            if name not in {s.name for s in outputs}:
                raise ValueError(f"safe names the command {name!r}; there are: {', '.join(s.name for s in outputs)}")
        self.reach = reach or outputs
        self._bounds: dict[str, tuple[Any, Any]] = {s.name: (np.float32(s.low), np.float32(s.high)) for s in outputs}
        self._low = {s.name: np.float32(s.low) for s in self.reach}
        self._high = {s.name: np.float32(s.high) for s in self.reach}
        for s in outputs:
            if s.name in self._places and known[self._places[s.name]].shape != s.shape:
                raise ValueError(f"the safe {s.name!r} {self._places[s.name]!r} has another shape than {s.shape}")
        self._kept = {name for name, rule in self.envelope.safe.items() if rule == LAST}
        self._safe = {s.name: self._safe_values(s.name, s.shape) for s in outputs}
        self.n = 0
        self._stay: dict[str, AnyArray] = {}
        self.reset(1)

    def to_json(self) -> dict[str, Any]:
        """What makes another guard decide alike."""
        ladder = None
        if self.ladder is not None:
            ladder = {"rate_hz": self.ladder.rate_hz, "ground": self.ladder.ground, "fence": self.ladder.fence}
        groups = {"inputs": self.inputs, "outputs": self.outputs, "watched": self.watched, "reach": self.reach}
        described = {name: spec.to_json(group) for name, group in groups.items()}
        recovery = self.recovery and self.recovery.to_json()
        return {**described, "envelope": asdict(self.envelope), "ladder": ladder, "recovery": recovery}

    @classmethod
    def from_json(cls, items: Mapping[str, Any]) -> Guard:
        """The inverse of `to_json`, by way of JSON; ValueError when it is malformed."""
        try:
            named = ("inputs", "outputs", "watched", "reach")
            inputs, outputs, watched, reach = (spec.from_json(items[name]) for name in named)
            told, ladder = items["ladder"], None
            if told is not None:
                fence = told["fence"] and tuple(np.asarray(side, np.float64).reshape(3) for side in told["fence"])
                ladder = Ladder(inputs, float(told["rate_hz"]), float(told["ground"]), fence)
            recovery = items.get("recovery") and Recovery.from_json(items["recovery"], reach)  # older logs have none
            return cls(inputs, outputs, Envelope.from_json(items["envelope"]), watched, ladder, reach, recovery)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the guard's settings are malformed: {error!r}") from None

    def _safe_values(self, name: str, shape: tuple[int, ...]) -> AnyArray:
        low, high = self._low[name], self._high[name]
        rule = self.envelope.safe.get(name, LAST)
        if isinstance(rule, str):
            return np.full(shape, min(max(0.0, low), high), np.float32)
        values = np.asarray(rule, np.float32)
        if values.shape != shape or not (
            np.isfinite(values).all() and (values >= low).all() and (values <= high).all()
        ):
            raise ValueError(
                f"the safe {name!r} {values.tolist()} is not {shape} finite numbers in [{low:g}, {high:g}]"
            )
        return values

    def reset(self, n: int) -> None:
        """Begin a new flight of `n` robots. An emergency stop stays until `release`."""
        # Where a robot is, was seen just before: it has to stay there, should the first signals of the flight be bad.
        seen = self.n == n
        self._stay = {
            name: self._stay[name] if seen else np.repeat(self._safe[name][None], n, axis=0) for name in self._places
        }
        self.n = n
        self.latched = np.zeros(n, np.int8)  # why the safe command is being sent, per robot: index into REASONS
        self.verdict = np.full(n, PASS, np.int8)
        self.counts = np.zeros(len(REASONS), np.int64)  # robot steps on which each reason intervened
        self._held = np.zeros(n, np.int64)
        self._bad = np.zeros(n, np.int8)
        self._missed = 0
        self._late = deque([False] * WINDOW, WINDOW)
        self._before = math.nan  # s, when the last control step began
        self._low_voltage = np.zeros(n, np.int64)
        self._last_signals: dict[str, AnyArray] = {}
        self._last_command: dict[str, AnyArray] = {}
        self._has_command = np.zeros(n, bool)
        self._broken: dict[str, Bools] = {}  # by signal: of which robots it is not what it should be
        self._spare = math.inf  # s until the first of the signals is too old
        for part in self._parts:
            part.reset(n)

    def stop(self) -> None:
        """The emergency stop: from the next command on, every robot gets the safe command. Callable from any thread."""
        self.emergency = True

    def release(self) -> None:
        """Release the emergency stop. Robots that it stopped stay stopped until the next flight."""
        self.emergency = False

    def tick(self, now: float, late: bool) -> None:
        """A control step begins: the clock (s), and whether the one before it missed its deadline."""
        e = self.envelope
        self._missed = self._missed + 1 if late else 0
        self._late.append(late)
        row = e.missed_in_a_row is not None and self._missed >= e.missed_in_a_row
        if row or (e.missed_of_100 is not None and sum(self._late) >= e.missed_of_100):
            self._latch(True, "deadlines missed")
        pause, self._before = now - self._before, now
        if pause < 0.0 or (e.longest_pause is not None and pause > e.longest_pause):
            self._latch(True, "clock jump")

    def safe_command(self) -> dict[str, AnyArray]:
        """The safe command for all robots (n, *shape), by name."""
        constant = {name: np.repeat(value[None], self.n, axis=0) for name, value in self._safe.items()}
        last = {name: self._last_command[name] for name in self._kept & self._last_command.keys()}
        return {**constant, **self._stay, **last}

    def _latch(self, which: Bools | bool, reason: str) -> None:
        self.latched[which & (self.latched == 0)] = _CODE[reason]

    def screen(self, signals: Mapping[str, AnyArray], age: Mapping[str, Any]) -> dict[str, AnyArray]:
        """Signals (n, *shape) that are all finite: where one is not, or is too old, its last good value stands in.

        `age` in seconds per signal, a number or (n,); a signal without an age, or from the future, counts as stale. For
        robots on the ladder that their policy still flies, its set point is the ladder's.
        """
        self._bad[:] = 0
        self._blamed: list[str] = []
        self._broken = {}
        self._spare = math.inf
        clean: dict[str, AnyArray] = {}
        for signal in self.watched:
            name, given = signal.name, signals.get(signal.name)
            value, well_formed = received(signal, given, self.n)
            old = math.inf if given is None else age.get(name, math.inf)
            spare = signal.max_age - (abs(old) if isinstance(old, float) else np.abs(old))
            fresh: Any = spare >= 0.0
            finite = np.isfinite(value)
            possible = finite & (value >= signal.low) & (value <= signal.high) if name in self._bounded else finite
            if well_formed and (fresh if isinstance(fresh, bool) else fresh.all()) and possible.all():
                clean[name], self._last_signals[name] = value, value.copy()  # drivers may reuse their arrays
                self._spare = min(self._spare, spare if isinstance(spare, float) else float(spare.min()))
                continue
            self._blamed.append(name)
            whole = possible.reshape(self.n, -1).all(axis=1)
            self._bad[~whole] = _CODE["signal out of range"]
            self._bad[~finite.reshape(self.n, -1).all(axis=1)] = _CODE["non-finite signal"]
            self._bad[~np.broadcast_to(fresh, (self.n,))] = _CODE["stale signal"]
            if not well_formed:
                self._bad[:] = _CODE["malformed signal"]
            self._broken[name] = ~(whole & fresh)
            good = (whole & fresh).reshape(self.n, *[1] * len(signal.shape))
            last = self._last_signals.get(name)
            clean[name] = np.where(good, value, np.zeros_like(value) if last is None else last)
            self._last_signals[name] = clean[name]
        for name, place in self._places.items():
            moves = ((self._bad == 0) & (self.latched == 0)).reshape(self.n, *[1] * (clean[place].ndim - 1))
            here = np.clip(clean[place], self._low[name], self._high[name])
            self._stay[name] = np.where(moves, here, self._stay[name])
        self._check_envelope(clean)
        self._clean = clean
        return self.ladder.aim(clean, self._broken) if self.ladder is not None else clean

    def blame(self, reason: str) -> None:
        """The policy has no command at this control step, for that reason. It is bridged like a bad signal."""
        self._bad[self._bad == 0] = _CODE[reason]

    def abandon(self, reason: str) -> None:
        """Every robot is stopped: the policy will have no command any more, or somebody ends the flight."""
        self._latch(True, reason)

    def _check_envelope(self, signals: Mapping[str, AnyArray]) -> None:
        e = self.envelope
        known = self._bad == 0  # a stand-in value proves nothing; holding deals with it
        if e.fence_low is not None:
            position = signals["position"]
            outside = ((position < np.array(e.fence_low)) | (position > np.array(e.fence_high))).any(axis=-1)
            self._latch(known & outside, "geofence")
        if e.max_tilt is not None:
            upright = signals["rotation"][:, 8]  # the cosine of the angle between the two z axes
            self._latch(known & (upright < math.cos(math.radians(min(e.max_tilt, 180.0)))), "tilt")
        if e.max_speed is not None:
            self._latch(known & (_norm(signals["linear_velocity"]) > e.max_speed), "speed")
        if e.max_body_rate is not None:
            self._latch(known & (_norm(signals["angular_velocity"]) > e.max_body_rate), "body rate")
        if e.min_voltage is not None:
            low = known & (signals["battery_voltage"].reshape(self.n, -1).min(axis=1) < e.min_voltage)
            self._low_voltage = np.where(low, self._low_voltage + 1, 0)
            self._latch(self._low_voltage >= e.low_voltage_steps, "low battery")

    @property
    def reasons(self) -> NDArray[np.int8]:
        """Per robot: why it was stopped, or else what is wrong with its last signals or command; index into REASONS."""
        return np.where(self.latched != 0, self.latched, self._bad)

    def complaint(self) -> str:
        """What is wrong with the last signals, for the first robot where something is; empty when nothing is."""
        if self.emergency:
            return "emergency stop"
        codes = [code for code in self.reasons if code]
        if codes:
            return f"{REASONS[codes[0]]}: {', '.join(self._blamed)}" if self._bad.any() else REASONS[codes[0]]
        return "low battery" if self._low_voltage.any() else ""

    def filter(
        self,
        commands: Mapping[str, AnyArray],
        override: Mapping[str, AnyArray] | None = None,
        elapsed: float = 0.0,
    ) -> dict[str, AnyArray]:
        """What may be sent (n, *shape), by name: finite and within the limits, whatever `commands` holds.

        `elapsed` in s since the signals were read: a command made of what has become too old meanwhile is not sent.

        `override` comes from a human: it goes before the policy and before everything that holds or stops the policy,
        except the emergency stop; what is not finite in it counts as no override. Once it ends, the policy flies on,
        unless a rule of the envelope was broken meanwhile.
        """
        if override is not None and not self.emergency and (sound := self._sound(override)):
            self.verdict[:] = OVERRIDE
            for part in self._parts:
                part.restart()
            self._last_command = sound
            self._has_command[:] = True
            self._remember()
            return self._last_command
        if self.emergency:
            self.latched[:] = _CODE["emergency stop"]  # whatever stopped them before
        if elapsed > self._spare:
            self._bad[self._bad == 0] = _CODE["stale signal"]
        commands = {s.name: np.asarray(received(s, commands.get(s.name), self.n)[0], np.float32) for s in self.outputs}
        for signal in self.outputs:
            finite = np.isfinite(commands[signal.name])
            if not finite.all():
                broken = ~finite.reshape(self.n, -1).all(axis=1)
                self._bad[broken & (self._bad == 0)] = _CODE["non-finite command"]
        if self.recovery:  # after that: it would hide what a policy says that is not finite
            commands = self.recovery.step(self._clean, commands, self.latched != 0, self._bad != 0)
        if not (self._bad.any() or self.latched.any()):
            self._held[:] = 0
            self.verdict[:] = PASS
            sent = {s.name: self._limited(s.name, commands[s.name]) for s in self.outputs}
        else:
            sent = self._mixed(commands)
        self._last_command = sent
        self._has_command |= self.verdict == PASS
        self._remember()
        return sent

    def _remember(self) -> None:
        if self.ladder is not None:
            self.ladder.fallback.watch(self._last_command, dict(self._last_signals))

    def _sound(self, override: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        """A human's commands within the robot's limits; nothing where one of them is not what it should be."""
        values = {s.name: received(s, override.get(s.name), self.n)[0] for s in self.outputs}
        if not all(np.isfinite(value).all() for value in values.values()):
            return {}
        return {k: np.clip(np.asarray(v, np.float32), self._low[k], self._high[k]) for k, v in values.items()}

    def _mixed(self, commands: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        """Not every robot may pass: decide one by one."""
        bad = self._bad != 0
        self._held = np.where(bad, self._held + 1, 0)
        expired = bad & ((self._held > self.envelope.hold_steps) | ~self._has_command)
        self.latched = np.where(expired & (self.latched == 0), self._bad, self.latched)
        stopped = self.latched != 0
        safe, verdict = self._stopped(commands)
        self.verdict = np.where(stopped, verdict, np.where(bad, HOLD, PASS)).astype(np.int8)
        self.counts += np.bincount(np.where(stopped, self.latched, self._bad), minlength=len(REASONS))
        self.counts[0] = 0
        sent = {}
        for signal in self.outputs:
            choice = self.verdict.reshape(self.n, *[1] * len(signal.shape))
            passed = self._limited(signal.name, np.nan_to_num(commands[signal.name]))
            held = self._last_command.get(signal.name, passed)
            sent[signal.name] = np.where(choice == PASS, passed, np.where(choice == HOLD, held, safe[signal.name]))
        return sent

    def _stopped(self, commands: Mapping[str, AnyArray]) -> tuple[dict[str, AnyArray], Any]:
        """What robots get (n, *shape) that are stopped, and the verdict that this is."""
        safe = self.safe_command()
        if self.ladder is None or not self.latched.any():
            return safe, SAFE
        reasons = [REASONS[code] for code in self.latched]
        wanted = commands[COMMAND]
        rung, command = self.ladder.commands(reasons, wanted, self._clean, self._broken, self.emergency)
        flown = np.isfinite(command).all(axis=1) & ((rung == STAY) | (rung == LAND))
        limited = np.clip(np.nan_to_num(command), self._low[COMMAND], self._high[COMMAND])
        safe[COMMAND] = np.where(flown[:, None], limited, safe[COMMAND]).astype(np.float32)
        return safe, np.where(flown, _OF_RUNG[rung], SAFE)

    @property
    def over(self) -> bool:
        """Whether no robot will move any more in this flight."""
        return bool((self.latched != 0).all() and (self.verdict == SAFE).all())

    def _limited(self, name: str, command: AnyArray) -> AnyArray:
        low, high = self._bounds[name]
        if self.recovery and (frees := self.recovery.frees).any():
            rows = frees.reshape(self.n, *[1] * (command.ndim - 1))
            low, high = np.where(rows, self._low[name], low), np.where(rows, self._high[name], high)
        value = np.clip(command, low, high)
        change = self.envelope.max_change
        if change is not None and name in self._last_command and np.isfinite(high - low).all():
            most = np.float32(change) * (high - low)
            last = self._last_command[name]
            moved = np.clip(value, last - most, last + most)
            first = ~self._has_command.reshape(self.n, *[1] * (value.ndim - 1))
            value = np.clip(np.where(first, value, moved), low, high)
        return value

    def interventions(self) -> dict[str, int]:
        """Robot steps on which a command was held or replaced, by reason; empty when all passed."""
        return {reason: int(count) for reason, count in zip(REASONS, self.counts, strict=True) if count}
