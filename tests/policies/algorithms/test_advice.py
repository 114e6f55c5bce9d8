"""Advised SAC: what is noted down where, what is learned from it, and that nobody waits for an adviser."""

import functools
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from policies.advisers import AdviserConfig, make, process
from policies.advisers.advice import AdviceConfig
from policies.advisers.process import Heard
from policies.algorithms.advice import AdvisedSac, AdvisedSacConfig
from policies.algorithms.sac import Sac, SacConfig
from policies.learning.buffers import ReplayBuffer
from policies.models.export import export
from policies.runner import checkpoint
from policies.runner.config import RunError, compose
from policies.runner.log import _described
from policies.train import train
from sim import tasks
from tests.policies.algorithms.test_sac import SMALL, TINY, run
from tests.policies.toy_advisers import NAME
from tests.policies.toy_reach import ToyReach


def learner(seed=0, advice=None, task=None, **settings):
    wanted = AdviceConfig(**({"synchronous": True, "ask": 2, "every": 1} | (advice or {})))
    return AdvisedSac(task or ToyReach(), AdvisedSacConfig(**(TINY | SMALL | settings), advice=wanted), seed)


Said = st.lists(st.one_of(st.integers(1, 4), st.lists(st.integers(0, 40), max_size=4, unique=True)), max_size=20)


@given(capacity=st.integers(4, 9), told=Said)
def test_late_answers_are_noted_where_they_belong(capacity, told):
    """Transitions come, some at a time (a number), and answers about any (a list), in any order, also too late."""
    buffer, known, count = ReplayBuffer(capacity), {}, 0
    for turn, event in enumerate(told):
        if isinstance(event, int):
            x = torch.arange(count, count + event, dtype=torch.float32)
            buffer.add(x=x, advice=torch.zeros(event, 1))
            known |= {int(k): 0.0 for k in x}
            count += event
        elif count:
            serial = torch.tensor([k for k in event if k < count], dtype=torch.int64)
            there = buffer.annotate(serial, advice=serial[:, None] + turn / 100.0)
            assert there.tolist() == [int(k) >= count - capacity for k in serial]
            known |= {int(k): int(k) + turn / 100.0 for k in serial}
    if count:
        x, advice = buffer.data["x"][: buffer.size], buffer.data["advice"][: buffer.size, 0]
        assert sorted(x.tolist()) == [*range(max(0, count - capacity), count)]
        np.testing.assert_allclose(advice, [known[int(k)] for k in x], rtol=1e-6)


@pytest.mark.parametrize("capacity", [40, 400])
def test_what_the_expert_said_stands_beside_what_he_was_asked_about(capacity):
    algorithm = learner(capacity=capacity, advice={"until": 1.0})
    metrics = run(algorithm)[-1]
    data = algorithm.path.buffer.data
    said = data["advice_weight"] > 0
    assert metrics["advice_asked"] == metrics["advice_answered"] == 200.0 and metrics["progress"] == 1.0
    assert int(said.sum()) == (20 if capacity == 40 else 200)
    position, goal = data["x"][said].split(2, -1)
    told = ToyReach().expert({"position": position.numpy(), "goal": goal.numpy()})["velocity"]
    np.testing.assert_allclose(data["advice"][said], told, atol=1e-6)
    assert not data["advice"][~said].any() and not data["bonus"][~said].any()
    bonus = data["bonus"][said]
    near = -(data["advice"] - data["action"])[said].square().mean(-1).sqrt()
    assert bool((bonus.abs() <= 1.0).all()) and np.corrcoef(bonus, near)[0, 1] > 0.9


def test_the_expert_is_heard_late_and_nobody_waits():
    algorithm = learner(advice={"synchronous": False, "latency": 0.5, "ask": 4, "batch": 4, "queue": 8, "until": 1.0})
    path = algorithm.path
    lessons, end = algorithm.learn(), time.monotonic() + 20.0
    next(lessons)
    assert path.advice.adviser.counts["answered"] == 0 and path.advice.adviser.waiting
    while not path.advice.adviser.counts["answered"] and time.monotonic() < end:
        path.advice.adviser.submit(path.advice.adviser._queue[-1])
        for heard in path.advice.adviser.poll():
            path.advice._note(heard)
        time.sleep(0.01)
    metrics = [*lessons][-1]
    assert metrics["advice_answered"] > 0 and metrics["advice_dropped"] > 0 and metrics["progress"] == 1.0
    assert float(path.buffer.data["advice_weight"].sum()) > 0


