"""Between MuJoCo's positions and velocities and PhysX's; all arrays have a row per world.

MuJoCo: quaternions w x y z; of a free body how its origin moves, in the world, and how it turns, in its own axes.
PhysX: quaternions x y z w; how the centre of mass moves, and how it turns, both in the world (that it is the centre:
IsaacLab's issue 942). Both: poses are those of the body's origin, quaternions lead from the body to the world.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sim.rotations import normalised, rotation_matrices

Double = NDArray[np.float64]
XYZW_OF_WXYZ, WXYZ_OF_XYZW = [1, 2, 3, 0], [3, 0, 1, 2]


def to_physx(qpos: Double, qvel: Double, centre: Double) -> Double:
    """(n, 13) of a free joint's position (n, 7) and velocity (n, 6), and the centre of mass (n, 3) m in the body."""
    axes = rotation_matrices(normalised(qpos[:, 3:7]))
    turning = np.einsum("nij,nj->ni", axes, qvel[:, 3:6])
    moving = qvel[:, :3] + np.cross(turning, np.einsum("nij,nj->ni", axes, centre))
    return np.concatenate([qpos[:, :3], qpos[:, 3:7][:, XYZW_OF_WXYZ], moving, turning], axis=1)


def to_mujoco(state: Double, centre: Double) -> tuple[Double, Double]:
    """The inverse: position (n, 7) and velocity (n, 6) of a free joint."""
    quaternion = normalised(state[:, 3:7][:, WXYZ_OF_XYZW])
    axes = rotation_matrices(quaternion)
    turning = state[:, 10:13]
    moving = state[:, 7:10] - np.cross(turning, np.einsum("nij,nj->ni", axes, centre))
    qpos = np.concatenate([state[:, :3], quaternion], axis=1)
    return qpos, np.concatenate([moving, np.einsum("nji,nj->ni", axes, turning)], axis=1)


def of_point(state: Double, centre: Double, point: Double) -> tuple[Double, Double]:
    """Where a point (3,) m of bodies (n, 13) is, and how it moves in the world, (n, 3) m and m/s."""
    axes = rotation_matrices(normalised(state[:, 3:7][:, WXYZ_OF_XYZW]))
    at = np.einsum("nij,j->ni", axes, point)
    lever = at - np.einsum("nij,nj->ni", axes, centre)
    return state[:, :3] + at, state[:, 7:10] + np.cross(state[:, 10:13], lever)
