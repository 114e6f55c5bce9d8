"""Faults for a flying simulation: each begins at some control step, and says what must have happened how soon."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from deploy.drivers import Reading
from deploy.drivers.simulated import Simulated
from deploy.guard import Guard
from deploy.loop import Record, run
from deploy.policy_file import PolicyFile
from deploy.safety.envelope import Envelope
from sim.spec import Signal
from sim.tasks import make

BATTERY = Signal("battery_voltage", (1,), "V", max_age=2.0)
ENVELOPE = Envelope(
    fence_low=(-5.0, -5.0, -5.0), fence_high=(5.0, 5.0, 5.0), max_tilt=150.0, max_speed=8.0, max_body_rate=35.0,
    min_voltage=3.2, max_change=0.3,
)  # fmt: skip
BY_HAND = {"motor_command": np.full((1, 4), 0.4, np.float32)}
STEPS = 300


class Clock:
    """Time that passes as told: control steps take none of it unless a fault says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1e-7
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class RealClock(Clock):
    """The machine's, which faults may set."""

    def __init__(self) -> None:
        self.ahead = 0.0

    @property
    def now(self) -> float:  # type: ignore[override]
        return time.perf_counter() + self.ahead

    @now.setter
    def now(self, value: float) -> None:
        self.ahead += value - self.now

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass
class Flight:
    """One flight with one fault. `sent` are the commands as the robot got them."""

    policy: PolicyFile
    at: int  # control step
    rng: np.random.Generator
    clock: Clock = field(default_factory=Clock)
    sent: list[Any] = field(default_factory=list)
    sent_at: list[float] = field(default_factory=list)  # s
    began: float = 0.0  # s, when the fault was first there to be seen
    stops: int = 0
    record: Record | None = None
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.driver = Simulated(
            make("quad_any", robot="crazyflie", path="hold", tilt=20.0, velocity=0.3),
            seed=int(self.rng.integers(1 << 30)),
            real_time=True,
        )
        self.driver.signals = (*self.driver.signals, BATTERY)
        self.guard = Guard(self.policy.inputs, self.policy.outputs, ENVELOPE, self.driver.signals)
        self.step = 0

    def victim(self) -> str:
        """One of the policy's signals."""
        return str(self.rng.choice([s.name for s in self.policy.inputs]))


Change = Callable[[Flight, Reading], Reading]


@dataclass(frozen=True)
class Fault:
    """`reading` changes what is measured from the fault on; `command` what the policy returns; `limit` in steps."""

    reason: str  # why the guard stops the robot; empty: it does not
    limit: int
    reading: Change = lambda flight, reading: reading
    command: Callable[[Flight, dict[str, Any]], dict[str, Any]] = lambda flight, command: command


def changed(reading: Reading, **signals: Any) -> Reading:
    return replace(reading, signals={**reading.signals, **signals})


def one_element(value: Any) -> Change:
    """One element of one signal is `value`."""

    def change(flight: Flight, reading: Reading) -> Reading:
        name = vars(flight).setdefault("name", flight.victim())
        broken = np.array(reading.signals[name])
        broken[0, flight.rng.integers(broken.shape[1])] = value
        return changed(reading, **{name: broken})

    return change


def frozen(flight: Flight, reading: Reading) -> Reading:
    name = vars(flight).setdefault("name", flight.victim())
    kept = vars(flight).setdefault("kept", np.array(reading.signals[name]))
    age = (flight.step - flight.at) / flight.policy.rate_hz
    return replace(changed(reading, **{name: kept}), age={**reading.age, name: age})


def missing(flight: Flight, reading: Reading) -> Reading:
    name = vars(flight).setdefault("name", flight.victim())
    return replace(reading, signals={k: v for k, v in reading.signals.items() if k != name})


def jump(seconds: float) -> Change:
    def change(flight: Flight, reading: Reading) -> Reading:
        flight.clock.now += seconds * (flight.step == flight.at)
        return reading

    return change


def slow(flight: Flight, reading: Reading) -> Reading:
    flight.clock.sleep(1.5 / flight.policy.rate_hz)
    return reading


def emergency(flight: Flight, reading: Reading) -> Reading:
    flight.guard.stop()
    return reading


def lost(flight: Flight, reading: Reading) -> Reading:
    raise OSError("the link is lost")


