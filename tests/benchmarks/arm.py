"""The arm at its table: physics of a batch beside a single thread's mj_step, whole control steps, pictures.

python tests/benchmarks/arm.py [--quick]
"""

import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np
import report

from sim.env import with_engine
from sim.render.camera import Camera
from sim.tasks.arm.pick_place import ArmPickPlace

SIZES = {"4 scenes": 4, "16 scenes": 16, "64 scenes": 64, "256 scenes": 256}
ON_GPU = {"1024 scenes in Warp": 1024, "4096 scenes in Warp": 4096}
PICTURES = "pictures"
ROUNDS, SECONDS = 5, 60.0
AGES = 36  # control steps, about an episode
CORES = len(os.sched_getaffinity(0))


class Grasping:
    """Scenes in the middle of episodes of arm_pick_place: some reach, some grasp, some carry."""

    def __init__(self, num: int, engine: str) -> None:
        self.task = with_engine(ArmPickPlace(), engine)
        self.env = self.task.open(num, seed=0)
        self.bench = self.env.bench
        self.env.reset(range(num), range(num))
        for step in range(AGES):
            begin = [row for row in range(num) if row * AGES // num == step]  # so that each has its own age
            self.env.reset(begin, begin)
            self.env.step(self.task.expert(self.env.observe()))
        self.before = self.bench._state.copy(), self.bench.reference.copy(), self.env._target.copy()
        self.command = self.task.expert(self.env.observe())
        self.env.step(self.command)
        self.told = self.bench.reference.copy()

    def rewind(self) -> None:
        """Back to where the step began: each contestant does the same steps again and again."""
        self.bench._state, self.bench._reference, self.env._target = self.before
        self.env._seen = {}

    def physics(self) -> None:
        """The batch for one control step."""
        self.rewind()
        self.bench.step(self.told, np.asarray(self.command["gripper_target"], np.float64))

    def whole(self) -> None:
        """A control step with signals and the expert: what collecting demonstrations costs, pictures apart."""
        self.rewind()
        self.env.step(self.task.expert(self.env.observe()))

    def single(self) -> Callable[[], Any]:
        """One control step of each scene by mj_step alone, on one thread."""
        bench, (states, _, _) = self.bench, self.before
        model, data = bench._nominal, mujoco.MjData(bench._nominal)
        control = np.concatenate([self.told, np.asarray(self.command["gripper_target"], np.float64)], axis=1)

        def advance() -> None:
            for state, told in zip(states, control, strict=True):
                mujoco.mj_setState(model, data, state, mujoco.mjtState.mjSTATE_FULLPHYSICS)
                data.ctrl[:], data.qacc_warmstart[:] = told, 0.0
                mujoco.mj_step(model, data, bench._substeps)

        return advance


def scenes(num: int, quick: bool, engine: str) -> dict[str, Any]:
    """Rates per second. The contestants take turns, one control step each; each one's shortest step counts."""
    load = os.getloadavg()[0]
    grasping = Grasping(num, engine)
    contestants = {"batch": grasping.physics, "single": grasping.single(), "whole": grasping.whole}
    shortest = dict.fromkeys(contestants, math.inf)
    end = time.perf_counter() + (0.2 if quick else SECONDS)
    while time.perf_counter() < end:
        for name, advance in contestants.items():
            began = time.perf_counter()
            advance()
            shortest[name] = min(shortest[name], time.perf_counter() - began)
    steps = num * grasping.bench._substeps
    grasping.env.close()
    return {
        "load": load,
        "cores": CORES,
        "physics_steps_per_s": steps / shortest["batch"],
        "single_steps_per_s": steps / shortest["single"],
        "of_all_cores": shortest["single"] / (CORES * shortest["batch"]),
        "control_steps_per_s": num / shortest["whole"],
    }


def pictures(quick: bool) -> dict[str, Any]:
    """CPU milliseconds per picture of 64 x 64: as the tasks take them, and with everything that MuJoCo draws."""
    env = ArmPickPlace().open(1, seed=0)
    env.reset([0], [0])
    model, data = env.bench._nominal, mujoco.MjData(env.bench._nominal)
    mujoco.mj_forward(model, data)
    row: dict[str, Any] = {"load": os.getloadavg()[0]}
    for name, fine in (("fast_ms", False), ("fine_ms", True)):
        camera = Camera(model, 64, 64, fine)
        camera.see(data, "scene_camera")
        rounds = []
        for _ in range(1 if quick else ROUNDS):
            began, count = time.process_time(), 3 if quick else 20
            for _ in range(count):
                camera.see(data, "scene_camera")
            rounds.append((time.process_time() - began) / count)
        row[name] = 1e3 * min(rounds)
        camera.close()
    env.close()
    return row


def gpu() -> bool:
    """Whether Warp finds one."""
    import warp

    warp.config.log_level = warp.LOG_WARNING  # what it usually says goes to stdout, which has the results
    return bool(warp.get_device().is_cuda)


def measure(cases: list[str], quick: bool) -> report.Rows:
    """One row per case."""
    rows: report.Rows = {}
    for case in cases:
        if case in ON_GPU and not gpu():
            print(f"{case}: not measured, there is no GPU", file=sys.stderr)
            continue
        engine = "mujoco_warp" if case in ON_GPU else "mujoco"
        num = 8 if quick else (SIZES | ON_GPU).get(case, 1)
        rows[case] = pictures(quick) if case == PICTURES else scenes(num, quick, engine)
        print(f"{case}: {rows[case]}", file=sys.stderr, flush=True)
    return rows


def markdown(rows: report.Rows) -> str:
    """A table, and a sentence about pictures."""
    lines = [
        [
            case,
            f"{row['load']:.1f}",
            f"{row['physics_steps_per_s']:,.0f}",
            f"{row['single_steps_per_s']:,.0f}",
            f"{row['of_all_cores']:.2f}",
            f"{row['control_steps_per_s']:,.0f}",
        ]
        for case, row in rows.items()
        if case != PICTURES
    ]
    head = [
        "arm_pick_place",
        "load before",
        "physics steps/s",
        "mj_step on one thread",
        "of cores x one thread",
        "control steps/s with expert",
    ]
    text = report.table(head, lines) if lines else ""
    if PICTURES in rows:
        row = rows[PICTURES]
        text += (
            f"\n\nA picture of 64 x 64: {row['fast_ms']:.2f} ms; with all that MuJoCo draws: {row['fine_ms']:.1f} ms."
        )
    return text


if __name__ == "__main__":
    report.main("arm", [*SIZES, *ON_GPU, PICTURES], measure)
