"""Football: everybody's view, who scores, how games begin, and the scripted players."""

import numpy as np
import pytest
from pettingzoo.test import parallel_api_test

from sim.env import Env, make_env, with_engine
from sim.parallel import TaskParallelEnv
from sim.render.match import TEAMS
from sim.tasks import make
from sim.tasks.soccer import Soccer
from sim.tasks.soccer.rules import WEIGHTS

PLAYERS = pytest.mark.parametrize("name", ["soccer_1v1", "soccer_2v2", "soccer_5v5"])


def opened(task: Soccer, worlds: int, seed: int = 0) -> Env:
    env = make_env(task, worlds * task.agents, seed, several=True)
    env.reset(range(env.num), np.repeat(range(worlds), task.agents).tolist())
    return env


def played(task: Soccer, games: int) -> tuple[float, float]:
    """Shares of the games that the scripted player of team 0 wins and loses."""
    env = opened(task, games)
    won, over = np.zeros(games, bool), np.zeros(games, bool)
    for _ in range(task.episode_steps):
        step = env.step(task.expert(env.observe()))
        won |= step.success & ~over
        over |= step.terminated
    return float(won.mean()), float((over & ~won).mean())


@PLAYERS
def test_both_teams_see_the_same_game_each_from_its_side(name: str):
    task = make(name, opponent="self", vary=False)
    env = opened(task, 1)
    n = env.robots
    for _ in range(10):
        env.step(task.expert(env.observe()))
    turned = make_env(task, env.num, 0, several=True)
    turned.reset(range(env.num), [0] * env.num)
    swap = np.roll(np.arange(n), n // 2)  # the teams change sides, and the world turns by half a turn
    state = {k: -env.pitch.read(k)[:, swap] for k in ("position", "heading", "velocity")}
    state |= {k: env.pitch.read(k)[:, swap] for k in ("turning", "charge")}
    state |= {k: -env.pitch.read(k) for k in ("ball_position", "ball_velocity")}
    turned.pitch.write(np.arange(1), state)
    turned._look()
    before, after = env.observe(), turned.observe()
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value[swap], atol=1e-6, err_msg=name)


def test_what_a_robot_sees():
    task = make("soccer_2v2", opponent="self")
    env = opened(task, 1)
    place = np.array([[[0.0, 1.0], [-1.0, 0.0], [1.0, 0.5], [2.0, -0.5]]])
    heading = np.array([[[0.0, 1.0], [1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]]])
    moving = np.array([[[0.0, 0.0], [0.3, 0.0], [0.0, -0.2], [0.0, 0.0]]])
    env.pitch.write(np.arange(1), {"position": place, "heading": heading, "velocity": moving})
    env.pitch.write(np.arange(1), {"ball_position": [[1.0, 2.0]], "ball_velocity": [[0.0, 1.0]]})
    env._look()
    seen = {name: value[0].tolist() for name, value in env.observe().items()}  # of who looks along y
    assert seen["ball_position"] == [1.0, -1.0] and seen["ball_velocity"] == [1.0, 0.0]
    assert seen["goal"] == [-1.0, -2.5] and seen["mates"] == [-1.0, 1.0]
    assert seen["others"] == [-0.5, -1.0, -1.5, -2.0]
    np.testing.assert_allclose(seen["mates_velocity"], (0.0, -0.3), atol=1e-6)
    np.testing.assert_allclose(seen["others_velocity"], (-0.2, 0.0, 0.0, 0.0), atol=1e-6)
    other = {name: value[2].tolist() for name, value in env.observe().items()}
    assert other["position"] == [-1.0, -0.5] and other["heading"] == [1.0, 0.0] and other["goal"] == [3.5, 0.5]


