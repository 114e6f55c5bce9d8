"""Games unlike those of training: the same but for what they say, and that lies beyond what training draws."""

import numpy as np
import pytest

from sim.engines.sight.picture import GAIN_B, GAIN_R, LIFT, NOISE, PANORAMA, RAISED, TILT, YAWED
from sim.env import conditions_of, make_env
from sim.tasks import make
from sim.tasks.soccer.held_out import FRICTION, MASS
from sim.tasks.soccer.match import VARIED, VARY

PLACES = ("position", "heading", "ball_position")
GAMES = 40


def opened(task):
    env = make_env(task, GAMES, 3)
    env.reset(range(GAMES), range(GAMES))
    return env


@pytest.fixture(scope="module")
def worlds():
    """Of each condition, by name."""
    return {name: opened(task) for name, task in conditions_of(make("soccer_vision_1v1", start="anywhere")).items()}


def test_a_task_declares_what_it_can_vary():
    state = ["nominal", "as in training", "friction", "mass", "everything"]
    assert [*conditions_of(make("soccer_1v1"))] == [*conditions_of(make("soccer_keep"))] == state
    detector = make("soccer_vision_2v2", perception="detector")
    assert [*conditions_of(detector)] == [*state[:2], "camera", "latency", *state[2:]]
    pixels = conditions_of(make("soccer_vision_seek"))
    assert [*pixels] == [*state[:2], "background", "light", "camera", "latency", *state[2:]]
    assert [task.name for task in pixels.values()] == ["soccer_vision_seek"] * 9
    assert not conditions_of(make("quad_hover")) and not conditions_of(make("arm_reach"))


def test_games_are_the_same_but_for_what_is_said(worlds):
    nominal = worlds["nominal"]
    for name, env in worlds.items():
        for place in PLACES:
            np.testing.assert_array_equal(env.pitch.read(place), nominal.pitch.read(place), err_msg=name)
        changed = {p for p in VARIED if not np.array_equal(env.pitch.read(p), nominal.pitch.read(p))}
        expected = {"friction": {*FRICTION}, "mass": {*MASS}, "everything": {*FRICTION, *MASS}}
        assert changed == (set(VARIED) if name == "as in training" else expected.get(name, set())), name
        seen = not np.array_equal(env.sight.eyes.looks, nominal.sight.eyes.looks)
        assert seen == (name in ("as in training", "background", "light", "camera", "everything")), name
        assert env.task.latency == (name in ("latency", "everything"))


def test_what_is_held_out_lies_beyond_training(worlds):
    training, strange = (worlds[name].sight.eyes.looks for name in ("as in training", "everything"))
    usual = worlds["nominal"].sight.eyes.looks[0]
    for column in (LIFT, TILT, RAISED, YAWED):
        most = np.abs(training[:, column] - usual[column]).max()
        assert np.abs(strange[:, column] - usual[column]).min() > most, column
        assert (strange[:, column] > usual[column]).any() and (strange[:, column] < usual[column]).any()
    assert strange[:, NOISE].min() > training[:, NOISE].max()
    gains, usually = (looks[:, GAIN_R : GAIN_B + 1] for looks in (strange, training))
    light, cast = gains.mean(axis=1), gains.max(axis=1) / gains.min(axis=1)
    assert ((light > 1.3) | (light < 0.7)).all() and (light > 1.3).any() and (light < 0.7).any()
    assert cast.min() > (usually.max(axis=1) / usually.min(axis=1)).max()
    known, other = (worlds[name].sight.eyes.panoramas for name in ("as in training", "everything"))
    assert all(np.abs(a - b).mean() > 0.05 for a in known for b in other)  # none of them was drawn
    assert len(set(strange[:, PANORAMA])) == len(other)
    for name in (*FRICTION, *MASS):
        drawn, nominal = (worlds[c].pitch.read(name) for c in ("everything", "nominal"))
        np.testing.assert_allclose(np.abs(drawn / nominal - 1.0), VARY, atol=1e-5)
        assert len(np.unique(np.round(drawn, 5))) == 2
    surfaces = np.stack([worlds["friction"].pitch.read(n).reshape(GAMES, -1)[:, 0] for n in ("sliding", "rolling")])
    assert abs(np.corrcoef(surfaces)[0, 1]) > 0.99  # a floor is slippery as a whole


