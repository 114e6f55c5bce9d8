"""System identification: the airframe that explains recorded flights best, with 95 % confidence intervals.

The equations are those of `sim/engines/flight/dynamics.py`. Velocity and body rate are predicted over short windows
from the commands and the recorded attitude; each window's first value is free. Lag, delay, thrust, inertia and drag
are found together by Gauss-Newton with Levenberg's damping; the intervals are those of a sandwich estimator that takes
windows as independent, whatever the noise within one.

What no flight log can tell, because only ratios move a vehicle:

- thrust and inertia are known per mass: the mass must be given (a scale);
- inertia in roll and pitch is known per rotor arm: the guess's rotor positions are taken;
- yaw inertia is known per torque ratio (yaw torque over thrust): the guess's torque ratio is taken, unless
  gyroscopic moments are to tell them apart (`free_torque_ratio`), which takes fast turns about several axes;
- a constant vertical force looks like another thrust: there must be none (other constant forces and torques
  are fitted);
- commands between two rows are not seen: log as fast as the commands change. (A simulated Crazyflie whose 500 Hz
  damping was logged at 100 Hz came out with 30 % too much inertia; `correlation` tells.)

Drag is what a flight tells least about: at 1 m/s it is 2 % of a Crazyflie's weight. From 25 s on random paths with the
published noise its 95 % intervals are +- 5 %, where those of inertia are +- 0.15 %; the errors over 20 flights were 3 %
(root mean square), as the intervals promise. Fly longer and faster for more: four times the flight halves it.

Not modelled, so it ends up in the estimates: battery sag within the flight, rotors that differ, estimator lag.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.robots.quadrotors import GRAVITY, Quadrotor

Array = NDArray[np.float64]

# The unknowns, per mass; positive ones (time constants, thrust at the mean command, inertia, torque ratio: turn) as
# logarithms.
NAMES = (
    *("delay", "rise_time", "fall_time", "thrust", "slope", "curvature", "roll", "pitch", "yaw"),
    *("drag_x", "drag_y", "drag_z", "twist_x", "twist_y", "twist_z", "push_x", "push_y", "turn"),
)
AT = {name: k for k, name in enumerate(NAMES)}
LAGS = slice(0, 3)
SHAPE = [AT["slope"], AT["curvature"]]

WINDOW = 0.4  # s
SETTLING = 12.0  # time constants at the start of a record in which the rotors' speeds are unknown
CONFIDENCE = 1.96  # standard deviations on either side of a 95 % interval
UNKNOWN = 0.5  # a 95 % interval wider than +- this share is no knowledge
LONGEST_DELAY = 0.1  # s
ITERATIONS = 40


class TooLittleExcitation(ValueError):  # noqa: N818 - names what is wrong with the flight
    """The record does not determine what is asked; the message says what is missing."""


@dataclass(frozen=True)
class Record:
    """One uninterrupted flight, sampled every `dt` seconds. A row's command is in force until the next row."""

    dt: float
    rotation: Array  # (steps, 3, 3), body to world
    velocity: Array  # (steps, 3), m/s, world
    rate: Array  # (steps, 3), rad/s, body
    command: Array  # (steps, 4), fraction 0..1 of the rotor speed range

    def __post_init__(self) -> None:
        steps = len(self.command)
        shapes = {"rotation": (3, 3), "velocity": (3,), "rate": (3,), "command": (4,)}
        if not self.dt > 0.0:
            raise ValueError(f"dt must be a positive number of seconds, got {self.dt}")
        for name, shape in shapes.items():
            value = getattr(self, name)
            if value.shape != (steps, *shape):
                raise ValueError(f"{name} must be {(steps, *shape)}, got {value.shape}")
            if not np.isfinite(value).all():
                raise ValueError(f"{name} has values that are not finite")
        if steps and (self.command.min() < -1e-6 or self.command.max() > 1.0 + 1e-6):
            raise ValueError(f"command must be in 0..1, got {self.command.min():.3g}..{self.command.max():.3g}")


