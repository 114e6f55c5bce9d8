"""quad_hover in one compiled loop, as the rollouts of learners have it, with a control law in place of the network.

All that a step of the task needs is in it: latency, physics, noise, rewards, bounds, episodes that end and begin anew,
and what numpy prepares for those to come.
"""

import numpy as np

from sim import tasks
from sim.engines.flight.control_step import rooms
from sim.engines.flight.episodes import begins, steps
from sim.engines.vector.blocks import block, blocks, borrowed, inlined, kernel
from sim.engines.vector.simd import ALL, LANES, total
from sim.simulation.compiled import CompiledEnv
from sim.simulation.draws import Practice
from sim.spec import size, slices

HORIZON = 64  # control steps at a time
SPARE = 2 * LANES  # episodes that are ready to begin, per block
ZERO, HALF, ONE, FOUR, LEAD = (np.float32(x) for x in (0.0, 0.5, 1.0, 4.0, 5.0))
GRAVITY, LIFT, TILT, RATE, YAW = (np.float32(x) for x in (9.81, 0.05, 0.003, 0.006, 0.02))


@inlined
def wanted(offset, velocity):
    """An acceleration in m/s^2 towards the target, 5 at most."""
    return min(max(-offset - ONE * velocity - HALF * velocity, -LEAD), LEAD)


@inlined
def law(seen, table, target, rotor, hover, mix, told):
    """Commands told (4, LANES) from what is sensed: tilt towards the target, damp rates, lead the rotors' lag."""
    ax = wanted(seen[0, ALL] - table[target, ALL], seen[12, ALL])
    ay = wanted(seen[1, ALL] - table[target + 1, ALL], seen[13, ALL])
    az = GRAVITY + wanted(seen[2, ALL] - table[target + 2, ALL], seen[14, ALL])
    x = seen[3, ALL] * ax + seen[6, ALL] * ay + seen[9, ALL] * az  # in body axes
    y = seen[4, ALL] * ax + seen[7, ALL] * ay + seen[10, ALL] * az
    z = seen[5, ALL] * ax + seen[8, ALL] * ay + seen[11, ALL] * az
    roll, pitch, yaw = -TILT * y - RATE * seen[15, ALL], TILT * x - RATE * seen[16, ALL], -YAW * seen[17, ALL]
    lift = hover * (ONE + LIFT * (z - GRAVITY))
    for k in range(len(mix)):
        speed = table[rotor + k, ALL]
        aim = min(max(lift + mix[k, 0] * roll + mix[k, 1] * pitch + mix[k, 2] * yaw, ZERO), ONE)
        told[k, ALL] = speed + LEAD * (aim - speed)


@kernel
def fly(horizon, rows, episodes, spare, taken, used, step, columns, hover, mix):
    """Fly all blocks to the end of the horizon, or until episodes are used up; how many ended, the sum of rewards."""
    rows, episodes = borrowed((rows, episodes))
    world, ended, rest, reward = rows.world, 0, rooms(rows.world), 0.0
    log = np.zeros((columns[0], LANES), np.float32)
    told = log[columns[0] - len(mix) :]
    for place in range(len(step)):
        seen = block(world.sensors.arrived, place, world.sensors.arrived.shape[1])
        table = block(world.table, place, world.table.shape[1])
        while step[place] < horizon and used[place] + LANES <= spare:
            law(seen, table, columns[1], columns[2], hover, mix, told)
            over = steps(place, rows, log, rest)
            reward += total(rest.kept[len(rest.kept) - 1, ALL])
            for lane in range(LANES if over else 0):
                if over >> lane & 1:
                    index = place * spare + (taken[place] + used[place]) % spare
                    used[place] += 1
                    ended += 1
                    begins(place * LANES + lane, index, episodes, rows, rest)
            step[place] += 1
    return ended, reward


class Loop:
    """`num` vehicles; each call is HORIZON control steps. `lengths` are the shares of an episode that one may last."""

    def __init__(self, num, lengths=(1.0, 1.0), **settings):
        task = tasks.make("quad_hover", **settings)
        self.num, self.blocks = num, blocks(num)
        self.ended, self.reward = 0, 0.0
        self.env = CompiledEnv(task, num, 0, practice=Practice(lengths, 0.0))
        self.env.reset(range(num), range(num))
        self.rows = self.env.rows()
        where = slices((*task.policy, *task.privileged))
        places = size(task.policy) + size(task.commands), where["target_position"].start, where["rotor_speed"].start
        parameters = task.robot.parameters()
        at, spin = parameters["rotor_position"].reshape(4, 2), parameters["rotor_direction"]
        mix = np.sign(np.stack([at[:, 1], -at[:, 0], spin], axis=1)).astype(np.float32)
        self.law = np.array(places), np.float32(task.robot.hover_command), mix
        self.taken, self.used, self.step = np.zeros((3, self.blocks), np.int64)
        block, place = np.divmod(np.arange(self.blocks * SPARE), SPARE)
        self.spare, _ = self.env.episodes(num + block + self.blocks * place, 1)

    def __call__(self):
        self.step[:] = 0
        while (self.step < HORIZON).any():
            counts = self.taken, self.used, self.step
            ended, reward = fly(HORIZON, self.rows, self.spare, SPARE, *counts, *self.law)
            self.ended, self.reward = self.ended + ended, self.reward + reward
            block = np.repeat(np.arange(self.blocks), self.used)
            if len(block):
                index = self.taken[block] + np.concatenate([np.arange(k) for k in self.used])
                fresh, _ = self.env.episodes(self.num + block + self.blocks * (index + SPARE), 1)
                for part, new in zip(self.spare, fresh, strict=True):
                    part[block * SPARE + index % SPARE] = new
            self.taken += self.used
            self.used[:] = 0
