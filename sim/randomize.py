"""Declarations of what varies in simulation, and their samplers (numpy only).

Two kinds: imperfections of a signal (`Noise`, `Bias`, `Delay`, `Dropout`), which sit on a `Signal` and which the
environment applies to what the policy sees (or, for commands, to what the robot executes), never to what the critic
sees; and `Vary`, which draws one value of a robot's parameter per environment and episode.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

DISTRIBUTIONS = ("uniform", "log_uniform", "normal", "one")
MODES = ("scale", "add", "set")
GOLDEN, FIRST, SECOND = (np.uint64(k) for k in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True)
class Noise:
    """White Gaussian noise, drawn anew at each control step. `std` is in the signal's unit."""

    std: float


@dataclass(frozen=True)
class Bias:
    """A Gaussian offset, drawn once per episode and held. `std` is in the signal's unit."""

    std: float


@dataclass(frozen=True)
class Delay:
    """A latency in seconds, uniform in [low, high], drawn once per episode; fractions of a step blend linearly."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.low <= self.high:
            raise ValueError(f"Delay needs 0 <= low <= high in seconds, got low={self.low}, high={self.high}")


@dataclass(frozen=True)
class Dropout:
    """With this probability, at each control step, the last delivered value is repeated."""

    probability: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.probability < 1.0:
            raise ValueError(f"Dropout needs a probability in [0, 1), got {self.probability}")


Imperfection = Noise | Bias | Delay | Dropout


@dataclass(frozen=True)
class Vary:
    """One random value per environment and episode for the parameter `name` of the robot.

    `mode`: "scale" multiplies the nominal value, "add" adds to it, "set" replaces it. "uniform" and "log_uniform" draw
    in [low, high]; "normal" has mean `low` and standard deviation `high`; "one" is `low` for one random element, with
    the probability `high`, and else 1 (a rotor that is lost, with "scale"). Elements of a vector parameter are drawn
    together (one factor) unless `independent`. What is drawn counts in units of the parameter `per`, if one is named
    (a force per mass). With `every` (s) it is drawn anew that often within the episode: gusts, a load picked up.
    `ends` is the share of draws that are put on `low` or `high`, where a policy usually fails first.
    """

    name: str
    low: float
    high: float
    mode: str = "scale"
    distribution: str = "uniform"
    independent: bool = False
    per: str | None = None
    every: float | None = None
    ends: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.ends <= 1.0 or (self.ends and self.distribution in ("normal", "one")):
            raise ValueError(f"Vary({self.name!r}): ends is a share of a bounded range, 0..1, got {self.ends}")
        if self.every is not None and not self.every > 0.0:
            raise ValueError(f"Vary({self.name!r}): every must be a positive number of seconds, got {self.every}")
        if self.mode not in MODES:
            raise ValueError(f"Vary({self.name!r}): mode {self.mode!r} is not one of {', '.join(MODES)}")
        if self.distribution not in DISTRIBUTIONS:
            choices = ", ".join(DISTRIBUTIONS)
            raise ValueError(f"Vary({self.name!r}): distribution {self.distribution!r} is not one of {choices}")
        if self.distribution == "one" and not 0.0 <= self.high <= 1.0:
            raise ValueError(f'Vary({self.name!r}): high is the probability of "one", 0..1, got {self.high}')
        if self.distribution == "log_uniform" and self.low <= 0.0:
            raise ValueError(f"Vary({self.name!r}): log_uniform needs low > 0, got {self.low}")

    def sample(self, rng: np.random.Generator, nominal: Array, n: int, scale: Array | float = 1.0) -> Array:
        """Values (n, k) for a parameter whose nominal value is (k,) or (n, k); `scale` is the value of `per`."""
        k = nominal.shape[-1]
        size = (n, k if self.independent else 1)
        if self.distribution == "one":
            struck = (np.arange(k) == rng.integers(k, size=(n, 1))) & (rng.random((n, 1)) < self.high)
            drawn = np.where(struck, self.low, 1.0)
        elif self.distribution == "normal":
            drawn = rng.normal(self.low, self.high, size)
        elif self.distribution == "log_uniform":
            drawn = np.exp(rng.uniform(np.log(self.low), np.log(self.high), size))
        else:
            drawn = rng.uniform(self.low, self.high, size)
        if self.ends:
            drawn = np.where(rng.random(size) < self.ends, rng.choice([self.low, self.high], size), drawn)
        drawn = drawn * scale
        if self.mode == "scale":
            value = nominal * drawn
        elif self.mode == "add":
            value = nominal + drawn
        else:
            value = np.broadcast_to(drawn, (n, k))
        return np.ascontiguousarray(np.broadcast_to(value, (n, k)), dtype=np.float32)


def sample_parameters(
    vary: Iterable[Vary], rng: np.random.Generator, nominal: Mapping[str, Array], n: int
) -> dict[str, Array]:
    """Draw every declared variation: varied name -> (n, k), given the values (k,) or (n, k) before them.

    Several `Vary` of one name apply in order.
    """
    drawn: dict[str, Array] = {}
    for item in vary:
        for name in (item.name, item.per or item.name):
            if name not in nominal:
                choices = ", ".join(sorted(nominal))
                raise KeyError(f"Vary names the parameter {name!r}, which this robot does not have; it has: {choices}")
        values = {**nominal, **drawn}
        drawn[item.name] = item.sample(rng, values[item.name], n, values[item.per] if item.per else 1.0)
    return drawn


class Robot(Protocol):
    """What the samplers need of a robot; see `sim.robots.quadrotors.Quadrotor`."""

    def parameters(self) -> dict[str, Array]:
        """Nominal values, name -> (k,)."""

    def draw(self, rng: np.random.Generator, n: int) -> dict[str, Array]:
        """What differs between n copies of it, name -> (n, k)."""


class Drawn(NamedTuple):
    """Parameters (n, k) by name that are not nominal, and the `base` from which `redraw` draws some of them anew."""

    parameters: dict[str, Array]
    base: dict[str, Array]


def draw_robots(robot: Robot, vary: Iterable[Vary], rng: np.random.Generator, n: int) -> Drawn:
    """n robots with everything that varies. Variations that are drawn anew within an episode apply after the others."""
    items = tuple(vary)
    known = robot.parameters() | robot.draw(rng, n)
    held = sample_parameters((v for v in items if v.every is None), rng, known, n)
    known |= held
    changing = [v for v in items if v.every is not None]
    values = sample_parameters(changing, rng, known, n)
    differing = {name: value for name, value in known.items() if value.ndim == 2}
    needed = {name for v in changing for name in (v.name, v.per or v.name)}
    base = {name: np.array(np.broadcast_to(known[name], (n, known[name].shape[-1]))) for name in sorted(needed)}
    return Drawn(differing | values, base)


def redraw(
    vary: Iterable[Vary],
    rng: np.random.Generator,
    base: Mapping[str, Array],
    before: NDArray[np.int64],
    now: NDArray[np.int64],
    dt: float,
) -> Iterator[tuple[str, NDArray[np.int64], Array]]:
    """The parameters that change between the control steps `before` and `now` (n,) of robots' episodes.

    Yields name, the indices of the robots that are due, and their new values (count, k). `base` is name -> (n, k).
    """
    for item in vary:
        if item.every is None:
            continue
        period = max(1, round(item.every / dt))
        due = np.flatnonzero(now // period > before // period)
        if len(due):
            scale = base[item.per][due] if item.per else 1.0
            yield item.name, due, item.sample(rng, base[item.name][due], len(due), scale)


def delay_weights(delay: NDArray[np.float64], taps: int) -> Array:
    """Weights (n, taps) over [newest, one step old, ...] that blend linearly to `delay` (n,), in control steps."""
    if delay.size and float(delay.max()) > taps - 1:
        raise ValueError(f"a delay of {float(delay.max()):.2f} control steps needs more than {taps} stored commands")
    whole = np.arange(taps, dtype=np.float64)
    return np.maximum(0.0, 1.0 - np.abs(delay[:, None] - whole)).astype(np.float32)


def drawn(seeds: NDArray[np.uint64], step: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Numbers (n, count), uniform in 0..1, that a seed and a step (n,) decide: splitmix64 (Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        at = step.astype(np.uint64)[:, None] * np.uint64(count) + np.arange(1, count + 1, dtype=np.uint64)
        z = np.add(seeds[:, None], at * GOLDEN, dtype=np.uint64)
        z = (z ^ (z >> np.uint64(30))) * FIRST
        z = (z ^ (z >> np.uint64(27))) * SECOND
        z ^= z >> np.uint64(31)
    made: NDArray[np.float64] = (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return made


def normal(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Normal numbers from two uniform ones (Box and Muller 1958)."""
    made: NDArray[np.float64] = np.sqrt(-2.0 * np.log1p(-first)) * np.cos(2.0 * np.pi * second)
    return made
