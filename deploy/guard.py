"""The envelope around a controller. Whatever it is fed, what leaves here is finite and within limits.

Per robot and control step: pass the command on, hold the last good one for a few steps, or send the safe command. The
safe command, once sent, stays until `reset`: a robot that was stopped does not start again by itself.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
)
_CODE = {reason: code for code, reason in enumerate(REASONS)}
PASS, HOLD, SAFE, OVERRIDE = 0, 1, 2, 3
WINDOW = 100  # control steps in which `missed_of_100` counts
LAST = "last"  # in `Envelope.safe`: keeps doing what it was told last


POSITIVE = (
    "missed_in_a_row",
    "missed_of_100",
    "longest_pause",
    "max_tilt",
    "max_speed",
    "max_body_rate",
    "max_change",
    "min_voltage",
    "low_voltage_steps",
)


@dataclass(frozen=True)
class Envelope:
    """Limits of a flight. None switches a rule off; a rule on a signal that nobody delivers is an error."""

    hold_steps: int = 5  # how long a bad signal or command is bridged with the last good command
    missed_in_a_row: int | None = 10  # late control steps in a row before the safe command
    missed_of_100: int | None = 50  # late control steps among the last hundred
    longest_pause: float | None = 0.5  # s between two control steps: what was commanded before it says nothing any more
    fence_low: tuple[float, float, float] | None = None  # m, world
    fence_high: tuple[float, float, float] | None = None  # m, world
    max_tilt: float | None = None  # degrees between the body's and the world's z axis
    max_speed: float | None = None  # m/s
    max_body_rate: float | None = None  # rad/s
    max_change: float | None = None  # of a command's range per control step
    min_voltage: float | None = None  # V of the battery
    low_voltage_steps: int = 50  # in a row: it sags under load
    # Command name -> values; or the signal that says where it is, and where it stays; or LAST. Else nearest to 0.
    safe: Mapping[str, tuple[float, ...] | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.hold_steps < 0:
            raise ValueError(f"hold_steps must not be negative, got {self.hold_steps}")
        if (self.fence_low is None) != (self.fence_high is None):
            raise ValueError("a geofence needs both fence_low and fence_high")
        if self.fence_low and self.fence_high:
            pairs = list(zip(self.fence_low, self.fence_high, strict=True))
            if len(pairs) != 3 or any(not low < high for low, high in pairs):
                raise ValueError(
                    f"fence_low {self.fence_low} must be below fence_high {self.fence_high}, three numbers each"
                )
        for name in POSITIVE:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value}")

    @classmethod
    def from_json(cls, items: Mapping[str, Any]) -> Envelope:
        """The inverse of `dataclasses.asdict` by way of JSON, which has no tuples; what is left out has its default."""

        def plain(values: Mapping[str, Any]) -> dict[str, Any]:
            return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}

        return cls(**plain(items) | {"safe": plain(items.get("safe", {}))})

    def places(self) -> dict[str, str]:
        """The commands that stay where they are, and the signals that say where that is."""
        return {command: rule for command, rule in self.safe.items() if isinstance(rule, str) and rule != LAST}

    def needs(self) -> dict[str, str]:
        """The rules that are on, and the signal that each one reads."""
        rules = {
            "fence_low": "position",
            "max_tilt": "rotation",
            "max_speed": "linear_velocity",
            "max_body_rate": "angular_velocity",
            "min_voltage": "battery_voltage",
        }
        return {rule: signal for rule, signal in rules.items() if getattr(self, rule) is not None}


def _norm(value: AnyArray) -> AnyArray:
    """(n,) lengths; in float64, where the square of a float32 cannot overflow."""
    wide = value.astype(np.float64)
    length: AnyArray = np.sqrt((wide * wide).sum(axis=-1))
    return length


class Guard:
    """Watches signals and commands of `n` robots. Per control step: `screen`, then the policy, then `filter`."""

    def __init__(
        self, inputs: Group, outputs: Group, envelope: Envelope | None = None, offered: Group | None = None
    ) -> None:
        """`inputs` and `outputs` of the policy; `offered`: all signals of the driver, where it has more than those."""
        self.envelope = envelope or Envelope()
        self.inputs, self.outputs = inputs, outputs
        self.emergency = False
        known = {s.name: s for s in (*(offered or ()), *inputs)}
        self._places = self.envelope.places()
        needs = self.envelope.needs() | {f"the safe {command}": name for command, name in self._places.items()}
        for rule, name in needs.items():
            if name not in known:
                raise ValueError(f"{rule} needs the signal {name!r}; there are: {', '.join(sorted(known))}")
        read = {s.name for s in inputs}
        self.watched = inputs + tuple(known[n] for n in dict.fromkeys(needs.values()) if n not in read)
        self._bounded = {s.name for s in self.watched if math.isfinite(s.low) or math.isfinite(s.high)}
        for name in self.envelope.safe:
            if name not in {s.name for s in outputs}:
                raise ValueError(f"safe names the command {name!r}; there are: {', '.join(s.name for s in outputs)}")
        self._low = {s.name: np.float32(s.low) for s in outputs}
        self._high = {s.name: np.float32(s.high) for s in outputs}
        for s in outputs:
            if s.name in self._places and known[self._places[s.name]].shape != s.shape:
                raise ValueError(f"the safe {s.name!r} {self._places[s.name]!r} has another shape than {s.shape}")
        self._kept = {name for name, rule in self.envelope.safe.items() if rule == LAST}
        self._safe = {s.name: self._safe_values(s.name, s.shape) for s in outputs}
        self.n = 0
        self._stay: dict[str, AnyArray] = {}
        self.reset(1)

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
            self._latch(np.ones(self.n, bool), "deadlines missed")
        pause, self._before = now - self._before, now
        if pause < 0.0 or (e.longest_pause is not None and pause > e.longest_pause):
            self._latch(np.ones(self.n, bool), "clock jump")

    def safe_command(self) -> dict[str, AnyArray]:
        """The safe command for all robots (n, *shape), by name."""
        constant = {name: np.repeat(value[None], self.n, axis=0) for name, value in self._safe.items()}
        last = {name: self._last_command[name] for name in self._kept & self._last_command.keys()}
        return {**constant, **self._stay, **last}

    def _latch(self, which: Bools, reason: str) -> None:
        self.latched[which & (self.latched == 0)] = _CODE[reason]

    def screen(self, signals: Mapping[str, AnyArray], age: Mapping[str, Any]) -> dict[str, AnyArray]:
        """Signals (n, *shape) that are all finite: where one is not, or is too old, its last good value stands in.

        `age` in seconds per signal, a number or (n,); a signal without an age, or from the future, counts as stale.
        """
        self._bad[:] = 0
        self._blamed: list[str] = []
        clean: dict[str, AnyArray] = {}
        for signal in self.watched:
            name, shape = signal.name, (self.n, *signal.shape)
            value = np.asarray(signals[name]) if name in signals else np.full(shape, np.nan, np.float32)
            if value.shape != shape:
                raise ValueError(f"signal {name!r} has shape {value.shape}, not {shape}")
            fresh = np.abs(np.asarray(age.get(name, math.inf) if name in signals else math.inf)) <= signal.max_age
            finite = np.isfinite(value)
            possible = finite & (value >= signal.low) & (value <= signal.high) if name in self._bounded else finite
            if fresh.all() and possible.all():
                clean[name], self._last_signals[name] = value, value.copy()  # drivers may reuse their arrays
                continue
            self._blamed.append(name)
            whole = possible.reshape(self.n, -1).all(axis=1)
            self._bad[~whole] = _CODE["signal out of range"]
            self._bad[~finite.reshape(self.n, -1).all(axis=1)] = _CODE["non-finite signal"]
            self._bad[~np.broadcast_to(fresh, (self.n,))] = _CODE["stale signal"]
            good = (whole & fresh).reshape(self.n, *[1] * len(signal.shape))
            last = self._last_signals.get(name)
            clean[name] = np.where(good, value, np.zeros_like(value) if last is None else last)
            self._last_signals[name] = clean[name]
        for name, place in self._places.items():
            moves = ((self._bad == 0) & (self.latched == 0)).reshape(self.n, *[1] * (clean[place].ndim - 1))
            here = np.clip(clean[place], self._low[name], self._high[name])
            self._stay[name] = np.where(moves, here, self._stay[name])
        self._check_envelope(clean)
        return clean

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
        self, commands: Mapping[str, AnyArray], override: Mapping[str, AnyArray] | None = None
    ) -> dict[str, AnyArray]:
        """What may be sent (n, *shape), by name: finite and within the limits, whatever `commands` holds.

        `override` comes from a human: it goes before the policy and before everything that holds or stops the policy,
        except the emergency stop; what is not finite in it counts as no override. Once it ends, the policy flies on,
        unless a rule of the envelope was broken meanwhile.
        """
        if override is not None and not self.emergency and self._sound(override):
            self.verdict[:] = OVERRIDE
            self._last_command = {
                s.name: np.clip(np.asarray(override[s.name], np.float32), self._low[s.name], self._high[s.name])
                for s in self.outputs
            }
            self._has_command[:] = True
            return self._last_command
        if self.emergency:
            self._latch(np.ones(self.n, bool), "emergency stop")
        with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite, which is what is tested next
            commands = {s.name: np.asarray(commands[s.name], np.float32) for s in self.outputs}
        for signal in self.outputs:
            finite = np.isfinite(commands[signal.name])
            if finite.shape != (self.n, *signal.shape):
                raise ValueError(f"command {signal.name!r} has shape {finite.shape}, not {(self.n, *signal.shape)}")
            if not finite.all():
                broken = ~finite.reshape(self.n, -1).all(axis=1)
                self._bad[broken & (self._bad == 0)] = _CODE["non-finite command"]
        if not (self._bad.any() or self.latched.any()):
            self._held[:] = 0
            self.verdict[:] = PASS
            sent = {s.name: self._limited(s.name, commands[s.name]) for s in self.outputs}
        else:
            sent = self._mixed(commands)
        self._last_command = sent
        self._has_command |= self.verdict == PASS
        return sent

    def _sound(self, commands: Mapping[str, AnyArray]) -> bool:
        return all(
            s.name in commands
            and np.shape(commands[s.name]) == (self.n, *s.shape)
            and np.isfinite(commands[s.name]).all()
            for s in self.outputs
        )

    def _mixed(self, commands: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        """Not every robot may pass: decide one by one."""
        bad = self._bad != 0
        self._held = np.where(bad, self._held + 1, 0)
        expired = bad & ((self._held > self.envelope.hold_steps) | ~self._has_command)
        self.latched = np.where(expired & (self.latched == 0), self._bad, self.latched)
        stopped = self.latched != 0
        self.verdict = np.where(stopped, SAFE, np.where(bad, HOLD, PASS)).astype(np.int8)
        self.counts += np.bincount(np.where(stopped, self.latched, self._bad), minlength=len(REASONS))
        self.counts[0] = 0
        sent, safe = {}, self.safe_command()
        for signal in self.outputs:
            choice = self.verdict.reshape(self.n, *[1] * len(signal.shape))
            passed = self._limited(signal.name, np.nan_to_num(commands[signal.name]))
            held = self._last_command.get(signal.name, passed)
            sent[signal.name] = np.where(choice == PASS, passed, np.where(choice == HOLD, held, safe[signal.name]))
        return sent

    def _limited(self, name: str, command: AnyArray) -> AnyArray:
        low, high = self._low[name], self._high[name]
        value = np.clip(command, low, high)
        change = self.envelope.max_change
        if change is not None and name in self._last_command and np.isfinite(high - low):
            most = np.float32(change) * (high - low)
            last = self._last_command[name]
            moved = np.clip(value, last - most, last + most)
            first = ~self._has_command.reshape(self.n, *[1] * (value.ndim - 1))
            value = np.clip(np.where(first, value, moved), low, high)
        return value

    def interventions(self) -> dict[str, int]:
        """Robot steps on which a command was held or replaced, by reason; empty when all passed."""
        return {reason: int(count) for reason, count in zip(REASONS, self.counts, strict=True) if count}
