"""Learners of `sac`, `vla` (its localiser), `vla_rl` and `student`; the way, and those of `ppo`: `test_learners`."""

import os
import re
import signal
from pathlib import Path

import pytest
import torch

from policies.algorithms import ALGORITHMS, LostLearnerError, algorithm_class
from policies.algorithms.ppo.torch_recurrent import TorchRecurrent
from policies.algorithms.sac import Sac, SacConfig
from policies.algorithms.sac.torch_path import TorchPath
from policies.algorithms.vla import Vla, stages
from policies.algorithms.vla_rl import VlaRl
from policies.algorithms.vla_rl.improvement import Improvement
from policies.learning.parallel.group import Group
from policies.learning.parallel.learners import Learners
from policies.models.export import export
from policies.runner import checkpoint
from policies.runner.config import RunError, compose
from policies.runner.mistakes import SettingsError
from policies.train import train
from sim.tasks import make
from tests.policies.algorithms.test_student import chasing
from tests.policies.algorithms.test_vla_rl import cloned, few
from tests.policies.resumed import same
from tests.policies.toy_sight import ToySight
from tests.policies.toy_words import ToyWords

SAC = (
    *("task=quad_hover", "algorithm=sac", "algorithm.num_envs=4", "algorithm.total_steps=240", "algorithm.parts=2"),
    *("algorithm.warmup_steps=40", "algorithm.batch_size=17", "algorithm.report_every=10", "algorithm.hidden=[8]"),
    *("algorithm.critic_hidden=[8]", "algorithm.evaluation_episodes=2"),
)
SPEAKING = (
    *("task=tests.policies.toy_words:ToyWords", "algorithm=vla_rl", "algorithm.shares=2", "algorithm.iterations=3"),
    *("algorithm.episodes=8", "algorithm.num_envs=4", "algorithm.batch_size=16", "algorithm.critic_alone=1"),
    *("algorithm.temperature=1", "algorithm.blur=[1]", "algorithm.clone.horizon=3", "algorithm.clone.bins=9"),
    *("algorithm.clone.episodes=4", "algorithm.clone.updates=3", "algorithm.clone.batch_size=9"),
    *("algorithm.clone.micro_batch=4", "algorithm.clone.network.width=16", "algorithm.clone.network.layers=1"),
    *("algorithm.clone.network.heads=2", "algorithm.clone.network.keypoints=4"),
    *("algorithm.clone.network.sight.channels=[4,4]", "algorithm.clone.network.sight.strides=[2,2]"),
)
LOCALISING = (
    *("task=tests.policies.toy_words:ToyObjects", "algorithm=vla", "algorithm.shares=2", "algorithm.horizon=3"),
    *("algorithm.bins=9", "algorithm.episodes=4", "algorithm.updates=3", "algorithm.batch_size=9"),
    *("algorithm.grounding=20", "algorithm.localisation=90", "algorithm.network.offsets=2"),
    *("algorithm.network.width=16", "algorithm.network.layers=1", "algorithm.network.heads=2"),
    *("algorithm.network.looks=false", "algorithm.network.keypoints=4"),
    *("algorithm.network.localiser.channels=[4,4]", "algorithm.network.localiser.strides=[1,1]"),
)
TAUGHT = (
    *("task=tests.policies.algorithms.test_student:Told", "algorithm=student", "algorithm.parts=2"),
    *("algorithm.eyes=encoder", "algorithm.league=false", "algorithm.practice_steps=0", "algorithm.snapshots=0"),
    *("algorithm.num_envs=8", "algorithm.rollout_steps=8", "algorithm.total_steps=256", "algorithm.minibatches=2"),
    *("algorithm.epochs=1", "algorithm.hidden=[8,8]", "algorithm.critic_hidden=[8]", "algorithm.evaluate_every=0"),
    *("algorithm.evaluation_episodes=2", "algorithm.gaze_steps=0", "algorithm.guided=0.6"),
)
# What is run, where the first learner takes a gradient, and at which of them the other one is lost.
KINDS = {
    "sac": (SAC, TorchPath, "_update", 35),
    "vla_rl": (SPEAKING, Improvement, "_pull", 3),
    "localiser": (LOCALISING, stages, "descend", 75),
    "student": (TAUGHT, TorchRecurrent, "_gradient_step", 6),
}


