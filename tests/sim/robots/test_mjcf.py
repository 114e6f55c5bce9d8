"""Robots from files: what is read, what is added, and one line for every mistake in a stranger's file."""

from __future__ import annotations

import os
from pathlib import Path

import mujoco
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.registry import StrangerError, names_from
from sim.robots import mjcf_file
from sim.robots.mjcf import load
from sim.robots.mjcf_additions import SERVO
from sim.robots.mjcf_control import servo

ARM = Path(mjcf_file.__file__).with_name("simple_arm.xml").read_text()
URDF = """<robot name="two link">
  <link name="ground"/>
  <link name="rod"><inertial><origin xyz="0 0 0.5"/><mass value="2"/>
    <inertia ixx="0.01" iyy="0.01" izz="0.01" ixy="0" ixz="0" iyz="0"/></inertial>
    <collision><origin xyz="0 0 0.5"/><geometry>GEOMETRY</geometry></collision></link>
  <link name="slider"><inertial><mass value="1"/>
    <inertia ixx="0.01" iyy="0.01" izz="0.01" ixy="0" ixz="0" iyz="0"/></inertial>
    <collision><geometry><sphere radius="0.05"/></geometry></collision></link>
  <joint name="swing" type="revolute"><parent link="ground"/><child link="rod"/><axis xyz="0 1 0"/>
    <limit lower="-1" upper="2" effort="30" velocity="1"/></joint>
  <joint name="glide" type="prismatic"><parent link="rod"/><child link="slider"/><origin xyz="0 0 0.9"/>
    <axis xyz="0 0 1"/><limit lower="0.1" upper="0.3" effort="50" velocity="1"/></joint>
</robot>"""
BOX = '<box size="0.05 0.05 0.4"/>'
TETRAHEDRON = "v 0 0 0\nv .1 0 0\nv 0 .1 0\nv 0 0 .1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"


def written(folder: Path, text: str, name: str = "robot.xml") -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def body(inner: str, rest: str = "") -> str:
    return f'<mujoco><worldbody><body name="link">{inner}<geom size="0.1"/></body></worldbody>{rest}</mujoco>'


def test_ours_are_what_they_say() -> None:
    arm, walker = load("simple_arm"), load("simple_quadruped", free=True)
    assert [joint.name for joint in arm.joints] == ["turn", "lift", "bend", "tilt"]
    assert [signal.name for signal in arm.sensed()] == ["joint_position", "joint_velocity"]
    (command,) = arm.commands
    assert (command.name, command.shape, command.unit, command.low, command.high) == (
        "position_target", (4,), "rad", -2.6, 2.6)  # fmt: skip
    np.testing.assert_allclose(arm.home, [0.0, 0.3, 1.2, 0.3])
    assert arm.base == 0 and arm.tip == ("body", arm.model.body("wrist").id)
    assert load("simple_arm", tip="tip").tip == ("site", 0)
    assert walker.model.body(walker.base).name == "trunk" and len(walker.joints) == 8


def test_a_robot_stands_on_the_floor_where_it_begins() -> None:
    robot = load("simple_quadruped", free=True)
    data = mujoco.MjData(robot.model)
    data.qpos[:] = robot.start
    mujoco.mj_forward(robot.model, data)
    assert data.ncon >= 2 and all(abs(contact.dist) < 1e-3 for contact in data.contact)


def test_a_urdf_gets_servos_critically_damped_within_its_limits_of_effort(tmp_path: Path) -> None:
    robot = load(written(tmp_path, URDF.replace("GEOMETRY", BOX), "robot.urdf"))
    assert robot.name == "two_link" and [a.kind for a in robot.actuators] == ["position"] * 2
    assert [c.name for c in robot.commands] == ["position_target", "slide_target"]
    assert [s.unit for s in robot.sensed()] == ["rad", "rad/s", "m", "m/s"]
    np.testing.assert_allclose((robot.low, robot.high), [[-1.0, 0.1], [2.0, 0.3]])
    np.testing.assert_allclose(robot.home, [0.0, 0.1])  # zero, within the limits
    stiffness, damping = robot.model.actuator_gainprm[:, 0], -robot.model.actuator_biasprm[:, 2]
    rod, slider = 2.0 * 0.5**2 + 0.01, 1.0 * 1.2**2 + 0.01  # about the joint, the slider far out
    assert 0.9 * (rod + slider) * SERVO**2 < stiffness[0] <= (rod + slider) * SERVO**2
    np.testing.assert_allclose(stiffness[1], 1.0 * SERVO**2)
    np.testing.assert_allclose(damping, 2.0 * stiffness / SERVO)
    data = mujoco.MjData(robot.model)
    data.qpos[:], data.ctrl[:] = robot.start, [2.0, 0.3]
    mujoco.mj_forward(robot.model, data)
    np.testing.assert_allclose(data.qfrc_actuator, [30.0, 50.0])


