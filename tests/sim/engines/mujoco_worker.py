"""A worker as Isaac Gym's, whose simulation is MuJoCo: a real one behind the same bridge, which speaks as PhysX does.

It knows no more than the plan and the URDF. A word on its command line after the descriptors makes it speak otherwise.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import mujoco
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from sim.engines.isaacgym import worker

OTHERWISE = sys.argv[3] if len(sys.argv) > 3 else ""


class Behind:
    version = "0.0"

    def __init__(self, plan, arrays):
        if OTHERWISE == "slow":
            time.sleep(3600.0)
        self.plan, self.arrays = plan, arrays
        spec = mujoco.MjSpec.from_file(str(Path(plan["folder"], plan["file"])))
        spec.compiler.fusestatic = False
        root = next(body for body in spec.worldbody.bodies)
        root.add_freejoint()
        root.pos = [0.0, 0.0, 0.0]
        for geom in spec.geoms:  # nothing of the robot touches itself
            geom.contype, geom.conaffinity = 0, 1
            geom.solimp = (0.9, 0.95, 0.001, 0.5, 2.0)
        spec.worldbody.add_geom(
            name="floor", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0.0, 0.0, 1.0], contype=1, conaffinity=0
        )
        for name, kp, kd, effort, armature in zip(
            plan["joints"], plan["stiffness"], plan["damping"], plan["effort"], plan["armature"], strict=True
        ):
            joint = spec.joint(name)
            joint.armature, joint.damping = armature, [kd, 0.0, 0.0]  # as MuJoCo itself steps it here
            spec.add_actuator(
                name=name,
                target=name,
                trntype=mujoco.mjtTrn.mjTRN_JOINT,
                gainprm=[kp] + [0.0] * 9,
                biastype=mujoco.mjtBias.mjBIAS_AFFINE,
                biasprm=[0.0, -kp] + [0.0] * 8,
                forcelimited=True,
                forcerange=[-effort, effort],
            )
        spec.option.timestep, spec.option.gravity = plan["dt"], plan["gravity"]
        spec.option.cone = mujoco.mjtCone.mjCONE_PYRAMIDAL
        self.model = spec.compile()
        self.models = [self.model] * plan["num"]
        self.data = [mujoco.MjData(self.model) for _ in range(plan["num"])]
        self.bodies = [self.model.body(name).id for name in plan["bodies"]]
        joints = [self.model.joint(name).id for name in plan["joints"]]
        self.places, self.speeds = self.model.jnt_qposadr[joints], self.model.jnt_dofadr[joints]
        self.floor = self.model.geom("floor").id

    def vary(self, row):
        import copy

        a, model, plan = self.arrays, copy.copy(self.model), self.plan
        model.body_mass[self.bodies] *= a["mass"][row]
        model.body_inertia[self.bodies] *= a["mass"][row][:, None]
        model.body_ipos[self.bodies] += a["centre"][row]
        model.body_sameframe[self.bodies] = 0  # or MuJoCo overlooks it
        model.geom_friction[:, 0] = 0.5 * (a["friction"][row] + plan["floor"])
        model.actuator_gainprm[:, 0], model.actuator_biasprm[:, 1] = a["stiffness"][row], -a["stiffness"][row]
        model.dof_damping[self.speeds] = a["damping"][row]
        mujoco.mj_setConst(model, mujoco.MjData(model))
        self.models[row] = model

    def step(self):
        a = self.arrays
        for row in np.flatnonzero(a["varied"]):
            self.vary(int(row))
        for row, data in enumerate(self.data):
            model = self.models[row]
            if a["set"][row]:
                self.place(model, data, a["root"][row].astype(float), a["joint"][row].astype(float))
            for target in a["target"][:, row]:
                data.ctrl[:] = target
                mujoco.mj_step(model, data)
            mujoco.mj_forward(model, data)
            self.tell(model, data, row)

    def place(self, model, data, root, joints):
        data.qpos[:3], data.qpos[3:7] = root[:3], root[[6, 3, 4, 5]]
        axes = np.zeros(9)
        mujoco.mju_quat2Mat(axes, data.qpos[3:7] / np.linalg.norm(data.qpos[3:7]))
        axes = axes.reshape(3, 3)
        data.qvel[:3] = root[7:10] - np.cross(root[10:13], axes @ model.body_ipos[self.bodies[0]])
        data.qvel[3:6] = axes.T @ root[10:13]
        data.qpos[self.places], data.qvel[self.speeds] = joints[:, 0], joints[:, 1]
        data.qacc_warmstart[:] = 0.0

    def state(self, model, data, body):
        found = np.zeros(6)
        mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_BODY, body, found, 0)  # at its centre of mass
        quaternion = data.xquat[body]
        order = quaternion if OTHERWISE == "wxyz" else quaternion[[1, 2, 3, 0]]
        moving = found[3:]
        if OTHERWISE == "origin":
            moving = moving + np.cross(found[:3], data.xpos[body] - data.xipos[body])
        return np.concatenate([data.xpos[body], order, moving, found[:3]])

    def tell(self, model, data, row):
        a = self.arrays
        a["body"][row] = [self.state(model, data, body) for body in self.bodies]
        a["root"][row] = a["body"][row, 0]
        order = slice(None, None, -1) if OTHERWISE == "joints" else slice(None)
        a["joint"][row, :, 0] = data.qpos[self.places][order]
        a["joint"][row, :, 1] = data.qvel[self.speeds][order]
        a["contact"][row] = 0.0
        for number, contact in enumerate(data.contact):
            force = np.zeros(6)
            mujoco.mj_contactForce(model, data, number, force)
            geom = contact.geom2 if contact.geom1 == self.floor else contact.geom1
            sign = 1.0 if contact.geom1 == self.floor else -1.0
            body = self.bodies.index(int(model.geom_bodyid[geom]))
            a["contact"][row, body] += sign * contact.frame.reshape(3, 3).T @ force[:3]


if __name__ == "__main__":
    worker.main(Behind)
