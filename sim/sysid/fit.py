"""The least-squares problem of system identification: rotors' lags and a prediction over short windows of flight."""

from __future__ import annotations

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
    late = np.arange(steps)[:, None] - whole
    wanted = (1.0 - part) * command[np.maximum(late, 0)] + part * command[np.maximum(late - 1, 0)]  # (steps, variants)
    for k, now in enumerate(wanted):
        decay = np.where(now > speed, up, down)
        half = middle[:, k] = now + (speed - now) * decay
        speed = border[:, k + 1] = now + (half - now) * decay
    return border, middle


class Fit:
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
