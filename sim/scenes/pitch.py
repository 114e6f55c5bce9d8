"""A football pitch with boards around it, and the ball. x points to the goal of team 1, the origin is its middle."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.robots.wheeled import Wheeled

GRAVITY = 9.81  # m/s^2


@dataclass(frozen=True)
class Field:
    """m; lines have a width of 0.05."""

    length: float = 4.0
    width: float = 3.0
    goal: float = 1.0  # width of its mouth
    depth: float = 0.25  # of a goal, behind the end line
    circle: float = 0.5  # radius of the one in the middle
    wall: float = 0.25  # height of the boards


# By players on each side.
FIELDS = {1: Field(), 2: Field(5.0, 4.0, 1.2), 5: Field(9.0, 6.0, 1.6, circle=0.9)}


@dataclass(frozen=True)
class Ball:
    """A foam ball, larger than the small-size league's, so that a coarse camera sees it across the pitch."""

    radius: float = 0.05  # m
    mass: float = 0.08  # kg
    sliding: float = 0.4  # friction where it slides on the ground
    rolling: float = 0.03  # resistance as a share of its weight
    wall_bounce: float = 0.6  # restitution
    inertia: float = 0.4  # over mass and radius squared: a full sphere

    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """What may differ from ball to ball, by name (1,)."""
        names = ("ball_radius", "ball_mass", "sliding", "rolling", "wall_bounce")
        return {name: np.array([getattr(self, name.removeprefix("ball_"))], np.float32) for name in names}


STIFFNESS = 2e5  # 1/s^2, of contacts that bounce: they last 7 ms
UPRIGHT = 2.0 * math.degrees(math.atan(0.75))  # degrees: 90 across, in pictures of 4 to 3
THICK = 0.05  # m, of boards
BALL_ORANGE, GREEN, WHITE, DARK = "0.95 0.45 0.05 1", "0.1 0.45 0.15 1", "0.9 0.9 0.9 1", "0.15 0.15 0.18 1"
TEAMS = ("0.1 0.25 0.8 1", "0.85 0.75 0.1 1")  # blue, yellow
# Whom they touch: the ground the ball; boards both, and what bars the goals robots alone.
ON_BALL, ON_BOTH, ON_ROBOTS = (f'contype="0" conaffinity="{bits}"' for bits in (1, 3, 2))


