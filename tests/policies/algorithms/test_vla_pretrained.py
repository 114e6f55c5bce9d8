"""Cloning and reinforcement of models out of folders: tiny ones with weights that are drawn, on a toy."""

import copy

import pytest
import torch

from policies.algorithms import LearningError
from policies.algorithms.vla import Vla, VlaConfig
from policies.algorithms.vla_rl import VlaRl, VlaRlConfig
from policies.learning.vla.in_torch import TorchSpokenPolicy
from policies.learning.vla.memory import enough
from policies.learning.vla.pretrained import PretrainedConfig
from policies.runner import checkpoint
from tests.policies.learning.vla.tiny_checkpoints import KINDS, saved
from tests.policies.toy_words import ToyWords

pytest.importorskip("transformers", reason="without sim2metal[vla]")
pytest.importorskip("peft", reason="without sim2metal[vla]")


@pytest.fixture(scope="module")
def task():
    return ToyWords()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {kind: saved(tmp_path_factory.mktemp(kind), kind) for kind in KINDS}


def cloned(folder, **settings):
    pretrained = PretrainedConfig(str(folder), lora_rank=2, graded=4)
    quick = {"horizon": 3, "bins": 9, "episodes": 8, "updates": 2, "batch_size": 8, "learning_rate": 3e-3}
    return VlaConfig(**quick | {"pretrained": pretrained, "ema_decay": 0.9} | settings)


def whole(folder):
    return PretrainedConfig(str(folder), measured=False, graded=0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_trainer_clones_it(task, folders, kind):
    made = Vla(task, cloned(folders[kind], updates=50, learning_rate=0.02), 0)
    begun = copy.deepcopy(made.policy)
    shown, sentences = made._shown()

    @torch.no_grad()
    def loss(policy):
        prefix = policy.encode(policy.tell(*sentences.at(sentences.first[shown.asked])), shown.numbers, shown.pictures)
        return float(-policy.evaluate(prefix, shown.wanted).log_probability.sum(1).mean())

    told = [*made.learn()]
    begun.normalise(shown.numbers)
    assert loss(made.average) < loss(begun) - 0.3
    assert told[-1]["progress"] == 1.0 and 0.0 <= told[-1]["success"] <= 1.0
    assert isinstance(made.controller(), TorchSpokenPolicy)


@pytest.mark.parametrize("kind", KINDS)
def test_micro_batches_add_up_to_the_batch(task, folders, kind):
    def moved(micro):
        config = cloned(folders[kind], micro_batch=micro, jitter=0.0, unheard=0.0, pretrained=whole(folders[kind]))
        config.network.sight.shift = 0
        made = Vla(task, config, 0)
        shown, sentences = made._shown()
        sentences.first = torch.arange(len(sentences.first))  # one sentence for each thing: nothing is drawn
        made.policy.normalise(shown.numbers)
        lost = made._descend(shown, sentences, torch.arange(6))
        return float(lost), torch.cat([p.grad.flatten() for p in made.policy.parameters() if p.grad is not None])

    (one, at_once), (two, in_parts) = moved(0), moved(4)
    assert one == pytest.approx(two, abs=1e-5) and torch.allclose(at_once, in_parts, atol=1e-5)
    assert float(at_once.norm()) == pytest.approx(1.0, abs=1e-3)  # clipped


def few(folder, **settings):
    quick = {"clone": cloned(folder, updates=1, micro_batch=8), "iterations": 3, "episodes": 6, "num_envs": 3}
    more = {"batch_size": 16, "critic_alone": 1, "temperature": 1.0, "blur": [1.0], "critic_hidden": [16], "epochs": 1}
    return VlaRlConfig(**quick | more | {"learning_rate": 3e-3, "target_kl": 1.0} | settings)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_trainer_lets_it_practise_and_goes_on_exactly(task, folders, kind, tmp_path):
    first = VlaRl(task, few(folders[kind]), 0)
    practise = first.learn()
    rows = [next(practise), next(practise)]
    while "disagreement" not in rows[-1]:
        rows.append(next(practise))
    assert rows[-1]["disagreement"] < 1e-3 and {"kl", "clone_kl", "success_open"} <= {*rows[-1]}
    checkpoint.save(tmp_path / "checkpoint.npz", {"algorithm": first.state_dict()})
    assert (tmp_path / "checkpoint.npz").stat().st_size < 2e6
    second = VlaRl(task, few(folders[kind]), 1)
    second.load_state_dict(checkpoint.load(tmp_path / "checkpoint.npz")["algorithm"])
    assert [*practise] == [*second.learn()]
    learned = first.improvement.policy.state_dict()
    assert all(torch.equal(value, second.improvement.policy.state_dict()[name]) for name, value in learned.items())
    clone = first.cloning.average.state_dict()
    assert not all(torch.equal(value, clone[name]) for name, value in learned.items())


def test_another_folder_is_not_gone_on_with(task, folders, tmp_path):
    clone = Vla(task, cloned(folders["llava"]), 0)
    checkpoint.save(tmp_path / "checkpoint.npz", {"algorithm": clone.state_dict()})
    with pytest.raises(ValueError, match="is another network: .* set algorithm.clone as it was"):
        VlaRl(task, few(folders["paligemma"], start=str(tmp_path)), 0)


def test_out_of_memory_says_what_to_lower(task, folders, monkeypatch):
    made = Vla(task, cloned(folders["llava"]), 0)

    def hungry(*_):
        return torch.empty(1 << 50)

    monkeypatch.setattr(made.policy, "likely", hungry)
    with pytest.raises(LearningError, match="out of memory: .* lower micro_batch, or let less learn: pretrained.lora"):
        [*made.learn()]
    with pytest.raises(LearningError, match="lower micro_batch or num_envs"), enough("num_envs"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
    with pytest.raises(RuntimeError, match="shapes"), enough():
        raise RuntimeError("shapes do not match")


def test_a_device_that_is_not_there_is_named(task, folders, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="torch finds no such device"):
        Vla(task, cloned(folders["llava"]), 0, device="cuda")