def test_a_urdf_on_a_free_base_stands_on_a_floor(tmp_path: Path) -> None:
    robot = load(written(tmp_path, URDF.replace("GEOMETRY", BOX), "robot.urdf"), free=True)
    assert robot.model.body(robot.base).name == "ground" and robot.model.nq == 7 + 2
    np.testing.assert_allclose(robot.model.actuator_gainprm[:, 0], [60.0, 100.0])  # the effort, at half a radian


@pytest.mark.parametrize("reference", ["part.obj", "package://some_robot/meshes/part.obj", "package://meshes/part.obj"])
def test_meshes_are_found_beside_the_file_and_in_packages(tmp_path: Path, reference: str) -> None:
    folder = tmp_path / "some_robot"
    written(folder, TETRAHEDRON, "meshes/part.obj" if "package" in reference else "urdf/part.obj")
    path = written(folder, URDF.replace("GEOMETRY", f'<mesh filename="{reference}"/>'), "urdf/robot.urdf")
    robot = load(path)
    assert robot.model.nmesh == 1
    mesh = next(folder.rglob("part.obj"))
    mesh.write_text(TETRAHEDRON.replace(".1", ".2"))
    assert load(path).sha256 != robot.sha256
    mesh.unlink()
    with pytest.raises(ValueError, match=r"robot\.urdf: .*part\.obj' is not there"):
        load(path)


