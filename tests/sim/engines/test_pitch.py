"""Our football pitch: what formulas say, what MuJoCo does, and what must never happen."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engines.pitch import Pitch, dynamics
from sim.engines.pitch.mujoco import MujocoPitch
from sim.engines.pitch.rows import COMMAND_ROWS, KICK
from sim.engines.vector.blocks import kernel
from sim.robots.wheeled import DIFFERENTIAL, OMNI, Wheeled
from sim.scenes.pitch import FIELDS, GRAVITY, Ball

BALL = Ball()
AWAY = {"position": [[[-1.8, 1.2], [1.8, -1.2]]]}


def made(state: dict[str, Any], kind: type[Pitch] = Pitch, robot: Wheeled = DIFFERENTIAL, num: int = 1) -> Pitch:
    pitch = kind(robot, FIELDS[1], BALL, num, 2, 0.05)
    pitch.reset(np.arange(num), {name: np.repeat(value, num, axis=0) for name, value in state.items()})
    return pitch


def run(pitch: Pitch, steps: int, *commands: Any) -> Pitch:
    told = np.zeros((pitch.num, pitch.robots, COMMAND_ROWS), np.float32)
    for k, command in enumerate(commands):
        told[:, k, : len(command)] = command
    for _ in range(steps):
        pitch.step(told)
    return pitch


def test_a_ball_slides_then_rolls_then_rests():
    pitch = made({**AWAY, "ball_position": [[-1.5, 0.0]], "ball_velocity": [[1.0, 0.0]]})
    slips = 2.0 / 7.0 / (BALL.sliding * GRAVITY)  # s: until it rolls, at 5/7 of its speed
    run(pitch, round(slips / 0.05) + 1)
    np.testing.assert_allclose(pitch.read("ball_velocity"), pitch.read("ball_rolling"), atol=1e-6)
    time, share = 0.05 * (round(slips / 0.05) + 1), BALL.rolling * GRAVITY
    assert pitch.read("ball_velocity")[0, 0] == pytest.approx(5.0 / 7.0 - share * time, abs=0.01)
    before, speed = pitch.read("ball_position")[0, 0], pitch.read("ball_velocity")[0, 0]
    run(pitch, 80)
    assert not pitch.read("ball_velocity").any()
    assert pitch.read("ball_position")[0, 0] - before == pytest.approx(speed**2 / (2.0 * share), rel=0.02)


def test_wheels_do_what_they_can():
    pitch = run(made({"position": [[[0.0, 0.0], [1.8, -1.2]]], "ball_position": [[1.0, 1.0]]}), 20, (1.0, 1.0, 0.0))
    np.testing.assert_allclose(pitch.read("velocity")[0, 0], (1.0, 0.0), atol=1e-3)  # these do not go sideways
    fast = run(made({**AWAY, "heading": [[[0.0, -1.0], [1.0, 0.0]]]}), 10, (5.0, 0.0, 50.0))
    speed = np.linalg.norm(fast.read("velocity")[0, 0]) + DIFFERENTIAL.track * abs(fast.read("turning")[0, 0, 0])
    assert speed <= DIFFERENTIAL.speed + 0.3
    omni = run(
        made({"position": [[[0.0, 0.0], [1.8, -1.2]]], "ball_position": [[1.0, 1.0]]}, robot=OMNI), 20, (0.6, 0.8)
    )
    np.testing.assert_allclose(omni.read("velocity")[0, 0], (0.6, 0.8), atol=1e-2)


def test_kicks_need_a_ball_and_a_charge():
    def at(x: float) -> Pitch:
        return made({"position": [[[0.0, 0.0], [1.8, -1.2]]], "ball_position": [[x, 0.0]]})

    near = DIFFERENTIAL.front + BALL.radius + 0.005
    kicked = run(at(near), 1, (0.0, 0.0, 0.0, 0.0, 1.0))
    assert kicked.read("ball_velocity")[0, 0] > 2.0 and kicked.read("charge")[0, 0] > 0.0
    assert not run(at(near + 0.1), 1, (0.0, 0.0, 0.0, 0.0, 1.0)).read("ball_velocity").any()
    assert not run(at(near), 1, (0.0, 0.0, 0.0, 0.0, 0.05)).read("ball_velocity").any()
    kicked.write(np.arange(1), {"ball_position": [[near, 0.0]], "ball_velocity": [[0.0, 0.0]]})
    kicked.write(np.arange(1), {"ball_rolling": [[0.0, 0.0]]})
    assert not run(kicked, 1, (0.0, 0.0, 0.0, 0.0, 1.0)).read("ball_velocity").any()
    recharged = run(kicked, 10, (0.0, 0.0, 0.0, 0.0, 1.0))
    assert recharged.read("ball_velocity")[0, 0] > 2.0


def test_a_goal_counts_when_the_whole_ball_is_in():
    pitch = made({**AWAY, "ball_position": [[1.5, 0.0]], "ball_velocity": [[2.0, 0.0]]})
    for _ in range(20):
        run(pitch, 1)
        inside = pitch.read("ball_position")[0, 0] > 2.0 + BALL.radius
        assert inside == (pitch.read("scored")[0, 0] == 1.0)
    assert inside and pitch.read("ball_position")[0, 0] < 2.25 - BALL.radius + 1e-6  # it stays in the net
    beside = run(made({**AWAY, "ball_position": [[-1.5, 0.8]], "ball_velocity": [[-2.0, 0.0]]}), 20)
    assert beside.read("ball_position")[0, 0] > -2.0 and not beside.read("scored").any()


SCENES: dict[str, tuple[dict[str, Any], tuple[float, ...], Wheeled, int, float]] = {  # ..., steps, tolerance in m
    "slides": ({**AWAY, "ball_position": [[-1.0, 0.0]], "ball_velocity": [[2.0, 0.5]]}, (), DIFFERENTIAL, 20, 0.05),
    "rolls": (
        {**AWAY, "ball_position": [[-1.0, 0.0]], "ball_velocity": [[1.0, 0.0]], "ball_rolling": [[1.0, 0.0]]},
        *((), DIFFERENTIAL, 20, 0.01),
    ),
    "off the side": (
        {**AWAY, "ball_position": [[0.0, 1.2]], "ball_velocity": [[0.5, 2.0]]},
        (),
        DIFFERENTIAL,
        10,
        0.05,
    ),
    "into the net": (
        {**AWAY, "ball_position": [[1.0, 0.2]], "ball_velocity": [[2.0, 0.0]]},
        (),
        DIFFERENTIAL,
        20,
        0.05,
    ),
    "drives": (
        {"position": [[[-1.0, 0.0], [1.8, -1.2]]], "ball_position": [[0.0, 1.0]]},
        *((1.0, 0.0, 2.0), DIFFERENTIAL, 20, 0.02),
    ),
    "drives sideways": (
        {"position": [[[-1.0, 0.0], [1.8, -1.2]]], "ball_position": [[0.0, 1.0]]},
        *((0.5, 0.8, 1.0), OMNI, 20, 0.02),
    ),
    "pushes": (
        {"position": [[[-1.0, 0.0], [1.8, -1.2]]], "ball_position": [[-0.6, 0.01]]},
        *((1.0,), DIFFERENTIAL, 20, 0.03),
    ),
    "kicks": (
        {"position": [[[-1.0, 0.0], [1.8, -1.2]]], "ball_position": [[-0.875, 0.0]]},
        *((0.0, 0.0, 0.0, 0.0, 1.0), DIFFERENTIAL, 20, 0.08),
    ),
    "hits its round side": (
        {"position": [[[0.0, 0.0], [1.8, -1.2]]], "ball_position": [[-1.0, 0.03]], "ball_velocity": [[2.5, 0.0]]},
        *((), DIFFERENTIAL, 12, 0.08),
    ),
}


@pytest.mark.parametrize("name", SCENES)
def test_mujoco_agrees(name: str):
    state, command, robot, steps, tolerance = SCENES[name]
    ours, theirs = (run(made(state, kind, robot), steps, command) for kind in (Pitch, MujocoPitch))
    for what in ("ball_position", "position"):
        np.testing.assert_allclose(ours.read(what), theirs.read(what), atol=tolerance, err_msg=what)
    np.testing.assert_allclose(ours.read("ball_velocity"), theirs.read("ball_velocity"), atol=0.2)
    np.testing.assert_array_equal(ours.read("scored"), theirs.read("scored"))
    theirs.close()


def test_what_varies_is_carried_over_to_mujoco():
    """Worlds with other parameters do what an engine does that was made of such a ball and such robots."""
    ball = Ball(mass=0.1, sliding=0.3, rolling=0.05, wall_bounce=0.4)
    robot = Wheeled("heavy", omni=False, mass=3.5, bounce=0.2)
    start = {"position": [[[-0.5, 0.0], [0.9, 0.3]]], "ball_position": [[0.2, 0.05]], "ball_velocity": [[0.0, 2.0]]}
    told, rows = ((1.5, 0.0, 0.5), (1.0, 0.0, 0.0)), np.arange(2)
    varied = made(start, MujocoPitch, num=2)
    written = {**ball.parameters(), **robot.parameters()}
    each = {name: np.tile(v, (1, 2, 1) if name in robot.parameters() else (1, 1)) for name, v in written.items()}
    varied.write(rows[1:], each)
    expected = MujocoPitch(robot, FIELDS[1], ball, 1, 2, 0.05)
    expected.reset(rows[:1], start)
    nominal = made(start, MujocoPitch)
    for pitch in (varied, expected, nominal):
        run(pitch, 30, *told)
    for name in ("ball_position", "ball_velocity", "position", "velocity"):
        np.testing.assert_allclose(varied.read(name)[1], expected.read(name)[0], atol=1e-3, err_msg=name)
        np.testing.assert_allclose(varied.read(name)[0], nominal.read(name)[0], atol=1e-3, err_msg=name)
    assert np.abs(varied.read("ball_position")[0] - varied.read("ball_position")[1]).max() > 0.05
    for pitch in (varied, expected, nominal):
        pitch.close()


@given(st.integers(0, 2**31), st.integers(1, 5), st.booleans())
@settings(max_examples=15, deadline=None)
def test_nothing_leaves_the_pitch_or_overlaps_for_long(seed: int, players: int, omni: bool):
    rng, field = np.random.default_rng(seed), FIELDS[5]
    pitch = Pitch(OMNI if omni else DIFFERENTIAL, field, BALL, 20, 2 * players, 0.05)
    half = np.array([field.length, field.width]) / 2.0
    position, ball = rng.uniform(-half, half, (20, 2 * players, 2)), rng.uniform(-half, half, (20, 2))
    pitch.reset(
        np.arange(20), {"position": position, "ball_position": ball, "ball_velocity": rng.normal(0, 3, (20, 2))}
    )
    for _ in range(20):
        command = rng.uniform(-1.0, 1.0, (20, 2 * players, COMMAND_ROWS)) * (2.0, 2.0, 8.0, 3.0, 1.0)
        for _ in range(5):
            pitch.step(command.astype(np.float32))
        ball, position = pitch.read("ball_position"), pitch.read("position")
        assert (np.abs(position) <= half - pitch.robot.radius + 1e-5).all()
        assert (np.abs(ball) <= half + np.array([field.depth, 0.0]) - BALL.radius + 1e-5).all()
        np.testing.assert_allclose(np.linalg.norm(pitch.read("heading"), axis=-1), 1.0, atol=1e-4)
        assert np.linalg.norm(pitch.read("ball_velocity"), axis=-1).max() < 12.0
        away = np.linalg.norm(position - ball[:, None], axis=-1)
        free = np.abs(ball[:, 0]) < half[0] - 0.3
        assert (away[free] > DIFFERENTIAL.front + 0.5 * BALL.radius).all()


@kernel
def advance_one(state, parameters, command, robots, shape, h, lane):
    """As a thread of a GPU does it: one world, by scalars."""
    dynamics.untouched(state, robots, lane)
    for _ in range(5):
        dynamics.advance(state, parameters, command, robots, shape, h, lane)


def test_one_world_by_scalars_does_the_same():
    rng = np.random.default_rng(0)
    state = {"position": rng.uniform(-1.0, 1.0, (16, 2, 2)), "ball_position": rng.uniform(-1.0, 1.0, (16, 2))}
    pitch = made({name: value[:1] for name, value in state.items()}, num=16)
    pitch.write(np.arange(16), state)
    for _ in range(40):
        command = (rng.uniform(-1.0, 1.0, (16, 2, COMMAND_ROWS)) * (2.0, 2.0, 8.0, 3.0, 1.0)).astype(np.float32)
        alone = pitch.arrays()["state"][0].copy()
        lanes = np.ascontiguousarray(command.reshape(16, -1).T)
        for lane in range(16):
            advance_one(alone, pitch.arrays()["parameters"][0], lanes, 2, pitch.shape, np.float32(0.01), lane)
        pitch.step(command)
        np.testing.assert_allclose(alone, pitch.arrays()["state"][0], atol=2e-5)


def test_worlds_do_not_disturb_each_other():
    rng = np.random.default_rng(1)
    position, ball = rng.uniform(-1.0, 1.0, (37, 2, 2)), rng.uniform(-1.0, 1.0, (37, 2))
    command = rng.uniform(-1.0, 1.0, (37, 2, COMMAND_ROWS)).astype(np.float32)
    command[..., KICK] = 1.0
    together = made({**AWAY}, num=37)
    together.reset(np.arange(37), {"position": position, "ball_position": ball, "mass": np.full((37, 2, 1), 3.0)})
    alone = made({**AWAY})
    alone.reset(
        np.arange(1), {"position": position[30:31], "ball_position": ball[30:31], "mass": np.full((1, 2, 1), 3.0)}
    )
    for _ in range(50):
        together.step(command)
        alone.step(command[30:31])
    for name in ("position", "ball_position", "ball_velocity", "touched", "charge", "mass"):
        np.testing.assert_array_equal(together.read(name)[30], alone.read(name)[0], err_msg=name)


def test_mistakes_are_named():
    pitch = made(AWAY)
    with pytest.raises(KeyError, match="a pitch has no 'colour'; it has: ball_position"):
        pitch.read("colour")
    with pytest.raises(ValueError, match=r"1 worlds of 2 robots take 5 commands each, got \(2, 5\)"):
        pitch.step(np.zeros((2, 5), np.float32))
    with pytest.raises(ValueError, match="Pitch needs num >= 1"):
        Pitch(DIFFERENTIAL, FIELDS[1], BALL, 0, 2, 0.05)
