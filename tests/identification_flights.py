"""Recorded flights of vehicles whose parameters are known: the shipped policy on random paths, with published noise."""

import dataclasses

import numpy as np

from deploy.drivers.simulated import Simulated
from deploy.loop import run
from deploy.policy_file import PolicyFile
from sim.conditions import Conditions
from sim.robots import robot
from sim.sysid.fit import Record
from sim.tasks import make
from sim.tasks.quad_hover import NOISE

POLICY = "deploy/pretrained/quad_any.onnx"
DELAY = 0.013  # s


def fly(name, seconds=25.0, engine="flight", seed=1):
    """Signals and commands (steps, k) by name, with noise, and time."""
    task = make("quad_any", robot=name, path="random", episode_s=seconds)
    driver = Simulated(task, 1, engine, seed, Conditions(delay=DELAY))
    run(PolicyFile.load(POLICY), driver)
    rng = np.random.default_rng(seed)
    log = {k: v[:, 0].astype(float) for k, v in driver.flight().items()}
    noisy = {k: v + NOISE[k] * rng.normal(size=v.shape) if k in NOISE else v for k, v in log.items()}
    return noisy | {"time": np.arange(len(log["position"])) / task.rate_hz}


def record(log):
    rotation = log["rotation"].reshape(-1, 3, 3)
    return Record(0.01, rotation, log["linear_velocity"], log["angular_velocity"], log["motor_command"])


def wrong(true):
    """A guess that is well off in all that is identified."""
    return dataclasses.replace(
        true,
        inertia=(1.5 * true.inertia[0], 0.6 * true.inertia[1], 1.7 * true.inertia[2]),
        rise_time=1.6 * true.rise_time,
        fall_time=0.7 * true.fall_time,
        thrust_curve=tuple(0.75 * c for c in true.thrust_curve),
        drag=(0.0, 0.0, 0.0),
    )


def truth(name, command):
    """What the estimates should be, by name."""
    v = robot(name)
    known = {"delay": DELAY, "rise_time": v.rise_time, "fall_time": v.fall_time, "thrust": v.thrust(command)}
    known |= {f"inertia_{axis}": value for axis, value in zip("xyz", v.inertia, strict=True)}
    known |= {f"drag_{axis}": value for axis, value in zip("xyz", v.drag, strict=True)}
    return known | {
        "thrust_per_mass": v.thrust(command) / v.mass,
        "thrust_to_weight": v.thrust_to_weight,
        "yaw_authority": v.torque_ratio / v.inertia[2],
    }
