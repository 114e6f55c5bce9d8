"""Which openings of gates a camera sees, and where in the picture their corners are."""

from __future__ import annotations

import math

import numpy as np

from sim.engines.vector.blocks import inlined, kernel

NEAREST = 0.1  # m before the camera, where corners are not seen any more
CORNERS = 4
CHANCES = 4 * CORNERS + 1  # random numbers per opening: of a corner's two coordinates two each, and of missing it


@inlined
def _normal(first, second):
    return math.sqrt(-2.0 * math.log1p(-first)) * math.cos(2.0 * math.pi * second)


@inlined
def _apart(rays, a, b):
    return math.sqrt((rays[a, 0] - rays[b, 0]) ** 2 + (rays[a, 1] - rays[b, 1]) ** 2 + (rays[a, 2] - rays[b, 2]) ** 2)


@kernel
def openings(corners, size, mount, axes, chance, edge, least, off, missed, told):
    """Fills in told (n, openings, 13): 1 for one that is seen, and its corners, m, in the body's axes; else zeros.

    corners (n, openings, 4, 3), m, body; size (n, openings, 2), m; mount (n, 3), rad, by which the camera is turned;
    axes (3, 3): the camera's in columns, body; chance (n, openings, CHANCES), 0..1; edge (2,): of the picture, as far
    to the left and up as it sees per m ahead; least and off, rad, that sides look long and corners are off; missed:
    probability that one is not seen. Corners are told in their directions, all as far away as the opening looks.
    """
    rays, at = np.empty((CORNERS, 3)), np.empty(3)
    for i in range(len(corners)):
        for g in range(corners.shape[1]):
            there = chance[i, g, CHANCES - 1] >= missed
            for c in range(CORNERS):
                for k in range(3):
                    at[k] = corners[i, g, c, 0] * axes[0, k] + corners[i, g, c, 1] * axes[1, k]
                    at[k] += corners[i, g, c, 2] * axes[2, k]
                x = at[0] - (mount[i, 1] * at[2] - mount[i, 2] * at[1])
                y = at[1] - (mount[i, 2] * at[0] - mount[i, 0] * at[2])
                z = at[2] - (mount[i, 0] * at[1] - mount[i, 1] * at[0])
                ahead = max(x, NEAREST)
                left, up = y / ahead, z / ahead
                there &= x > NEAREST and abs(left) < edge[0] and abs(up) < edge[1]
                if off > 0.0:
                    left += off * _normal(chance[i, g, 2 * c], chance[i, g, 2 * (CORNERS + c)])
                    up += off * _normal(chance[i, g, 2 * c + 1], chance[i, g, 2 * (CORNERS + c) + 1])
                length = math.sqrt(1.0 + left * left + up * up)
                rays[c, 0], rays[c, 1], rays[c, 2] = 1.0 / length, left / length, up / length
            wide = 0.5 * (_apart(rays, 0, 1) + _apart(rays, 2, 3))  # rad
            high = 0.5 * (_apart(rays, 1, 2) + _apart(rays, 3, 0))
            there &= wide > least and high > least
            told[i, g, :] = 0.0
            if not there:
                continue
            away = 1.0 / max(wide / size[i, g, 0], high / size[i, g, 1], 1e-6)  # m, by what is less foreshortened
            told[i, g, 0] = 1.0
            for c in range(CORNERS):
                for k in range(3):
                    told[i, g, 1 + 3 * c + k] = away * (
                        rays[c, 0] * axes[k, 0] + rays[c, 1] * axes[k, 1] + rays[c, 2] * axes[k, 2]
                    )
