"""SAC that corrects a controller which sees a lidar alone: how far, what is exported, and what is refused."""

import numpy as np
import pytest
import torch

from policies.algorithms.advice import AdvisedSacConfig
from policies.algorithms.online_sac import OnlineSacConfig
from policies.algorithms.sac import Sac, SacConfig
from policies.algorithms.sac.corrected import Corrected
from policies.models.export import export, random_signals
from policies.models.networks.feed_forward import Mlp
from policies.runner import checkpoint
from sim.experts.gap import follow_gap, gap
from sim.tasks import make
from tests.policies.resumed import learned, same
from tests.policies.toy_reach import ToyReach

TINY = {
    "num_envs": 4,
    "total_steps": 160,
    "warmup_steps": 40,
    "batch_size": 16,
    "report_every": 15,
    "evaluation_episodes": 2,
    "hidden": [16],
    "critic_hidden": [16],
    "residual": 0.3,
}
RACE = {"tracks": 4, "steps": 60}


def learner(seed=0, task=None, **settings):
    return Sac(task or make("car_race", **RACE), SacConfig(**(TINY | settings)), seed)


def seen(task, count, seed=0):
    """Signals (count, k) of random places, walls near and far."""
    signals = random_signals(task.policy, count, np.random.default_rng(seed))
    signals["lidar"] = np.random.default_rng(seed).uniform(0.1, 10.0, (count, 32)).astype(np.float32)
    return signals


def test_it_steers_to_where_it_is_free_and_slows_down_before_walls():
    angles = np.linspace(-2.3, 2.3, 32, dtype=np.float32)
    made, far = gap(angles), np.float32(2.8)
    beams = np.full((4, 32), 0.5, np.float32)
    beams[0, (angles > 0.3) & (angles < 0.8)] = far  # to the left
    beams[1] = beams[0, ::-1]
    beams[2, np.abs(angles) < 0.4] = far  # straight on
    steering, speed = made.act(beams).T
    assert steering[0] > 0.3 and steering[1] == pytest.approx(-steering[0], abs=1e-6) and abs(steering[2]) < 1e-6
    assert speed[2] > speed[0] + 0.3 and speed[3] < -0.3  # walls all around


def test_without_a_correction_it_is_the_controller_and_with_one_it_stays_near():
    task = make("car_race", **RACE)
    signals, low, high = seen(task, 200), *(np.array([getattr(s, k) for s in task.commands]) for k in ("low", "high"))
    base = follow_gap(task, signals)
    path = learner().path
    nothing, _ = path.controller().act(signals, {})  # an untrained actor
    with torch.no_grad():
        for parameter in path.average.parameters():
            parameter.normal_(std=2.0, generator=torch.Generator().manual_seed(0))
    changed, _ = path.controller().act(signals, {})
    for k, name in enumerate(base):
        near = 0.3 * 0.5 * (high[k] - low[k])
        away = np.abs(changed[name] - base[name])
        np.testing.assert_allclose(nothing[name], base[name], atol=0.2 * near)
        assert away.max() <= near * 1.0001 and away.mean() > 0.3 * near


def test_one_file_is_the_whole_controller(tmp_path):
    trained = learner()
    assert list(trained.learn())[-1]["progress"] == 1.0
    controller, path = trained.controller(), trained.path
    file = export(controller, tmp_path / "policy.onnx")
    signals = seen(trained.task, 64, 3)
    file.reset(64)
    answer, (wanted, _) = file.step(signals), controller.act(signals, {})
    sensed = {name: torch.from_numpy(value) for name, value in signals.items()}
    x = path.env.features({"policy": sensed, "history": torch.zeros((64, 0))})
    with torch.no_grad():  # what the environment is told in training
        told = path.env._commands(path._told(x, path.kept(x, {})).numpy())
    for s in file.outputs:
        np.testing.assert_allclose(answer[s.name], wanted[s.name], atol=1e-5)
        np.testing.assert_allclose(answer[s.name], told[s.name], atol=1e-4)


def test_a_run_goes_on_exactly():
    wanted = {"num_envs": 16, "total_steps": 16 * 40, "warmup_steps": 16 * 10}  # all lanes of a block
    whole = learner(3, **wanted)
    rows, others = learned(whole, lambda: learner(3, **wanted))
    for k, other in enumerate(others):
        assert [*other.learn()] == rows[k + 1 :]
    same(others[0].state_dict(), whole.state_dict())


def test_earlier_runs_must_have_corrected_as_much(tmp_path):
    plain = learner(residual=0.0, path="torch")
    list(plain.learn())
    checkpoint.save(tmp_path / "checkpoint.npz", {"algorithm": plain.state_dict()})
    assert learner(residual=0.0, path="torch", earlier=[str(tmp_path)]).path.earlier
    with pytest.raises(ValueError, match=r"learned something else: .*'residual 0\.3' here"):
        learner(earlier=[str(tmp_path)])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"residual": 1.5}, "residual must be between 0 and 1, got 1.5"),
        ({"path": "fused"}, "path=fused does not do algorithm.residual"),
        ({"real_data": "data"}, "real_data goes with residual=0.0 only, got 0.3"),
        ({"task": ToyReach()}, "corrects a controller that sees a lidar; toy_reach has none"),
        ({"task": make("car_race_vision")}, "corrects a controller that sees a lidar; car_race_vision has none"),
    ],
)
def test_what_does_not_go_together_is_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        learner(**wrong)


@pytest.mark.parametrize("kind", [AdvisedSacConfig, OnlineSacConfig])
def test_others_refuse_it(kind):
    with pytest.raises(ValueError, match="algorithm.residual"):
        kind(residual=0.3)


def test_a_correction_fits_its_controller():
    layers = [(np.zeros((3, 40)), np.zeros(3))]
    with pytest.raises(ValueError, match="2 outputs and sees 32 beams, got 3 and 40"):
        Corrected(make("car_race").gap, Mlp(layers), 0.3)
