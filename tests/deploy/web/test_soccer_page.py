"""The page that plays football: its module in node against the engine, with and without a policy."""

from dataclasses import asdict

import numpy as np
import pytest

from deploy import PolicyFile, cli, export
from deploy.web import football
from deploy.web import page as pages
from policies.models.export import random_signals
from sim.engines.pitch import Pitch
from sim.engines.pitch.views import view, view_rows
from sim.scenes.pitch import FIELDS, Ball
from sim.tasks.soccer import TURN
from tests.deploy.sample_policy import exported, small
from tests.deploy.web.games import games, linear_player, state_of
from tests.deploy.web.node import needs_node, ran

F = np.float32
CHASER = 1


@pytest.fixture(scope="module", params=["differential", "omni"])
def player(request, tmp_path_factory):
    """A policy file that plays, and its page."""
    folder = tmp_path_factory.mktemp("soccer")
    policy = exported(folder / "p.onnx", linear_player(request.param))
    (folder / "index.html").write_bytes(pages.page(policy, policy.content()))
    return policy, folder / "index.html"


def recorded(robot, rng: np.random.Generator, worlds: int, steps: int) -> tuple[list[dict], np.ndarray, np.ndarray]:
    """Matches of the engine, near the ball: what node is told, the states that follow, what is seen."""
    pitch = Pitch(robot, FIELDS[1], Ball(), worlds, 2, 0.05)
    near = rng.uniform(-0.25, 0.25, (worlds, 2, 2)) + rng.uniform((-1.9, -1.4), (1.9, 1.4), (worlds, 1, 2))
    angle = rng.uniform(-np.pi, np.pi, (worlds, 2))
    pitch.reset(
        np.arange(worlds),
        {
            "position": np.clip(near, (-1.9, -1.4), (1.9, 1.4)),
            "heading": np.stack([np.cos(angle), np.sin(angle)], 2),
            "ball_position": near.mean(axis=1),
            "ball_velocity": rng.uniform(-3.0, 3.0, (worlds, 2)),
        },
    )
    ball = {name: rng.uniform(0.8, 1.2, (worlds, 1)) * pitch.read(name) for name in Ball().parameters()}
    own = {name: rng.uniform(0.8, 1.2, (worlds, 2, 1)) * pitch.read(name) for name in robot.parameters()}
    pitch.write(np.arange(worlds), ball | own)
    commands = rng.uniform((-2, -2, -8, 0, -1), (2, 2, 8, 0, 1), (steps, worlds, 2, 5)).astype(F)
    states, seen = [state_of(pitch)], []
    for command in commands:
        out = np.zeros((worlds, 2, 18), F)
        view_rows(pitch.arrays()["state"], 1, pitch.shape.half_length, out, np.zeros((worlds, 2, 2), F))
        seen.append(out[:, 0])
        command[..., 0] = 1.0 + 0.5 * command[..., 0]  # on the whole toward the ball
        command[..., 2] = 6.0 * np.arctan2(out[..., 9], out[..., 8]) + 0.4 * command[..., 2]
        pitch.step(command)
        states.append(state_of(pitch))
    named = {"ball_radius": "radius", "ball_mass": "mass"}
    told = [
        {
            "ball": {named.get(k, k): float(v[w, 0]) for k, v in ball.items()},
            "robots": [{k: float(v[w, r, 0]) for k, v in own.items()} for r in range(2)],
            "states": [s[w].tolist() for s in states[:-1]],
            "commands": commands[:, w][:, :, [0, 1, 2, 4]].tolist(),
        }
        for w in range(worlds)
    ]
    return told, np.array(states[1:]).swapaxes(0, 1), np.array(seen).swapaxes(0, 1)


def alike(states: np.ndarray, want: np.ndarray) -> None:
    """Of matches (matches, steps, 27) each step is as it should be.

    Rare ones decide otherwise whether two things touch, by what float32 rounds; and where a ball lies still for two
    seconds the engine puts it elsewhere, but who begins anew at each step does not.
    """
    dropped = np.linalg.norm(states[..., :2] - want[..., :2], axis=-1) > 0.3
    assert dropped.mean() < 0.02
    off = np.abs(states - want)[~dropped].max(axis=1)
    assert np.median(off) < 5e-6
    assert (off < 1e-3).mean() > 0.98


