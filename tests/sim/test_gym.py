"""The Gymnasium adapters keep Gymnasium's contracts: its own checker, the vector interface, autoreset, seeding."""

import importlib.metadata
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import sim.gym
from sim import registry, tasks
from sim.spec import pictures
from tests.policies.language.spoken_words import kept_encoder

# The checker wants finite bounds; positions and velocities have none. Everything else it says is an error here.
UNBOUNDED = r".*A Box observation space (min|max)imum value is -?infinity.*"


def make_vec(num_envs=6, name="quad_hover", **kwargs):
    return gymnasium.make_vec(f"sim2metal/{name}-v0", num_envs, vectorization_mode="vector_entry_point", **kwargs)


@pytest.mark.thinned
@pytest.mark.parametrize("observation", sim.gym.OBSERVATIONS)
@pytest.mark.parametrize("name", sorted(tasks.TASKS))
def test_gymnasium_checks_pass(name, observation):
    config = {"encoder": kept_encoder()} if name == "arm_words" else {}
    config |= {"tracks": 2} if name.startswith("car_race") else {}  # 64 take two seconds to make
    task = tasks.make(name, **config)
    if tasks.agents_of(task) > 1:
        with pytest.raises(ValueError, match="agents in each world"):
            gymnasium.make(f"sim2metal/{name}-v0", observation=observation, config=config)
        return
    if pictures(task.policy) and observation == "features":
        with pytest.raises(ValueError, match="more than numbers"):
            gymnasium.make(f"sim2metal/{name}-v0", observation=observation, config=config)
        return
    env = gymnasium.make(f"sim2metal/{name}-v0", observation=observation, config=config)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", UNBOUNDED)
        check_env(env.unwrapped)


def test_both_kinds_of_observation_show_the_same_world():
    features = gymnasium.make("sim2metal/quad_hover-v0", config={"noise": 0.0})
    signals = gymnasium.make("sim2metal/quad_hover-v0", observation="dict", config={"noise": 0.0})
    vector, _ = features.reset(seed=1)
    named, _ = signals.reset(seed=1)
    for _ in range(5):
        wanted = np.concatenate([f.evaluate(named) for f in features.unwrapped.worlds.task.features])
        np.testing.assert_allclose(vector, wanted, atol=1e-6)
        action = features.action_space.sample()
        vector, reward, *_, info = features.step(action)
        named, same, *_ = signals.step(action)
        assert reward == same and set(info["reward_terms"]) == {
            *(c.name for c in features.unwrapped.worlds.task.costs),
            "alive",
        }


def test_an_episode_ends_with_its_final_observation():
    env = gymnasium.make("sim2metal/quad_hover-v0", config={"episode_s": 0.05, "guidance": 1.0})
    env.reset(seed=0)
    action = np.full(4, env.unwrapped.worlds.task.initial_action + 0.01, np.float32)
    ends = [env.step(action)[2:4] for _ in range(5)]
    assert ends == [(False, False)] * 4 + [(False, True)]
    observation, _ = env.reset()
    np.testing.assert_allclose(observation[-12:], env.unwrapped.worlds.task.initial_action)