def test_includes_that_grow_as_a_tree_are_counted(tmp_path: Path) -> None:
    (tmp_path / "c.xml").write_text("<mujoco/>")
    (tmp_path / "b.xml").write_text("<mujoco>" + '<include file="c.xml"/>' * 100 + "</mujoco>")
    path = written(tmp_path, "<mujoco>" + '<include file="b.xml"/>' * 100 + "</mujoco>")
    with pytest.raises(ValueError, match="includes more than 1000 files"):
        load(path)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ('<asset><hfield name="h" nrow="20000" ncol="20000" size="1 1 1 1"/></asset>', "makes more than 67108864"),
        ('<asset><texture name="t" type="2d" builtin="flat" width="9000" height="9000"/></asset>', "makes more than"),
        ('<size nuserdata="100000000"/>', "makes more than"),
        (
            '<worldbody><replicate count="200"><replicate count="200"><site/></replicate></replicate></worldbody>',
            "copies",
        ),
        ('<worldbody><flexcomp name="f" count="1000 1000 1000" spacing="1 1 1"/></worldbody>', "makes more than"),
        ('<worldbody><flexcomp name="f" count="1e999 1 1" spacing="1 1 1"/></worldbody>', "makes more than"),
        ("<worldbody>" + '<replicate count="10000"><site/><site/></replicate>' * 51 + "</worldbody>", "of elements"),
        ('<asset><texture name="t" builtin="flat" width="4000" height="1"/></asset>', "makes more than"),
        (
            '<asset><texture type="2d" builtin="flat" width="99" height="99" nchannel="9999"/></asset>',
            "makes more than",
        ),
        ('<asset><mesh name="m" builtin="plate" params="9000 9000"/></asset>', "makes more than"),
        ('<asset><mesh name="m" builtin="cone" params="1e200 1"/></asset>', "makes more than"),
        ("<asset>" + '<mesh builtin="sphere" params="4"/>' * 27_000 + "</asset>", "makes more than"),
        ('<sensor><user dim="100000000"/></sensor>', "makes more than"),
        ('<custom><numeric name="n" size="100000000"/></custom>', "makes more than"),
        ('<actuator><general actdim="100000000"/></actuator>', "makes more than"),
        (f'<size nuser_site="99999"/><worldbody>{"<site/>" * 1000}</worldbody>', "makes more than"),
        (f'<worldbody><site user="{"1 " * 99_999}"/>{"<site/>" * 1000}</worldbody>', "makes more than"),
        (f'<size nkey="9999"/><worldbody>{"<body><freejoint/></body>" * 1000}</worldbody>', "makes more than"),
        (f"{'<a>' * 50_000}{'</a>' * 50_000}", "MuJoCo cannot use"),
    ],
    ids=range(19),
)
def test_a_small_file_does_not_make_a_large_model(tmp_path: Path, part: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        load(written(tmp_path, f"<mujoco>{part}</mujoco>"))


def test_includes_in_one_another_have_an_end(tmp_path: Path) -> None:
    for number in range(990):
        (tmp_path / f"{number}.xml").write_text(f'<mujoco><include file="{number + 1}.xml"/></mujoco>')
    with pytest.raises(ValueError, match=r"50\.xml: it lies 50 files deep, and includes more"):
        load(str(tmp_path / "0.xml"))


def test_what_is_included_is_copied_with_what_includes_it(tmp_path: Path) -> None:
    (tmp_path / "b.xml").write_text('<mujoco><replicate count="200"><site/></replicate></mujoco>')
    inner = '<replicate count="200"><include file="b.xml"/></replicate>'
    with pytest.raises(ValueError, match="make more than 10000 copies"):
        load(written(tmp_path, f"<mujoco><worldbody>{inner}</worldbody></mujoco>"))


def test_attached_models_are_counted_as_often_as_they_are_attached(tmp_path: Path) -> None:
    for number in range(8):
        attached = "".join(f'<attach model="m" body="link" prefix="{k}_"/>' for k in range(10))
        inner = body(attached, f'<asset><model name="m" file="{number + 1}.xml"/></asset>')
        (tmp_path / f"{number}.xml").write_text(inner)
    (tmp_path / "8.xml").write_text(body(""))
    with pytest.raises(ValueError, match="copies of elements"):
        load(str(tmp_path / "0.xml"))


@pytest.mark.parametrize("name", ['name="m"', ""])
def test_what_is_attached_is_held_to_the_same_limits(tmp_path: Path, name: str) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/m.xml").write_text(body('<replicate count="200"><site/></replicate>').replace(
        "<mujoco>", '<mujoco model="m">'))  # fmt: skip
    assets = f'<asset><model {name} file="parts/m.xml"/></asset>'
    few = f'<worldbody><frame><attach model="m" body="link" prefix="p"/></frame></worldbody>{assets}'
    many = few.replace("frame>", 'replicate count="99">', 1).replace("</frame", "</replicate")
    whole = ARM.replace("<worldbody>", "<worldbody><site/>", 1)
    assert load(written(tmp_path, whole.replace("</mujoco>", few + "</mujoco>"))).model.nsite > 200
    with pytest.raises(ValueError, match="more than 10000 copies"):
        load(written(tmp_path, whole.replace("</mujoco>", many + "</mujoco>")))


def test_a_model_that_attaches_itself_is_refused(tmp_path: Path) -> None:
    """MuJoCo would read it until the stack ends, and the process with it."""
    path = written(tmp_path, body("", '<asset><model name="m" file="robot.xml"/></asset>'))
    with pytest.raises(ValueError, match=r"attaches 'robot.xml', which leads back to it"):
        load(path)
    (tmp_path / "robot.xml").write_text(body("", '<asset><model name="m" file="gone.xml"/></asset>'))
    with pytest.raises(ValueError, match=r"attaches 'gone.xml', which is not there"):
        load(path)


ATTACHED = '<worldbody><frame><attach model="m" body="link" prefix="p"/></frame></worldbody>'
INCLUDES = {"parts/i.xml": "parts/m.xml", "parts/inner/i.xml": "parts/inner/m.xml"}  # and the model that MuJoCo takes