@dataclass(frozen=True)
class Estimate:
    """One quantity: `value` +- `margin` (half of the 95 % interval). `note` says what it rests on."""

    name: str
    value: float
    margin: float
    unit: str
    note: str = ""

    @property
    def share(self) -> float:
        """The margin relative to the value."""
        return self.margin / abs(self.value) if self.value else np.inf


@dataclass(frozen=True)
class Identified:
    """The airframe, the quantities with their intervals, and the residuals' standard deviations."""

    robot: Quadrotor
    estimates: tuple[Estimate, ...]
    residual: tuple[float, ...]  # velocity x, y, z (m/s), body rate x, y, z (rad/s)
    windows: int
    seconds: float  # of flight that were used
    mean_command: float  # 0..1
    correlation: float  # largest of the six, of residuals one row apart: 0 where only white noise is left

    def __getitem__(self, name: str) -> Estimate:
        for estimate in self.estimates:
            if estimate.name == name:
                return estimate
        raise KeyError(f"no estimate {name!r}; there are: {', '.join(e.name for e in self.estimates)}")


def rotor_speeds(command: Array, delay: Array, rise: Array, fall: Array, dt: float) -> tuple[Array, Array]:
    """Rotor speeds (variants, steps + 1, ...) at the steps' borders and (variants, steps, ...) in their middle.

    `command` is (steps, ...) and held for `dt`; delay, rise and fall (variants,) in s. Speeds begin at the first
    command. Fractions of a step of delay blend linearly, as in `sim.randomize.delay_weights`.
    """
    steps, extra = len(command), (1,) * (command.ndim - 1)
    whole = np.floor(delay / dt).astype(int)
    part = (delay / dt - whole).reshape(-1, *extra)
    up, down = (np.exp(-0.5 * dt / tau).reshape(-1, *extra) for tau in (rise, fall))
    border = np.empty((len(delay), steps + 1, *command.shape[1:]))
    middle = np.empty((len(delay), steps, *command.shape[1:]))
    speed = border[:, 0] = np.broadcast_to(command[0], border[:, 0].shape)
    for k in range(steps):
        wanted = (1.0 - part) * command[np.maximum(k - whole, 0)] + part * command[np.maximum(k - whole - 1, 0)]
        decay = np.where(wanted > speed, up, down)
        half = middle[:, k] = wanted + (speed - wanted) * decay
        speed = border[:, k + 1] = wanted + (half - wanted) * decay
    return border, middle


