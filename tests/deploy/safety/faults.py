"""Faults for a flying simulation: each begins at some control step, and says what must have happened how soon.

The vehicles fly over a floor in thought: how each met it, is the simulation's truth (`Flight.landing`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from deploy.drivers import Reading
from deploy.drivers.simulated import Simulated
from deploy.guard import LANDING, SAFE, STAYING, Guard
from deploy.loop import Record, run
from deploy.policy_file import PolicyFile
from deploy.safety.envelope import Envelope
from deploy.safety.ladder import Ladder
from sim.spec import Signal
from sim.tasks import make

BATTERY = Signal("battery_voltage", (1,), "V", max_age=2.0)
ENVELOPE = Envelope(
    fence_low=(-5.0, -5.0, -5.0), fence_high=(5.0, 5.0, 5.0), max_tilt=150.0, max_speed=8.0, max_body_rate=35.0,
    min_voltage=3.2, max_change=0.3,
)  # fmt: skip
BY_HAND = {"motor_command": np.full((1, 4), 0.4, np.float32)}
STEPS = 300
LONG = 1400  # control steps in which every robot is down
SOFT, UPRIGHT = 1.5, 30.0  # m/s, degrees: a vehicle that meets the floor so has landed


class Clock:
    """Time that passes as told: control steps take none of it unless a fault says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 5e-6
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

    verdicts: list[int] = field(default_factory=list)
    landing: tuple[float, float, float] | None = None  # s after the fault, m/s downwards, degrees of tilt

    def __post_init__(self) -> None:
        self.driver = Simulated(
            make("quad_any", robot="crazyflie", path="hold", tilt=20.0, velocity=0.3),
            seed=int(self.rng.integers(1 << 30)),
            real_time=True,
        )
        self.driver.signals = (*self.driver.signals, BATTERY)
        self.ladder = Ladder(self.policy.inputs, self.policy.rate_hz, 0.0, (ENVELOPE.fence_low, ENVELOPE.fence_high))
        self.guard = Guard(self.policy.inputs, self.policy.outputs, ENVELOPE, self.driver.signals, self.ladder)
        self.step = 0

    def look(self) -> None:
        """How it meets the floor."""
        read = self.driver.env.engine.read
        if self.landing is None and self.step > self.at and read("position")[0, 2] < 0.05:
            tilt = float(np.degrees(np.arccos(np.clip(read("rotation")[0, 8], -1.0, 1.0))))
            after = (self.step - self.at) / self.policy.rate_hz
            self.landing = after, -float(read("linear_velocity")[0, 2]), tilt

    @property
    def landed(self) -> bool:
        """Whether it came down instead of falling."""
        return self.landing is not None and self.landing[1] < SOFT and self.landing[2] < UPRIGHT

    def rung(self) -> str:
        """The first thing that followed after the bridging: "hold", "land", "off", or nothing."""
        names = {STAYING: "hold", LANDING: "land", SAFE: "off"}
        return next((names[v] for v in self.verdicts[self.at :] if v in names), "")

    def victim(self) -> str:
        """One of the policy's signals."""
        return str(self.rng.choice([s.name for s in self.policy.inputs]))


Change = Callable[[Flight, Reading], Reading]


@dataclass(frozen=True)
class Fault:
    """`reading` changes what is measured from the fault on; `command` what the policy returns; `limit` in steps.

    `rung`: what follows first, "" where the flight goes on; a set, where it depends on which signal it is.
    """

    reason: str  # why the guard stops the robot; empty: it does not
    limit: int
    reading: Change = lambda flight, reading: reading
    command: Callable[[Flight, dict[str, Any]], dict[str, Any]] = lambda flight, command: command
    rung: str = "hold"
    signal: bool = False  # the rung is that of the signal: see `rung_of`


RUNG_OF = {"rotation": "off", "target_position": "hold", "target_velocity": "hold"}  # of the others: land


def rung_of(fault: Fault, flight: Flight) -> str:
    """The rung that the table of the documentation says."""
    return RUNG_OF.get(vars(flight)["name"], "land") if fault.signal else fault.rung


def changed(reading: Reading, **signals: Any) -> Reading:
    return replace(reading, signals={**reading.signals, **signals})


def one_element(value: Any) -> Change:
    """One element of one signal is `value`."""

    def change(flight: Flight, reading: Reading) -> Reading:
        name = vars(flight).setdefault("name", flight.victim())
        broken = np.array(reading.signals[name], np.float64)
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


def malformed(flight: Flight, reading: Reading) -> Reading:
    name = vars(flight).setdefault("name", flight.victim())
    return changed(reading, **{name: np.zeros((1, 2))})