def includes_a_model(folder: Path, inside: str) -> str:
    """A robot whose include, or the include of that, names m.xml."""
    written(folder, '<mujoco><asset><model name="m" file="m.xml"/></asset></mujoco>', inside)
    if inside != "parts/i.xml":
        written(folder, f'<mujoco><include file="{inside.removeprefix("parts/")}"/></mujoco>', "parts/i.xml")
    return written(folder, ARM.replace("</mujoco>", f'<include file="parts/i.xml"/>{ATTACHED}</mujoco>'))


@pytest.mark.parametrize(("inside", "taken"), INCLUDES.items())
def test_a_model_stands_beside_the_file_that_names_it(tmp_path: Path, inside: str, taken: str) -> None:
    path = includes_a_model(tmp_path, inside)
    written(tmp_path, body("<site/>"), taken)
    alone = load(path)
    assert alone.model.nsite == load("simple_arm").model.nsite + 1
    for other in {"m.xml", "parts/m.xml"} - {taken}:
        written(tmp_path, body("<site/><site/>"), other)
    assert load(path).sha256 == alone.sha256
    written(tmp_path, body("<site/>") + "\n", taken)
    assert load(path).sha256 != alone.sha256
    written(tmp_path, body('<replicate count="20000"><site/></replicate>'), taken)
    with pytest.raises(ValueError, match="make more than 10000 copies"):
        load(path)


@pytest.mark.parametrize(("inside", "taken"), INCLUDES.items())
def test_a_model_that_attaches_itself_is_refused_in_an_include_too(tmp_path: Path, inside: str, taken: str) -> None:
    path = includes_a_model(tmp_path, inside)
    for name in ("m.xml", "parts/m.xml"):
        written(tmp_path, body(""), name)
    written(tmp_path, body("", '<asset><model name="m" file="m.xml"/></asset>'), taken)
    with pytest.raises(ValueError, match=r"attaches 'm.xml', which leads back to it"):
        load(path)


def test_ordinary_sizes_are_no_large_model(tmp_path: Path) -> None:
    made = """<size nuser_body="4" nkey="3"/>
    <asset><texture name="s" type="skybox" builtin="gradient" width="512" height="3072"/>
    <mesh name="m" builtin="sphere" params="4"/></asset><worldbody>"""
    assert load(written(tmp_path, ARM.replace("<worldbody>", made, 1))).model.ntexdata == 6 * 512 * 512 * 3


def test_includes_are_part_of_the_robot(tmp_path: Path) -> None:
    start, end = ARM.index("<actuator>"), ARM.index("</actuator>") + len("</actuator>")
    path = written(tmp_path, ARM[:start] + '<include file="parts/motors.xml"/>' + ARM[end:])
    part = f"<mujoco>{ARM[start:end]}</mujoco>"
    with pytest.raises(ValueError, match=r"includes 'parts/motors.xml', which is not there"):
        load(path)
    motors = Path(written(tmp_path, part, "parts/motors.xml"))
    robot = load(path)
    assert len(robot.actuators) == 4 and load(path).sha256 == robot.sha256
    motors.write_text(part.replace("-2.6", "-2.5"))
    assert load(path).sha256 != robot.sha256
    motors.write_text('<mujoco><include file="../robot.xml"/></mujoco>')
    with pytest.raises(ValueError, match="leads back to it|which is not there"):
        load(path)