class _Fit:
    """The least-squares problem of one set of records."""

    def __init__(self, records: Sequence[Record], guess: Quadrotor, held: Sequence[int], one_lag: bool) -> None:
        self.guess, self.one_lag = guess, one_lag
        self.dt = records[0].dt
        self.free = [k for k in range(len(NAMES)) if k not in held]
        longest = max(len(r.command) for r in records)

        def stacked(name: str) -> Array:
            values = [getattr(r, name) for r in records]
            last = [np.repeat(v[-1:], longest - len(v), axis=0) for v in values]
            return np.stack([np.concatenate(pair) for pair in zip(values, last, strict=True)], axis=1)

        self.command = stacked("command").astype(float)
        self.axis = stacked("rotation")
        self.state = np.concatenate([stacked("velocity"), stacked("rate")], axis=-1)  # (steps, records, 6)
        self.length = max(4, round(WINDOW / self.dt))
        begin = round((SETTLING * max(guess.rise_time, guess.fall_time) + LONGEST_DELAY) / self.dt)
        starts = [
            (t, k) for k, r in enumerate(records) for t in range(begin, len(r.command) - self.length, self.length)
        ]
        if len(starts) < 2 * len(NAMES):
            needed = 2 * len(NAMES) * self.length * self.dt + begin * self.dt
            have = sum(len(r.command) for r in records) * self.dt
            raise TooLittleExcitation(
                f"{have:.1f} s of flight are too short: needs {needed:.0f} s or more in one piece"
            )
        place = np.asarray(starts)
        self.when, self.which = place[:, 0:1] + np.arange(self.length), place[:, 1:2]
        seen = self.state[np.append(self.when, self.when[:, -1:] + 1, axis=1), self.which]
        self.seen = seen - seen.mean(axis=1, keepdims=True)  # (windows, length + 1, 6)
        self._gather()
        self.speed = float(self.command[self.when, self.which].mean())
        if not self.speed > 0.0:
            raise TooLittleExcitation("the motors never ran")

    def start(self) -> Array:
        """The guess as unknowns."""
        g, u = self.guess, self.speed
        _, c1, c2 = g.thrust_curve
        p = np.zeros(len(NAMES))
        p[AT["rise_time"]], p[AT["fall_time"]] = np.log([g.rise_time, g.fall_time])
        p[AT["thrust"]] = np.log(g.thrust(u) / g.mass)
        p[AT["slope"]], p[AT["curvature"]] = (c1 + 2.0 * c2 * u) * u / g.thrust(u), c2 * u * u / g.thrust(u)
        p[AT["roll"] : AT["yaw"] + 1] = np.log(np.asarray(g.inertia) / g.mass)
        p[AT["drag_x"] : AT["drag_z"] + 1] = np.asarray(g.drag) / g.mass
        p[AT["turn"]] = np.log(g.torque_ratio)
        return p

    def lags(self, points: Array) -> tuple[Array, Array]:
        """Rotor speeds of unknowns (variants, unknowns)."""
        rise = np.exp(points[:, AT["rise_time"]])
        fall = rise if self.one_lag else np.exp(points[:, AT["fall_time"]])
        return rotor_speeds(self.command, points[:, AT["delay"]], rise, fall, self.dt)

    def _wrench(self, p: Array, speed: Array) -> Array:
        """Thrust and torque per mass (..., 4) of the rotor speeds (..., 4)."""
        z = speed / self.speed - 1.0
        lift = np.exp(p[AT["thrust"]]) * (1.0 + z * (p[AT["slope"]] + z * p[AT["curvature"]]))
        x, y = np.asarray(self.guess.rotor_position).T
        turn = np.exp(p[AT["turn"]]) * np.asarray(self.guess.rotor_direction)
        wrench: Array = lift @ np.stack([np.ones(4), y, -x, turn], axis=1)
        return wrench

    def _gather(self) -> None:
        """What the prediction needs of the record, per window and step."""
        t, k = self.when, self.which
        r0, r1 = self.axis[t, k], self.axis[t + 1, k]
        v0, v1, self.w0, self.w1 = (self.state[t + d, k, part] for part in (slice(0, 3), slice(3, 6)) for d in (0, 1))
        self.up0, self.up1 = r0[..., 2], r1[..., 2]
        self.up = 0.5 * (self.up0 + self.up1)
        self.up /= np.linalg.norm(self.up, axis=-1, keepdims=True)
        self.air = 0.5 * (np.einsum("...ji,...j->...i", r0, v0) + np.einsum("...ji,...j->...i", r1, v1))
        self.turned = 0.5 * (r0 + r1)

    def residual(self, p: Array, border: Array, middle: Array) -> Array:
        """Prediction minus record (windows, length + 1, 6), without each window's mean."""
        t, k = self.when, self.which
        first, half, last = (self._wrench(p, s) for s in (border[t, k], middle[t, k], border[t + 1, k]))
        push = (first[..., :1] * self.up0 + 4.0 * half[..., :1] * self.up + last[..., :1] * self.up1) / 6.0
        drag = p[AT["drag_x"] : AT["drag_z"] + 1] * self.air
        push -= (self.turned @ drag[..., None])[..., 0]
        push += np.append(p[AT["push_x"] : AT["turn"]], -GRAVITY)
        inertia = np.exp(p[AT["roll"] : AT["yaw"] + 1])
        couple = np.array([inertia[1] - inertia[2], inertia[2] - inertia[0], inertia[0] - inertia[1]])
        spin = 0.5 * couple * sum(w[..., [1, 2, 0]] * w[..., [2, 0, 1]] for w in (self.w0, self.w1))
        torque = (first[..., 1:] + 4.0 * half[..., 1:] + last[..., 1:]) / 6.0
        turn = (torque + spin) / inertia + p[AT["twist_x"] : AT["twist_z"] + 1]
        path = np.zeros(self.seen.shape)
        np.cumsum(self.dt * np.concatenate([push, turn], axis=-1), axis=1, out=path[:, 1:])
        path -= path.mean(axis=1, keepdims=True)
        path -= self.seen
        return path

    def linearised(self, p: Array) -> tuple[Array, Array]:
        """The residual (windows, length + 1, 6) and its derivatives (free unknowns, windows, length + 1, 6)."""
        step = 1e-4
        points = [p]
        for name in self.free:
            moved = p.copy()
            moved[name] += step * (self.dt if name == AT["delay"] else 1.0)
            points.append(moved)
        lagging = [0] + [1 + k for k, name in enumerate(self.free) if name < LAGS.stop]
        border, middle = self.lags(np.stack(points)[lagging])
        at = {index: k for k, index in enumerate(lagging)}
        found = [self.residual(q, border[at.get(k, 0)], middle[at.get(k, 0)]) for k, q in enumerate(points)]
        widths = [step * (self.dt if name == AT["delay"] else 1.0) for name in self.free]
        slopes = [(f - found[0]) / w for f, w in zip(found[1:], widths, strict=True)]
        return found[0], np.stack(slopes)

    def cost(self, p: Array, weight: Array) -> float:
        """Half the weighted sum of squares."""
        border, middle = self.lags(p[None])
        return 0.5 * float(np.sum((weight * self.residual(p, border[0], middle[0])) ** 2))

    def bounded(self, p: Array) -> Array:
        """Within what a quadrotor may be."""
        q = p.copy()
        q[AT["delay"]] = np.clip(q[AT["delay"]], 0.0, LONGEST_DELAY)
        q[: LAGS.stop][1:] = np.clip(q[1 : LAGS.stop], np.log(0.05 * self.dt), np.log(2.0))
        return q

    def solve(self, p: Array, weight: Array, tolerance: float = 1e-4) -> tuple[Array, float]:
        """Minimise from `p` until a step gains less than `tolerance` of the cost; the unknowns and the cost."""
        cost, damping = self.cost(p, weight), 1e-3
        for _ in range(ITERATIONS):
            residual, slopes = self.linearised(p)
            flat = (weight * slopes).reshape(len(self.free), -1)
            gradient, normal = flat @ (weight * residual).ravel(), flat @ flat.T
            before = cost
            while damping < 1e8:
                change = np.linalg.lstsq(normal + damping * np.diag(np.diag(normal)), -gradient, rcond=None)[0]
                moved = p.copy()
                moved[self.free] += np.clip(change, -1.0, 1.0)
                moved = self.bounded(moved)
                trial = self.cost(moved, weight)
                if trial < cost:
                    p, cost, damping = moved, trial, max(0.2 * damping, 1e-9)
                    break
                damping *= 10.0
            if before - cost < tolerance * before:
                break
        return p, cost

    def weights(self, p: Array) -> Array:
        """One over the residuals' standard deviations (6,)."""
        border, middle = self.lags(p[None])
        spread = self.residual(p, border[0], middle[0]).std(axis=(0, 1))
        weight: Array = 1.0 / np.maximum(spread, 1e-9)
        return weight

    def correlation(self, p: Array) -> float:
        """The largest correlation, of six, between residuals one row apart."""
        border, middle = self.lags(p[None])
        rest = self.residual(p, border[0], middle[0])
        return float(((rest[:, 1:] * rest[:, :-1]).mean(axis=(0, 1)) / (rest**2).mean(axis=(0, 1))).max())

    def covariance(self, p: Array, weight: Array) -> Array:
        """Of the free unknowns: sandwich over windows. Raises TooLittleExcitation where there is none."""
        residual, slopes = self.linearised(p)
        flat = weight * slopes
        normal = np.einsum("pwtc,qwtc->pq", flat, flat, optimize=True)
        scale = np.sqrt(np.diag(normal))
        silent = [NAMES[self.free[k]] for k in np.flatnonzero(scale < 1e-9)]
        if silent or np.linalg.cond(normal / np.outer(scale, scale)) > 1e12:
            raise TooLittleExcitation(f"the flight says nothing about {', '.join(silent) or 'some of the unknowns'}")
        each = np.einsum("pwtc,wtc->pw", flat, weight * residual, optimize=True)
        bread = np.linalg.inv(normal)
        windows = each.shape[1]
        found: Array = bread @ (each @ each.T) @ bread * windows / max(windows - len(self.free), 1)
        return found


