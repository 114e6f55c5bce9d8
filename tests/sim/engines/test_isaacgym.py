"""Isaac Gym without Isaac Gym: frames, the robot that is handed over, the bridge with real processes, and signatures.

What calls gymapi itself never runs here. All else does: behind the same bridge MuJoCo steps the robot from the URDF
that Isaac Gym would get, and speaks as PhysX does (`mujoco_worker.py`).
"""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import mujoco
import numpy as np
import pybullet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engines.isaacgym import IsaacScene, bridge, worker
from sim.engines.isaacgym.bridge import DEVICE, PYTHON, Bridge, IsaacGymError
from sim.engines.isaacgym.frames import of_point, to_mujoco, to_physx
from sim.engines.isaacgym.model import UnsteppableError, describe
from sim.engines.scene import Scene
from sim.env import with_engine
from sim.robots.legs import Legs
from sim.robots.mjcf_legged import load
from sim.tasks import make

ROOT = Path(__file__).resolve().parents[3]
BEHIND = Path(__file__).with_name("mujoco_worker.py")
ROBOTS = ("simple_quadruped", "simple_humanoid")
STEPS = 2


def gone_now(process: int) -> bool:
    """Whether a process has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def gone(process: int) -> bool:
    """Whether it has, within some seconds."""
    for _ in range(100):
        if gone_now(process):
            return True
        time.sleep(0.1)
    return False


class Behind(IsaacScene):
    """What `IsaacScene` is, with MuJoCo in the worker."""

    def bridge(self) -> Bridge:
        return Bridge(sys.executable, BEHIND)


# Frames.

numbers = st.floats(-5.0, 5.0, width=32)


def rows(count: int) -> st.SearchStrategy[np.ndarray]:
    return st.lists(st.lists(numbers, min_size=count, max_size=count), min_size=2, max_size=2).map(np.array)


@settings(deadline=None)
@given(rows(3), rows(4), rows(6), rows(3))
def test_frames_lead_there_and_back(position: np.ndarray, quaternion: np.ndarray, qvel: np.ndarray, centre: np.ndarray):
    quaternion = np.add(quaternion, [10.0, 0.0, 0.0, 0.0])  # never of length zero
    quaternion /= np.linalg.norm(quaternion, axis=1, keepdims=True)
    qpos = np.concatenate([position, quaternion], axis=1)
    again = to_mujoco(to_physx(qpos, qvel, centre), centre)
    np.testing.assert_allclose(again[0], qpos, atol=1e-9)
    np.testing.assert_allclose(again[1], qvel, atol=1e-9)


@settings(deadline=None, max_examples=30)
@given(rows(3), rows(4), rows(6), rows(3), rows(3))
def test_frames_are_those_of_mujoco(
    position: np.ndarray, quaternion: np.ndarray, qvel: np.ndarray, centre: np.ndarray, point: np.ndarray
):
    """A box off its body's origin: MuJoCo itself says how its centre and a site move."""
    middle, site = (" ".join(map(repr, values.tolist())) for values in (centre[0], point[0]))
    model = mujoco.MjModel.from_xml_string(
        f"""<mujoco><worldbody><body name="box"><freejoint/><geom type="box" size=".1 .2 .3" pos="{middle}"/>
        <site name="point" pos="{site}"/></body></worldbody></mujoco>"""
    )
    data = mujoco.MjData(model)
    quaternion = np.add(quaternion, [10.0, 0.0, 0.0, 0.0])  # never of length zero
    quaternion /= np.linalg.norm(quaternion, axis=1, keepdims=True)
    data.qpos[:], data.qvel[:] = [*position[0], *quaternion[0]], qvel[0]
    mujoco.mj_forward(model, data)
    state = to_physx(data.qpos[None], data.qvel[None], model.body_ipos[1:])
    body, found = np.zeros(6), np.zeros(6)
    mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_BODY, 1, body, 0)  # at the centre of mass
    np.testing.assert_allclose(state[0, 7:10], body[3:], atol=1e-4)
    np.testing.assert_allclose(state[0, 10:], body[:3], atol=1e-4)
    np.testing.assert_allclose(state[0, 3:7], np.roll(data.qpos[3:7], -1))
    mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_SITE, 0, found, 0)
    where, moves = of_point(state, model.body_ipos[1:], model.site_pos[0])
    np.testing.assert_allclose(where[0], data.site_xpos[0], atol=1e-6)
    np.testing.assert_allclose(moves[0], found[3:], atol=1e-4)