HINGE = '<joint name="hinge"/>'
MISTAKES = {
    "junk": ("this is not XML", "this is no XML"),
    "another format": ("<sdf/>", "begins with <sdf>"),
    "nothing moves": (body(""), "no joint that moves"),
    "a ball joint": (body('<joint type="ball"/>'), "is a ball joint"),
    "an unknown word": (body('<joint colour="red"/>'), "MuJoCo cannot use this model: .*colour"),
    "no mass": ("<mujoco><worldbody><body><joint/></body></worldbody></mujoco>", "MuJoCo cannot use this model"),
    "a free base": (body("<freejoint/>" + f'<body>{HINGE}<geom size=".1"/></body>'), "its base is free"),
    "an endless motor": (body(HINGE, '<actuator><motor name="m" joint="hinge"/></actuator>'), "'m' has no ctrlrange"),
    "a missing mesh": ('<mujoco><asset><mesh name="m" file="m.obj"/></asset></mujoco>', "'m.obj' is not there"),
    "too much memory": (body(HINGE).replace("<worldbody>", '<size memory="900000G"/><worldbody>'), "MuJoCo cannot use"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_a_file_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ValueError, match=said) as error:
        load(path)
    assert path in str(error.value) and "\n" not in str(error.value)


def test_what_a_person_says_wrong_is_listed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nope\.urdf: there is no such file"):
        load("nope.urdf")
    with pytest.raises(ValueError, match="one of ours .*simple_arm.* or a path"):
        load("simple_rm")
    with pytest.raises(ValueError, match="no site or body 'hand'; there are: tip, world, shoulder"):
        load("simple_arm", tip="hand")
    with pytest.raises(ValueError, match=r"start takes 4 numbers.*turn \(-2.6 to 2.6\)"):
        load("simple_arm", start=[0.0])
    with pytest.raises(ValueError, match="beyond the joints' limits"):
        load("simple_arm", start=[3.0, 0.0, 1.0, 0.0])
    os.mkfifo(tmp_path / "robot.xml")  # reading it would wait for ever
    with pytest.raises(ValueError, match="no such file"):
        load(str(tmp_path / "robot.xml"))


def test_a_file_does_not_make_us_open_files(tmp_path: Path) -> None:
    path = written(tmp_path, ARM)
    with names_from("policy.onnx"):
        assert load("simple_arm").name == "simple_arm"
        with pytest.raises(StrangerError, match="policy.onnx names the robot .*name it yourself with robot="):
            load(path)
    with names_from("policy.onnx", path):
        assert load(path).name == "simple_arm"


@given(cut=st.integers(0, len(ARM)), junk=st.text("<>/=\"' aj0\x00\n\u00e9", max_size=8), drop=st.integers(0, 40))
def test_a_damaged_file_is_refused_in_one_line_or_is_a_robot(
    tmp_path_factory: pytest.TempPathFactory, cut: int, junk: str, drop: int
) -> None:
    path = written(tmp_path_factory.mktemp("damaged"), ARM[:cut] + junk + ARM[cut + drop :])
    try:
        robot = load(path)
    except ValueError as error:
        assert "\n" not in str(error) and path in str(error)
    else:
        assert np.isfinite(robot.start).all() and robot.commands


@given(seed=st.integers(0, 999))
def test_kinematics_are_what_finite_differences_say(seed: int) -> None:
    robot, rng = load("simple_arm", tip="tip"), np.random.default_rng(seed)
    joints = rng.uniform(robot.low, robot.high)
    data, tip = next(robot.forward(joints[None]))
    jacobian = robot.jacobian(data)
    moved = np.stack([next(robot.forward((joints + 1e-6 * step)[None]))[1] for step in np.eye(4)])
    np.testing.assert_allclose((moved - tip).T / 1e-6, jacobian, atol=1e-4)


@pytest.mark.parametrize("actuators", ["position", "motor"])
def test_what_the_servos_are_told_holds_a_pose_against_gravity(tmp_path: Path, actuators: str) -> None:
    text = ARM if actuators == "position" else motors(ARM)
    robot = load(written(tmp_path, text))
    pose = np.array([[0.4, 0.9, 1.0, -0.2]])
    data, _ = next(robot.forward(pose, np.zeros((1, 4))))
    data.ctrl[:] = servo(robot, data, pose[0], np.zeros(4), 10.0)
    mujoco.mj_forward(robot.model, data)
    np.testing.assert_allclose(data.qacc, 0.0, atol=1e-6)


def motors(text: str) -> str:
    """The arm with motors in the place of its servos."""
    start, end = text.index("<actuator>"), text.index("</actuator>")
    made = "".join(
        f'<motor name="{n}" joint="{n}" gear="40" ctrlrange="-1 1"/>' for n in ("turn", "lift", "bend", "tilt")
    )
    return text[:start] + "<actuator>" + made + text[end:]
