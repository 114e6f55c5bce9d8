"""An arm at a table, as MJCF: capsules and boxes in place of meshes. The table's top is at z = 0."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.robots.panda import Arm, Body
from sim.robots.quadrotors import GRAVITY

TABLE = ((0.15, 0.85), (-0.5, 0.5))  # m, along x and y
WHITE, DARK, WOOD, GREEN = "0.92 0.92 0.94 1", "0.25 0.26 0.3 1", "0.74 0.66 0.55 1", "0.1 0.75 0.3 0.7"
SEEN = 'contype="0" conaffinity="0" group="1"'  # drawn, but touches nothing
TOUCHES = 'contype="1" conaffinity="0"'  # the table and what lies on it, not the arm itself
TOUCHED = 'contype="2" conaffinity="3"'
# Capsules of the links, in their frames: from, to, radius (m); whether they touch things.
CAPSULES = (
    (((0.0, 0.0, -0.14), (0.0, 0.0, 0.0), 0.06, False),),
    (((0.0, 0.0, 0.0), (0.0, -0.14, 0.0), 0.06, False),),
    (((0.0, 0.0, -0.12), (0.0, 0.0, 0.0), 0.055, False), ((0.0, 0.0, 0.0), (0.0825, 0.0, 0.0), 0.055, False)),
    (((0.0, 0.0, 0.0), (-0.0825, 0.09, 0.0), 0.055, False),),
    (((0.0, 0.0, -0.26), (0.0, 0.0, 0.0), 0.05, True),),
    (((0.0, 0.0, 0.0), (0.088, 0.0, 0.0), 0.05, True),),
    (((0.0, 0.0, 0.0), (0.0, 0.0, 0.07), 0.045, True),),
)
RUBBER = 1.0  # friction of the fingertips on anything
FOLLOWING = 4000.0  # N/m, of the gripper's servo


@dataclass(frozen=True)
class Block:
    """What lies on the table: a box with half sizes in m, mass in kg, friction on the table, colour."""

    half_size: tuple[float, float, float]
    mass: float
    friction: float
    colour: tuple[float, float, float]


def block_names(count: int) -> tuple[str, ...]:
    """What so many blocks are called, in their order."""
    return tuple(f"block{k}" if k else "block" for k in range(count))


def scene_xml(arm: Arm, blocks: Sequence[Block], step: float) -> str:
    """The scene, with `step` seconds per integration step. Blocks are its free bodies; `goal` is moved by hand."""
    lying = "".join(
        f"""<body name="{name}" pos="0.5 {0.1 * k} {block.half_size[2]}"><freejoint/>
      <geom name="{name}" type="box" size="{_row(block.half_size)}" mass="{block.mass}" {TOUCHED}
        friction="{block.friction} 0.005 0.0001" condim="4" rgba="{_row(block.colour)} 1"/></body>"""
        for k, (name, block) in enumerate(zip(block_names(len(blocks)), blocks, strict=True))
    )
    (left, right), (near, far) = TABLE
    middle, half = ((left + right) / 2.0, (near + far) / 2.0), ((right - left) / 2.0, (far - near) / 2.0, 0.02)
    servos = "".join(
        f'<position joint="joint{k}" kp="{link.stiffness}" kv="{link.damping}"/>' for k, link in enumerate(arm.links, 1)
    )
    return f"""<mujoco model="{arm.name}">
  <compiler angle="radian" autolimits="true"/>
  <option timestep="{step}" integrator="implicitfast" gravity="0 0 {-GRAVITY}" cone="elliptic" impratio="5">
    <flag autoreset="disable"/>
  </option>
  <visual>
    <headlight ambient="0.4 0.4 0.4" diffuse="0.3 0.3 0.3" specular="0 0 0"/>
    <map znear="0.02" zfar="10"/>
  </visual>
  <statistic extent="1" center="0.5 0 0.2"/>
  <asset><texture type="skybox" builtin="flat" rgb1="0.8 0.87 0.95" rgb2="0.8 0.87 0.95" width="8" height="48"/></asset>
  <worldbody>
    <light directional="true" pos="0.5 0 2" dir="0 0 -1" diffuse="0.5 0.5 0.5" specular="0 0 0"/>
    <camera name="scene_camera" {_camera((1.05, -0.5, 0.5), (0.5, 0.0, 0.09))} fovy="45"/>
    <camera name="front_camera" {_camera((1.0, 0.0, 0.65), (0.5, 0.0, 0.0))} fovy="41"/>
    <camera name="side_camera" {_camera((0.5, -0.8, 0.45), (0.5, 0.0, 0.03))} fovy="36"/>
    <geom name="table" type="plane" pos="{_row((*middle, 0.0))}" size="{_row(half)}" friction="0.1 0.005 0.0001"
      rgba="{WOOD}" {TOUCHED}/>
    <geom type="box" pos="{_row((*middle, -0.022))}" size="{_row(half)}" rgba="{WOOD}" {SEEN}/>
    <geom type="capsule" fromto="0 0 0 0 0 0.16" size="0.07" rgba="{WHITE}" {SEEN}/>
    <body name="goal" mocap="true"><geom type="sphere" size="0.015" rgba="{GREEN}" {SEEN}/></body>
    {lying}
    {_links(arm)}
  </worldbody>
  <tendon><fixed name="opening"><joint joint="left" coef="1"/><joint joint="right" coef="1"/></fixed></tendon>
  <equality><joint joint1="left" joint2="right"/></equality>
  <actuator>
    {servos}
    <position tendon="opening" kp="{FOLLOWING}" forcerange="{-arm.gripper.force} {arm.gripper.force}"/>
  </actuator>