def _thrust_curve(p: Array, speed: float, mass: float) -> Array:
    """c0, c1, c2 in N from the polynomial about the mean command."""
    slope, curvature = p[SHAPE]
    level = mass * np.exp(p[AT["thrust"]])
    return np.asarray(
        level * np.array([1.0 - slope + curvature, (slope - 2.0 * curvature) / speed, curvature / speed**2])
    )


# What is reported: unit, and what it rests on.
REPORTED = {
    "delay": ("s", "from command to rotor"),
    "rise_time": ("s", ""),
    "fall_time": ("s", ""),
    "thrust_per_mass": ("m/s^2", "of one rotor at the mean command"),
    "thrust": ("N", "of one rotor at the mean command, for this mass"),
    "thrust_to_weight": ("1", "at full command, by the curve"),
    "inertia_x": ("kg m^2", "for this mass and these rotor positions"),
    "inertia_y": ("kg m^2", "for this mass and these rotor positions"),
    "inertia_z": ("kg m^2", "for this mass and torque ratio"),
    "torque_ratio": ("m", "yaw torque over thrust"),
    "yaw_authority": ("1/(kg m)", "torque ratio over yaw inertia, for this mass"),
    "drag_x": ("N s/m", "for this mass"),
    "drag_y": ("N s/m", "for this mass"),
    "drag_z": ("N s/m", "for this mass"),
}


