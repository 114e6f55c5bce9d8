"""A 7-joint arm with a parallel gripper: frozen data with sources, and its kinematics for whole batches.

Frames follow Craig's (modified) Denavit-Hartenberg convention; the base stands at the world's origin, x forward, z up.
The hand's frame lies between the fingertips: z points out of the hand, y along the fingers' travel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.robots import Robot
from sim.spec import Group

Double = NDArray[np.float64]

DAMPING = 0.01  # of the least squares: joint speeds stay finite where the arm is stretched out
DOWN: Double = np.diag([1.0, -1.0, -1.0])  # the hand's rotation to the world when it points down, x forward


@dataclass(frozen=True)
class Body:
    """A rigid body: mass (kg), centre of mass (m) and inertia about it (kg m^2: xx, yy, zz, xy, xz, yz)."""

    mass: float
    centre: tuple[float, float, float]
    inertia: tuple[float, float, float, float, float, float]


@dataclass(frozen=True)
class Link:
    """A joint and the body that it turns. `a` (m) and `alpha` (rad) lead from the frame before, `d` (m) is along z."""

    a: float
    alpha: float
    d: float
    low: float  # rad
    high: float  # rad
    velocity: float  # rad/s, limit
    torque: float  # N m, limit
    stiffness: float  # N m/rad of the position servo
    damping: float  # N m s/rad of it
    rotor_inertia: float  # kg m^2, seen from the joint
    body: Body

    @property
    def offset(self) -> tuple[float, float, float]:
        """Where the link's frame lies in the one before it, in m."""
        return self.a, -self.d * float(np.sin(self.alpha)), self.d * float(np.cos(self.alpha))


@dataclass(frozen=True)
class Gripper:
    """Two fingers that move symmetrically. Lengths in m from where the hand is bolted on, along its z axis."""

    body: Body
    finger: Body
    finger_offset: float
    tool: float  # between the fingertips: the hand's frame
    opening: float  # m, at most
    force: float  # N per finger, limit of what the servo sets
    speed: float  # m/s per finger


@dataclass(frozen=True)
class Arm(Robot):
    """`source` says where the numbers come from. `flange` (m, along z) and `turn` (rad, about z) lead to the hand."""

    source: str
    links: tuple[Link, ...]
    flange: float
    turn: float
    gripper: Gripper
    home: tuple[float, ...]  # rad
    commands: Group = ()  # of the robot itself; its tasks say how it is commanded
    # See sim.robots.quadrotors.Quadrotor. An arm that is stopped stays where it is, and holds what it holds.
    envelope: Mapping[str, Any] = field(default_factory=dict, hash=False)
    safe: Mapping[str, tuple[Any, ...]] = field(
        default_factory=lambda: {
            "hand_velocity": ((0.0,) * 3,),
            "joint_target": ("joint_position",),
            "gripper_target": ("last",),
        },
        hash=False,
    )

    @cached_property
    def low(self) -> Double:
        """Lower joint limits (7,), rad."""
        return np.array([link.low for link in self.links])

    @cached_property
    def high(self) -> Double:
        """Upper joint limits (7,), rad."""
        return np.array([link.high for link in self.links])

    @cached_property
    def velocity(self) -> Double:
        """Joint speed limits (7,), rad/s."""
        return np.array([link.velocity for link in self.links])

    @cached_property
    def _frames(self) -> tuple[Double, Double]:
        """What leads from each frame to the next when the joint is at zero: rotations (7, 3, 3), offsets (7, 3)."""
        return np.array([_about_x(link.alpha) for link in self.links]), np.array([link.offset for link in self.links])

    def forward(self, joints: Double) -> tuple[Double, Double, Double]:
        """The hand's position (n, 3) m, rotation to the world (n, 3, 3) and Jacobian (n, 6, 7) at `joints` (n, 7) rad.

        The Jacobian takes joint speeds to the hand's velocity (m/s) and angular velocity (rad/s), in world axes.
        """
        count, (turns, offsets) = len(self.links), self._frames
        local = turns @ _about_z(joints)
        rotations = np.empty((len(joints), count + 1, 3, 3))
        rotations[:, 0] = np.eye(3)
        for i in range(count):
            np.matmul(rotations[:, i], local[:, i], out=rotations[:, i + 1])
        origins = np.cumsum((rotations[:, :-1] * offsets[:, None]).sum(3), axis=1)
        axes = rotations[:, 1:, :, 2]
        position = origins[:, -1] + axes[:, -1] * (self.flange + self.gripper.tool)
        jacobian = np.concatenate([_cross(axes, position[:, None] - origins), axes], axis=2).transpose(0, 2, 1)
        return position, rotations[:, -1] @ _about_z(np.array(self.turn)), jacobian

    def toward(self, joints: Double, position: Double, rotation: Double) -> Double:
        """Joint positions (n, 7) rad that bring the hand from `joints` to position (n, 3) m and rotation (3, 3).

        One step of damped least squares: exact to second order in the distance. What the hand does not determine, the
        elbow's turn, goes slowly to where it is at home.
        """
        here, turn, jacobian = self.forward(joints)
        twist = 0.5 * _cross(turn.transpose(0, 2, 1), rotation.T).sum(1)
        error = np.concatenate([position - here, twist], axis=1)
        transposed = jacobian.transpose(0, 2, 1)
        rest = 0.1 * (np.array(self.home) - joints)
        wanted = error[:, :, None] - jacobian @ rest[:, :, None]
        change = transposed @ np.linalg.solve(jacobian @ transposed + DAMPING**2 * np.eye(6), wanted)
        reached: Double = np.clip(joints + rest + change[:, :, 0], self.low, self.high)
        return reached