def offset(name: str, by: float) -> Change:
    return lambda flight, reading: changed(reading, **{name: np.asarray(reading.signals[name]) + np.float32(by)})


def raises(flight: Flight, command: dict[str, Any]) -> dict[str, Any]:
    raise RuntimeError("the policy broke")


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
    if not vars(flight).setdefault("told", []):
        flight.told.append(flight.step)  # type: ignore[attr-defined]
        raise KeyboardInterrupt
    return reading


def broken(value: float) -> Callable[[Flight, dict[str, Any]], dict[str, Any]]:
    return lambda flight, command: {name: np.full_like(v, value) for name, v in command.items()}


OVERTURNED = np.diag([1.0, -1.0, -1.0]).astype(np.float32).reshape(1, 9)
HOLD = ENVELOPE.hold_steps
FAULTS = {
    "stale signal": Fault(
        "stale signal", 100 + HOLD + 2, frozen, signal=True
    ),  # a target may be 1 s old, a state 0.1 s
    "missing signal": Fault("stale signal", HOLD + 1, missing, signal=True),
    "NaN in a signal": Fault("non-finite signal", HOLD + 1, one_element(np.nan), signal=True),
    "infinite signal": Fault("non-finite signal", HOLD + 1, one_element(-np.inf), signal=True),
    "1e39 in a signal": Fault("non-finite signal", HOLD + 1, one_element(1e39), signal=True),
    "malformed signal": Fault("malformed signal", HOLD + 1, malformed, signal=True),
    "signal out of range": Fault(
        "signal out of range", HOLD + 1, lambda f, r: changed(r, rotation=3.0 * OVERTURNED), rung="off"
    ),
    "NaN in a command": Fault("non-finite command", HOLD + 1, command=broken(np.nan)),
    "the policy raises": Fault("policy failed", HOLD + 1, command=raises),
    "command out of range": Fault("", 1, command=broken(1e9), rung=""),
    "geofence": Fault("geofence", 1, offset("position", 6.0)),
    "tilt": Fault("tilt", 1, lambda f, r: changed(r, rotation=OVERTURNED)),
    "speed": Fault("speed", 1, lambda f, r: changed(r, linear_velocity=np.full((1, 3), 5.0, np.float32))),
    "body rate": Fault("body rate", 1, lambda f, r: changed(r, angular_velocity=np.full((1, 3), 30.0, np.float32))),
    "low battery": Fault(
        "low battery", 50, lambda f, r: changed(r, battery_voltage=np.full((1, 1), 3.0, np.float32)), rung="land"
    ),
    "deadlines missed": Fault("deadlines missed", 11, slow),
    "clock jumps ahead": Fault("clock jump", 2, jump(3.0)),
    "clock jumps back": Fault("clock jump", 2, jump(-3.0)),
    "emergency stop": Fault("emergency stop", 1, emergency, rung="off"),
    "override": Fault("", 1, lambda f, r: replace(r, override=BY_HAND), rung=""),
    "link lost": Fault("", 1, lost, rung=""),
    "interrupted": Fault("asked to land", 1, interrupted, rung="land"),
}
# Here what is measured is a lie, for a moment: a vehicle can land that is told the truth again.
BRIEF = {"geofence", "tilt", "speed", "body rate"}


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
        flight.look()
        reading = read()
        if flight.step == flight.at:
            flight.began = time.perf_counter()
        full = changed(reading, battery_voltage=np.full((1, 1), 3.9, np.float32))
        full = replace(full, age={**reading.age, "battery_voltage": 0.5})
        over = name in BRIEF and flight.step > flight.at
        return fault.reading(flight, full) if flight.step >= flight.at and not over else full

    def noted_write(commands: Any) -> None:
        flight.sent.append(commands["motor_command"].copy())
        flight.sent_at.append(time.perf_counter())
        flight.verdicts.append(int(flight.guard.verdict[0]))
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
    driver.falls = name == "interrupted"
    recorder = log(flight) if log else None
    try:
        flight.record = run(
            Broken(), driver, flight.guard, steps, log=recorder, clock=flight.clock, sleep=flight.clock.sleep
        )
    except OSError as error:
        flight.error = error
    if recorder:
        said = recorder.close(patience=60.0)  # seconds of simulated time take none, and the machine may be busy
        assert said in ("", "the disk does not keep up")
    return flight


def stopped_after(flight: Flight) -> int | None:
    """The number of control steps from the fault to the first that is not the policy's, bridging not counted."""
    for k, verdict in enumerate(flight.verdicts[flight.at :], start=1):
        if verdict in (STAYING, LANDING, SAFE):
            return k
    return None
