"""What would come of plans: many futures of one car, sixteen at once, by the equations of `dynamics.py`.

There are no walls but lines beside the path, which the circles along the car must not touch; see `walls.py`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sim.engines.car import dynamics
from sim.engines.car.rows import COMMAND_ROWS, COS, PARAMETER_ROWS, SIN, STATE_ROWS, X, Y
from sim.engines.vector.blocks import block, inlined, kernel
from sim.engines.vector.simd import ALL, LANES

CIRCLES = (1.0, 0.0, -1.0)  # where those that touch walls are along the car, times their reach; the front one first
STEER_CHANGE = 0.02  # m that a plan costs per squared change of the steering, as a share of its limit
CRASH, EARLY = 20.0, 1.0  # m that touching a wall costs, and per step of the plan that is left then
CLOSE, UNEASY = 0.12, 4.0  # m from the walls from which on it costs, and m per step and squared share of that


@inlined
def placed(path, ways, x, y, part):
    """Where a point is along a line (k, 2) and to its left (m), and in which part, looked for from `part` on."""
    while True:
        dx, dy = path[part + 1, 0] - path[part, 0], path[part + 1, 1] - path[part, 1]
        length = max(math.sqrt(dx * dx + dy * dy), 1e-6)
        dx, dy = dx / length, dy / length
        u, v = x - path[part, 0], y - path[part, 1]
        along = u * dx + v * dy
        if along <= length or part + 2 >= len(path):
            return ways[part] + along, dx * v - dy * u, part
        part += 1


@kernel
def imagined(start, parameters, path, ways, room, plans, shape, h, n, left, cost):
    """What each plan costs, in m: cost (blocks, LANES), less the way that it makes along the path.

    `start` is a block (1, STATE_ROWS, LANES) of the car as it is, in its own axes as path (k, 2) and `ways` (k,), the
    m along it; `room` (2,) m to the walls left and right of it; `plans` (blocks, 2 x steps, LANES) commands, one after
    the other, each held for n steps of h seconds. `left` and `parameters` are room to work in, and the car's own.
    """
    steps = plans.shape[1] // COMMAND_ROWS
    q = np.empty((dynamics.DERIVED_ROWS, LANES), np.float32)
    told = np.empty((COMMAND_ROWS, LANES), np.float32)
    parts: Any = np.zeros((len(CIRCLES), LANES), np.int64)
    over, way = np.zeros(LANES, np.bool_), np.zeros(LANES, np.float32)
    p = block(parameters, 0, PARAMETER_ROWS)
    dynamics.derived(p, q, shape, ALL)
    for place in range(plans.shape[0]):
        left[0] = start[0]
        s = block(left, 0, STATE_ROWS)
        parts[:], over[:], way[:] = 0, False, 0.0
        for lane in range(LANES):
            cost[place, lane] = 0.0
        for k in range(steps):
            for row in range(COMMAND_ROWS):
                for lane in range(LANES):
                    told[row, lane] = plans[place, k * COMMAND_ROWS + row, lane]
            for _ in range(n):
                dynamics.driven(s, q, told, shape, h, ALL)
            for lane in range(LANES):
                if over[lane]:
                    continue
                near = np.float32(np.inf)
                for circle in range(len(CIRCLES)):
                    off = CIRCLES[circle] * shape.reach
                    x, y = s[X, lane] + off * s[COS, lane], s[Y, lane] + off * s[SIN, lane]
                    along, aside, part = placed(path, ways, x, y, parts[circle, lane])
                    parts[circle, lane] = part
                    near = min(near, room[0] - aside, room[1] + aside)
                    if CIRCLES[circle] == 0.0:
                        way[lane] = along
                near -= shape.radius
                if near < 0.0:
                    over[lane] = True
                    cost[place, lane] += CRASH + EARLY * (steps - k)
                elif near < CLOSE:
                    share = 1.0 - near / CLOSE
                    cost[place, lane] += UNEASY * share * share / steps
                if k:
                    change = (told[0, lane] - plans[place, (k - 1) * COMMAND_ROWS, lane]) / shape.steering_limit
                    cost[place, lane] += STEER_CHANGE * change * change
        for lane in range(LANES):
            cost[place, lane] -= way[lane]