def followers() -> list[int]:
    """Processes of the other learners that this one has begun."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"policies.cluster.follower" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


# One kind every day, eight seconds each: that the others continue exactly, and what parts change, is tested beside.
@pytest.mark.slow
@pytest.mark.parametrize("kind", [k if k == "sac" else pytest.param(k, marks=pytest.mark.long) for k in KINDS])
def test_a_learner_is_lost_and_the_run_goes_on_as_that_of_one_process(tmp_path, monkeypatch, kind):
    words, where, name, last = KINDS[kind]
    words = [*words, "report=false"]
    if kind == "student":
        words.append(f"algorithm.teacher={export(chasing(make('soccer_1v1')), tmp_path / 'teacher.onnx').path}")
    train(compose([*words, f"out={tmp_path / 'one'}"]))
    method, count = getattr(where, name), []

    def lost(self, *told):
        count.append(1)
        if len(count) == last:
            (process,) = followers()
            os.kill(process, signal.SIGKILL)
        return method(self, *told)

    monkeypatch.setattr(where, name, lost)
    folder = tmp_path / "two"
    with pytest.raises(RunError, match=r"learner 1 of 2 \(0 is this one\) is gone: signal 9; the checkpoint of "):
        train(compose([*words, f"out={folder}", "learners=2", "checkpoint_s=0.001"]))
    monkeypatch.undo()
    assert len(count) == last and not followers()  # so many updates were shared
    train(compose([f"resume={folder}", "learners=1", *(word for word in words[:1] if ":" in word)]))
    one, two = (checkpoint.load(at / "checkpoint.npz")["algorithm"] for at in (tmp_path / "one", folder))
    same(one, two)


def learnt(made) -> list[torch.Tensor]:
    for _ in made.learn():
        pass
    if isinstance(made, Sac):
        return [*made.path.actor.parameters(), *made.path.critic.parameters(), made.path.log_alpha]
    return [*(made.improvement.policy if isinstance(made, VlaRl) else made.policy).parameters()]


@pytest.mark.parametrize("kind", ["sac", "td3", "pictures", "vla", "flow", "vla_rl"])
def test_parts_change_nothing_but_the_order_of_sums(kind):
    def made(parts):
        if kind in ("sac", "td3", "pictures"):
            sizes = {"num_envs": 4, "total_steps": 80, "warmup_steps": 40, "batch_size": 17, "report_every": 100}
            how = {"hidden": [8], "critic_hidden": [8], "evaluation_episodes": 1, "path": "torch", "actor_every": 1}
            task = ToySight() if kind == "pictures" else make("quad_hover")
            more = {"deterministic": kind == "td3", "critics": 3, "target_critics": 2, "n_step": 2}
            return Sac(task, SacConfig(**sizes, **how, **more, parts=parts), 0)
        if kind == "vla_rl":
            return VlaRl(ToyWords(), few(iterations=2, episodes=8, epochs=1, learning_rate=3e-3, shares=parts), 0)
        more = {"head": "flow"} if kind == "flow" else {}
        return Vla(
            ToyWords(), cloned(updates=4, batch_size=9, micro_batch=4, learning_rate=0.02, shares=parts, **more), 0
        )

    begun = [value.detach().clone() for value in learnt_by(made(1))]
    whole, parted = learnt(made(1)), learnt(made(3))
    torch.testing.assert_close(parted, whole, rtol=1e-3, atol=3e-5)
    moved = max(float((a - b).detach().abs().max()) for a, b in zip(begun, whole, strict=True))
    assert moved > 1e-3  # far more than that


def learnt_by(made) -> list[torch.Tensor]:
    """What it learns, as it is."""
    made.learn = lambda: ()
    return learnt(made)


@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_every_row_is_of_one_part(count):
    learners, batch = Learners(3), {"x": torch.arange(count), "y": torch.rand(count, 2)}
    pieces = [learners.cut(batch, place) for place in range(3)]
    rows = [int(x) for cut, share in pieces if share for x in cut["x"]]
    assert rows == [*range(count)] and sum(share for _, share in pieces) == pytest.approx(1.0)
    assert all(len(cut["x"]) == len(cut["y"]) >= 1 for cut, _ in pieces)


def test_micro_batches_add_up():
    weight, x = torch.ones(3, requires_grad=True), torch.rand(12, 3, generator=torch.Generator().manual_seed(0))
    idle = torch.ones(2, requires_grad=True)  # nothing depends on it: an optimiser leaves it as it is
    found = []
    for parts in (1, 3):
        learners = Learners(parts)

        def loss(place, piece, learners=learners):
            cut, share = learners.cut({"x": x.split(5)[piece]}, place)
            value = (cut["x"] @ weight).square().mean() * share * len(x.split(5)[piece]) / 12
            return value, {"loss": value}

        told = learners.gradient(loss, [weight, idle], 3)
        found.append((weight.grad, told["loss"]))
        assert idle.grad is None
    torch.testing.assert_close(*found)
    torch.testing.assert_close(found[0][1], (x @ weight).square().mean().detach())


def test_practice_that_differs_is_noticed_before_anything_is_summed(monkeypatch):
    class Other(Group):
        """With one who practised something else."""

        def told(self, what=0):
            return what

        def gathered(self, own):
            return torch.stack([own, own + 1])

        def summed(self, own, order):
            raise AssertionError("gradients of other rows are summed")

    made = VlaRl(ToyWords(), few(iterations=1, episodes=4, critic_alone=0, shares=2), 0)
    assert [*made.cloning.learn()]
    monkeypatch.setattr(made.learners, "group", Other(0, 2))
    with pytest.raises(LostLearnerError, match="the learners are no longer the same"):
        next(made.learn())


def test_who_shares_is_named():
    sharing = [name for name in sorted(ALGORITHMS) if "learners" in algorithm_class(name).takes]
    with pytest.raises(SettingsError, match=f"apg learns in one process; {', '.join(sharing[:-1])} and {sharing[-1]} "):
        train(compose(["task=quad_hover", "learners=2"]))


def test_what_cannot_be_shared_is_refused(tmp_path):
    teacher = export(chasing(make("soccer_1v1")), tmp_path / "teacher.onnx").path
    student = (
        *("task=soccer_vision_1v1", "algorithm=student", f"algorithm.teacher={teacher}", "algorithm.parts=2"),
        *("algorithm.eyes=encoder", "algorithm.practice_steps=0", "algorithm.snapshots=0"),
    )
    for words, why in (
        ((*SAC, "learners=3"), "learners=3 are more than algorithm.parts=2 of this run"),
        ((*SAC, "algorithm.path=fused"), "path=fused does not do algorithm.parts=2"),
        ((*SAC, "algorithm.workers=2"), "parts=2 does not go with algorithm.workers, nor with real_data"),
        ((*SAC, "algorithm.parts=18"), "parts of a batch must be in 0..17 (batch_size), got 18"),
        ((*SPEAKING, "learners=3"), "learners=3 are more than algorithm.shares=2 of this run"),
        ((*SPEAKING, "algorithm.clone.shares=2"), "set algorithm.shares, which is the clone's, too"),
        ((*SPEAKING, "algorithm.shares=17"), "shares of a batch must be in 0..16 (batch_size), got 17"),
        (("task=quad_hover", "algorithm=advised_sac", "algorithm.parts=2"), "advised_sac learns in one process"),
        (("task=quad_hover", "algorithm=online_sac", "algorithm.parts=2"), "online_sac learns in one process"),
        (("task=quad_hover", "algorithm=advised_sac", "learners=2"), "learners=2: advised_sac learns in one process"),
        (("task=quad_hover", "algorithm=sac", "algorithm.workers=2", "learners=2"), "learners=2: algorithm.parts=2 "),
        (("task=soccer_vision_1v1", "algorithm=student", "learners=2"), "learners=2: algorithm.parts=2 cut a student"),
        ((*TAUGHT, "algorithm.league=true"), "they go with algorithm.teacher=FILE"),
        ((*student, "algorithm.league=false", "algorithm.practice_steps=9000"), "practice_steps=0, snapshots=0 and"),
        ((*student, "algorithm.league=false", "algorithm.snapshots=3"), "practice_steps=0, snapshots=0 and workers=1"),
        ((*student, "algorithm.league=true"), "they go with algorithm.teacher=FILE, eyes=encoder, league=false"),
        (
            (*student, "algorithm.league=false", "algorithm.gaze_steps=9000"),
            "nobody learns to look first, set gaze_steps=0",
        ),
    ):
        with pytest.raises((SettingsError, RunError), match=re.escape(why)):
            train(compose([*words]))