@pytest.mark.parametrize("how", ["hang", "die", "unready", "nan", "shape", "noise"])
def test_an_adviser_that_fails_never_stops_training(how, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(process, "FIRST", 0.05)
    (tmp_path / how).touch()
    told = {"adviser": NAME, "policy": str(tmp_path), "synchronous": False, "latency": 0.0, "timeout": 0.5}
    algorithm = learner(total_steps=80_000, warmup_steps=79_000, advice=told | {"until": 1.0})
    adviser, lessons = algorithm.path.advice.adviser, algorithm.learn()
    trouble = "advice_refused" if how in ("nan", "shape") else "adviser_restarts"
    metrics, enough = next(lessons), 2.0 if how == "die" or trouble == "advice_refused" else 1.0
    while metrics[trouble] < enough:  # it ends with StopIteration where nothing goes wrong
        time.sleep(0.1)
        before, metrics = metrics, next(lessons)
        assert metrics["env_steps"] == before["env_steps"] + 40.0
    assert bool(metrics["advice_refused"]) != bool(metrics["adviser_restarts"])
    assert (metrics["advice_answered"] > 0) == (how == "nan")  # all but the first row of each answer is fine
    lessons.close()
    assert adviser.process is None  # it goes with the training


def test_an_adviser_that_is_killed_is_replaced_and_training_goes_on(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(process, "FIRST", 0.05)
    told = {"adviser": NAME, "policy": str(tmp_path), "synchronous": False, "latency": 0.0, "until": 1.0}
    algorithm = learner(total_steps=40_000, report_every=50, warmup_steps=39_000, advice=told)
    adviser, killed = algorithm.path.advice.adviser, []
    for metrics in algorithm.learn():
        if metrics["advice_answered"] and not killed:
            os.kill(adviser.process, signal.SIGKILL)
            killed.append(metrics["advice_answered"])
        if killed and metrics["advice_answered"] > killed[0] + 300.0:
            break
        time.sleep(0.02)
    assert adviser.restarts == 1 and metrics["adviser_restarts"] == 1.0 and metrics["advice_answered"] > killed[0]


def test_with_one_who_is_waited_for_the_seed_decides(tmp_path: Path):
    settings = {"capacity": 80, "total_steps": 200, "advice": {"every": 3, "until": 1.0}}
    whole = run(learner(seed=3, **settings))
    assert whole[:2] != run(learner(seed=4, **settings), 2)
    half = learner(seed=3, **settings)
    assert run(half, 2) == whole[:2]
    checkpoint.save(tmp_path / "checkpoint.npz", half.state_dict())
    resumed = learner(seed=4, **settings)
    resumed.load_state_dict(checkpoint.load(tmp_path / "checkpoint.npz"))
    assert run(resumed) == whole[2:]


def test_what_is_under_way_at_a_checkpoint_is_lost_and_said_to_be(tmp_path: Path):
    half = learner(advice={"synchronous": False, "latency": 5.0, "timeout": 60.0})
    lessons = half.learn()
    next(lessons)
    next(lessons)
    waiting = half.path.advice.adviser.waiting
    state = half.state_dict()
    lessons.close()
    assert waiting == 40 and state["advice"]["counts"] == {**state["advice"]["counts"], "asked": 40, "lost": 40}
    resumed = learner()
    resumed.load_state_dict(state)
    metrics = run(resumed)[-1]
    assert metrics["advice_lost"] == 40.0 and metrics["advice_answered"] == metrics["advice_asked"] - 40.0 > 0.0


def test_an_answer_about_what_was_overwritten_is_late():
    algorithm = learner(capacity=16, total_steps=200, advice={"until": 1.0})
    next(algorithm.learn())  # 40 transitions, of which the last 16 are there
    path, ones = algorithm.path, np.ones((4, 4), np.float32)
    before, blank = dict(path.advice.adviser.counts), path.buffer.data["advice"].clone()
    path.advice._note(Heard(np.array([0, 23, 24, 39]), 0.5 * ones))
    after = path.advice.adviser.counts
    assert (after["late"] - before["late"], after["answered"] - before["answered"]) == (2, 2)
    changed = (path.buffer.data["advice"] != blank).any(-1).nonzero()[:, 0].tolist()
    assert changed == sorted((24 % 16, 39 % 16)) and path.advice.metrics()["advice_late"] == after["late"]


def batch_of(path, count, said):
    """A batch of random numbers, in which advice is given in these rows."""
    generator = torch.Generator().manual_seed(0)
    action, advice = torch.tanh(torch.randn((2, count, 2), generator=generator))
    x = torch.randn((count, 4), generator=generator)
    weight = torch.zeros(count)
    weight[said] = torch.rand(len(said), generator=generator) + 0.1
    return {"x": x, "c": path.critic_norm(x), "action": action, "advice": advice, "advice_weight": weight}


def test_the_margin_is_as_defined():
    path = learner(advice={"margin": 0.7, "margin_weight": 2.0, "until": 0.5}).path
    path.iteration = path.iterations // 4  # half of it is left
    said = [1, 4, 5]
    batch = batch_of(path, 6, said)
    values = path.critic(path._valued(batch["c"], batch["action"])).detach()
    told = path.critic(path._valued(batch["c"], batch["advice"])).detach()
    total = 0.0
    for row in said:
        apart = float((batch["advice"][row] - batch["action"][row]).square().mean().sqrt())
        for one in range(2):
            short = float(values[one, row]) + 0.7 * float(values[one].std()) * apart - float(told[one, row])
            total += 0.5 * float(batch["advice_weight"][row]) * max(0.0, short) ** 2
    found = path._critic_regulariser(batch, values)
    assert float(found.detach()) == pytest.approx(2.0 * total / float(batch["advice_weight"].sum()), rel=1e-4)
    found.backward()
    assert all(bool(weight.grad.abs().sum() > 0) for weight in path.critic.weights)


def test_guidance_is_as_defined():
    path = learner(advice={"guidance": 3.0, "temperature": 0.5, "until": 1.0}).path
    said = [0, 2, 3, 5]
    batch = batch_of(path, 6, said)
    mine = path.mean(batch["x"], {}).detach()

    def worth(action):
        return path.critic(path._valued(batch["c"], action)).detach().amin(0)

    better = (worth(batch["advice"]) - worth(mine))[said]
    assert bool((better > 0).any()) and bool((better < 0).any())
    counts = torch.where(better > 0, (better / (0.5 * better.abs().mean())).exp().clamp(max=20.0), 0.0)
    far = (mine - batch["advice"])[said].square().mean(-1)
    weight = batch["advice_weight"][said]
    wanted = 3.0 * float((weight * counts * far).sum() / weight.sum())
    found = path._actor_regulariser(batch)
    assert float(found.detach()) == pytest.approx(wanted, rel=1e-4)
    found.backward()
    assert all(weight.grad is None for weight in path.critic.weights)
    grads = [parameter.grad for parameter in path.actor.parameters()]
    assert all(bool(grad.abs().sum() > 0) for grad in grads[:-1])


def test_a_bonus_is_bounded_and_all_of_it_fades_out():
    path = learner(advice={"bonus": 0.3, "until": 0.5}).path
    batch = {"terms": torch.zeros((3, 2)), "bonus": torch.tensor([-1.0, 0.0, 1.0])}
    torch.testing.assert_close(path._reward(batch), torch.tensor([-0.3, 0.0, 0.3]))
    path.iteration = path.iterations // 2
    assert path.left == 0.0 and not path._reward(batch).any()
    batch = batch_of(path, 6, [1, 2])
    assert path._critic_regulariser(batch, torch.zeros((2, 6))) == path._actor_regulariser(batch) == 0.0


def test_nobody_is_asked_after_it_has_faded_out():
    algorithm = learner(advice={"until": 0.3})
    for metrics in algorithm.learn():
        over = metrics["progress"] > 0.3
        assert (algorithm.path.advice.adviser.process is None) == over
    assert metrics["advice_asked"] == 60.0  # 2 in each of 30 of 100 control steps


FEW_STEPS = TINY | {"total_steps": 3200, "num_envs": 8, "hidden": [32], "critic_hidden": [32], "batch_size": 64}
FEW_STEPS |= {"warmup_steps": 400, "updates_per_step": 4, "actor_every": 1, "success_reward": 1.0, "linger": 5}
FEW_STEPS |= {"evaluation_episodes": 100, "report_every": 400, "initial_std": 0.5, "gamma": 0.9}


@pytest.mark.long  # what is learned from it is defined above
def test_advice_is_learned_from():
    assert run(learner(**FEW_STEPS, advice={"ask": 4, "until": 1.0}))[-1]["success"] >= 0.85  # 0.96 when written


@pytest.mark.long
def test_in_so_few_steps_sac_alone_does_not_get_there():
    assert run(Sac(ToyReach(), SacConfig(**FEW_STEPS, path="torch"), 0))[-1]["success"] <= 0.4  # 0.07 when written


def test_an_earlier_policy_advises_with_its_history(tmp_path: Path):
    task = tasks.make("quad_hover", history=3)
    sac = Sac(task, SacConfig(**TINY, **SMALL, path="torch"), 0)
    run(sac, 1)
    export(sac.controller(), tmp_path / "policy.onnx", training={})
    told = {"adviser": "policy", "policy": str(tmp_path / "policy.onnx"), "until": 1.0}
    algorithm = learner(task=task, advice=told, num_envs=4)
    seen = []
    ask = algorithm.path.advice.ask
    algorithm.path.advice.ask = lambda before, action: (seen.append(before), ask(before, action))
    run(algorithm, 2)
    data, controller = algorithm.path.buffer.data, sac.controller()
    for step, before in enumerate(seen):
        signals = {name: value.numpy() for name, value in before["truth"].items()}
        action, _ = controller.act(signals, {"history": before["history"].numpy()})
        wanted = 2.0 * action["motor_command"] - 1.0  # of a command in 0..1
        rows = slice(4 * step, 4 * step + 4)
        said = data["advice_weight"][rows] > 0
        assert int(said.sum()) == 2
        np.testing.assert_allclose(data["advice"][rows][said], wanted[said], atol=1e-4)
    assert algorithm.provenance()["advised"] == {"adviser": "policy", "states": 40}


def test_a_policy_for_something_else_is_not_asked(tmp_path: Path):
    sac = Sac(ToyReach(), SacConfig(**TINY, **SMALL), 0)
    run(sac, 1)
    export(sac.controller(), tmp_path / "policy.onnx", training={})
    adviser = make(tasks.make("quad_hover"), AdviserConfig(adviser="policy", policy=str(tmp_path / "policy.onnx")))
    with pytest.raises(ValueError, match="is for the task 'toy_reach', not 'quad_hover'"):
        adviser.open()


def test_settings_that_make_no_sense_are_refused_in_one_sentence():
    with pytest.raises(ValueError, match="algorithm.path=torch only, got fused"):
        AdvisedSacConfig(path="fused")
    with pytest.raises(ValueError, match="a bonus is for n_step=1, got n_step=3"):
        AdvisedSacConfig(n_step=3, advice=AdviceConfig(bonus=0.1))
    for wrong in ({"ask": 0}, {"ask": 65}, {"every": 0}, {"margin": -1.0}, {"temperature": 0.0}, {"until": 0.0}):
        with pytest.raises(ValueError, match="ask|at least 0|share of the training"):
            AdviceConfig(**wrong)
    with pytest.raises(RunError, match="walk has no scripted expert"):
        train(compose(["task=walk", "algorithm=advised_sac"]))


def test_it_goes_by_the_recipes_of_sac():
    ours, theirs = (compose(["task=arm_reach", f"algorithm={name}"]) for name in ("advised_sac", "sac"))
    for name, value in vars(theirs.algorithm_config).items():
        assert name == "path" or getattr(ours.algorithm_config, name) == value


def test_experience_of_earlier_runs_is_mixed_in_without_advice(tmp_path: Path):
    earlier = Sac(ToyReach(), SacConfig(**TINY, **SMALL, path="torch"), 0)
    run(earlier, 5)
    checkpoint.save(tmp_path / "checkpoint.npz", {"algorithm": earlier.state_dict(), "log": {}})
    algorithm = learner(earlier=[str(tmp_path)], earlier_share=0.5, advice={"ask": 4, "until": 1.0})
    run(algorithm)
    batch = algorithm.path.buffer.sample(1000, torch.Generator().manual_seed(0), 1, 0.9)
    assert float((batch["advice_weight"] > 0).float().mean()) == pytest.approx(0.5, abs=0.06)


def test_progress_tells_of_the_adviser():
    said = functools.partial(dict, reward=1.0, advice_answered=512.0)
    assert _described(said(advice_refused=0.0, adviser_restarts=0.0)) == "reward 1  advised 512"
    assert _described(said(advice_refused=3.0, adviser_restarts=2.0)) == "reward 1  advised 512 (3 refused, 2 restarts)"