def test_a_detector_on_a_camera_that_looks_aside_tells_so():
    said = {}
    for name in ("", "camera"):
        task = make("soccer_vision_1v1", perception="detector", vary=False, start="anywhere", held_out=name)
        env = opened(task)
        said[name] = env.observe()["seen_ball"]
        yaw = env.yaw
    both = (said[""][:, 0] > 0.0) & (said["camera"][:, 0] > 0.0)
    off = said["camera"][both, 1] - said[""][both, 1]
    assert both.sum() > 5
    np.testing.assert_allclose(off[np.abs(off) < 0.2], -yaw[both][np.abs(off) < 0.2], atol=1e-5)
    assert (np.abs(np.degrees(yaw)) >= 1.0).all() and (np.abs(np.degrees(yaw)) <= 3.0).all()


def test_a_camera_that_looks_aside_shows_things_aside():
    task = make("soccer_vision_1v1", vary=False, opponent="still")
    env = opened(task)
    place = np.tile([[-1.0, 0.0], [-1.5, 1.2]], (GAMES, 1, 1))
    env.pitch.write(np.arange(GAMES), {"position": place, "heading": np.tile([1.0, 0.0], (GAMES, 2, 1))})
    env.pitch.write(np.arange(GAMES), {"ball_position": np.zeros((GAMES, 2))})

    def ball(yaw: float) -> float:
        env.sight.eyes.looks[:, YAWED] = yaw
        shown = env.sight.eyes.see(np.array([0]))[0][0].astype(float)
        orange = np.clip(shown[..., 0] - 2.0 * shown[..., 2], 0.0, None) * (shown[..., 0] > 1.4 * shown[..., 1])
        return float((orange.sum(axis=0) * np.arange(40)).sum() / orange.sum())

    assert ball(0.2) > ball(0.0) + 2.0 > ball(-0.2) + 4.0  # who looks to the left sees it on the right


def test_it_continues_exactly_and_is_decided_by_seed_and_number():
    settings = {"perception": "detector", "held_out": "everything", "start": "anywhere"}
    task = make("soccer_vision_1v1", **settings)
    env, twin, alone = opened(task), make_env(task, GAMES, 9), make_env(task, 1, 3)
    alone.reset([0], [7])
    twin.reset(range(GAMES), range(GAMES))
    twin.load_state_dict(env.state_dict())
    for _ in range(10):
        for name, value in alone.observe().items():
            np.testing.assert_array_equal(env.observe()[name][7], value[0], err_msg=name)
            np.testing.assert_array_equal(env.observe()[name], twin.observe()[name], err_msg=name)
        for one in (env, twin, alone):
            one.step({s.name: np.full((one.num, *s.shape), 0.3, np.float32) for s in task.commands})


@pytest.mark.parametrize("name", ["camera", "everything", "nominal"])
def test_a_game_is_the_same_whatever_was_played_before(name):
    task = conditions_of(make("soccer_vision_1v1", start="anywhere", auto_exposure=True))[name]
    env = make_env(task, 1, 3)
    env.reset([0], [7])
    first = env.sight.eyes.looks.copy(), env.observe()["camera"].copy()
    for number in (8, 9, 7):
        env.step({s.name: np.zeros((1, *s.shape), np.float32) for s in task.commands})
        env.reset([0], [number])
    for now, then in zip((env.sight.eyes.looks, env.observe()["camera"]), first, strict=True):
        np.testing.assert_array_equal(now, then)


def test_conditions_keep_engine_and_opponent():
    task = make("soccer_1v1", opponent="still")
    task.engine = "mujoco"
    made = conditions_of(task)["friction"]
    assert made.engine == "mujoco" and made.config.opponent == "still" and made.config.held_out == "friction"
    asked = []

    def nobody(rows):
        asked.append(rows)
        raise LookupError

    with pytest.raises(LookupError):
        conditions_of(make("soccer_1v1").against(nobody, practice=False))["mass"].open(4, 0)
    assert asked == [4]


def test_what_cannot_be_held_out_is_refused():
    for name, settings, wrong in (
        ("soccer_1v1", {}, "light"),
        ("soccer_vision_1v1", {"perception": "detector"}, "background"),
        ("soccer_vision_1v1", {}, "colour"),
    ):
        with pytest.raises(ValueError, match=f"held_out '{wrong}' is not one of .*friction, mass, everything"):
            make(name, held_out=wrong, **settings)