def _about_x(angle: float) -> Double:
    sine, cosine = np.sin(angle), np.cos(angle)
    return np.array([[1.0, 0.0, 0.0], [0.0, cosine, -sine], [0.0, sine, cosine]])


def _about_z(angle: Double) -> Double:
    """Rotations (..., 3, 3) by angles (...) in rad."""
    rotation = np.zeros((*angle.shape, 3, 3))
    rotation[..., 0, 0] = rotation[..., 1, 1] = np.cos(angle)
    rotation[..., 1, 0] = np.sin(angle)
    rotation[..., 0, 1] = -rotation[..., 1, 0]
    rotation[..., 2, 2] = 1.0
    return rotation


def _cross(a: Double, b: Double) -> Double:
    """The cross product along the last axis; numpy's own takes several times as long."""
    after, before = [1, 2, 0], [2, 0, 1]
    product: Double = a[..., after] * b[..., before] - a[..., before] * b[..., after]
    return product


RIGHT = np.pi / 2.0
PANDA = Arm(
    name="panda",
    source=(
        "Denavit-Hartenberg table, limits of position, speed and torque: Franka Emika, Robot and interface "
        "specifications (frankaemika.github.io/docs/control_parameters.html); masses and inertias: Gaz et al. 2019, "
        "Dynamic Identification of the Franka Emika Panda Robot With Retrieval of Feasible Parameters Using "
        "Penalty-Based Optimization, doi 10.1109/LRA.2019.2931248, as in Franka's franka_description; rotors: those of "
        "the FR3, from Franka, in Drake's franka_description; stiffness: setDefaultBehavior of libfranka's examples; "
        "damping: ours, critical at home, one joint at a time; hand: franka_description and the Franka Hand's "
        "data sheet (70 N, 50 mm/s per finger; we set 30 N)"
    ),
    links=(
        Link(0.0, 0.0, 0.333, -2.8973, 2.8973, 2.175, 87.0, 3000.0, 150.0, 0.6057,
             Body(4.970684, (0.003875, 0.002081, -0.04762),
                  (0.70337, 0.70661, 0.009117, -0.000139, 0.006772, 0.019169))),
        Link(0.0, -RIGHT, 0.0, -1.7628, 1.7628, 2.175, 87.0, 3000.0, 170.0, 0.6057,
             Body(0.646926, (-0.003141, -0.02872, 0.003495),
                  (0.007962, 0.02811, 0.025995, -0.003925, 0.010254, 0.000704))),
        Link(0.0, RIGHT, 0.316, -2.8973, 2.8973, 2.175, 87.0, 3000.0, 140.0, 0.4625,
             Body(3.228604, (0.027518, 0.039252, -0.066502),
                  (0.037242, 0.036155, 0.01083, -0.004761, -0.011396, -0.012805))),
        Link(0.0825, RIGHT, 0.0, -3.0718, -0.0698, 2.175, 87.0, 2500.0, 120.0, 0.4625,
             Body(3.587895, (-0.05317, 0.104419, 0.027454),
                  (0.025853, 0.019552, 0.028323, 0.007796, -0.001332, 0.008641))),
        Link(-0.0825, -RIGHT, 0.384, -2.8973, 2.8973, 2.61, 12.0, 2500.0, 48.0, 0.2055,
             Body(1.225946, (-0.011953, 0.041065, -0.038437),
                  (0.035549, 0.029474, 0.008627, -0.002117, -0.004037, 0.000229))),
        Link(0.0, RIGHT, 0.0, -0.0175, 3.7525, 2.61, 12.0, 2000.0, 46.0, 0.2055,
             Body(1.666555, (0.060149, -0.014117, -0.010517),
                  (0.001964, 0.004354, 0.005433, 0.000109, -0.001158, 0.000341))),
        Link(0.088, RIGHT, 0.0, -2.8973, 2.8973, 2.61, 12.0, 2000.0, 42.0, 0.2055,
             Body(0.735522, (0.010517, -0.004252, 0.061597),
                  (0.012516, 0.010027, 0.004815, -0.000428, -0.001196, -0.000741))),
    ),
    flange=0.107,
    turn=-np.pi / 4.0,
    gripper=Gripper(
        body=Body(0.73, (-0.01, 0.0, 0.03), (0.001, 0.0025, 0.0017, 0.0, 0.0, 0.0)),
        finger=Body(0.015, (0.0, 0.0145, 0.0272), (2.38e-6, 2.3e-6, 7.5e-7, 0.0, 0.0, 0.0)),
        finger_offset=0.0584,
        tool=0.1034,
        opening=0.08,
        force=30.0,
        speed=0.05,
    ),
    home=(0.0, 0.1, 0.0, -2.3, 0.0, 2.4, np.pi / 4.0),  # above the middle of the table, pointing down
)  # fmt: skip
