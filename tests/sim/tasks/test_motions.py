"""Motions by keyframes: how they go on, files of them, and who gets up by them."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from sim.env import NoExpertError, expert_of
from sim.tasks import make
from sim.tasks.legs.motions import WAIT, Motion, Script, motions_of, read, write

SERVOS = ("hip", "knee")
MOTION = Motion(np.array([0.4, 0.6]), np.array([[1.0, -2.0], [0.0, 0.5]]))


def test_it_goes_smoothly_from_one_keyframe_to_the_next() -> None:
    assert MOTION.duration == 1.0
    told = MOTION.at(np.array([0.0, 0.2, 0.4, 0.7, 1.0, 5.0]))
    wanted = np.array([[0.0, 0.0], [0.5, -1.0], [1.0, -2.0], [0.5, -0.75], [0.0, 0.5], [0.0, 0.5]])
    np.testing.assert_allclose(told, wanted, atol=1e-12)
    time = np.linspace(0.0, 1.2, 1201)
    speed = np.diff(MOTION.at(time), axis=0) / 1e-3
    assert np.abs(speed[[0, 399, 400, 999]]).max() < 0.1 and np.abs(speed).max() > 4.0  # still at each keyframe


def test_a_file_holds_them(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    write(path, SERVOS, {"back": MOTION}, "of a test")
    found = read(path, SERVOS)
    assert list(found) == ["back"] and path.read_text().startswith("# of a test\n")
    np.testing.assert_allclose(found["back"].offsets, MOTION.offsets)
    np.testing.assert_allclose(found["back"].seconds, MOTION.seconds)
    with pytest.raises(ValueError, match="no motion from the front"):
        motions_of("anyone", str(path), SERVOS)
    assert motions_of("anyone", "", SERVOS) == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read"),
        ("a: [", "cannot be read"),
        ("[1, 2]", "servos"),
        ("servos: [knee, hip]", "another robot"),
        ("servos: [hip, knee]\nhead: []", "no way to lie"),
        ("servos: [hip, knee]\nback: []", "needs keyframes"),
        ("servos: [hip, knee]\nback: 3", "needs keyframes"),
        ("servos: [hip, knee]\nback: [{seconds: 1, offsets: [0]}]", "2 offsets"),
        ("servos: [hip, knee]\nback: [{seconds: 1, offsets: [[0], [0]]}]", "2 offsets"),
        ("servos: [hip, knee]\nback: [{seconds: 0, offsets: [0, 0]}]", "seconds"),
        ("servos: [hip, knee]\nback: [{seconds: .nan, offsets: [0, 0]}]", "seconds"),
        ("servos: [hip, knee]\nback: [{seconds: 1, offsets: [0, .inf]}]", "offsets"),
        ("servos: [hip, knee]\nback: [{seconds: 1, offsets: [true, 0]}]", "2 offsets"),
        ("servos: [hip, knee]\nback: [&a {seconds: 1, offsets: [0, 0]}" + ", *a" * 100 + "]", "has 101 keyframes"),
        ("#" * 1_000_001, "at most"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "m.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=said) as error:
        read(path, SERVOS)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_long_rows_that_aliases_repeat_fill_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    rows = ["{seconds: 1, offsets: &a [" + "0," * 20_000 + "]}", *["{seconds: 1, offsets: *a}"] * 99]
    path.write_text(f"servos: [hip, knee]\nback: [{', '.join(rows)}]")
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="2 offsets"):
            read(path, SERVOS)
        # What the rows would be, converted: 100 * 20 000 numbers of 8 bytes, and a list of them.
        assert tracemalloc.get_traced_memory()[1] < 32e6
    finally:
        tracemalloc.stop()


def test_any_names_of_joints_come_back(tmp_path: Path) -> None:
    path, odd = tmp_path / "m.yaml", ("1", "on")
    for servos in (odd, ("a, b", "~"), ("#x", 'say "hip"'), ("Hüfte", "a: b")):
        write(path, servos, {"back": MOTION}, "of a test")
        assert list(read(path, servos)) == ["back"]
    assert [p.name for p in tmp_path.iterdir()] == ["m.yaml"]


def test_a_file_that_cannot_be_written_is_as_before(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    write(path, SERVOS, {"back": MOTION}, "of a test")
    with pytest.raises(UnicodeEncodeError):
        write(path, ("hip", "\ud800"), {"back": MOTION}, "of a test")
    assert list(read(path, SERVOS)) == ["back"] and [p.name for p in tmp_path.iterdir()] == ["m.yaml"]


def test_who_does_not_stand_tries_another_one() -> None:
    other = Motion(np.array([0.5]), np.ones((1, 2)))
    script, first = Script({"back": MOTION, "front": other}, 10.0, 3), other.at(np.array([0.1]))[0]
    back, front, up = [-1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, -1.0]
    script.begin(np.arange(3), script.timetable.nearest(np.array([back, front, back])))
    np.testing.assert_allclose(
        script.reference()[1], [*Motion(np.array([0.5]), np.ones((1, 2))).at(np.array([0.1]))[0]]
    )
    for _ in range(10 + round(10 * WAIT)):
        np.testing.assert_allclose(script.reference()[0], script.reference()[2])
        script.go_on(np.array([front, up, up]))
    np.testing.assert_allclose(script.reference()[1], 1.0)  # it stands, and stays at the end
    np.testing.assert_allclose(script.reference()[2], MOTION.offsets[-1])
    np.testing.assert_allclose(script.reference()[0], first)


def test_the_expert_goes_through_them_and_episodes_begin_within(tmp_path: Path) -> None:
    robot = make("get_up").robot
    servos = [robot.joints[joint].name for joint in robot.served]
    offsets = np.zeros((2, len(servos)))
    offsets[0, servos.index("left_knee")] = 0.7
    motion, path = Motion(np.array([0.5, 0.5]), offsets), tmp_path / "m.yaml"
    write(path, servos, {"back": motion, "front": motion}, "")
    task = make("get_up", motions=str(path), vary=0.0, lying=0.0)
    env = task.open(32, 0)
    env.reset(range(32), range(32))
    told = np.stack([env.step(expert_of(task).expert(env.truth())) and env._told[0] - robot.rest for _ in range(60)])
    knee = told[:, :, servos.index("left_knee")]
    wanted = motion.at(np.arange(1, 51) / 50.0)[:, servos.index("left_knee")]
    starts = {int(np.abs(wanted - first).argmin()) for first in knee[0]}
    assert len(starts) > 8  # episodes begin anywhere within
    for row in knee.T:
        k = min(range(50), key=lambda k: np.abs(row[:20] - np.append(wanted[k:], np.zeros(20))[:20]).sum())
        np.testing.assert_allclose(row[: 50 - k], wanted[k:], atol=1e-6)
    env.close()
    blind = make("get_up", motions=str(path), clock=False)
    for one, told in ((task, True), (blind, False)):
        policy, privileged = ({s.name for s in group} for group in (one.policy, one.privileged))
        assert ("reference" in policy) is told and ("reference" in privileged) is not told
        assert list(one.baselines) == ["keyframes"] and one.elements()["reference"] == tuple(servos)


def test_a_robot_without_any_has_no_expert() -> None:
    task = make("get_up", robot="simple_quadruped")
    env = task.open(1, 0)
    env.reset([0], [0])
    with pytest.raises(NoExpertError, match="no keyframes by which simple_quadruped gets up"):
        task.expert(env.truth())
    assert not env.truth()["reference"].any() and "reference" not in {s.name for s in task.policy}
    env.close()


@pytest.mark.slow
def test_a_humanoid_gets_up_by_them() -> None:
    task = make("get_up", vary=0.0)
    env, stood = task.open(24, 5), np.zeros(24, bool)
    env.reset(range(24), range(24))
    for _ in range(task.episode_steps):
        stood |= env.step(expert_of(task).expert(env.truth())).success
    assert stood.mean() > 0.6
    env.close()