@PLAYERS
def test_a_game_is_zero_sum_and_ends_for_all_with_a_goal(name: str):
    task = make(name, opponent="self", start="anywhere")
    env = opened(task, 40)
    ended = 0
    for _ in range(150):
        before = env.over.copy()
        step = env.step(task.expert(env.observe()))
        by_side = {name: value.reshape(40, 2, -1).mean(axis=2) for name, value in step.terms.items()}
        np.testing.assert_allclose(by_side["scored"].sum(axis=1), 0.0)
        won, over = (x.reshape(40, 2, -1) for x in (step.success, step.terminated))
        assert (
            (won == won[..., :1]).all() and (over == over[:, :1, :1]).all() and (over[:, 0, 0] == won.any((1, 2))).all()
        )
        reward = sum(WEIGHTS[name] * value for name, value in step.terms.items())
        np.testing.assert_allclose(step.reward, reward, atol=1e-6)
        new = (before == 0.0) & (env.over != 0.0)
        assert (np.abs(by_side["scored"][:, 0]) == new).all()
        ended += int(new.sum())
    assert ended > 10


@pytest.mark.parametrize("start", ["kickoff", "anywhere"])
@PLAYERS
def test_games_begin_apart_within_the_pitch_and_by_their_number(name: str, start: str):
    task = make(name, start=start)
    env, again = opened(task, 60), opened(task, 60)
    place, ball = env.pitch.read("position"), env.pitch.read("ball_position")
    np.testing.assert_array_equal(place, again.pitch.read("position"))
    assert not np.array_equal(place, opened(task, 60, seed=1).pitch.read("position"))
    both = np.concatenate([place, ball[:, None]], axis=1)
    apart = np.linalg.norm(both[:, None] - both[:, :, None], axis=-1) + 9.0 * np.eye(both.shape[1])
    assert apart.min() > 2.0 * task.robot.radius
    if start == "kickoff":
        assert (place[..., 0] * env.side <= 0.0).all() and np.abs(ball).max() < 0.3
    mass = env.pitch.read("mass")
    assert mass.min() >= 2.0 and mass.max() <= 3.0 and mass.std() > 0.2
    assert opened(make(name, vary=False), 3).pitch.read("mass").std() == 0.0


def test_scripted_players():
    won, lost = played(make("soccer_1v1", opponent="still", start="anywhere"), 200)
    assert won > 0.75 and lost < 0.05
    won, lost = played(make("soccer_1v1", opponent="slow"), 200)
    assert won > 2.0 * lost
    won, lost = played(make("soccer_1v1", opponent="chaser"), 200)
    assert abs(won - lost) < 0.15 and won + lost > 0.5
    won, lost = played(make("soccer_1v1", robot="omni", opponent="still"), 100)
    assert won > 0.5


def test_a_ball_that_is_stuck_is_dropped_on_the_halfway_line():
    task = make("soccer_1v1", opponent="still")
    env = opened(task, 2)
    env.pitch.write(np.array([0]), {"ball_position": [[1.9, 1.4]]})
    still = {s.name: np.zeros((2, s.size), np.float32) for s in task.commands}
    rewards = [env.step(still).reward for _ in range(42)]
    np.testing.assert_allclose(env.pitch.read("ball_position")[0], (0.0, -0.25 * task.field.width), atol=1e-6)
    assert not np.any(rewards[2:])  # which brings nobody nearer to anything


def test_a_robot_told_nan_has_lost():
    task = make("soccer_1v1")
    env = opened(task, 3)
    command = task.expert(env.observe())
    command["drive"][1] = np.nan
    step = env.step(command)
    assert step.terminated.tolist() == [False, True, False] and not step.success.any()
    assert all(np.isfinite(value).all() for value in env.observe().values())


def test_it_continues_exactly():
    task = make("soccer_2v2")
    env, twin = opened(task, 4), opened(task, 4, seed=5)
    for _ in range(30):
        env.step(task.expert(env.observe()))
    twin.load_state_dict(env.state_dict())
    for _ in range(30):
        ours, theirs = (e.step(task.expert(e.observe())) for e in (env, twin))
        np.testing.assert_array_equal(ours.reward, theirs.reward)
    for name, value in env.observe().items():
        np.testing.assert_array_equal(value, twin.observe()[name])


