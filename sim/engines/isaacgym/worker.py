"""The program that holds a simulation of Isaac Gym, run by the Python 3.8 that has it: see `sim.engines.isaacgym`.

It is begun with two descriptors: a socket for messages (JSON, its length in 4 bytes before it) and memory for arrays
(float32), which both sides map. It ends when the socket does, or when the program that began it is gone. Nothing here
may need more than Python 3.8, numpy, and, once a simulation is opened, isaacgym with its torch.
"""

from __future__ import annotations

import json
import mmap
import os
import platform
import socket
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, Tuple

import numpy as np

if TYPE_CHECKING:
    from isaacgym import gymapi

PROTOCOL = 1
LARGEST = 1 << 22  # bytes of a message
Shapes = Dict[str, Tuple[int, ...]]
Arrays = Dict[str, Any]


def shapes(num: int, joints: int, bodies: int, steps: int) -> Shapes:
    """Of every array in the shared memory: `num` worlds of a robot, `steps` of physics at a time.

    Both ways: `root` (position m; quaternion x y z w, body to world; velocity m/s of the centre of mass, and rad/s, in
    the world), `joint` (position, velocity; rad or m). To the worker: which rows to `set` to these and to have `varied`
    (0 or 1); `target` (rad, m); factors of `mass`; shifts of the `centre` of mass (m, in the body); `friction`;
    `stiffness` and `damping` of the servos (N m/rad, N m s/rad). From it: `body`, as root, and the `contact` force (N).
    """
    return {
        "root": (num, 13),
        "joint": (num, joints, 2),
        "set": (num,),
        "varied": (num,),
        "target": (steps, num, joints),
        "mass": (num, bodies),
        "centre": (num, bodies, 3),
        "friction": (num,),
        "stiffness": (num, joints),
        "damping": (num, joints),
        "body": (num, bodies, 13),
        "contact": (num, bodies, 3),
    }


def room(wanted: Shapes) -> int:
    """Bytes for arrays of these shapes."""
    return 4 * sum(int(np.prod(shape)) for shape in wanted.values())


def views(memory: Any, wanted: Shapes) -> Arrays:
    """Arrays of these shapes, one after the other in the memory."""
    found, at = {}, 0
    for name, shape in wanted.items():
        count = int(np.prod(shape))
        found[name] = np.frombuffer(memory, np.float32, count, at).reshape(shape)
        at += 4 * count
    return found


def send(channel: socket.socket, message: dict[str, Any]) -> None:
    """Write a message."""
    content = json.dumps(message).encode()
    channel.sendall(struct.pack(">I", len(content)) + content)


def receive(channel: socket.socket) -> dict[str, Any] | None:
    """The next message; None where the other side has closed. ValueError for what is none."""
    head = _exactly(channel, 4)
    if head is None:
        return None
    length = struct.unpack(">I", head)[0]
    if length > LARGEST:
        raise ValueError(f"a message of {length} bytes; at most {LARGEST}")
    content = _exactly(channel, length)
    if content is None:
        return None
    message = json.loads(content.decode())
    if not isinstance(message, dict):
        raise ValueError("a message that is no object")
    return message


def _exactly(channel: socket.socket, count: int) -> bytes | None:
    parts: list[bytes] = []
    while count:
        part = channel.recv(min(count, 1 << 16))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def serve(channel: socket.socket, descriptor: int, begin: Callable[[dict[str, Any], Arrays], Any]) -> None:
    """Answer messages until the other side closes. `begin` opens a simulation of a plan: see `IsaacGym`."""
    send(channel, {"is": "hello", "protocol": PROTOCOL, "python": platform.python_version(), "numpy": np.__version__})
    simulation = None
    while True:
        message = receive(channel)
        if message is None:
            return
        try:
            if message["do"] == "open":
                plan = message["plan"]
                wanted = shapes(plan["num"], len(plan["joints"]), len(plan["bodies"]), plan["steps"])
                memory = mmap.mmap(descriptor, room(wanted))
                simulation = begin(plan, views(memory, wanted))
                send(channel, {"is": "open", "version": simulation.version})
            elif message["do"] == "step" and simulation is not None:
                simulation.step()
                send(channel, {"is": "stepped"})
            else:
                raise ValueError("cannot do {!r} now".format(message["do"]))
        except Exception as error:
            send(channel, {"is": "error", "kind": type(error).__name__, "what": str(error)[:2000]})


