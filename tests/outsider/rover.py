"""Drive a rover to a point: two wheels, in an engine of its own, which every learner of engines' tasks can use."""

from dataclasses import dataclass, field

import numpy as np

from sim.randomize import Vary
from sim.spec import Signal
from sim.terms import Bound, Cost, Feature

WIDTH = 0.3  # m between the wheels
LAG = 0.1  # s, of the motors


@dataclass(frozen=True)
class Rover:
    """What varies or is looked up by name: its parameters."""

    name: str = "rover"
    sensed: tuple[str, ...] = ("position", "heading", "goal_position")

    def parameters(self):
        return {"grip": np.ones(1, np.float32)}

    def draw(self, rng, n):
        return {}


class Plane:
    """The engine: states `position` (2, m, world), `angle` (1, rad), `wheel` (2, m/s); `heading` is derived."""

    def __init__(self, robot, num, dt, device="cpu"):
        self.num, self.dt, self.device = num, dt, device
        self.values = {"position": np.zeros((num, 2)), "angle": np.zeros((num, 1)), "wheel": np.zeros((num, 2))}
        self.values |= {name: np.tile(value, (num, 1)) for name, value in robot.parameters().items()}

    def reset(self, mask, state):
        rows = slice(None) if mask is None else mask
        for name in ("position", "angle", "wheel"):
            self.values[name][rows] = state.get(name, 0.0)

    def set_parameters(self, mask, parameters):
        for name, value in parameters.items():
            self.values[name][slice(None) if mask is None else mask] = value

    def step(self, command):
        v = self.values
        v["wheel"] += (command * v["grip"] - v["wheel"]) * (1.0 - np.exp(-self.dt / LAG))
        v["angle"] += (v["wheel"][:, 1:] - v["wheel"][:, :1]) / WIDTH * self.dt
        v["position"] += v["wheel"].mean(axis=1, keepdims=True) * self.read("heading") * self.dt

    def read(self, name):
        if name == "heading":
            return np.concatenate([np.cos(self.values["angle"]), np.sin(self.values["angle"])], 1).astype(np.float32)
        return self.values[name].astype(np.float32)

    def render(self, row, height, width, goal):
        picture = np.full((height, width, 3), 230, np.uint8)
        for (x, y), colour in ((goal, (30, 150, 60)), (self.values["position"][row], (40, 90, 200))):
            up, right = int(height * (0.5 - y / 8.0)), int(width * (0.5 + x / 8.0))
            picture[max(up - 3, 0) : up + 3, max(right - 3, 0) : right + 3] = colour
        return picture


@dataclass
class RoverConfig:
    episode_s: float = 6.0
    grip: list[float] = field(default_factory=lambda: [0.9, 1.0])  # share of the wheels' speed that moves it


class RoverReach:
    """Success: within 0.15 m of the goal at the end."""

    Config, name, robot = RoverConfig, "rover_reach", Rover()
    algorithm, engine, rate_hz = "ppo", "tests.outsider.rover:Plane", 20.0
    policy = (
        Signal("position", (2,), "m", "world"),
        Signal("heading", (2,), "1", "world"),  # cosine and sine
        Signal("goal_position", (2,), "m", "world"),
    )
    privileged = (Signal("wheel", (2,), "m/s"), Signal("grip", (1,)))
    commands = (Signal("wheel_speed", (2,), "m/s", "", -1.0, 1.0),)
    envelope = {"safe": {"wheel_speed": [0.0, 0.0]}}
    scores = {"success": "%", "distance": "m"}
    goal = "goal_position"
    features = (Feature("goal_position", minus="position"), Feature("heading"))
    bounds = (Bound("position", 10.0),)
    costs = (Cost("distance", "position", 1.0, "norm", minus="goal_position"), Cost("effort", "action", 0.01))
    history, initial_action, alive_bonus, curriculum = 0, 0.0, 0.0, ()
    corruption = {"goal_position": 0.2, "wheel_speed": 0.2}

    def __init__(self, config=None):
        self.config = config or RoverConfig()
        self.episode_steps = round(self.config.episode_s * self.rate_hz)
        self.vary = (Vary("grip", *self.config.grip),)

    def reset(self, rng, n):
        return {"angle": rng.uniform(-np.pi, np.pi, (n, 1)), "motion": rng.uniform(-2.0, 2.0, (n, 2, 1))}

    def easier(self, state, difficulty):
        return {**state, "angle": state["angle"] * difficulty}

    def reference(self, motion, time):
        return {"goal_position": motion[..., 0]}

    def expert(self, signals):
        away = signals["goal_position"] - signals["position"]
        ahead = (away * signals["heading"]).sum(axis=1, keepdims=True)
        left = signals["heading"][:, :1] * away[:, 1:] - signals["heading"][:, 1:] * away[:, :1]
        return {"wheel_speed": np.clip(np.concatenate([ahead - left, ahead + left], axis=1), -1.0, 1.0)}

    def score(self, flight):
        distance = np.linalg.norm(flight["position"][-1] - flight["goal_position"][-1], axis=-1)
        return {"success": (distance < 0.15).astype(np.float32), "distance": distance}