def test_the_same_game_in_mujoco():
    task = with_engine(make("soccer_1v1", opponent="still", start="anywhere", vary=False), "mujoco")
    won, _ = played(task, 16)
    assert won > 0.6
    with pytest.raises(ValueError, match="brings its own physics; it has no engine 'flight'"):
        with_engine(make("soccer_1v1"), "flight")


@PLAYERS
def test_pettingzoo(name: str):
    env = TaskParallelEnv(name, config={"opponent": "self", "steps": 30}, render_mode="rgb_array")
    parallel_api_test(env, num_cycles=40)
    players = int(name[-1])
    assert list(env.teams.values()) == [0] * players + [1] * players
    env.reset(seed=0)
    assert env.render().shape == (240, 320, 3) and env.render().std() > 20.0


@pytest.mark.parametrize("perception", ["pixels", "detector"])
@pytest.mark.parametrize("name", ["soccer_vision_1v1", "soccer_vision_2v2"])
def test_pettingzoo_with_cameras(name: str, perception: str):
    settings = {"opponent": "self", "perception": perception, "latency": 1, "steps": 30}
    env = TaskParallelEnv(name, config=settings)
    parallel_api_test(env, num_cycles=40)
    assert len(env.possible_agents) == 2 * int(name[-1])
    observations, _ = env.reset(seed=0)
    if perception == "pixels":
        pictures = [seen["camera"] for seen in observations.values()]
        assert all(picture.dtype == np.uint8 and picture.std() > 10.0 for picture in pictures)
        assert len({picture.tobytes() for picture in pictures}) == len(pictures)  # each its own


def test_settings_that_mean_nothing_are_refused():
    for wrong, choices in (
        ("robot", "differential, omni"),
        ("opponent", "still, slow"),
        ("start", "kickoff, anywhere"),
    ):
        with pytest.raises(ValueError, match=f"{wrong} 'nobody' is not one of {choices}"):
            make("soccer_1v1", **{wrong: "nobody"})
    with pytest.raises(ValueError, match="steps must be between 1 and 10000, got 0"):
        make("soccer_1v1", steps=0)


def test_pictures_are_late_by_so_many_steps_and_differ_from_game_to_game():
    now, late = (opened(make("soccer_vision_1v1", latency=k, start="anywhere"), 3) for k in (0, 2))
    shown = []
    for _ in range(6):
        seen, before = now.observe()["camera"], late.observe()["camera"]
        shown.append(seen)
        np.testing.assert_array_equal(before, shown[max(0, len(shown) - 3)])
        command = now.task.expert(now.observe())
        now.step(command)
        late.step(command)
    assert len({picture.tobytes() for picture in shown[-1]}) == 3
    looks = now.sight.eyes.looks
    assert (looks.std(axis=0)[:6] > 0.0).all()
    plain = opened(make("soccer_vision_1v1", vary=False), 3).sight.eyes.looks
    assert (plain == plain[0]).all()
    kept = shown[-1].copy()
    now.reset([1], [9])
    np.testing.assert_array_equal(shown[-1], kept)  # who was shown a picture keeps it


def test_who_sees_finds_the_ball_with_the_pan_joint():
    task = make("soccer_vision_1v1", opponent="still", start="anywhere")
    env = opened(task, 50)
    for _ in range(15):
        env.step(task.expert(env.observe()))
    seen = env.observe()
    angle = np.arctan2(*seen["ball_position"].T[::-1]) - seen["pan"][:, 0]
    near = np.abs((angle + np.pi) % (2.0 * np.pi) - np.pi) < 0.3
    assert near.mean() > 0.7
    orange = (seen["camera"][..., 0] > 1.4 * seen["camera"][..., 1]) & (
        seen["camera"][..., 0] > 2.0 * seen["camera"][..., 2]
    )
    assert orange[near].any(axis=(1, 2)).mean() > 0.6


