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

from sim.robots.quadrotors import GRAVITY, Quadrotor
from sim.sysid.fit import AT, LONGEST_DELAY, NAMES, SHAPE, Array, Fit, Record, TooLittleExcitation

CONFIDENCE = 1.96  # standard deviations on either side of a 95 % interval
UNKNOWN = 0.5  # a 95 % interval wider than +- this share is no knowledge


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


def _quantities(fit: Fit, p: Array, mass: float) -> Array:
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


def _estimates(fit: Fit, p: Array, covariance: Array, mass: float) -> tuple[Estimate, ...]:
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
    fit = Fit(records, guess, held, one_lag)
    p = _best(fit, delay)
    weight = fit.weights(p)
    estimates = _estimates(fit, p, fit.covariance(p, weight), mass)
    _demand(estimates)
    robot = _airframe(fit, p, mass, name, estimates)
    seconds = fit.when.size * fit.dt
    return Identified(
        robot, estimates, tuple(float(1.0 / w) for w in weight), len(fit.when), seconds, fit.speed, fit.correlation(p)
    )


def _best(fit: Fit, delay: float | None) -> Array:
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


def _airframe(fit: Fit, p: Array, mass: float, name: str, estimates: Sequence[Estimate]) -> Quadrotor:
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