def end_with_parent() -> None:
    """End this process once the one that began it is gone, even if another still holds its socket."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class IsaacGym:
    """Worlds of one legged robot above a floor, in PhysX. Joints and bodies go in the order of the plan's names.

    The tensors are the CPU's, because with those on the GPU centres of mass cannot change; PhysX itself runs where the
    plan says. Written from the signatures in `isaacgym-stubs` and NVIDIA's examples.
    """

    def __init__(self, plan: dict[str, Any], arrays: Arrays) -> None:
        from isaacgym import gymapi, gymtorch

        self._arrays, self._plan = arrays, plan
        self._gym = gym = gymapi.acquire_gym()
        import torch  # after isaacgym, or that refuses

        version = gym.get_version()
        self.version = f"{version.major}.{version.minor}"
        self._sim = self._created()
        asset = gym.load_asset(self._sim, plan["folder"], plan["file"], self._asset_options())
        if asset is None:
            raise RuntimeError("Isaac Gym cannot load the robot")
        self._joints = places("joint", plan["joints"], gym.get_asset_dof_names(asset))
        self._bodies = places("body", plan["bodies"], gym.get_asset_rigid_body_names(asset))
        self._actors = [self._placed(asset, row) for row in range(plan["num"])]
        env, actor = self._actors[0]
        self._nominal = [
            (p.mass, vector(p.com), [vector(side) for side in (p.inertia.x, p.inertia.y, p.inertia.z)])
            for p in gym.get_actor_rigid_body_properties(env, actor)
        ]
        self._done(gym.prepare_sim(self._sim), "prepare_sim")
        indices = [gym.get_actor_index(env, actor, gymapi.DOMAIN_SIM) for env, actor in self._actors]
        self._indices = torch.tensor(indices, dtype=torch.int32)
        num, joints, bodies = plan["num"], len(self._joints), len(self._bodies)
        self._root = gymtorch.wrap_tensor(gym.acquire_actor_root_state_tensor(self._sim))
        self._joint = gymtorch.wrap_tensor(gym.acquire_dof_state_tensor(self._sim)).view(num, joints, 2)
        self._body = gymtorch.wrap_tensor(gym.acquire_rigid_body_state_tensor(self._sim)).view(num, bodies, 13)
        self._contact = gymtorch.wrap_tensor(gym.acquire_net_contact_force_tensor(self._sim)).view(num, bodies, 3)
        self._target = torch.zeros((num, joints))

    def _created(self) -> gymapi.Sim:
        from isaacgym import gymapi

        plan = self._plan
        params = gymapi.SimParams()
        params.dt, params.substeps = plan["dt"], 1
        params.up_axis = gymapi.UP_AXIS_Z
        params.gravity = gymapi.Vec3(*plan["gravity"])
        params.use_gpu_pipeline = False
        params.physx.use_gpu = plan["gpu"]
        params.physx.num_threads = os.cpu_count() or 1
        params.physx.solver_type = 1  # TGS
        params.physx.num_position_iterations, params.physx.num_velocity_iterations = 8, 1
        params.physx.contact_offset, params.physx.rest_offset = 0.01, 0.0
        params.physx.max_depenetration_velocity = 1.0
        params.physx.contact_collection = gymapi.CC_LAST_SUBSTEP
        sim = self._gym.create_sim(compute_device=0, graphics_device=-1, type=gymapi.SIM_PHYSX, params=params)
        if sim is None:
            raise RuntimeError("Isaac Gym cannot create a simulation; is there a GPU?")
        ground = gymapi.PlaneParams()
        ground.normal, ground.distance = gymapi.Vec3(0.0, 0.0, 1.0), 0.0
        ground.static_friction = ground.dynamic_friction = plan["floor"]
        ground.restitution = 0.0
        self._gym.add_ground(sim, ground)
        return sim

    def _asset_options(self) -> gymapi.AssetOptions:
        from isaacgym import gymapi

        options = gymapi.AssetOptions()
        options.fix_base_link = options.collapse_fixed_joints = options.disable_gravity = False
        options.replace_cylinder_with_capsule = options.flip_visual_attachments = False
        options.override_com = options.override_inertia = options.vhacd_enabled = False
        options.enable_gyroscopic_forces = options.use_physx_armature = True
        options.angular_damping = options.linear_damping = options.armature = options.thickness = 0.0
        options.max_linear_velocity = options.max_angular_velocity = 1e3
        options.default_dof_drive_mode = int(gymapi.DOF_MODE_POS)
        return options

    def _placed(self, asset: gymapi.Asset, row: int) -> tuple[gymapi.Env, int]:
        """A robot in a world of its own, with the plan's servos; and its filter, by which its parts never collide."""
        from isaacgym import gymapi

        gym, plan = self._gym, self._plan
        nowhere = gymapi.Vec3(0.0, 0.0, 0.0)  # all worlds have one origin: the tensors' axes are the simulation's
        env = gym.create_env(self._sim, nowhere, nowhere, max(1, int(plan["num"] ** 0.5)))
        pose = gymapi.Transform()
        pose.p = gymapi.Vec3(0.0, 0.0, plan["height"])
        actor = gym.create_actor(env, asset, pose, "robot", row, 1)
        dofs = gym.get_actor_dof_properties(env, actor)
        dofs["driveMode"] = int(gymapi.DOF_MODE_POS)
        for name in ("stiffness", "damping", "effort", "armature"):
            dofs[name][self._joints] = plan[name]
        dofs["friction"], dofs["velocity"] = 0.0, 1e3
        self._done(gym.set_actor_dof_properties(env, actor, dofs), "set_actor_dof_properties")
        return env, actor

    def step(self) -> None:
        """Carry out what the arrays say, and write into them what came of it."""
        import torch
        from isaacgym import gymtorch

        gym, sim, arrays = self._gym, self._sim, self._arrays
        for row in np.flatnonzero(arrays["varied"]):
            self._vary(int(row))
        self._set(np.flatnonzero(arrays["set"]))
        for target in arrays["target"]:
            self._target[:, self._joints] = torch.from_numpy(target)
            done = gym.set_dof_position_target_tensor(sim, gymtorch.unwrap_tensor(self._target))
            self._done(done, "set_dof_position_target_tensor")
            gym.simulate(sim)
            gym.fetch_results(sim, True)
        gym.refresh_actor_root_state_tensor(sim)
        gym.refresh_dof_state_tensor(sim)
        gym.refresh_rigid_body_state_tensor(sim)
        gym.refresh_net_contact_force_tensor(sim)
        arrays["root"][:] = self._root[self._indices.long()].numpy()
        arrays["joint"][:] = self._joint[:, self._joints].numpy()
        arrays["body"][:] = self._body[:, self._bodies].numpy()
        arrays["contact"][:] = self._contact[:, self._bodies].numpy()

    def _set(self, rows: Any) -> None:
        if not len(rows):
            return
        import torch
        from isaacgym import gymtorch

        gym, sim, arrays = self._gym, self._sim, self._arrays
        indices = self._indices[torch.from_numpy(rows)].contiguous()
        self._root[indices.long()] = torch.from_numpy(arrays["root"][rows])
        for row in rows:
            self._joint[int(row), self._joints] = torch.from_numpy(arrays["joint"][row])
        self._told = indices  # which PhysX may read as late as in its next step
        told = gymtorch.unwrap_tensor(indices), len(indices)
        done = gym.set_actor_root_state_tensor_indexed(sim, gymtorch.unwrap_tensor(self._root), *told)
        self._done(done, "set_actor_root_state_tensor_indexed")
        done = gym.set_dof_state_tensor_indexed(sim, gymtorch.unwrap_tensor(self._joint.view(-1, 2)), *told)
        self._done(done, "set_dof_state_tensor_indexed")

    def _vary(self, row: int) -> None:
        """Masses, with inertias, centres of mass, friction and servos of a world, as the arrays say."""
        from isaacgym import gymapi

        gym, arrays = self._gym, self._arrays
        env, actor = self._actors[row]
        bodies = gym.get_actor_rigid_body_properties(env, actor)
        for number, at in enumerate(self._bodies):
            mass, centre, inertia = self._nominal[at]
            factor, shift = float(arrays["mass"][row, number]), arrays["centre"][row, number].tolist()
            bodies[at].mass = mass * factor
            bodies[at].com = gymapi.Vec3(*[a + b for a, b in zip(centre, shift)])
            turning = gymapi.Mat33()
            turning.x, turning.y, turning.z = [gymapi.Vec3(*[factor * v for v in side]) for side in inertia]
            bodies[at].inertia = turning
        done = gym.set_actor_rigid_body_properties(env, actor, bodies, recomputeInertia=False)
        self._done(done, "set_actor_rigid_body_properties")
        parts = gym.get_actor_rigid_shape_properties(env, actor)
        for part in parts:
            part.friction, part.restitution = float(arrays["friction"][row]), 0.0
        self._done(gym.set_actor_rigid_shape_properties(env, actor, parts), "set_actor_rigid_shape_properties")
        dofs = gym.get_actor_dof_properties(env, actor)
        dofs["stiffness"][self._joints] = arrays["stiffness"][row]
        dofs["damping"][self._joints] = arrays["damping"][row]
        self._done(gym.set_actor_dof_properties(env, actor, dofs), "set_actor_dof_properties")

    @staticmethod
    def _done(succeeded: bool, what: str) -> None:
        if not succeeded:
            raise RuntimeError(f"Isaac Gym's {what} failed")


def places(kind: str, wanted: list[str], there: list[str]) -> list[int]:
    """Where each of the wanted names is among those that are there. ValueError where they are not the same."""
    if sorted(wanted) != sorted(there):
        odd = sorted(set(wanted) ^ set(there))
        raise ValueError("Isaac Gym reads other names of kind {} in the robot: {}".format(kind, ", ".join(odd)[:500]))
    return [there.index(name) for name in wanted]


def vector(value: Any) -> list[float]:
    """Of a Vec3."""
    return [value.x, value.y, value.z]


def main(begin: Callable[[dict[str, Any], Arrays], Any] = IsaacGym) -> None:
    """Serve on the descriptors of the command line."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    end_with_parent()
    serve(channel, int(sys.argv[2]), begin)


if __name__ == "__main__":
    sys.path.pop(0)  # this folder, whose modules are not meant for other programs
    main()