def interrupted(flight: Flight, reading: Reading) -> Reading:
    raise KeyboardInterrupt


def broken(value: float) -> Callable[[Flight, dict[str, Any]], dict[str, Any]]:
    return lambda flight, command: {name: np.full_like(v, value) for name, v in command.items()}


OVERTURNED = np.diag([1.0, -1.0, -1.0]).astype(np.float32).reshape(1, 9)
HOLD = ENVELOPE.hold_steps
FAULTS = {
    "stale signal": Fault("stale signal", 100 + HOLD + 2, frozen),  # a target may be 1 s old, a state 0.1 s
    "missing signal": Fault("stale signal", HOLD + 1, missing),
    "NaN in a signal": Fault("non-finite signal", HOLD + 1, one_element(np.nan)),
    "infinite signal": Fault("non-finite signal", HOLD + 1, one_element(-np.inf)),
    "signal out of range": Fault("signal out of range", HOLD + 1, lambda f, r: changed(r, rotation=3.0 * OVERTURNED)),
    "NaN in a command": Fault("non-finite command", HOLD + 1, command=broken(np.nan)),
    "command out of range": Fault("", 1, command=broken(1e9)),
    "geofence": Fault("geofence", 1, lambda f, r: changed(r, position=np.full((1, 3), 6.0, np.float32))),
    "tilt": Fault("tilt", 1, lambda f, r: changed(r, rotation=OVERTURNED)),
    "speed": Fault("speed", 1, lambda f, r: changed(r, linear_velocity=np.full((1, 3), 5.0, np.float32))),
    "body rate": Fault("body rate", 1, lambda f, r: changed(r, angular_velocity=np.full((1, 3), 30.0, np.float32))),
    "low battery": Fault("low battery", 50, lambda f, r: changed(r, battery_voltage=np.full((1, 1), 3.0, np.float32))),
    "deadlines missed": Fault("deadlines missed", 11, slow),
    "clock jumps ahead": Fault("clock jump", 2, jump(3.0)),
    "clock jumps back": Fault("clock jump", 2, jump(-3.0)),
    "emergency stop": Fault("emergency stop", 1, emergency),
    "override": Fault("", 1, lambda f, r: replace(r, override=BY_HAND)),
    "link lost": Fault("", 1, lost),
    "interrupted": Fault("", 1, interrupted),
}  # fmt: skip


def fly(
    name: str,
    policy: PolicyFile,
    rng: np.random.Generator,
    log: Any = None,
    clock: Clock | None = None,
    steps: int = STEPS,
) -> Flight:
    """Fly, let it happen, fly on. `log` makes a recorder for the flight."""
    fault = FAULTS[name]
    flight = Flight(policy, int(rng.integers(20, steps // 2)), rng, clock or Clock())
    driver, read, write, stop = flight.driver, flight.driver.read, flight.driver.write, flight.driver.stop

    def faulty_read() -> Reading:
        reading = read()
        if flight.step == flight.at:
            flight.began = time.perf_counter()
        full = changed(reading, battery_voltage=np.full((1, 1), 3.9, np.float32))
        full = replace(full, age={**reading.age, "battery_voltage": 0.5})
        return fault.reading(flight, full) if flight.step >= flight.at else full

    def noted_write(commands: Any) -> None:
        flight.sent.append(commands["motor_command"].copy())
        flight.sent_at.append(time.perf_counter())
        flight.step += 1
        write(commands)

    def noted_stop() -> None:
        flight.stops += 1
        stop()

    class Broken:
        def __getattr__(self, attribute: str) -> Any:
            return getattr(policy, attribute)

        def step(self, signals: Any) -> Any:
            command = policy.step(signals)
            return fault.command(flight, command) if flight.step >= flight.at else command

    driver.read, driver.write, driver.stop = faulty_read, noted_write, noted_stop  # type: ignore[method-assign]
    recorder = log(flight) if log else None
    try:
        flight.record = run(
            Broken(), driver, flight.guard, steps, log=recorder, clock=flight.clock, sleep=flight.clock.sleep
        )
    except OSError as error:
        flight.error = error
    if recorder:
        assert recorder.close() == ""
    return flight


def stopped_after(flight: Flight) -> int | None:
    """The number of control steps from the fault to the first safe command, that one included."""
    for k, sent in enumerate(flight.sent[flight.at :], start=1):
        if not sent.any():
            return k
    return None