def pitch_xml(robot: Wheeled, field: Field, ball: Ball, robots: int, step: float) -> str:
    """The match as MJCF with `step` seconds per integration step, in which motors push robots along x, y and around z.

    The ball is the first body. Robots slide over the ground; their first half is team 0.
    """
    length, width, goal, depth, high = field.length / 2, field.width / 2, field.goal / 2, field.depth, field.wall / 2
    beside, half = (width - goal) / 2, THICK / 2
    boards = []
    for side in (-1.0, 1.0):
        behind = (depth / 2 + half, half, high)
        boards += [
            ((0.0, side * (width + half)), (length + THICK, half, high), ON_BOTH),
            ((side * (length + half), goal + beside), (half, beside, high), ON_BOTH),
            ((side * (length + half), -goal - beside), (half, beside, high), ON_BOTH),
            ((side * (length + half), 0.0), (half, goal, high), ON_ROBOTS),
            ((side * (length + depth + half), 0.0), (half, goal + THICK, high), ON_BOTH),
            ((side * (length + depth / 2 + half), goal + half), behind, ON_BOTH),
            ((side * (length + depth / 2 + half), -goal - half), behind, ON_BOTH),
        ]
    walls = "".join(
        f'<geom type="box" pos="{x} {y} {high}" size="{a} {b} {c}" priority="3" friction="0.02 0 0" {touches} '
        f'solref="{_numbers(bouncing(ball.wall_bounce))}" rgba="{WHITE if touches == ON_BOTH else "0 0 0 0"}"/>'
        for (x, y), (a, b, c), touches in boards
    )
    turned = rolling_friction(ball, ball.rolling)
    bodies = "".join(_robot(robot, k, TEAMS[2 * k // robots]) for k in range(robots))
    motors = "".join(f'<motor joint="{axis}{k}"/>' for k in range(robots) for axis in "xyz")
    corners = " ".join(f"{x} {y} {z}" for x, y in _outline(robot) for z in (0.002, robot.height))
    inertia = ball.inertia * ball.mass * ball.radius**2
    return f"""<mujoco model="pitch">
  <compiler angle="radian" autolimits="true"/>
  <option timestep="{step}" gravity="0 0 {-GRAVITY}" cone="elliptic" impratio="10">
    <flag autoreset="disable"/>
  </option>
  <visual><headlight ambient="0.5 0.5 0.5" diffuse="0.4 0.4 0.4" specular="0 0 0"/><map znear="0.01"/></visual>
  <statistic extent="{length}" center="0 0 0"/>
  <asset><mesh name="robot" vertex="{corners}"/></asset>
  <worldbody>
    <light directional="true" pos="0 0 3" dir="0 0 -1" diffuse="0.5 0.5 0.5" specular="0 0 0"/>
    <geom type="plane" size="{length + 1.0} {width + 1.0} 0.1" rgba="{GREEN}" friction="0 0 0" {ON_BALL}/>
    {walls}
    <body name="ball" pos="0 0 {ball.radius}"><freejoint/>
      <inertial pos="0 0 0" mass="{ball.mass}" diaginertia="{inertia} {inertia} {inertia}"/>
      <geom name="ball" type="sphere" size="{ball.radius}" condim="6" priority="1" contype="1" conaffinity="2"
        friction="{ball.sliding} 0 {turned}" solref="0.004 1" rgba="{BALL_ORANGE}"/></body>
    {bodies}
  </worldbody>
  <actuator>{motors}</actuator>
</mujoco>"""


def _numbers(values: tuple[float, float]) -> str:
    return f"{values[0]} {values[1]}"


def bouncing(restitution: float) -> tuple[float, float]:
    """MuJoCo's stiffness and damping, negative, of a contact with this restitution: a damped half oscillation."""
    damping = -math.log(restitution) / math.hypot(math.pi, math.log(restitution))
    return -STIFFNESS, -2.0 * damping * math.sqrt(STIFFNESS)


def rolling_friction(ball: Ball, rolling: float) -> float:
    """MuJoCo's coefficient (m) of a ball whose resistance is this share of its weight."""
    return rolling * ball.radius * (1.0 + ball.inertia)


def _outline(robot: Wheeled) -> list[tuple[float, float]]:
    """Corners of a robot from above: 48 of its round side, from one end of its flat front to the other."""
    half = math.acos(robot.front / robot.radius)
    angles = [half + k / 47 * (2.0 * math.pi - 2.0 * half) for k in range(48)]
    return [(robot.radius * math.cos(a), robot.radius * math.sin(a)) for a in angles]


def _robot(robot: Wheeled, k: int, colour: str) -> str:
    around = 0.5 * robot.mass * robot.radius**2
    return f"""<body name="robot{k}">
      <inertial pos="0 0 0" mass="{robot.mass}" diaginertia="{around} {around} {around}"/>
      <joint name="x{k}" type="slide" axis="1 0 0"/><joint name="y{k}" type="slide" axis="0 1 0"/>
      <joint name="z{k}" type="hinge" axis="0 0 1"/>
      <geom name="robot{k}" type="mesh" mesh="robot" condim="3" priority="2" contype="2" conaffinity="3"
        friction="0.3 0 0" solref="{_numbers(bouncing(robot.bounce))}" rgba="{colour}"/>
      <camera name="eye{k}" pos="{robot.eye[0]} 0 {robot.eye[1]}" xyaxes="0 -1 0 0 0 1" fovy="{UPRIGHT}"/></body>"""
