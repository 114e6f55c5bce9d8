"""Any MuJoCo model in a batch: each row a world of its own, stepped by MuJoCo's own threads, read by names."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.render.camera import Camera

try:
    import mujoco

    from sim.engines.threads import STATE, Threads
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("mujoco is not installed: pip install 'sim2metal[train]'", name="mujoco") from error

Double = NDArray[np.float64]
KINDS = {"body": mujoco.mjtObj.mjOBJ_BODY, "site": mujoco.mjtObj.mjOBJ_SITE, "joint": mujoco.mjtObj.mjOBJ_JOINT}
QUICK = {int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE)}


class Scene:
    """`num` worlds of one model. All arrays are float64, one row per world; a world whose state diverges reads NaN.

    Neither a world's neighbours nor the number of `threads` (None: one per core) change what it does. `dt` (s) is
    divided into steps no longer than the model's own. Pictures are of `shown`, which has the same joints (None: of the
    model itself).
    """

    def __init__(self, model: Any, num: int, dt: float, threads: int | None = None, shown: Any = None) -> None:
        self.num, self.dt = num, dt
        self.substeps = max(1, int(np.ceil(dt / model.opt.timestep - 1e-9)))
        self.model = copy.copy(model)
        self.model.opt.timestep = dt / self.substeps
        self.models = [self.model] * num  # of each world; copies may differ in numbers
        self._shown = self.model if shown is None else shown
        self._showing = None if shown is None else mujoco.MjData(shown)
        self._threads = Threads(self.model, num, self.substeps, threads)
        self._looking = mujoco.MjData(self.model)
        self._fresh = np.zeros(mujoco.mj_stateSize(self.model, STATE))
        mujoco.mj_getState(self.model, self._looking, self._fresh, STATE)
        self._state = np.tile(self._fresh, (num, 1))
        self._control = np.zeros((num, self.substeps, self.model.nu))
        limited = self.model.actuator_ctrllimited.astype(bool)
        self._low = np.where(limited, self.model.actuator_ctrlrange[:, 0], -np.inf)
        self._high = np.where(limited, self.model.actuator_ctrlrange[:, 1], np.inf)
        self._read: dict[str, Double] = {}  # what was looked at since the last step
        self._cameras: dict[tuple[int, int, bool], Camera] = {}
        self.reset(range(num), np.tile(self.model.qpos0, (num, 1)))

    @property
    def qpos(self) -> Double:
        """Positions of all joints (num, nq), rad and m; quaternions w x y z, body to world."""
        return self._state[:, 1 : 1 + self.model.nq]

    @property
    def qvel(self) -> Double:
        """Velocities of all joints (num, nv): rad/s and m/s; of a free body, in the world and, turning, in its axes."""
        return self._state[:, 1 + self.model.nq : 1 + self.model.nq + self.model.nv]

    def _number(self, kind: str, name: str) -> int:
        """KeyError lists the names when there is none of this one."""
        number = int(mujoco.mj_name2id(self.model, KINDS[kind], name))
        if number < 0:
            count = {"body": self.model.nbody, "site": self.model.nsite, "joint": self.model.njnt}[kind]
            names = ", ".join(mujoco.mj_id2name(self.model, KINDS[kind], i) or "?" for i in range(count))
            raise KeyError(f"no {kind} {name!r}; there are: {names[:2000] or 'none'}")
        return number

    def joints(self, names: Sequence[str]) -> tuple[Double, Double]:
        """Positions and velocities (num, k) of joints that turn or slide, rad (m) and rad/s (m/s)."""
        numbers = [self._number("joint", name) for name in names]
        if odd := [n for n, i in zip(names, numbers, strict=True) if int(self.model.jnt_type[i]) not in QUICK]:
            raise KeyError(f"{odd[0]!r} is no joint of one degree of freedom: see qpos and qvel")
        places = [self.model.jnt_qposadr[i] for i in numbers], [self.model.jnt_dofadr[i] for i in numbers]
        return self.qpos[:, places[0]], self.qvel[:, places[1]]

    def reset(self, rows: Sequence[int], qpos: Double, qvel: Double | None = None) -> None:
        """Begin anew in these worlds: joint positions (count, nq), velocities (count, nv) (None: at rest)."""
        index = list(rows)
        self._state[index] = self._fresh
        self.qpos[index] = qpos
        if qvel is not None:
            self.qvel[index] = qvel
        self._read = {}

    def vary(self, row: int, change: Callable[[Any], None]) -> None:
        """Give that world a model of its own, which `change` makes of the common one."""
        model = copy.copy(self.model)
        change(model)
        mujoco.mj_setConst(model, self._looking)  # what follows from that
        self.models[row] = model

    @property
    def sensed(self) -> Double:
        """What the model's sensors said (num, nsensordata) when the last of the steps of dt began."""
        return self._threads.sensed

    def step(self, control: Double, before: Double | None = None, late: NDArray[np.int64] | None = None) -> None:
        """Advance dt under what the actuators are told (num, nu), held; cut to their ranges.

        In the first `late` (num,) of its steps a world still does what `before` (num, nu) says.
        """
        control = np.asarray(control, np.float64)
        if control.shape != (self.num, self.model.nu):
            raise ValueError(f"the control has shape {control.shape}, not {(self.num, self.model.nu)}")
        self._control[:] = np.clip(control, self._low, self._high)[:, None]
        if before is not None and late is not None:
            waits = np.arange(self.substeps) < late[:, None]
            self._control[:] = np.where(
                waits[:, :, None], np.clip(before, self._low, self._high)[:, None], self._control
            )
        broken = ~np.isfinite(self._control).all(axis=(1, 2)) | ~np.isfinite(self._state).all(axis=1)
        if broken.any():  # MuJoCo would write a warning file for them
            self._control[broken] = 0.0
            self._state[broken] = self._fresh
        wanted = self._state[:, 0] + self.dt
        self._state = self._advance()
        broken |= np.abs(self._state[:, 0] - wanted) > 0.5 * self.model.opt.timestep  # it began anew, or gave up
        self._state[broken] = np.nan
        self._read = {}

    def _advance(self) -> Double:
        """The states (num, size) after dt from `_state`, under `_control`, each with its own of `models`."""
        return self._threads.advance(self.models, self._state, self._control)

    def _worlds(self, prepare: Callable[[Any], None]) -> Iterator[tuple[int, Any]]:
        """Each row that is not broken with MuJoCo's data of its state, which the next row overwrites."""
        for row in np.flatnonzero(np.isfinite(self._state).all(axis=1)):
            mujoco.mj_setState(self.model, self._looking, self._state[row], STATE)
            prepare(self._looking)
            yield int(row), self._looking

    def _looked(self) -> dict[str, Double]:
        """Where all bodies and sites are, and how they move."""
        if "xpos" not in self._read:
            model, names = self.model, ("xpos", "xmat", "site_xpos", "site_xmat", "cvel", "subtree_com")
            shapes = {name: getattr(self._looking, name).shape for name in names}
            self._read |= {name: np.full((self.num, *shape), np.nan) for name, shape in shapes.items()}

            def prepare(data: Any) -> None:
                mujoco.mj_kinematics(model, data)
                mujoco.mj_comPos(model, data)
                mujoco.mj_comVel(model, data)

            for row, data in self._worlds(prepare):
                for name in names:
                    self._read[name][row] = getattr(data, name)
        return self._read

    def pose(self, kind: str, name: str | int) -> tuple[Double, Double]:
        """Where a "body" or "site" is: its origin (num, 3) m, its axes (num, 3, 3), from its own to the world's."""
        number = self._number(kind, name) if isinstance(name, str) else name
        prefix, read = "site_" if kind == "site" else "", self._looked()
        return read[f"{prefix}xpos"][:, number], read[f"{prefix}xmat"][:, number].reshape(-1, 3, 3)

    def velocity(self, kind: str, name: str | int) -> tuple[Double, Double]:
        """How the origin of a "body" or "site" moves (num, 3) m/s and turns (num, 3) rad/s, in world axes."""
        number = self._number(kind, name) if isinstance(name, str) else name
        body = int(self.model.site_bodyid[number]) if kind == "site" else number
        read = self._looked()
        turning, moving = read["cvel"][:, body, :3], read["cvel"][:, body, 3:]
        centre = read["subtree_com"][:, self.model.body_rootid[body]]
        return moving + np.cross(turning, self.pose(kind, number)[0] - centre), turning

    def sensor(self, name: str) -> Double:
        """What a sensor of the model says (num, k), under the last control."""
        numbers = {self.model.sensor(i).name: i for i in range(self.model.nsensor)}
        if name not in numbers:
            raise KeyError(f"no sensor {name!r}; there are: {', '.join(numbers) or 'none'}")
        if "sensors" not in self._read:
            self._read["sensors"] = np.full((self.num, self.model.nsensordata), np.nan)
            for row, data in self._worlds(lambda data: None):
                data.ctrl[:] = self._control[row, -1]
                mujoco.mj_forward(self.models[row], data)
                self._read["sensors"][row] = data.sensordata
        first = int(self.model.sensor_adr[numbers[name]])
        return self._read["sensors"][:, first : first + int(self.model.sensor_dim[numbers[name]])]

    def see(
        self, row: int, camera: str | dict[str, Any], height: int, width: int, fine: bool = False
    ) -> NDArray[np.uint8]:
        """A picture (height, width, 3) of one world by a camera of the model, or a free one: see `Camera.see`."""
        size = (height, width, fine)
        if size not in self._cameras:
            self._cameras[size] = Camera(self._shown, height, width, fine)
        state = self._state[row]
        if not np.isfinite(state).all():
            state = np.concatenate([[0.0], self.model.qpos0, np.zeros(len(state) - 1 - self.model.nq)])
        model, data = self._shown, self._looking if self._showing is None else self._showing
        mujoco.mj_setState(model, data, state, STATE)
        for prepare in (mujoco.mj_kinematics, mujoco.mj_comPos, mujoco.mj_tendon, mujoco.mj_camlight):
            prepare(model, data)
        return self._cameras[size].see(data, camera)

    def close(self) -> None:
        """Free threads and OpenGL contexts."""
        self._threads.close()
        for camera in self._cameras.values():
            camera.close()
