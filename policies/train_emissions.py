"""python -m policies.train_emissions out=FILE.onnx [key=value ...]: learn what a vehicle emits, without SUMO.

A small network learns it from moments (speed, acceleration, grade) that SUMO's own emission model judged, and is
written as one file. Its errors are measured on moments anywhere in its range that it never saw, and on all vehicles of
an intersection that SUMO simulates. It serves simulators that have no emission model, and needs onnxruntime alone.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from deploy import cli
from deploy.system.files import write_atomic

if TYPE_CHECKING:
    from deploy.policy_file import PolicyFile
    from policies.models.controller import FeaturePolicy
    from sim.engines.sumo.emissions import Trips
    from sim.engines.sumo.surrogate import Surrogate

Array = NDArray[np.float64]

UNITS = ("m/s", "m/s^2", "1")
RATE_HZ = 2.0  # of SUMO's steps, of which its values are


@dataclass
class Config:
    """Settings of the command."""

    out: str = field(metadata={"help": "the file (.onnx)"})
    emission_class: str = field(default="HBEFA4/PC_petrol_Euro-6ab", metadata={"help": "SUMO's name of it"})
    numbers: str = field(default="", metadata={"help": "write it for task=traffic_eco task.emissions=FILE, too (.npz)"})
    quantities: str = field(default="CO2,fuel", metadata={"help": "NAME,NAME of CO, CO2, HC, PMx, NOx, fuel"})
    moments: int = field(default=60_000, metadata={"help": "to learn from"})
    updates: int = field(default=12_000, metadata={"help": "of the network"})
    unseen: int = field(default=20_000, metadata={"help": "other moments, that judge it"})
    seconds: float = field(default=600.0, metadata={"help": "of the simulation that judges it"})
    seed: int = field(default=0, metadata={"help": "of moments, weights and the simulation"})

    def __post_init__(self) -> None:
        if self.moments < 1000 or self.unseen < 100 or self.updates < 1 or self.seed < 0 or not self.seconds >= 10.0:
            raise ValueError("needs moments >= 1000, unseen >= 100, updates >= 1, seconds >= 10 and seed >= 0")
        if not self.out.endswith(".onnx"):
            raise ValueError(f"out={self.out}: the name of the file ends in .onnx")
        if self.numbers and not self.numbers.endswith(".npz"):
            raise ValueError(f"numbers={self.numbers}: the name of the file ends in .npz")


@dataclass
class Error:
    """Of one quantity. Those of moments and vehicles are shares of the mean; of the sum, its own share."""

    moments: float  # mean error of unseen moments
    moments_p95: float
    vehicles: float  # mean error of what a vehicle emits on its way
    vehicles_p95: float
    total: float  # error of what all of them emit


def columns(quantities: str) -> list[int]:
    """Where each of them is in SUMO's; ValueError lists the choices."""
    from sim.engines.sumo.emissions import QUANTITIES

    names = quantities.split(",")
    for name in names:
        if name not in QUANTITIES or names.count(name) > 1:
            raise ValueError(
                f"quantities={quantities}: {name!r} is not one of {', '.join(QUANTITIES)}, each given once"
            )
    return [QUANTITIES.index(name) for name in names]


def judged(said: Array, true: Array, way: Array, driven: Array, vehicle: NDArray[np.int64]) -> Error:
    """Of values (n,) at moments, and (m,) at every step of vehicles."""
    off = np.abs(said - true) / true.mean()
    _, of = np.unique(vehicle, return_inverse=True)
    all_said, all_true = (np.bincount(of, weights=values) for values in (way, driven))
    each = np.abs(all_said - all_true) / all_true.mean()
    figures = (off.mean(), np.percentile(off, 95), each.mean(), np.percentile(each, 95), way.sum() / driven.sum() - 1.0)
    return Error(*(float(figure) for figure in figures))


def asked(file: PolicyFile, where: Array) -> Array:
    """What the file says of moments (n, 3): g/s (n, q)."""
    signals = {s.name: where[:, k : k + 1].astype(np.float32) for k, s in enumerate(file.inputs)}
    file.reset(len(where))
    answer = file.step(signals)
    return np.concatenate([answer[s.name] for s in file.outputs], axis=1).astype(np.float64)


def _simulated(config: Config) -> Trips:
    from sim.engines.sumo.emissions import trips
    from sim.tasks.traffic.families import draw

    context = draw("mixed", np.random.default_rng([config.seed, 2]), 0.0)
    return trips(context, config.emission_class, config.seconds, config.seed)