def test_vision_continues_exactly():
    task = make("soccer_vision_2v2", latency=1)
    env, twin = opened(task, 2), opened(task, 2, seed=5)
    for _ in range(5):
        env.step(task.expert(env.observe()))
    twin.load_state_dict(env.state_dict())
    for _ in range(5):
        for e in (env, twin):
            e.step(task.expert(e.observe()))
        np.testing.assert_array_equal(env.observe()["camera"], twin.observe()["camera"])


def test_a_latency_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="latency must be between 0 and 10 control steps, got 11"):
        make("soccer_vision_1v1", latency=11)


@pytest.mark.parametrize("perception", ["pixels", "detector"])
def test_a_film_shows_what_both_robots_see(perception):
    task = make("soccer_vision_1v1", perception=perception, start="anywhere")
    env = opened(task, 3)
    picture = env.render(1, 480, 640)
    assert picture.shape == (480, 640, 3)
    own, rival = picture[323:473, 3:203], picture[323:473, 437:637]  # five times 40 x 30
    assert (own[::5, ::5].repeat(5, axis=0).repeat(5, axis=1) == own).all() and (own != rival).any()
    for column, team in ((0, 0), (434, 1)):
        frame = picture[320:476, column : column + 206]
        assert (frame[0] == np.round(255.0 * np.array(TEAMS[team]))).all()
    if perception == "pixels":
        shown = env.observe()["camera"][1].astype(int)
        assert np.abs(own[::5, ::5] - shown).mean() < 20.0  # the same, but for its noise
    assert env.render(1, 120, 160).shape == (120, 160, 3) and make("soccer_1v1").sees is False


def test_the_camera_is_turned_as_fast_as_it_can():
    task = make("soccer_vision_1v1", opponent="still")
    env = opened(task, 2)
    command = {s.name: np.zeros((2, *s.shape), np.float32) for s in task.commands}
    turned = []
    for _ in range(8):
        env.step({**command, "look": np.array([[1.0], [-5.0]], np.float32)})
        turned.append(env.observe()["pan"][:, 0])
    fastest = task.robot.pan_speed / task.rate_hz
    expected = [np.minimum(np.arange(1, 9) * fastest, far) for far in (1.0, task.robot.pan_limit)]
    np.testing.assert_allclose(np.stack(turned, axis=1), expected * np.array([[1.0], [-1.0]]), atol=1e-5)


def test_how_long_the_ball_was_in_view_is_a_score():
    task = make("soccer_vision_1v1")
    never = dict.fromkeys(("success", "terminated"), np.zeros((10, 3, 1), bool))
    still = {**never, "pan": np.zeros((10, 3, 1), np.float32)}
    ball = np.zeros((10, 3, 2), np.float32)
    ball[:, 0], ball[:, 1] = [1.0, 0.5], [0.5, 1.0]
    ball[:5, 2], ball[5:, 2] = [-1.0, 0.0], [1.0, 0.0]
    np.testing.assert_allclose(task.score({**still, "ball_position": ball})["ball_in_view"], [1.0, 0.0, 0.5])
    turned = {**still, "pan": np.full((10, 3, 1), 1.2, np.float32), "ball_position": ball}
    np.testing.assert_allclose(task.score(turned)["ball_in_view"], [1.0, 1.0, 0.0])
    won = still["success"].copy()
    won[6, 2] = True  # what comes later does not count
    for outcome in ("success", "terminated"):
        share = task.score({**still, outcome: won, "ball_position": ball})["ball_in_view"][2]
        assert share == pytest.approx(2.0 / 7.0)


def test_what_is_told_is_one_of_two():
    with pytest.raises(ValueError, match="perception 'sonar' is not one of pixels, detector"):
        make("soccer_vision_1v1", perception="sonar")
