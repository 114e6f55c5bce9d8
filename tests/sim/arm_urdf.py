"""Arms as URDF, for Bullet to compare with."""

from __future__ import annotations

import numpy as np

from sim.robots.panda import Arm, Body


def arm_urdf(arm: Arm) -> str:
    """An arm as URDF: a fixed base, links 1 to 7, hand and fingers, without shapes; the same numbers as in MuJoCo."""
    grip = arm.gripper
    xml = _urdf_body("base", Body(0.0, (0.0,) * 3, (0.0,) * 6))
    parent = "base"
    for k, link in enumerate(arm.links, 1):
        limit = f'<limit lower="{link.low}" upper="{link.high}" effort="{link.torque}" velocity="{link.velocity}"/>'
        joint = f'<joint name="joint{k}" type="revolute"><axis xyz="0 0 1"/>{limit}'
        xml += (
            _urdf_body(f"link{k}", link.body) + joint + _placed(parent, f"link{k}", link.offset, (link.alpha, 0.0, 0.0))
        )
        parent = f"link{k}"
    xml += _urdf_body("hand", grip.body) + '<joint name="hand" type="fixed">'
    xml += _placed(parent, "hand", (0.0, 0.0, arm.flange), (0.0, 0.0, arm.turn))
    limit = f'<limit lower="0" upper="{grip.opening / 2.0}" effort="{grip.force}" velocity="{grip.speed}"/>'
    for name, turn in (("left", 0.0), ("right", np.pi)):
        joint = f'<joint name="{name}" type="prismatic"><axis xyz="0 1 0"/>{limit}'
        xml += _urdf_body(name, grip.finger) + joint
        xml += _placed("hand", name, (0.0, 0.0, grip.finger_offset), (0.0, 0.0, turn))
    return f'<robot name="{arm.name}">{xml}</robot>'


def _urdf_body(name: str, body: Body) -> str:
    xx, yy, zz, xy, xz, yz = body.inertia
    x, y, z = body.centre
    return f"""<link name="{name}"><inertial><origin xyz="{x} {y} {z}"/><mass value="{body.mass}"/>
  <inertia ixx="{xx}" iyy="{yy}" izz="{zz}" ixy="{xy}" ixz="{xz}" iyz="{yz}"/></inertial></link>
"""


def _placed(parent: str, child: str, xyz: tuple[float, ...], rpy: tuple[float, ...]) -> str:
    """The rest of a joint: whom it connects, and where."""
    at, turned = (" ".join(str(float(v)) for v in values) for values in (xyz, rpy))
    return f'<parent link="{parent}"/><child link="{child}"/><origin xyz="{at}" rpy="{turned}"/></joint>\n'