# The robot.


@pytest.mark.parametrize("name", ROBOTS)
def test_another_program_reads_the_same_robot(name: str, tmp_path: Path):
    """PyBullet, from the URDF: masses, and where bodies are in random poses."""
    robot = load(name, [], Legs(contacts="floor"))
    model, told = robot.physics, describe(robot.physics)
    (tmp_path / "robot.urdf").write_text(told.urdf)
    client = pybullet.connect(pybullet.DIRECT)
    try:
        flags = pybullet.URDF_USE_INERTIA_FROM_FILE | pybullet.URDF_MAINTAIN_LINK_ORDER
        body = pybullet.loadURDF(str(tmp_path / "robot.urdf"), flags=flags, physicsClientId=client)
        links = {"body1": -1}
        joints = {}
        for number in range(pybullet.getNumJoints(body, physicsClientId=client)):
            info = pybullet.getJointInfo(body, number, physicsClientId=client)
            links[info[12].decode()], joints[info[1].decode()] = number, number
        names = told.names
        assert set(names[1]) == set(links) and set(names[0]) == set(joints)
        for mjcf, link in zip(told.bodies, names[1], strict=True):
            dynamics = pybullet.getDynamicsInfo(body, links[link], physicsClientId=client)
            assert dynamics[0] == pytest.approx(model.body_mass[mjcf], rel=1e-6)
            np.testing.assert_allclose(dynamics[2], model.body_inertia[mjcf], rtol=1e-5)
        data, rng = mujoco.MjData(model), np.random.default_rng(0)
        data.qpos[:7] = [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
        for _ in range(3):
            for joint, link in zip(told.joints, names[0], strict=True):
                angle = float(rng.uniform(*model.jnt_range[joint]))
                data.qpos[model.jnt_qposadr[joint]] = angle
                pybullet.resetJointState(body, joints[link], angle, physicsClientId=client)
            mujoco.mj_kinematics(model, data)
            pose = pybullet.getBasePositionAndOrientation(body, physicsClientId=client)
            offset = pybullet.invertTransform(*pybullet.getDynamicsInfo(body, -1, physicsClientId=client)[3:5])
            base = pybullet.multiplyTransforms(*pose, *offset)
            inverse = pybullet.invertTransform(*base)
            for mjcf, link in zip(told.bodies[1:], names[1][1:], strict=True):
                state = pybullet.getLinkState(body, links[link], computeForwardKinematics=1, physicsClientId=client)
                at = pybullet.multiplyTransforms(*inverse, *state[4:6])[0]
                np.testing.assert_allclose(at, data.xpos[mjcf], atol=1e-5, err_msg=link)
    finally:
        pybullet.disconnect(client)


LEG = """<mujoco><worldbody>{floor}<body name="trunk" pos="0 0 .4">{free}<geom type="box" size=".1 .1 .05"/>
  <body name="leg" pos="0 0 -.05"><joint name="hip" axis="0 1 0" {joint}/>{more}
  <geom type="{geom}" size=".03 .1 .02" pos="0 0 -.2" contype="0" conaffinity="1"/></body></body>{other}</worldbody>
  <actuator><position name="hip" joint="hip" kp="50" {servo}/></actuator>{rest}</mujoco>"""
PLAIN = {"floor": '<geom type="plane" size="1 1 1"/>', "free": "<freejoint/>", "geom": "sphere"}
WRONG = {
    "a single robot whose base is free": {"free": ""},
    "single robot": {"other": '<body pos="2 0 1"><freejoint/><geom size=".1"/></body>'},
    "one level plane": {"floor": '<geom type="plane" size="1 1 1" euler="5 0 0"/>'},
    "without a floor": {"floor": ""},
    "mjGEOM_ELLIPSOID": {"geom": "ellipsoid"},
    "joint 'hip', which has a spring": {"joint": 'stiffness="1"'},
    "joint 'hip', which is off its body": {"joint": 'pos="0 0 .1"'},
    "whose reference is not zero": {"joint": 'ref="10"'},
    "more than one joint": {"more": '<joint axis="1 0 0"/>'},
    "actuator 1": {"servo": "/><motor joint='hip'"},
    "with a state": {"servo": 'timeconst=".1"'},
    "equality": {"rest": '<equality><joint joint1="hip"/></equality>'},
    "fixed to the world": {"other": '<body name="post"><geom size=".1" contype="0" conaffinity="0"/></body>'},
    "air that moves": {"rest": '<option wind="1 0 0"/>'},
    "sensor": {"rest": '<sensor><jointpos joint="hip"/></sensor>'},
}


def leg(**changed: str) -> mujoco.MjModel:
    parts = {name: "" for name in ("joint", "more", "other", "servo", "rest")} | PLAIN | changed
    text = LEG.format(**parts)
    text = text.replace(
        '<geom type="box" size=".1 .1 .05"/>', '<geom type="box" size=".1 .1 .05" contype="0" conaffinity="0"/>'
    )
    return mujoco.MjModel.from_xml_string(text)


def test_a_plain_leg_is_taken():
    told = describe(leg())
    assert told.urdf.count("<collision>") == 1 and told.names == (["joint1"], ["body1", "body2"])
    assert describe(leg(geom="capsule")).urdf.count("<sphere") == 2
    assert describe(leg(geom="cylinder")).urdf.count("<cylinder") == 1


@pytest.mark.parametrize("said", WRONG)
def test_what_isaac_gym_cannot_step_is_refused_by_name(said: str):
    with pytest.raises(UnsteppableError, match=f"isaacgym cannot step .*{said}.*; engine=mujoco can"):
        describe(leg(**WRONG[said]))


def test_parts_that_touch_one_another_are_refused():
    with pytest.raises(UnsteppableError, match="touch one another: contacts=feet or floor"):
        describe(load("simple_quadruped", [], Legs(contacts="all")).physics)
    with pytest.raises(UnsteppableError, match="single robot"):
        make_world("kick")
    with pytest.raises(UnsteppableError, match="tendons"):
        make_world("get_up", held=[0.0, 0.5])


def make_world(name: str, **changed):
    return with_engine(make(name, **changed), "isaacgym").open(1, 0)


def test_dry_friction_is_left_out_with_a_warning():
    with pytest.warns(UserWarning, match=r"leaves out the dry friction .* of joints: hip"):
        describe(leg(joint='frictionloss=".1"'))


# The bridge: without Isaac Gym.


def test_without_an_interpreter_it_says_what_was_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv(PYTHON, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(IsaacGymError, match=r"tried python3\.8, which is not on the path; .*developer\.nvidia\.com"):
        make_world("velocity")
    monkeypatch.setenv(PYTHON, "/nowhere/python")
    with pytest.raises(IsaacGymError, match=f"tried {PYTHON}=/nowhere/python, which is no program; .*Preview 4"):
        make_world("velocity")
    monkeypatch.setenv(DEVICE, "abacus")
    with pytest.raises(IsaacGymError, match=f"{DEVICE}=abacus is not one of gpu, cpu"):
        bridge.on_gpu()


def test_the_worker_itself_says_that_isaac_gym_is_absent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(PYTHON, sys.executable)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(IsaacGymError, match=f"tried {sys.executable}: No module named 'isaacgym'; .*{PYTHON}="):
        make_world("velocity")
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # MuJoCo's threads may keep one


def test_an_interpreter_without_numpy_says_so(tmp_path: Path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(IsaacGymError, match=r"is gone; it printed .*No module named .*numpy.*Preview 4"):
        Bridge(str(bare))


def old_python() -> str:
    """A Python 3.8 with numpy on this machine."""
    found = shutil.which("python3.8")
    done = found and subprocess.run([found, "-c", "import numpy"], capture_output=True).returncode == 0
    if not found or not done:
        pytest.skip("there is no python3.8 with numpy on the path")
    return found


@pytest.mark.parametrize("which", ["ours", "3.8"])
def test_arrays_go_both_ways(which: str, tmp_path: Path):
    """A simulation that adds: what is there is told where it was read."""
    program = tmp_path / "adding.py"
    program.write_text(
        f"""import importlib.util
spec = importlib.util.spec_from_file_location("worker", {str(worker.__file__)!r})
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)


class Adding:
    version = "1.5"

    def __init__(self, plan, arrays):
        self.arrays = arrays

    def step(self):
        if self.arrays["set"][0] > 3:  # the third step
            raise RuntimeError("three are too many")
        for number, values in enumerate(self.arrays.values()):
            values += number


print("noise on standard output is no message")
worker.main(Adding)
"""
    )
    made = Bridge(sys.executable if which == "ours" else old_python(), program)
    assert made.open(plan()) == "1.5"
    rng = np.random.default_rng(0)
    expected = {name: rng.random(values.shape, np.float32) for name, values in made.arrays.items()}
    for name, values in expected.items():
        made.arrays[name][:] = values
    made.step()
    made.step()
    for number, (name, values) in enumerate(expected.items()):
        np.testing.assert_allclose(made.arrays[name], values + 2.0 * number, rtol=1e-6, err_msg=name)
    with pytest.raises(IsaacGymError, match="failed: RuntimeError: three are too many"):
        made.step()
    assert made.process.poll() is not None


def test_the_worker_runs_under_python_3_8():
    with pytest.raises(IsaacGymError, match="No module named 'isaacgym'"):
        Bridge(old_python()).open(plan())


def plan() -> dict:
    told = describe(load("simple_quadruped", [], Legs()).physics)
    joints, bodies = told.names
    return {"num": 1, "steps": STEPS, "joints": joints, "bodies": bodies}


# The bridge: with a simulation.


@pytest.fixture(scope="module")
def scene():
    robot = load("simple_quadruped", [], Legs(timestep=0.01))
    made = Behind(robot.physics, 3, 0.02)
    yield made, robot
    made.close()


def test_worlds_are_stepped_as_in_mujoco(scene):
    """Thrown into the air, each with other masses, servos and targets; and then left alone."""
    made, robot = scene
    other = Scene(robot.physics, 3, 0.02)
    rng = np.random.default_rng(3)

    def change(model):
        factor = np.r_[1.0, np.linspace(0.8, 1.2, model.nbody - 1)]
        model.body_mass[:] *= factor
        model.body_inertia[:] *= factor[:, None]
        model.body_ipos[robot.base] += (0.02, -0.01, 0.01)
        model.body_sameframe[robot.base] = 0  # or MuJoCo overlooks it
        model.actuator_gainprm[:, 0] *= 1.1
        model.actuator_biasprm[:, 1] *= 1.1
        model.dof_damping[6:] *= 0.9

    qpos = np.tile(robot.start, (3, 1))
    qpos[:, 2] += 3.0
    qpos[:, 3:7] = rng.standard_normal((3, 4))
    qpos[:, 3:7] /= np.linalg.norm(qpos[:, 3:7], axis=1, keepdims=True)
    qvel = rng.normal(0.0, 1.0, (3, robot.physics.nv))
    for one in (made, other):
        one.vary(1, change)
        one.reset(range(3), qpos, qvel)
    for step in range(8):
        control = robot.rest + rng.uniform(-0.3, 0.3, (3, 8))
        for one in (made, other):
            if step == 4:
                one.qvel[:, :2] += [0.3, -0.2]  # a push, as tasks do it
            one.step(control, robot.rest[None], np.array([0, 1, 2]))
        signs = np.sign((made.qpos[:, 3:7] * other.qpos[:, 3:7]).sum(axis=1, keepdims=True))
        made_pose = made.qpos.copy()
        made_pose[:, 3:7] *= signs
        np.testing.assert_allclose(made_pose, other.qpos, atol=2e-3)
        np.testing.assert_allclose(made.qvel, other.qvel, atol=5e-2)
        felt = robot.felt(made.sensed)
        assert not felt["touch"].any()
        for number in range(4):
            np.testing.assert_allclose(felt["position"][:, number], made.pose("site", f"foot_{number}")[0], atol=1e-4)
    other.close()


def test_feet_bear_the_weight(scene):
    made, robot = scene
    made.vary(1, lambda model: None)
    made.reset(range(3), np.tile(robot.start, (3, 1)))
    for _ in range(100):
        made.step(np.tile(robot.rest, (3, 1)))
    weight = 9.81 * robot.physics.body_subtreemass[robot.base]
    np.testing.assert_allclose(robot.felt(made.sensed)["touch"].sum(axis=(1, 2)), weight, rtol=0.02)


def test_worlds_that_differ_otherwise_are_refused(scene):
    made, _robot = scene
    with pytest.raises(UnsteppableError, match="worlds that differ in jnt_range"):
        made.vary(2, lambda model: model.jnt_range.__setitem__(1, (-0.1, 0.1)))

    def heavier(model):
        model.body_mass[:] *= 2.0

    with pytest.raises(UnsteppableError, match="inertias do not follow"):
        made.vary(2, heavier)
    made.vary(2, lambda model: None)


@pytest.mark.parametrize("otherwise", ["wxyz", "origin", "joints"])
def test_a_simulation_that_speaks_otherwise_is_refused(otherwise: str, tmp_path: Path):
    program = tmp_path / "worker.py"
    program.write_text(
        f"import runpy, sys\nsys.argv.append({otherwise!r})\nrunpy.run_path({str(BEHIND)!r}, run_name='__main__')\n"
    )

    class Otherwise(IsaacScene):
        def bridge(self) -> Bridge:
            return Bridge(sys.executable, program)

    robot = load("simple_quadruped", [], Legs(timestep=0.01))
    model = robot.physics
    model.body_ipos[robot.base] += (0.1, 0.0, 0.0)  # far from the origin, so that it matters
    mujoco.mj_setConst(model, mujoco.MjData(model))
    with pytest.raises(IsaacGymError, match=r"does not step this robot as MuJoCo does: .*; engine=mujoco can"):
        Otherwise(model, 2, 0.02)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["velocity", "walk"])
def test_tasks_on_legs_open_behind_the_bridge(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(IsaacScene, "bridge", Behind.bridge)
    task = make(name)
    envs = [with_engine(task, engine).open(2, seed=3) for engine in ("mujoco", "isaacgym")]
    for env in envs:
        env.reset([0, 1], [0, 1])
    for command in np.random.default_rng(0).normal(0.0, 0.05, (10, 2, len(task.robot.actuators))):
        for env in envs:
            env.step({"position_offset": command})
    one, other = (env.truth() for env in envs)
    for known, close in (("joint_position", 0.05), ("height", 0.01), ("foot_height", 0.02), ("vehicle", 1e-6)):
        np.testing.assert_allclose(one[known], other[known], atol=close, err_msg=known)
    for env in envs:
        env.close()


def test_a_worker_that_is_killed_is_one_sentence(scene):
    _made, robot = scene
    lost = Behind(robot.physics, 1, 0.02)
    process = lost._bridge.process
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(IsaacGymError, match="worker .* is gone"):
        lost.step(robot.rest[None])
    assert process.poll() is not None
    with pytest.raises(IsaacGymError, match="was closed"):
        lost.step(robot.rest[None])
    lost.close()


def test_a_worker_that_hangs_is_ended(scene, monkeypatch: pytest.MonkeyPatch):
    _, robot = scene
    hung = Behind(robot.physics, 1, 0.02)
    process = hung._bridge.process
    monkeypatch.setattr(Bridge.step, "__defaults__", (0.5,))
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(IsaacGymError, match=r"did not answer for 0\.5 s, and was ended"):
        hung.step(robot.rest[None])
    assert process.poll() == -signal.SIGKILL
    hung.close()


def test_nothing_stays_behind(scene):
    """Neither a process nor memory with a name nor a descriptor."""
    _, robot = scene
    shared, mine = set(os.listdir("/dev/shm")), len(os.listdir("/proc/self/fd"))
    made = Behind(robot.physics, 2, 0.02)
    made.step(np.tile(robot.rest, (2, 1)))
    assert len(os.listdir("/proc/self/fd")) > mine and set(os.listdir("/dev/shm")) <= shared
    process = made._bridge.process
    made.close()
    assert process.poll() == 0 and len(os.listdir("/proc/self/fd")) == mine
    made.close()  # once more does no harm


def test_a_worker_ends_with_the_program_that_began_it():
    begin = f"""import sys, time
sys.path[:0] = [{str(ROOT)!r}]
from sim.engines.isaacgym.bridge import Bridge
made = Bridge(sys.executable, {str(BEHIND)!r})
print(made.process.pid, flush=True)
time.sleep(600)"""
    with subprocess.Popen([sys.executable, "-c", begin], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        process = int(program.stdout.readline())
        assert not gone_now(process)
        program.kill()
    assert gone(process)


SPEAKS = {
    "said what is no message": r"b'\0\0\0\1{'",
    "a message of 4294967295 bytes": r"b'\xff' * 8",
    "speaks protocol 7": """message({'is': 'hello', 'protocol': 7, 'python': '3.8.1'})""",
    "is Python 3.6.9": """message({'is': 'hello', 'protocol': 1, 'python': '3.6.9'})""",
    "answered 'open', not 'hello'": """message({'is': 'open'})""",
    "is gone; it printed 'libpython3.8.so: not found'": "b''",
}


@pytest.mark.parametrize("said", SPEAKS)
def test_a_program_that_speaks_otherwise_is_ended(said: str, tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text(
        f"""import json, socket, struct, sys
def message(content):
    content = json.dumps(content).encode()
    return struct.pack('>I', len(content)) + content
channel = socket.socket(fileno=int(sys.argv[1]))
print('libpython3.8.so: not found', flush=True)
channel.sendall({SPEAKS[said]})
if {SPEAKS[said]}:
    channel.recv(1)
"""
    )
    with pytest.raises(IsaacGymError, match=re.escape(said)):
        Bridge(sys.executable, program)


# Signatures.

SOURCE = Path(worker.__file__).read_text()
TYPINGS = ROOT / "typings" / "isaacgym" / "gymapi.pyi"


def test_the_worker_is_python_3_8():
    ast.parse(SOURCE, feature_version=(3, 8))
    with pytest.raises(SyntaxError):
        ast.parse("match 1:\n    case _: pass", feature_version=(3, 8))
    tree = ast.parse(SOURCE)
    found = {
        n.names[0].name if isinstance(n, ast.Import) else n.module for n in ast.walk(tree) if isinstance(n, IMPORTS)
    }
    assert {str(name).partition(".")[0] for name in found} - sys.stdlib_module_names == {"numpy", "isaacgym", "torch"}


IMPORTS = (ast.Import, ast.ImportFrom)
Members = dict[str, dict[str, list[str]]]  # class -> member -> names of its parameters; "": the module's own


def members(text: str) -> Members:
    """What a stub declares."""
    found: Members = {"": {}}
    for node in ast.parse(text.replace("def lambda(", "def lambda_(")).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = dict(declared(node.body))
        else:
            found[""] |= dict(declared([node]))
    return found


def declared(body):
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, []
        elif isinstance(node, ast.FunctionDef):
            names = [argument.arg for argument in node.args.args]
            told = (ast.get_docstring(node) or "").partition("\n")[0].partition(" -> ")[0]
            # Where pybind11 knew no types the stub says *args, and its docstring has the names.
            yield node.name, re.findall(r"(\w+): ", told) if node.args.vararg and told else names


def published() -> Members:
    """The package isaacgym-stubs: its file is read, not imported."""
    try:
        files = importlib.metadata.files("isaacgym-stubs") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("isaacgym-stubs is not installed: it comes with sim2metal[test]")
    path = next(file for file in files if file.name == "gymapi.pyi")
    return members(Path(str(path.locate())).read_text())


def test_our_typings_are_a_part_of_the_published_ones():
    theirs = published()
    for kind, ours in members(TYPINGS.read_text()).items():
        for name, parameters in ours.items():
            if name == "__int__":  # of an enumeration of pybind11: the stub has it on others
                continue
            assert kind in theirs, kind
            known = theirs[kind] if name in theirs[kind] else theirs[""] if not kind else {}
            assert name in known or name in theirs, f"{kind}.{name}"
            assert parameters == known[name], f"{kind}.{name}{known[name]}"


def calls() -> list[tuple[str, str, int, list[str]]]:
    """Every call of gymapi and of its Gym in the worker: of what, name, count of arguments, keywords."""
    found = []
    for node in ast.walk(ast.parse(SOURCE)):
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr=name), args=arguments, keywords=keywords):
                kind = {"gymapi": "", "gym": "Gym", "self._gym": "Gym"}.get(ast.unparse(owner))
                if kind is not None:
                    count = sum(2 if isinstance(a, ast.Starred) else 1 for a in arguments)
                    found.append((kind, name, count, [str(k.arg) for k in keywords]))
    return found


def test_the_worker_calls_what_is_published():
    theirs, called = published(), calls()
    assert len(called) > 40
    for kind, name, count, keywords in called:
        if not kind and name in theirs:  # a class, made
            parameters = theirs[name]["__init__"]
        else:
            assert name in theirs[kind], name
            parameters = theirs[kind][name]
        assert set(keywords) <= set(parameters), name
        starred = name in ("Vec3",)  # of three numbers
        assert starred or count + len(keywords) <= len(parameters) - ("self" in parameters), name


def test_the_worker_reads_constants_that_are_published():
    theirs = published()
    named = {
        node.attr
        for node in ast.walk(ast.parse(SOURCE))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "gymapi"
    }
    assert {name for name in named if name.isupper()} >= {"SIM_PHYSX", "DOMAIN_SIM", "DOF_MODE_POS"}
    assert named <= theirs.keys() | theirs[""].keys()


@pytest.mark.slow
def test_the_type_checker_sees_mistakes_in_the_worker(tmp_path: Path):
    lines = [
        '        params.substeps = "2"',
        "        self._gym.simulte(sim)",
        "        ground.frictions = 1.0",
        "        return self._gym.add_ground(sim)",
    ]
    wrong = SOURCE.replace("        return sim\n", "\n".join(lines) + "\n", 1)
    assert wrong != SOURCE
    (tmp_path / "worker.py").write_text(wrong)
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = True\n[mypy-torch.*,numpy.*]\nfollow_imports = skip\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", "cache", "worker.py"],
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": str(ROOT / "typings")},
        capture_output=True,
        text=True,
    )
    for said in ('expression has type "str"', '"Gym" has no attribute "simulte"', '"PlaneParams" has no attribute'):
        assert said in done.stdout, done.stdout + done.stderr
    assert "Missing positional argument" in done.stdout
