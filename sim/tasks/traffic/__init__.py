"""Eco-driving at signalised intersections, in SUMO: each equipped vehicle is an agent, all have one policy.

After IntersectionZoo (Jayawardana et al. 2024, arXiv 2410.15221): intersections that were never seen, a third of the
vehicles equipped, half a second per step, and a reward of speed, standing and CO2, the mean over a vehicle and all who
drive behind it up to the next equipped one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sim.engines.sumo import FAR, RANGE, STEP
from sim.engines.sumo.demand import EMISSIONS
from sim.engines.sumo.surrogate import SURROGATE, Surrogate, surrogates
from sim.engines.sumo.told import EMISSION_PENALTY, MOST, STOP_PENALTY
from sim.env import Array, Env
from sim.experts.traffic import glosa, idm
from sim.robots import Robot
from sim.spec import Group, Signal
from sim.tasks import PLACE
from sim.tasks.opponents import Play
from sim.tasks.traffic.families import FAMILIES
from sim.terms import Feature

FASTEST, STEEPEST = 60.0, 0.3
# m/s^2. Who is told at least as much as anybody can is left to his driver: not much more than that, because what is
# beyond is all the same, and `ppo` finds no way back from there (with 4.0 it stayed, after 1.4 M steps).
BRAKING, ACCELERATION = -2.0, 2.0
PPO: dict[str, Any] = {
    "algorithm.total_steps": 3_000_000,
    "algorithm.num_envs": 4 * 24,
    "algorithm.rollout_steps": 200,
    "algorithm.minibatches": 8,
    "algorithm.epochs": 5,
    "algorithm.gamma": 0.99,
    "algorithm.hidden": [64, 64],
    "algorithm.initial_std": 0.5,
    "algorithm.min_std": 0.2,
    "algorithm.correlation": 0.9,
    "algorithm.learning_rate": 1e-3,
    "algorithm.final_learning_rate": 3e-4,
    "algorithm.evaluate_every": 0,
    "algorithm.evaluation_episodes": 4,
}


@dataclass
class TrafficConfig:
    """Settings of the task."""

    family: str = "mixed"  # of intersections: mixed | few_lanes | steep | busy | fast
    network: str = field(default="", metadata={PLACE: True})  # a network of SUMO, or a folder of IntersectionZoo's
    inflow: float = 400.0  # veh/h and lane of a network that does not say it
    penetration: float = 1.0 / 3.0  # share of vehicles that are equipped
    places: int = 24  # for equipped vehicles at one time; who finds none drives as if he were not
    # hbefa4 | phemlight5, of which two cars are free | FILE.npz[,FILE.npz], as policies.train_emissions numbers= writes
    emissions: str = field(default="hbefa4", metadata={PLACE: True})
    standing: float = STOP_PENALTY  # in the reward, per m/s below 1 m/s; IntersectionZoo's
    carbon: float = EMISSION_PENALTY  # in the reward, per g/s of CO2; IntersectionZoo's
    steps: int = 600  # of an episode, half a second each
    warmup: int = 120  # steps before it, in which all drive as their drivers do

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"family {self.family!r} is not one of {', '.join(FAMILIES)}")
        if self.emissions not in EMISSIONS and not self.emissions.endswith(SURROGATE):
            raise ValueError(f"emissions {self.emissions!r} is not one of {', '.join(EMISSIONS)}, nor FILE{SURROGATE}")
        if not 0.0 <= self.penetration <= 1.0:
            raise ValueError(f"penetration must be between 0 and 1, got {self.penetration}")
        if not 0.0 <= self.inflow <= 1800.0:
            raise ValueError(f"inflow must be between 0 and 1800 veh/h and lane, got {self.inflow}")
        for name in ("standing", "carbon"):
            if not 0.0 <= getattr(self, name) <= 1000.0:
                raise ValueError(f"{name} must be between 0 and 1000, got {getattr(self, name)}")
        for name, low, high in (("places", 1, 200), ("steps", 1, 7200), ("warmup", 0, 7200)):
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} must be between {low} and {high}, got {getattr(self, name)}")


class TrafficEco:
    """Success: nobody ran into anybody on a lane, and nobody stood for so long that SUMO took him away."""

    Config = TrafficConfig
    name = "traffic_eco"
    robot = Robot("vehicle")
    algorithm = "ppo"
    engine = "sumo"
    engines: Mapping[str, str] = {"sumo": "sim.engines.sumo:Simulation"}
    rate_hz = 1.0 / STEP
    range = RANGE  # m within which a signal is known, and who drives ahead
    goal = ""
    present = "present"
    # What signals (SPaT, MAP) and vehicles tell each other by V2X, and a vehicle knows of itself.
    policy: Group = (
        Signal("speed", (1,), "m/s", "", 0.0, FASTEST),
        Signal("distance", (1,), "m", "", 0.0, RANGE),  # to the stop line
        Signal("green", (1,), "1", "", 0.0, 1.0),  # for where it goes: 1, or 0
        Signal("change", (1,), "s", "", 0.0, FAR),  # until that changes
        Signal("lasts", (1,), "s", "", 0.0, FAR),  # for which it lasts then
        Signal("gap", (1,), "m", "", 0.0, RANGE),  # to who drives ahead
        Signal("leader_speed", (1,), "m/s", "", 0.0, FASTEST),
        Signal("limit", (1,), "m/s", "", 0.0, FASTEST),
        Signal("grade", (1,), "1", "", -STEEPEST, STEEPEST),  # rise over run, ahead
        Signal("ahead", (1,), "1", "", 0.0, MOST),  # vehicles ahead on its lane, up to the stop line
        Signal("clear", (1,), "s", "", 0.0, FAR),  # until it is its turn after them, as predicted
    )
    privileged: Group = (
        Signal("present", (1,), "1", "", 0.0, 1.0),
        Signal("emission", (1,), "g/s", "", 0.0),
        Signal("followers", (1,), "1", "", 0.0),
        Signal("world_vehicles", (1,), "1", "", 0.0),
        Signal("world_speed", (1,), "m/s", "", 0.0),  # their sum
        Signal("world_emission", (1,), "g/s", "", 0.0),
        Signal("world_stops", (1,), "1", "", 0.0),  # that began in the last step
        Signal("world_arrived", (1,), "1", "", 0.0),
        Signal("world_faults", (1,), "1", "", 0.0),
    )
    commands: Group = (Signal("acceleration", (1,), "m/s^2", "", BRAKING, ACCELERATION),)
    envelope: dict[str, Any] = {"safe": {"acceleration": [-1.0]}}
    scores = {
        "success": "%",
        "co2": "g/km",
        "throughput": "veh/h",
        "mean_speed": "m/s",
        "stops": "1",
    }
    corruption = {"distance": 5.0, "change": 1.0, "acceleration": 0.3}
    recipes = {"ppo": {"default": PPO}}

    def __init__(self, config: TrafficConfig | None = None) -> None:
        self.config = config or TrafficConfig()
        self.episode_steps, self.agents = self.config.steps, self.config.places
        self.teams = (0,) * self.agents
        self.fleet, self.surrogates = self.config.emissions, dict[str, Surrogate]()
        if self.fleet not in EMISSIONS:
            self.fleet, self.surrogates = surrogates(self.fleet, EMISSIONS)
        self.folder = ""  # where networks are written: that of a process with one intersection

    @property
    def features(self) -> tuple[Feature, ...]:
        """How fast it is below the limit, and relative to who drives ahead, beside all."""
        relative = (Feature("speed", "limit"), Feature("leader_speed", "speed"), Feature("distance", None, 1.0, 50.0))
        return (*(Feature(s.name) for s in self.policy), *relative)

    @property
    def baselines(self) -> Mapping[str, Play]:
        """Who is left to his driver; who is advised by the signal."""
        return {"idm": functools.partial(idm, self), "glosa": functools.partial(glosa, self)}

    def expert(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        return glosa(self, signals)

    def open(self, num: int, seed: int) -> Env:
        from sim.tasks.traffic import world

        return world.Intersection(self, num, seed) if self.folder else world.Intersections(self, num, seed)

    def conditions(self) -> Mapping[str, TrafficEco]:
        """Intersections as in training, and families that it never drew."""
        return {name: TrafficEco(replace(self.config, family=name)) for name in FAMILIES}

    def score(self, flight: Mapping[str, Array]) -> dict[str, Array]:
        """Of all vehicles of an agent's intersection, equipped or not: the same for all of its agents."""
        total = {
            name: flight[f"world_{name}"][..., 0].sum(axis=0, dtype=np.float64)
            for name in ("vehicles", "speed", "emission", "stops", "arrived", "faults")
        }
        hours = len(flight["world_speed"]) * STEP / 3600.0
        arrived = np.maximum(total["arrived"], 1.0)
        found = {
            "success": total["faults"] == 0.0,
            "co2": 1000.0 * total["emission"] / np.maximum(total["speed"], 1e-3),
            "throughput": total["arrived"] / hours,
            "mean_speed": total["speed"] / np.maximum(total["vehicles"], 1.0),
            "stops": total["stops"] / arrived,
        }
        return {name: np.asarray(value, np.float32) for name, value in found.items()}
