"""A policy file of get_up finds out by itself what the keyframes say: as the world's script does."""

from pathlib import Path

import numpy as np
import pytest

from policies.models.controller import FeaturePolicy
from policies.models.export import export
from policies.models.keyframes import KeyframePolicy, whole
from policies.models.networks.feed_forward import Mlp
from sim.env import make_env
from sim.tasks import features_of, history_of, make
from sim.tasks.legs.motions import REFERENCE


def controller(task) -> FeaturePolicy:
    rng = np.random.default_rng(0)
    sizes = {s.name: s.size for s in task.policy} | {"history": history_of(task) * sum(s.size for s in task.commands)}
    inputs, outputs = sum(sizes[f.signal] for f in features_of(task)), sum(s.size for s in task.commands)
    layers = [(rng.normal(0.0, 0.1, (n, m)), np.zeros(n)) for m, n in ((inputs, 16), (16, outputs))]
    return FeaturePolicy.from_task(task, Mlp([(w.astype(np.float32), b.astype(np.float32)) for w, b in layers]))


@pytest.fixture(scope="module")
def task():
    return make("get_up", vary=0.0)


def test_it_says_what_the_worlds_script_says(task) -> None:
    """Lying anyhow, until each has stood or has tried again; and then fallen once more."""
    env, num = make_env(task, 6, 3), 6
    env.reset(range(num), range(num))
    policy = KeyframePolicy(controller(task), task.timetable)
    state, again = policy.initial_state(num), np.zeros(num, bool)
    for _ in range(int(task.timetable.ends.max()) + 40):
        seen = env.observe()
        told = {name: np.asarray(value, np.float32) for name, value in seen.items()}
        before = state
        _, state = policy.act({**told, REFERENCE: np.full_like(told[REFERENCE], np.nan)}, state)
        row = state["motion"].astype(int)[:, 0], state["since"].astype(int)[:, 0]
        table = task.timetable.offsets
        np.testing.assert_allclose(table[row[0], np.minimum(row[1], table.shape[1] - 1)], told[REFERENCE], atol=1e-6)
        again |= (state["since"] < before["since"])[:, 0]
        env.step({s.name: np.zeros((num, *s.shape), np.float32) for s in task.commands})  # who does nothing stays down
    assert again.all()
    env.close()


def test_the_file_has_them_inside(task, tmp_path: Path) -> None:
    policy = whole(controller(task), task)
    assert isinstance(policy, KeyframePolicy)
    file = export(policy, tmp_path / "p.onnx")  # compared with `act`, step by step
    assert REFERENCE not in {s.name for s in file.inputs} and {"motion", "since"} <= {s.name for s in file.state}
    rng = np.random.default_rng(1)
    state = policy.initial_state(1)
    for step in range(300):
        signals = {s.name: rng.normal(0.0, 0.3, s.shape).astype(np.float32) for s in file.inputs}
        lying = np.array([0.9, 0.3, -0.2] if step < 150 else [0.0, 0.1, -1.0], np.float32)
        signals["projected_gravity"] = lying
        commands, state = policy.act({name: value[None] for name, value in signals.items()}, state)
        for name, value in file.step(signals).items():
            np.testing.assert_allclose(value, commands[name][0], atol=1e-5)


def test_who_is_told_nothing_of_them_stays_as_it_is() -> None:
    task = make("get_up", clock=False)
    plain = controller(task)
    assert whole(plain, task) is plain
    other = make("velocity")
    assert whole(plain, other) is plain
    with pytest.raises(ValueError, match="takes reference"):
        KeyframePolicy(plain, task.script(0).timetable)