@needs_node
def test_ball_robots_and_boards_are_the_engines(player):
    """A control step from 3 000 states of matches in which everything meets everything, under random commands."""
    policy, page = player
    told, want, seen = recorded(football.ROBOTS[policy.robot], np.random.default_rng(2), 30, 100)
    got = ran("soccer.mjs", page, told={"steps": told})
    states = np.array([[step["state"] for step in match] for match in got])
    assert (want[:, :, [16, 26]] > 0.0).sum() > 200  # the ball met robots
    assert len(np.unique(want[:, :, 6])) == 3  # and both goals
    charges = want[:, 1:, [15, 25]] > want[:, :-1, [15, 25]]
    assert charges.sum() > 30  # kicks
    alike(states, want)
    own = np.array([[step["signals"] for step in match] for match in got])
    columns = {s.name: s.size for s in view(1)}
    assert list(columns)[5] == "ball_position"
    np.testing.assert_allclose(own, seen[:, :, 8:10], atol=1e-5)


@needs_node
def test_each_step_of_forty_games_is_the_engines(player):
    """Policy, scripted player and match, from each state of the engine's games: for contacts magnify what rounds."""
    policy, page = player
    robot = policy.robot.removeprefix("soccer_")
    for opponent, pace in (("chaser", 1.0), ("slower", 0.5)):
        states, ended = games(policy, 20, opponent, robot)
        assert (ended < 400).sum() > 5
        told = {"traces": {"states": states[:-1].swapaxes(0, 1).tolist(), "who": CHASER, "pace": pace}}
        got = np.array(ran("soccer.mjs", page, told=told))
        played = np.arange(len(states) - 1)[None] < ended[:, None]
        alike(got[played][:, None], states[1:].swapaxes(0, 1)[played][:, None])


@needs_node
def test_the_page_commands_what_onnxruntime_commands(player):
    policy, page = player
    signals = random_signals(policy.inputs, 60, np.random.default_rng(5))
    steps = [{name: value[k].tolist() for name, value in signals.items()} for k in range(60)]
    got = np.array(ran("soccer.mjs", page, told={"signals": steps}))
    policy.reset(1)
    for k in range(60):
        made = policy.step({name: value[k] for name, value in signals.items()})
        want, span = (
            np.concatenate([np.ravel(v) for v in values])
            for values in (
                [made[s.name] for s in policy.outputs],
                [np.full(s.size, s.high - s.low) for s in policy.outputs],
            )
        )
        assert (np.abs(want - got[k]) <= policy.vectors.tolerance * span).all()


@needs_node
def test_kickoffs_are_those_of_the_task(player):
    _, page = player
    starts = np.array(ran("soccer.mjs", page, told={"kickoffs": list(range(200))}))
    assert (starts[:, 7] < 0.0).all()
    assert (starts[:, 17] > 0.0).all()
    assert np.abs(starts[:, [7, 17]]).max() <= 2.0 - 0.19
    assert np.abs(starts[:, [8, 18]]).max() <= 1.5 - 0.19
    np.testing.assert_allclose(np.linalg.norm(starts[:, 9:11], axis=1), 1.0, atol=1e-6)
    places = starts[:, [0, 1, 7, 8, 17, 18]].reshape(-1, 3, 2)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert np.linalg.norm(places[:, one] - places[:, other], axis=1).min() > 0.28
    assert len(np.unique(starts[:, 7])) > 190


def test_what_a_page_says_of_a_pitch_is_what_the_scene_has():
    field, ball = FIELDS[1], Ball()
    assert asdict(field) | {"wall": 0} == {
        "length": 4.0,
        "width": 3.0,
        "goal": 1.0,
        "depth": 0.25,
        "circle": 0.5,
        "wall": 0,
    }
    assert asdict(ball) == {
        "radius": 0.05, "mass": 0.08, "sliding": 0.4, "rolling": 0.03, "wall_bounce": 0.6, "inertia": 0.4
    }  # fmt: skip
    assert football.TURN == TURN
    assert [s.name for s in football.SENSED] == [s.name for s in view(1)]
    assert [(s.size, s.unit, s.frame) for s in football.SENSED] == [(s.size, s.unit, s.frame) for s in view(1)]
    assert (football.SENSED[0].frame, football.SENSED[4].name) == ("own", "ready")


def test_what_plays_otherwise_is_refused(tmp_path, capsys):
    controller = small()
    controller.robot = "soccer_omni"
    path = exported(tmp_path / "p.onnx", controller).path
    assert cli.call(export.main, [f"policy={path}", "target=page", f"out={tmp_path / 'out'}"]) == 2
    said = capsys.readouterr().err
    for reason in ("a page plays one against one, told where everything is: ", "signal 'near'", "command 'left'"):
        assert reason in said
    assert not (tmp_path / "out").exists()
    assert isinstance(PolicyFile.load(path), PolicyFile)