</mujoco>"""


def _row(values: Iterable[float] | NDArray[np.float64]) -> str:
    return " ".join(str(float(v)) for v in values)


def _inertial(body: Body) -> str:
    return f'<inertial pos="{_row(body.centre)}" mass="{body.mass}" fullinertia="{_row(body.inertia)}"/>'


def _camera(position: tuple[float, float, float], target: tuple[float, float, float]) -> str:
    """Where a camera is and how it is turned to look at `target`, with z up in its picture."""
    ahead = np.subtract(target, position)
    right = np.cross(ahead, (0.0, 0.0, 1.0))
    return f'pos="{_row(position)}" xyaxes="{_row(right)} {_row(np.cross(right, ahead))}"'


def _links(arm: Arm) -> str:
    """The chain of bodies, each inside the one before it."""
    xml = _hand(arm)
    for k, link in reversed(list(enumerate(arm.links))):
        shape = "".join(
            f'<geom type="capsule" fromto="{_row((*start, *end))}" size="{radius}" rgba="{WHITE}" '
            f"{TOUCHES if touches else SEEN}/>"
            for start, end, radius, touches in CAPSULES[k]
        )
        xml = f"""<body name="link{k + 1}" pos="{_row(link.offset)}" euler="{link.alpha} 0 0" gravcomp="1">
      {_inertial(link.body)}
      <joint name="joint{k + 1}" axis="0 0 1" range="{link.low} {link.high}" armature="{link.rotor_inertia}" damping="1"
        actuatorfrcrange="{-link.torque} {link.torque}" actuatorgravcomp="true"/>
      {shape}{xml}</body>"""
    return xml


def _hand(arm: Arm) -> str:
    grip = arm.gripper
    # The servo saturates, so its speed without load is what this damping allows.
    damping = grip.force / grip.speed
    tip = grip.tool - grip.finger_offset
    xml = ""
    for name, turn in (("left", 0.0), ("right", np.pi)):
        xml += f"""<body name="{name}" pos="0 0 {grip.finger_offset}" euler="0 0 {turn}" gravcomp="1">
      {_inertial(grip.finger)}
      <joint name="{name}" type="slide" axis="0 1 0" range="0 {grip.opening / 2.0}" damping="{damping}"/>
      <geom type="box" pos="0 0.012 {tip / 2.0 - 0.005}" size="0.010 0.008 {tip / 2.0 - 0.005}" rgba="{DARK}"
        {TOUCHES}/>
      <geom type="box" pos="0 0.006 {tip}" size="0.010 0.006 0.009" rgba="{DARK}" condim="4" priority="1"
        friction="{RUBBER} 0.01 0.0001" {TOUCHES}/></body>"""
    return f"""<body name="hand" pos="0 0 {arm.flange}" euler="0 0 {arm.turn}" gravcomp="1">
      {_inertial(grip.body)}
      <site name="hand" group="4" pos="0 0 {grip.tool}"/>
      <camera name="wrist_camera" pos="0.085 0 0.045" xyaxes="0 1 0 0.87 0 0.5" fovy="75"/>
      <geom type="box" pos="0 0 0.033" size="0.03 0.1 0.033" rgba="{DARK}" {TOUCHES}/>{xml}</body>"""