def _quantities(fit: _Fit, p: Array, mass: float) -> Array:
    """The values of REPORTED, in its order."""
    rise, fall, lift, torque_ratio = np.exp(p[[AT["rise_time"], AT["fall_time"], AT["thrust"], AT["turn"]]])
    full = float(_thrust_curve(p, fit.speed, 1.0).sum())
    inertia = mass * np.exp(p[AT["roll"] : AT["yaw"] + 1])
    return np.array(
        [
            *(p[AT["delay"]], rise, rise if fit.one_lag else fall),
            *(lift, mass * lift, 4.0 * full / GRAVITY),
            *(*inertia, torque_ratio, torque_ratio / inertia[2]),
            *(mass * p[AT["drag_x"] : AT["drag_z"] + 1]),
        ]
    )


def _estimates(fit: _Fit, p: Array, covariance: Array, mass: float) -> tuple[Estimate, ...]:
    """Values with margins, by the delta method."""
    steps = 1e-6 * np.eye(len(NAMES))[fit.free]
    slopes = np.stack([(_quantities(fit, p + d, mass) - _quantities(fit, p - d, mass)) / 2e-6 for d in steps])
    margins = CONFIDENCE * np.sqrt(np.maximum(np.einsum("pk,pq,qk->k", slopes, covariance, slopes), 0.0))
    values = zip(REPORTED.items(), _quantities(fit, p, mass), margins, strict=True)
    return tuple(Estimate(name, float(v), float(m), *told) for (name, told), v, m in values)


def _demand(estimates: Sequence[Estimate]) -> None:
    """Raises TooLittleExcitation when something that an airframe needs is not known."""
    advice = {
        "thrust": "climb and descend",
        "thrust_to_weight": "climb and descend harder, or hold the curve's shape (curve=scale)",
        "rise_time": "command quicker changes of thrust, or fit one lag (one_lag=true)",
        "fall_time": "command quicker changes of thrust, or fit one lag (one_lag=true)",
        "inertia_x": "roll more",
        "inertia_y": "pitch more",
        "inertia_z": "yaw more",
        "torque_ratio": "turn faster about several axes at once, or take the guess's (free_torque_ratio=false)",
    }
    bad = [e for e in estimates if e.name in advice and not e.share < UNKNOWN]
    if bad:
        listed = "; ".join(f"{e.name} = {e.value:.3g} +- {e.margin:.2g} {e.unit} ({advice[e.name]})" for e in bad)
        raise TooLittleExcitation(f"the flight moves too little to tell {listed}")


