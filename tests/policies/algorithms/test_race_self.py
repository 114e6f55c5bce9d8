"""Cars that one policy drives, all of them: it learns from each, and its file is the same driver in any of them."""

import numpy as np

from policies.algorithms.ppo import Ppo, PpoConfig
from policies.evaluate import evaluate
from policies.models.export import export
from sim.env import make_env
from sim.tasks import agents_of, make

TINY = {"num_envs": 12, "rollout_steps": 16, "minibatches": 2, "hidden": [16], "critic_hidden": [16]}


def test_a_policy_learns_in_all_cars_and_drives_any_of_them(tmp_path):
    task = make("car_race_multi", opponent="self", tracks=2, steps=40)
    learner = Ppo(task, PpoConfig(**TINY, total_steps=2 * 12 * 16, evaluation_episodes=1), 0)
    assert agents_of(task) == 3 and list(learner.learn())[-1]["env_steps"] == 2 * 12 * 16  # rows are agents
    file = export(learner.controller(), tmp_path / "policy.onnx")
    assert file.metadata["training"]["task_config"]["opponent"] == "self"
    env = make_env(task, 6, 0, several=True)
    env.reset(range(6), [0, 0, 0, 1, 1, 1])
    seen, others = {s.name: env.observe()[s.name] for s in file.inputs}, [2, 0, 1, 4, 5, 3]

    def told(rows):
        file.reset(6)
        return file.step({name: value[rows] for name, value in seen.items()})

    here, there = told([*range(6)]), told(others)  # each sits in another car of the world
    for name, value in here.items():
        assert np.ptp(value) > 0.0
        np.testing.assert_array_equal(value[others], there[name])
    report = evaluate(file, episodes=2)  # as it was trained: against itself
    assert {len(values) for values in report.values.values()} == {6}
    assert np.sort(report.values["place"].reshape(2, 3)).tolist() == [[1.0, 2.0, 3.0]] * 2