def test_seeds_decide_and_no_seed_differs():
    env, twin = (gymnasium.make("sim2metal/quad_hover-v0") for _ in range(2))
    assert not np.array_equal(env.reset()[0], twin.reset()[0])
    assert np.array_equal(env.reset(seed=5)[0], twin.reset(seed=5)[0])
    assert not np.array_equal(env.reset()[0], env.reset()[0])
    batch, other = make_vec(), make_vec()
    assert np.array_equal(batch.reset(seed=5)[0], other.reset(seed=5)[0])
    assert not np.array_equal(make_vec().reset()[0], make_vec().reset()[0])
    with pytest.raises(ValueError, match="one seed decides the whole batch"):
        batch.reset(seed=[1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize("observation", sim.gym.OBSERVATIONS)
def test_vector_interface(observation):
    envs = make_vec(observation=observation, config={"episode_s": 0.1, "rotor_speed": 0.0})
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    seen, info = envs.reset(seed=0)
    assert envs.observation_space.contains(seen) and info == {}
    envs.action_space.seed(0)
    for step in range(1, 21):
        seen, reward, terminated, truncated, info = envs.step(0.1 * envs.action_space.sample())
        assert envs.observation_space.contains(seen)
        assert reward.shape == terminated.shape == truncated.shape == (6,) and not terminated.any()
        assert truncated.all() == ("final_obs" in info) == (step % 10 == 0)
    assert info["_final_obs"].all() and (info["final_info"]["episode_length"] == 10).all()
    assert all(envs.single_observation_space.contains(last) for last in info["final_obs"])
    last, first = (
        value["position"] if observation == "dict" else value for value in (info["final_obs"][0], sim.gym.row(seen, 0))
    )
    assert not np.array_equal(last, first)


def test_gymnasium_wrappers_and_partial_resets_work():
    envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(make_vec(config={"episode_s": 0.1}))
    envs.reset(seed=0)
    for _ in range(10):
        *_, info = envs.step(np.zeros((6, 4), np.float32))
    assert (info["episode"]["l"] == 10).all()
    plain = make_vec()
    before, _ = plain.reset(seed=0)
    mask = np.arange(6) < 2
    after, _ = plain.reset(options={"reset_mask": mask})
    assert np.array_equal((after == before).all(1), ~mask)


def test_synchronous_copies_and_bad_names():
    envs = gymnasium.make_vec("sim2metal/quad_hover-v0", 3, vectorization_mode="sync")
    seen, _ = envs.reset(seed=0)
    assert len(np.unique(seen[:, 0])) == 3
    with pytest.raises(ValueError, match="observation 'pixels' is not one of features, dict"):
        gymnasium.make("sim2metal/quad_hover-v0", observation="pixels")
    with pytest.raises(ValueError, match="its settings are"):
        make_vec(config={"tilted": 3.0})


def test_a_name_is_found_without_an_import_of_ours_and_loads_little():
    script = (
        "import sys, gymnasium.vector; before = {*sys.modules}; "
        "import sim.gym; "
        "assert not {'torch', 'numba', 'mujoco'} & ({*sys.modules} - before); "
        "env = gymnasium.make('sim2metal/quad_hover-v0', disable_env_checker=True); "
        "env.reset(seed=0); env.step(env.action_space.sample()); assert 'torch' not in sys.modules"
    )
    named = "import gymnasium; gymnasium.make('sim.gym:sim2metal/quad_hover-v0')"
    for code in (script, named):
        subprocess.run([sys.executable, "-c", code], check=True)
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    ((name, value),) = project["entry-points"]["gymnasium.envs"].items()
    point = importlib.metadata.EntryPoint(name, value, "gymnasium.envs")
    assert name == "sim2metal" and point.load() is registry.enter_gymnasium


def test_a_gymnasium_that_ours_do_not_fit_still_imports(monkeypatch):
    """A version below 1.1 lacks what `sim.gym` takes from it; it loads entry points outside of any try."""
    monkeypatch.delitem(sys.modules, "sim.gym")
    monkeypatch.delattr(gymnasium.vector, "AutoresetMode")
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    needed = [line for lines in extras for line in lines if line.startswith("gymnasium>")]
    assert {*needed} == {"gymnasium>=1.1"}
    with pytest.warns(UserWarning, match=r"not 1\.1 or newer: cannot import name 'AutoresetMode'"):
        registry.enter_gymnasium()


def test_pictures_are_observations_by_name():
    seen = "tests.policies.toy_sight:ToySight"
    with pytest.raises(ValueError, match=r"shows its policy more than numbers \(camera\): use observation=\"dict\""):
        sim.gym.TaskEnv(seen)
    env = sim.gym.TaskEnv(seen, observation="dict")
    assert env.observation_space["camera"].dtype == np.uint8
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation) and observation["camera"].shape == (16, 16, 3)
    env.close()


def test_a_device_is_refused_and_an_episode_needs_a_reset():
    with pytest.raises(TypeError, match="device"):
        gymnasium.make("sim2metal/quad_hover-v0", device="cpu")
    with pytest.raises(RuntimeError, match="reset the environment first"):
        gymnasium.make("sim2metal/quad_hover-v0").unwrapped.step(np.zeros(4, np.float32))


def test_without_gymnasium_the_extra_is_named():
    code = "import sys; sys.modules['gymnasium'] = None; import sim.gym"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert "ModuleNotFoundError: gymnasium is not installed: pip install 'sim2metal[rl]'" in done.stderr