def identify(
    records: Sequence[Record],
    guess: Quadrotor,
    *,
    mass: float | None = None,
    free_curve: bool = False,
    one_lag: bool = False,
    free_torque_ratio: bool = False,
    delay: float | None = None,
    name: str = "identified",
) -> Identified:
    """The airframe that explains the records, starting from `guess` (an airframe of similar size).

    `mass` (kg) is what a scale says (default: the guess's). The thrust curve keeps the guess's shape and is scaled,
    unless `free_curve`. `one_lag` fits one time constant for rise and fall. `free_torque_ratio` fits
    it beside the yaw inertia. `delay` (s) is fitted unless given. Taken
    from the guess: rotor positions and directions, propeller radius, ground effect.

    Raises TooLittleExcitation (a ValueError) when the flight does not determine the airframe.
    """
    if type(guess) is not Quadrotor:
        raise ValueError(f"the guess must be one airframe; {guess.name!r} stands for many")
    if not records or any(not np.isclose(r.dt, records[0].dt, rtol=0.02) for r in records):
        raise ValueError("needs at least one record, all sampled at one rate")
    mass = guess.mass if mass is None else mass
    if not (np.isfinite(mass) and mass > 0.0):
        raise ValueError(f"mass must be a positive number of kilograms, got {mass}")
    if delay is not None and not 0.0 <= delay <= LONGEST_DELAY:
        raise ValueError(f"delay must be in 0..{LONGEST_DELAY} s, got {delay}")
    held = [
        *([] if free_curve else SHAPE),
        *([AT["fall_time"]] if one_lag else []),
        *([] if free_torque_ratio else [AT["turn"]]),
        *([] if delay is None else [AT["delay"]]),
    ]
    fit = _Fit(records, guess, held, one_lag)
    p = _best(fit, delay)
    weight = fit.weights(p)
    estimates = _estimates(fit, p, fit.covariance(p, weight), mass)
    _demand(estimates)
    robot = _airframe(fit, p, mass, name, estimates)
    seconds = fit.when.size * fit.dt
    return Identified(
        robot, estimates, tuple(float(1.0 / w) for w in weight), len(fit.when), seconds, fit.speed, fit.correlation(p)
    )


def _best(fit: _Fit, delay: float | None) -> Array:
    """The unknowns of least cost, tried from several delays: the prediction has kinks at whole steps of delay."""
    found: tuple[float, Array] | None = None
    weight: Array | None = None  # of the first solution: costs must be compared under one
    for first in (0.5 * fit.dt, 2.5 * fit.dt) if delay is None else (delay,):
        p = fit.start()
        p[AT["delay"]] = first
        p, _ = fit.solve(p, fit.weights(p))
        weight = fit.weights(p) if weight is None else weight
        p, cost = fit.solve(p, weight)
        if found is None or cost < found[0]:
            found = cost, p
    assert found is not None
    p, _ = fit.solve(found[1], fit.weights(found[1]), 1e-8)
    return p


def _airframe(fit: _Fit, p: Array, mass: float, name: str, estimates: Sequence[Estimate]) -> Quadrotor:
    """The guess with what was found. Drag that is not distinct from none is none."""
    by_name = {e.name: e for e in estimates}
    inertia_x, inertia_y, inertia_z = (by_name[f"inertia_{axis}"].value for axis in "xyz")
    drag_x, drag_y, drag_z = (e.value if e.value > e.margin else 0.0 for e in (by_name[f"drag_{k}"] for k in "xyz"))
    c0, c1, c2 = (float(c) for c in _thrust_curve(p, fit.speed, mass))
    return dataclasses.replace(
        fit.guess,
        name=name,
        source=f"identified from {fit.when.size * fit.dt:.0f} s of flight, starting from {fit.guess.name}",
        mass=float(mass),
        inertia=(inertia_x, inertia_y, inertia_z),
        torque_ratio=by_name["torque_ratio"].value,
        thrust_curve=(c0, c1, c2),
        rise_time=by_name["rise_time"].value,
        fall_time=by_name["fall_time"].value,
        drag=(drag_x, drag_y, drag_z),
    )
