"""A point on a line that should go to zero, and its engine: what learners must solve in seconds."""

from types import SimpleNamespace

import numpy as np

from sim.spec import Signal
from sim.terms import Bound, Cost, Feature


class PointEngine:
    """position += 0.2 * gain * command per step."""

    def __init__(self, robot, num, dt, device="cpu"):
        self.num, self.dt, self.device = num, dt, device
        self.values = {"position": np.zeros((num, 1), np.float32), "gain": np.ones((num, 1), np.float32)}

    def reset(self, mask, state):
        self.values["position"][slice(None) if mask is None else mask] = state["position"]

    def set_parameters(self, mask, parameters):
        for name, value in parameters.items():
            self.values[name][slice(None) if mask is None else mask] = value

    def step(self, command):
        self.values["position"] += np.float32(0.2) * self.values["gain"] * command

    def read(self, name):
        return self.values[name].copy()


COSTS = (Cost("position", "position", 1.0),)


class PointTask:
    name = "point"
    engine = "tests.policies.toy_task:PointEngine"
    rate_hz = 10.0
    episode_steps = 10
    policy = (Signal("position", (1,), "m"),)
    privileged = (Signal("gain", (1,)),)
    commands = (Signal("speed", (1,), low=-1.0, high=1.0),)
    features = (Feature("position"),)
    history = 0
    initial_action = 0.0
    vary = ()
    curriculum = ()
    scores = {"success": "1"}
    envelope = {}

    bounds = (Bound("position", 3.0),)

    def __init__(self, costs=COSTS, alive_bonus=0.0):
        self.costs, self.alive_bonus = costs, alive_bonus
        self.robot = SimpleNamespace(
            name="point",
            sensed=("position",),
            parameters=lambda: {"gain": np.ones(1, np.float32)},
            draw=lambda rng, n: {},
        )

    def reset(self, rng, n):
        motion = np.zeros((n, 1, 1), np.float32)
        return {"position": rng.uniform(-1.0, 1.0, (n, 1)).astype(np.float32), "motion": motion}

    def easier(self, state, difficulty):
        return dict(state, position=state["position"] * difficulty)

    def reference(self, motion, time):
        return {}

    def score(self, flight):
        return {"success": (np.abs(flight["position"][-1, :, 0]) < 0.1).astype(np.float32)}


def use_points(monkeypatch):
    """Let every VecEnv be made of points."""
    monkeypatch.setattr("sim.vec_env.make_engine", lambda name, robot, num, dt, device: PointEngine(robot, num, dt))
