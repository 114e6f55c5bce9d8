"""Files of CleanRL: PPO's Agent, the actors of SAC and TD3."""

import numpy as np
import pytest
import torch
import yaml

import sim.gym
from deploy import cli
from deploy.policy_file import PolicyFile, PolicyFileError
from policies import adopt
from policies.adoption.formats.cleanrl import from_cleanrl
from sim.spec import limits
from tests.policies.adoption import foreign


def write(path, held):
    torch.save(held, path)
    return str(path)


def relu(x):
    return np.maximum(x, 0.0)


def test_ppo_of_our_environment_commands_what_cleanrl_would(tmp_path, capsys):
    net = foreign.layers([30, 16, 16, 4])
    file = write(tmp_path / "a.cleanrl_model", foreign.cleanrl(net))
    description, out = tmp_path / "a.yaml", tmp_path / "a.onnx"
    words = [file, "from=cleanrl", f"draft={description}", "task=quad_hover", "task.noise=0.0"]
    assert cli.call(adopt.main, words) == 0
    words = [*words[:2], f"description={description}", f"out={out}"]
    assert cli.call(adopt.main, words) == 2
    assert "normalisation.file: " in capsys.readouterr().err
    assert not out.exists()
    mean, var = np.linspace(-0.2, 0.3, 30), np.linspace(0.5, 2.0, 30)
    np.savez(tmp_path / "stats.npz", mean=mean, var=var, epsilon=1e-8, clip=10.0)
    description.write_text(description.read_text().replace("file: '?'", "file: stats.npz"))
    assert cli.call(adopt.main, words) == 0
    policy, env = PolicyFile.load(out), sim.gym.TaskEnv("quad_hover", config={"noise": 0.0})
    seen, _ = env.reset(seed=3)
    low, high = limits(policy.outputs)
    for _ in range(10):
        x = np.clip((seen - mean) / np.sqrt(var + 1e-8), -10.0, 10.0)
        action = np.clip(foreign.apply(net, x, np.tanh), -1.0, 1.0)
        got = policy.step({s.name: env.worlds.env.observe()[s.name][0] for s in policy.inputs})["motor_command"]
        assert got == pytest.approx(low + 0.5 * (action + 1.0) * (high - low), abs=1e-5)
        seen, *_ = env.step(action.astype(np.float32))


@pytest.mark.parametrize("kind", ["sac", "td3"])
def test_the_limits_of_the_actions_come_with_the_actor(tmp_path, kind):
    net, x = foreign.layers([5, 8, 8, 2]), np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    held = foreign.cleanrl(net, kind, 2.0, 0.5)
    file = write(tmp_path / "a.cleanrl_model", (held, foreign.cleanrl(net, kind)) if kind == "td3" else held)
    found = from_cleanrl(file, {})
    want = foreign.apply(net, x, relu)
    assert found.network.forward(x, {})[0] == pytest.approx(want, abs=1e-5)
    assert found.action == {"squash": "tanh", "scale": [2.0, 2.0], "offset": [0.5, 0.5]}
    bare = write(tmp_path / "b.cleanrl_model", foreign.cleanrl(net, kind))
    assert from_cleanrl(bare, {}).action == {"squash": "tanh"}


def test_a_robot_of_others_must_say_where_actions_were_clipped(tmp_path, capsys):
    file = write(tmp_path / "a.cleanrl_model", foreign.cleanrl(foreign.layers([3, 8, 8, 1])))
    assert cli.call(adopt.main, [file, "from=cleanrl", f"draft={tmp_path / 'a.yaml'}"]) == 0
    made = yaml.safe_load((tmp_path / "a.yaml").read_text())
    assert made["action"]["clip"] == ["?", "?"]
    made |= {"robot": "pendulum", "rate_hz": 20, "normalisation": {"mean": 0.0, "std": 1.0}}
    made["signals"][0]["name"] = made["observation"][0]["signal"] = "observation"
    made["commands"] = [{"name": "torque", "size": 1, "unit": "N m", "limits": [-2.0, 2.0]}]
    made["action"]["command"] = "torque"
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(made))
    words = [file, "from=cleanrl", f"description={tmp_path / 'a.yaml'}", f"out={tmp_path / 'a.onnx'}"]
    assert cli.call(adopt.main, words) == 2
    assert "action.clip: needs [low, high]" in capsys.readouterr().err
    made["action"]["clip"] = [-2.0, 2.0]
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(made))
    assert cli.call(adopt.main, words) == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda h: {"q_network.weight": h["fc1.weight"]},
            "no actor of CleanRL's PPO.* in it, but q_net",
        ),
        (lambda h: h | {"action_scale": torch.ones(3)}, "action_scale has 3 numbers, the actor returns 2"),
        (lambda h: {k: v for k, v in h.items() if k != "action_bias"}, "action_bias is missing"),
        (lambda h: {k: v for k, v in h.items() if k != "fc2.bias"}, "fc2.bias is missing"),
        (lambda h: h | {"fc2.weight": torch.full((8, 8), torch.nan)}, "fc2.weight is not finite"),
        (lambda h: h | {"agent": torch.nn.Linear(1, 1)}, "more than tensors"),
        (lambda h: (), "in it, but no tensors"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, change, said):
    held = foreign.cleanrl(foreign.layers([5, 8, 8, 2]), "sac")
    with pytest.raises(PolicyFileError, match=said):
        from_cleanrl(write(tmp_path / "a.cleanrl_model", change(held)), {})