def learned(config: Config, where: Array, judgement: Array) -> tuple[FeaturePolicy, Surrogate, float]:
    """The model that learned from moments (n, 3) and what is emitted there (n, q), g/s; the same as numbers; and the
    CPU time, in s.
    """
    import torch

    from policies.learning.emissions import RANGES, Fit, Fitting
    from policies.models.controller import FeaturePolicy
    from policies.runner.log import Progress
    from sim.engines.sumo.surrogate import FEATURES, NAMES, Surrogate
    from sim.spec import Signal

    torch.set_num_threads(1)
    began, ready = time.process_time(), threading.Event()
    ready.set()
    fit = Fit(where, judgement, Fitting(updates=config.updates), config.seed)
    with Progress("emissions", ready) as bar:
        for metrics in fit.learn():
            bar.update(metrics)
    network = fit.exported()
    sees = zip(NAMES, UNITS, RANGES.tolist(), strict=True)
    says = zip(config.quantities.split(","), fit.most.tolist(), strict=True)
    made = FeaturePolicy(
        name="emissions",
        task="emissions",
        robot=config.emission_class,
        rate_hz=RATE_HZ,
        inputs=tuple(Signal(name, (1,), unit, "", low, high) for name, unit, (low, high) in sees),
        outputs=tuple(Signal(name, (1,), "g/s", "", 0.0, most) for name, most in says),
        features=FEATURES,
        history=0,
        initial_action=0.0,
        network=network,
    )
    most = fit.most.astype(np.float32)
    numbers = Surrogate(
        config.emission_class, tuple(config.quantities.split(",")), most, network.low, network.high, network.layers
    )
    return made, numbers, time.process_time() - began


def train(config: Config) -> tuple[PolicyFile, dict[str, Error]]:
    """Learn, measure, write the file: it, and its errors by quantity. ValueError for what SUMO does not know."""
    from policies.learning.emissions import anywhere, moments
    from policies.models.export import export, update_evaluation
    from policies.runner.provenance import git_commit, made_at, versions
    from sim.engines.sumo.emissions import emitted

    chosen = columns(config.quantities)
    rng, unknown = (np.random.default_rng([config.seed, k]) for k in (0, 1))
    seen, unseen = moments(config.moments, rng), anywhere(config.unseen, unknown)
    judgement, true = (emitted(config.emission_class, *where.T)[:, chosen] for where in (seen, unseen))
    if not judgement.max(axis=0).all():
        raise ValueError(f"{config.emission_class} emits no {config.quantities}")
    model, numbers, spent = learned(config, seen, judgement)
    training: dict[str, Any] = {"seed": config.seed, "moments": config.moments, "updates": config.updates}
    training |= {"cpu_seconds": round(spent, 1), "commit": git_commit(), "made": made_at(), "versions": versions()}
    file = export(model, config.out, training=training)
    if config.numbers:
        write_atomic(config.numbers, numbers.content())
    said, way = asked(file, unseen), _simulated(config)
    driven = asked(file, np.column_stack([way.speed, way.acceleration, way.grade]))
    errors = {
        s.name: judged(said[:, k], true[:, k], driven[:, k], way.emitted[:, chosen[k]], way.vehicle)
        for k, s in enumerate(file.outputs)
    }
    about = {"unseen": config.unseen, "vehicles": len(np.unique(way.vehicle)), "seconds": config.seconds}
    return update_evaluation(config.out, about | {"errors": {n: asdict(e) for n, e in errors.items()}}), errors


def text(errors: dict[str, Error], about: dict[str, Any]) -> str:
    """For people."""
    lines = [
        f"{'':6} {about['unseen']} unseen moments: mean error, 95 % below   "
        f"{about['vehicles']} vehicles' ways: mean error, 95 % below, their sum"
    ]
    for name, e in errors.items():
        shares = (e.moments, e.moments_p95, e.vehicles, e.vehicles_p95)
        lines.append(f"{name:6}" + "".join(f"{100 * share:8.2f} %" for share in shares) + f"{100 * e.total:+8.2f} %")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> None:
    """Train, and say what came of it."""
    if cli.wants_help(argv):
        print(f"{__doc__}\n\n{cli.usage(Config)}")
        return
    (config,) = cli.parse(argv, Config)
    file, errors = train(config)
    print(f"{config.emission_class}, errors as shares of the mean:\n{text(errors, file.metadata['evaluation'])}")
    print(f"emissions: {config.out} ({file.size} bytes)")


if __name__ == "__main__":
    sys.exit(cli.call(main, needs="rl,traffic"))
