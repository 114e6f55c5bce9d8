"""Worlds in which a legged robot is told velocities, is pushed, and is not quite the one that it is meant to be.

The terms of the reward are those of the field (legged_gym, MuJoCo Playground, mjlab), in numbers that mean the same for
every robot: lengths in shares of its height, loads of its weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.env import Array
from sim.rotations import rotation_matrices
from sim.tasks.legs import disturbances, gait
from sim.tasks.mjcf import Worlds

if TYPE_CHECKING:
    from sim.robots.mjcf import Double
    from sim.tasks.legs.disturbances import Vehicle
    from sim.tasks.legs.legged import Legged

# Term -> weight, per control step; a reward is never negative (legged_gym's only_positive_rewards).
WEIGHTS = {
    "velocity": 1.0,  # exp(-(error / width)^2)
    "turn_rate": 0.5,  # the same
    "bounce": -0.5,  # (m/s)^2, up and down
    "roll_rate": -0.02,  # (rad/s)^2, with pitch
    "upright": -1.0,  # 1, sin^2 of the tilt
    "pose": -0.1,  # rad^2, all joints, from where it begins
    "effort": -0.1,  # rad^2, all servos, between where they are told to be and are
    "action_rate": -0.1,  # rad^2, all servos, from one command to the next
    "slip": -0.1,  # (m/s)^2, of feet on the floor
    "clearance": -0.1,  # m/s, of feet off the floor, times how far from CLEARANCE they are, as a share of it
    "air_time": 0.5,  # s, of each step beyond SHORT, when it ends
    "still": -0.5,  # rad^2 ... of joints that are not where it begins, while it is told to stand
}
# With a rhythm these instead of `clearance` and `air_time`.
GAIT = {
    "swing": 1.0,  # exp(-2 (error / OFF)^2) of the feet's heights, in the mean
    "rhythm": 0.5,  # 1, the share of feet that are on the floor, or not, as they should
    "arms": -0.5,  # rad^2, of joints that no foot hangs on, from where they begin
}
OFF = 0.5  # of how high feet swing
WIDTH, TURN_WIDTH = 0.4, 0.5  # of the fastest that is told: errors of which the reward is 1/e
SLOWEST = 0.2  # m/s or rad/s: what counts as the fastest at least
CLEARANCE = 0.25  # of the height at the start: how high feet swing
SHORT, LONG = 0.15, 0.4  # s: steps are as long
STANDING = 0.05  # m/s and rad/s: less is to stand
LOADED = 0.02  # of the weight: a foot that bears more is on the floor
NOISES = 64  # control steps after which noise repeats itself


class Walking(Worlds):
    """Worlds of `Velocity`; what else a robot does on its legs derives from them.

    The body's axes are the base's, turned so that they are the world's at the start.
    """

    def __init__(self, task: Legged, num: int, seed: int, threads: int | None = None) -> None:
        super().__init__(task, num, seed, threads, task.robot.physics)
        self.task, robot, model = task, task.robot, task.robot.physics
        self.legs = robot
        base = robot.base
        self._place, self._speed = robot.place, int(model.body_dofadr[base])
        self._first = rotation_matrices(robot.start[None, self._place + 3 : self._place + 7])[0]
        self._height = robot.height
        self._weight = float(-model.opt.gravity[2] * model.body_subtreemass[base])
        config = task.config
        self._width = WIDTH * max(*np.abs(config.forward), config.sideways, SLOWEST)
        self._turn_width = TURN_WIDTH * max(config.turn, SLOWEST)
        self._noise_std = [s.noise_std() * task.config.vary for s in task.policy for _ in range(s.size)]
        self._noise = np.zeros((num, NOISES, len(self._noise_std)), np.float32)
        self._orders = np.zeros((num, 2, 3))  # first and then: forward, left (m/s), turn (rad/s)
        self._changes = np.zeros(num, int)  # when the second begins
        self._pushes = np.zeros((num, disturbances.PUSHES, 3))  # step, m/s forward and left in the world
        self._vehicle = np.zeros((num, 4))
        self._calibration = np.zeros((num, len(robot.joints)))
        self._late = np.zeros(num, np.int64)
        self._told = np.zeros((2, num, len(robot.actuators)))  # to the servos: now, and before
        self._air = np.zeros((num, len(robot.feet)))  # s, since each foot was on the floor
        self._felt = robot.felt(np.zeros((num, model.nsensordata)))
        self._holds = False  # whether something but what was drawn changes the models
        self._error = np.zeros(num)  # m/s, summed over the episode
        self._phase = np.zeros(num)  # of a rhythm at the beginning, in periods
        self._frequency = config.frequency or gait.natural_frequency(self._height)
        self._offsets = gait.offsets(len(robot.feet))
        without = {"clearance", "air_time"} if config.gait else set(GAIT)
        self.weights = {name: weight for name, weight in (WEIGHTS | GAIT).items() if name not in without}

    def _order(self, rng: np.random.Generator) -> Double:
        config = self.task.config
        stands = rng.uniform() < config.standing
        slowest, fastest = config.forward
        told = np.array([rng.uniform(slowest, fastest), *rng.uniform(-1.0, 1.0, 2) * (config.sideways, config.turn)])
        return np.zeros(3) if stands else told

    def begin(self, row: int, rng: np.random.Generator) -> tuple[Double, Double]:
        config, robot = self.task.config, self.legs
        self._orders[row] = self._order(rng), self._order(rng)
        self._changes[row] = int(config.steps * rng.uniform(0.3, 0.7))
        when = np.sort(rng.uniform(0.1, 1.0, disturbances.PUSHES)) * config.steps
        hard = config.vary * config.push * rng.uniform(-1.0, 1.0, (disturbances.PUSHES, 2))
        self._pushes[row] = np.column_stack([when.astype(int), hard])
        drawn = disturbances.draw(robot, rng, config.vary)
        if config.vary or self._holds:
            self.scene.vary(row, lambda model: self.change(model, row, drawn))
        self._calibration[row] = drawn.calibration
        self._late[row] = round(drawn.latency * config.rate_hz * self.scene.substeps)
        self._vehicle[row] = drawn.friction, drawn.base, drawn.stiffness, self._late[row]
        scale = np.array(self._noise_std, np.float32)
        self._noise[row] = scale * rng.standard_normal(self._noise.shape[1:], np.float32) if config.vary else 0.0
        self._told[:, row], self._air[row], self._error[row] = robot.rest, 0.0, 0.0
        self._phase[row] = rng.uniform() if config.gait else 0.0
        qpos, qvel = robot.start.copy(), np.zeros(robot.physics.nv)
        shift = config.near * (robot.high - robot.low) * rng.uniform(-0.5, 0.5, len(robot.joints))
        qpos[robot.positions] = np.clip(robot.home + min(config.vary, 1.0) * shift, robot.low, robot.high)
        qvel[self._speed : self._speed + 6] = config.vary * config.thrown * rng.uniform(-1.0, 1.0, 6)
        for values in self._felt.values():
            values[row] = 0.0
        return qpos, qvel

    def change(self, model: Any, row: int, drawn: Vehicle) -> None:
        """Make that row's model what was drawn for it."""
        drawn.change(model, self.legs.base)

    def carry_out(self, control: Double) -> None:
        """Offsets from where the servos begin, some of the time late; and a push, if it is time for one."""
        robot = self.legs
        now, before = self._told
        before[:] = now
        now[:] = robot.rest + control
        pushed = self._pushes[:, :, 0] == self._count[:, None]
        if pushed.any():
            self.scene.qvel[:, self._speed : self._speed + 2] += (self._pushes[:, :, 1:] * pushed[..., None]).sum(
                axis=1
            )
        self.scene.step(now, before, self._late)
        self._felt = robot.felt(self.scene.sensed.copy())

    def order(self) -> Double:
        """What each is told now (num, 3): forward, left (m/s), turn (rad/s)."""
        found: Double = self._orders[np.arange(self.num), (self._count >= self._changes).astype(int)]
        return found

    def phase(self) -> Double:
        """Of the rhythm now (num,), in periods."""
        return self._phase + self._frequency * self._count / self.task.rate_hz

    def to_body(self, qpos: Double) -> Double:
        """(n, 3, 3): from the world's axes to the body's, for joint positions (n, nq)."""
        axes = rotation_matrices(qpos[:, self._place + 3 : self._place + 7])
        found: Double = self._first @ axes.transpose(0, 2, 1)
        return found

    def signals(self) -> dict[str, Array]:
        scene, robot, place, speed = self.scene, self.legs, self._place, self._speed
        to_body = self.to_body(scene.qpos)
        order = self.order()
        told = self._told[0] - robot.rest
        load = self._felt["touch"][..., 0] / self._weight
        moves = np.linalg.norm(order, axis=1, keepdims=True) > STANDING
        return {
            "projected_gravity": -to_body[:, :, 2],
            "angular_velocity": scene.qvel[:, speed + 3 : speed + 6] @ self._first.T,
            "linear_velocity": (to_body @ scene.qvel[:, speed : speed + 3, None])[..., 0],
            **robot.seen(scene.qpos[:, robot.positions] + self._calibration, scene.qvel[:, robot.velocities]),
            **{f"last_{name}": told[:, numbers] for name, numbers in self.task.moves.items()},
            "target_velocity": order[:, :2],
            "target_turn_rate": order[:, 2:],
            **({"gait_phase": np.where(moves, gait.signal(self.phase()), 0.0)} if self.task.config.gait else {}),
            "height": scene.qpos[:, place + 2 : place + 3],
            "foot_height": self._felt["position"][..., 2],
            "foot_load": np.minimum(load, 10.0),
            "vehicle": self._vehicle,
        }

    def observe(self) -> dict[str, Array]:
        known, first = self.truth(), 0
        noise = self._noise[np.arange(self.num), self._count % NOISES]
        for signal in self.task.policy:
            if signal.imperfections:
                known[signal.name] = known[signal.name] + noise[:, first : first + signal.size]
            first += signal.size
        return known

    def judge(self, seen: Mapping[str, Array]) -> tuple[Array, Array, Array]:
        config = self.task.config
        terms = self.terms(seen)
        fallen, reward = self.fallen(seen), self.weighted(terms)
        self._error += np.linalg.norm(seen["linear_velocity"][:, :2] - seen["target_velocity"], axis=-1)
        over = self._count >= config.steps
        success = over & ~fallen & (self._error < config.error * self._count)
        return np.where(fallen, 0.0, np.maximum(reward, 0.0)), success, fallen

    def fallen(self, seen: Mapping[str, Array]) -> Array:
        """Which have (num,): they are tilted, or low."""
        config = self.task.config
        tilted: Array = -seen["projected_gravity"][:, 2] < np.cos(np.radians(config.tilt))
        return tilted | (seen["height"][:, 0] < config.lowest * self._height)

    def weighted(self, terms: Mapping[str, Array]) -> Array:
        """The sum (num,) of the reward's terms, each with its weight."""
        total: Array = np.asarray(sum(self.weights[name] * value for name, value in terms.items()))
        return total

    def terms(self, seen: Mapping[str, Array]) -> dict[str, Array]:
        """Of the reward, by name, unweighted: those that have a weight."""
        robot, dt = self.legs, 1.0 / self.task.rate_hz
        error = seen["linear_velocity"][:, :2] - seen["target_velocity"]
        turned = seen["angular_velocity"][:, 2] - seen["target_turn_rate"][:, 0]
        order = np.concatenate([seen["target_velocity"], seen["target_turn_rate"]], axis=1)
        moves = np.linalg.norm(order, axis=1) > STANDING
        joints = self.scene.qpos[:, robot.positions]
        off = square(joints - robot.home)
        at = joints[:, robot.served]
        velocity, height = self._felt["velocity"], self._felt["position"][..., 2]
        along = np.linalg.norm(velocity[..., :2], axis=2)
        loaded = self._felt["touch"][..., 0] > LOADED * self._weight
        landed = loaded & (self._air > 0.0)
        stepped = np.where(landed, np.clip(self._air, 0.0, LONG) - SHORT, 0.0).sum(axis=1)
        self._air = np.where(loaded, 0.0, self._air + dt)
        lift = CLEARANCE * self._height
        swings = np.where(moves[:, None], gait.lift(self.phase()[:, None] + self._offsets), 0.0)
        found = {
            "velocity": np.exp(-square(error) / self._width**2),
            "turn_rate": np.exp(-((turned / self._turn_width) ** 2)),
            "bounce": seen["linear_velocity"][:, 2] ** 2,
            "roll_rate": square(seen["angular_velocity"][:, :2]),
            "upright": square(seen["projected_gravity"][:, :2]),
            "height": (seen["height"][:, 0] / self._height - 1.0) ** 2,
            "pose": off,
            "effort": square(self._told[0] - at),
            "action_rate": square(self._told[0] - self._told[1]),
            "slip": np.where(loaded, along**2, 0.0).sum(axis=1),
            "clearance": np.where(loaded, 0.0, along * np.abs(height / lift - 1.0)).sum(axis=1),
            "air_time": np.where(moves, stepped, 0.0),
            "still": np.where(moves, 0.0, off),
            "swing": np.exp(-2.0 * (((height / lift - swings) / OFF) ** 2).mean(axis=1)),
            "rhythm": (loaded == (swings == 0.0)).mean(axis=1),
            "arms": square((joints - robot.home)[:, robot.legless]),
        }
        return {name: found[name] for name in self.weights}


def square(values: Array) -> Array:
    """Of each row's vector (num, k)."""
    found: Array = (values**2).sum(axis=1)
    return found
