"""Vision, language, action: pictures and a sentence in, action tokens out (RT-2, OpenVLA), small enough for a laptop.

Cloning: the likelihood of the tokens of an expert's chunks under any of the sentences that ask for the same. Bins are
softened over their neighbours; FAST tokens have none, and are said one after the other until the end. Or, `head=flow`,
a flow from noise to the chunks (as pi0), which `dsrl` can steer. A clone that has not converged makes whatever improves
it look good: the loss is reported.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from policies.algorithms.bc import check
from policies.algorithms.vla.descent import descend
from policies.algorithms.vla.glimpses import glimpses, sights
from policies.algorithms.vla.heads import HEADS, Head
from policies.algorithms.vla.stages import REPORT, as_often, first_stages, localised, true_positions
from policies.learning import cosine
from policies.learning.buffers import Batch
from policies.learning.demonstrations import Demonstrations, Shown, demonstrated
from policies.learning.encoders import columns, kept, shifted
from policies.learning.networks import Stateful, learned
from policies.learning.parallel.learners import Learners
from policies.learning.vla import Hearing
from policies.learning.vla.flow import FlowConfig
from policies.learning.vla.grounding import Choices, Grounding, Referents
from policies.learning.vla.kinds import final
from policies.learning.vla.looking import Looking, TinyConfig
from policies.learning.vla.memory import enough
from policies.learning.vla.pretrained import PretrainedConfig
from policies.learning.vla.shown import Sentences, Told, asked_of
from policies.models.controller import Policy
from policies.models.tokens import KINDS
from policies.models.vision import EncoderConfig
from sim import spec
from sim.language.folder import tokeniser
from sim.rollout import Episode
from sim.tasks.abilities import HasWords

RISE = 50  # updates in which the rate rises
LAST = 0.02  # of the rate, in the end
USUAL = 256  # steps of the demonstrations, which say what is usual


@dataclass
class VlaConfig(Shown):
    """Settings."""

    horizon: int = 5  # control steps of a chunk
    parts: int = 1  # actions that are said per chunk, each held for an equal part of it
    head: str = "tokens"  # or "flow": chunks are made of noise; parts, tokens, bins and softness are of tokens
    tokens: str = "bins"  # or "fast": the actions of a chunk compressed (needs network.parallel=false)
    bins: int = 64  # tokens per number
    vocabulary: int = 256  # tokens of fast, at most
    episodes: int = 70  # demonstrated
    corruption: float = 0.0  # of the expert; 1 is mediocre, 0 perfect
    network: TinyConfig = field(
        default_factory=lambda: TinyConfig(parallel=True, patch=2, sight=EncoderConfig(strides=[2, 2, 1], shift=3))
    )
    flow: FlowConfig = field(default_factory=FlowConfig)  # of head=flow
    pretrained: PretrainedConfig = field(default_factory=PretrainedConfig)  # in the place of the network
    updates: int = 4500
    batch_size: int = 64
    shares: int = 0  # of each batch, that learners have: see `policies.learning.parallel`; 0: 1 each
    micro_batch: int = 0  # of a batch at a time, its gradients added up; 0: all of it
    learning_rate: float = 2e-3
    weight_decay: float = 1e-3
    ema_decay: float = 0.998  # kept of the averaged weights per update
    softness: float = 1.0  # deviation of the labels, in bins
    jitter: float = 0.02  # of what is measured, or localised in pictures, in its deviations
    unheard: float = 0.1  # share of the words that are left out in learning
    refused: float = 0.0  # share of a batch told another thing than is shown: it learns to stand still; network.choice
    grounding: int = 600  # updates by which words learn what they refer to, before the rest, with network.offsets
    localisation: int = 1200  # updates by which the localiser learns, before the rest, where there is one
    glimpses: int = 0  # scenes besides the demonstrations' that it is shown, with the hand moving at random
    localisation_learning_rate: float = 6e-3  # in these; by 2e-3 it ends 2.4 cm off on new scenes, not 1.8

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = self.parts, self.updates, self.batch_size, self.grounding, self.localisation
        if min(counts) < 1 or self.horizon % self.parts:
            raise ValueError(
                "parts, updates, batch_size, grounding and localisation are at least 1, and parts divide the horizon; "
                f"got {', '.join(map(str, counts))} and {self.horizon}"
            )
        if self.glimpses < 0:
            raise ValueError(f"glimpses must not be negative, got {self.glimpses}")
        if self.head not in HEADS:
            raise ValueError(f"head {self.head!r} is not one of {', '.join(HEADS)}")
        if self.head == "flow" and (self.parts > 1 or self.tokens != "bins"):
            raise ValueError(
                f"head=flow makes every action of a chunk and says no tokens: parts={self.parts} and "
                f"tokens={self.tokens} are of head=tokens"
            )
        if self.head == "flow" and self.pretrained.folder:
            raise ValueError("a pretrained policy says tokens: algorithm.pretrained goes with algorithm.head=tokens")
        if self.tokens not in KINDS:
            raise ValueError(f"tokens {self.tokens!r} are not one of {', '.join(KINDS)}")
        if not 0 <= self.shares <= self.batch_size:
            raise ValueError(f"shares of a batch must be in 0..{self.batch_size} (batch_size), got {self.shares}")
        if not 0.0 <= self.refused < 1.0 or (self.refused and not self.network.choice):
            raise ValueError(f"refused must be in 0..1, below 1, and goes with network.choice=true, got {self.refused}")
        if self.pretrained.folder and self.network.choice:
            raise ValueError(
                "a pretrained policy hears words itself: algorithm.network.choice and algorithm.refused go without "
                "algorithm.pretrained"
            )
        if self.micro_batch < 0:
            raise ValueError(f"micro_batch must not be negative, got {self.micro_batch}")
        if self.tokens == "fast" and self.network.parallel and not self.pretrained.folder:
            raise ValueError("tokens=fast are said one after the other: set algorithm.network.parallel=false")
        if not (0.0 <= self.ema_decay < 1.0 and 0.0 <= self.unheard < 1.0 and self.softness > 0.0 <= self.jitter):
            raise ValueError(
                "needs 0 <= ema_decay < 1, 0 <= unheard < 1, softness > 0 and jitter >= 0; "
                f"got {self.ema_decay}, {self.unheard}, {self.softness} and {self.jitter}"
            )


class Vla(Stateful):
    """Cloning of demonstrations of what was asked for in words."""

    Config = VlaConfig
    needs: tuple[type, ...] = (HasWords,)
    takes: tuple[str, ...] = ("tokens", "learners")
    cut_by = "shares"
    state_parts: tuple[str, ...] = ("policy", "average", "optimizer")
    state_values = ("seed", "done")
    policy: Any  # of its head: `policies.learning.vla.looking.Looking`
    average: Any  # the same
    encoder: Hearing

    def __init__(self, task: HasWords, config: VlaConfig, seed: int, device: str = "cpu") -> None:
        if not config.pretrained.folder:
            check(task, device)
        self.task, self.config, self.seed, self.done = task, config, seed, 0
        self.learners = Learners(config.shares or 1)
        self.generator = torch.Generator().manual_seed(seed)
        (self.told,) = spec.tokens(task.policy)
        self._seen: tuple[list[Episode], Demonstrations] | None = None
        self.shown: list[Episode] = []  # what it has cloned in this process, without the pictures
        self.head: Head = HEADS[config.head](task, config, lambda: self._demonstrations()[1].chunk)
        things = self._things()
        if config.refused and things < 2:
            raise ValueError(
                f"{task.name} can be asked for one thing only: there is no other to refuse; set algorithm.refused=0"
            )
        with enough():
            self.encoder, self.policy = self.head.begin(Referents.of(task, things), seed, device)
            self.average = copy.deepcopy(self.policy)
        self.grounding: Grounding | None = self.policy.grounding if isinstance(self.policy, Looking) else None
        self.choices: Choices | None = self.policy.choices if isinstance(self.policy, Looking) else None
        self.stages = first_stages(self.choices, config, self.learners, self.generator) if self.choices else []
        self.learning = learned(self.policy)
        self.optimizer = torch.optim.AdamW(self.learning, config.learning_rate, weight_decay=config.weight_decay)

    def learn(self) -> Iterator[dict[str, float]]:
        if self.done < self.config.updates:  # who is resumed behind the last need not be shown anything
            yield from self._clone()
        if not self.learners.first:
            return
        if told := final(self.task, self.controller(), self.config.pretrained, self.seed):
            yield {"progress": 1.0, "env_steps": 0.0, **told}

    def _clone(self) -> Iterator[dict[str, float]]:
        shown, sentences = self._shown()
        if self.done == 0:
            self.policy.normalise(shown.numbers)
            self.average.normalise(shown.numbers)
        weight = as_often(shown.asked)  # everything that is asked for as often
        floor = self.head.floor(shown.wanted)
        before = sum(stage.updates * stage.cost for stage in self.stages)
        if self.choices:
            yield from self._learn_first(self.choices, shown, sentences, weight)
            for stage in self.stages:
                floor |= stage.metrics()
        if self.choices and self.choices.localiser:
            with enough():
                shown.positions = localised(self.choices, shown)
        total, since = torch.zeros(()), 0
        while self.learners.more(self.done < self.config.updates):
            rate = cosine(self.done / self.config.updates, 1.0, LAST) * min(1.0, (self.done + 1) / RISE)
            for group in self.optimizer.param_groups:
                group["lr"] = self.config.learning_rate * rate
            index = torch.multinomial(weight, self.config.batch_size, True, generator=self.generator)
            told = descend(
                self.learners,
                self.optimizer,
                self.learning,
                index.split(self.config.micro_batch or len(index)),
                lambda rows: self._drawn(shown, sentences, rows),
                lambda batch: {"loss": self._loss(batch)},
            )
            total += told["loss"]
            self.done, since = self.done + 1, since + 1
            with torch.no_grad():
                kept = max(1.0 - self.config.ema_decay, 1.0 / self.done)
                torch._foreach_lerp_(learned(self.average), learned(self.policy), kept)
            if self.done == self.config.updates:
                self._settle(shown, sentences, weight)
            if self.done % REPORT == 0 or self.done == self.config.updates:
                self.learners.agree([*self.learning, shown.numbers, shown.positions])
                yield {
                    "progress": (before + self.done) / (before + self.config.updates),
                    "env_steps": 0.0,
                    "loss": float(total) / since,
                    **floor,
                }
                total, since = torch.zeros(()), 0

    def _learn_first(
        self, choices: Choices, shown: Told, sentences: Sentences, weight: Tensor
    ) -> Iterator[dict[str, float]]:
        """The metrics of what has to learn before the rest is cloned."""
        if self.done == 0 and not any(stage.done for stage in self.stages):  # later there may be no glimpses any more
            choices.normalise(shown.truth, shown.sights)
        whole = self.config.updates + sum(stage.updates * stage.cost for stage in self.stages)
        for stage in self.stages:
            for metrics in stage.learn(shown, sentences, weight):
                passed = sum(some.done * some.cost for some in self.stages)
                yield {"progress": passed / whole, "env_steps": 0.0, **metrics}
        if self.done == 0:
            self.average.choices.load_state_dict(choices.state_dict())

    def stage(self) -> str:
        """See `policies.algorithms.HasStages`."""
        return next((stage.said for stage in self.stages if not stage.over), "the clone learns")

    def _shown(self) -> tuple[Told, Sentences]:
        """What is learned from, and what may have been said."""
        episodes, shown = self._demonstrations()
        self.forget()
        looked = {s.name for s in spec.pictures(self.task.policy)}
        self.shown = [
            replace(episode, signals={name: told for name, told in episode.signals.items() if name not in looked})
            for episode in episodes
        ]
        things, said = asked_of(episodes, self.task, self.encoder.words)
        asked = np.repeat(things, [len(episode.reward) for episode in episodes])
        wanted = self.head.wanted(shown.chunk)
        localiser = self.choices.localiser if self.choices else None
        positions = true_positions(self.task, episodes) if self.grounding or localiser else torch.zeros(0)
        told = Told.of(shown, asked, wanted, positions if self.grounding else torch.from_numpy(asked))
        if localiser and not all(stage.over for stage in self.stages):
            positions, scenes = positions[:, : localiser.objects], localiser.scenes
            told.sights = sights(self.task, told.pictures, positions, told.asked, scenes)
            if self.config.glimpses:
                told.sights += glimpses(self.task, self.config.glimpses, self.seed, scenes)
        return told, Sentences.of(self.encoder, said, self.told.shape[0])

    def _things(self) -> int:
        """How many things may be asked for: the task's own, and each text of a dataset that asks for none of them."""
        config = self.config
        if config.pretrained.folder or not (config.network.choice and config.demonstrations):
            return len(self.task.instructions)
        return len(asked_of(self._demonstrations()[0], self.task, tokeniser(self.task.encoder))[1])

    def _demonstrations(self) -> tuple[list[Episode], Demonstrations]:
        """Episodes, and every step of theirs; kept until they are learned from."""
        if self._seen is None:
            episodes = demonstrated(self.task, self.config, self.seed)
            self._seen = episodes, Demonstrations.of(episodes, self.task, self.config.horizon)
        return self._seen

    def forget(self) -> None:
        """What was demonstrated is not kept any longer: it is learned from, or will not be."""
        self._seen = None

    def _drawn(self, shown: Told, sentences: Sentences, index: Tensor) -> Batch:
        """Some steps, with what is random: which words of a sentence are left out, what is measured and seen."""
        generator, config = self.generator, self.config
        words, there = sentences.heard(shown.asked[index], config.unheard, generator)
        numbers = shown.numbers[index]
        numbers = numbers + config.jitter * self.policy.deviation * torch.randn(numbers.shape, generator=generator)
        shift = config.network.sight.shift
        looked = shown.pictures if not isinstance(self.policy, Looking) or self.policy.looked else {}
        pictures = {name: shifted(some[index], shift, generator) for name, some in looked.items()}
        drawn = self.head.draw(self.policy, len(index), generator)
        said = {"words": words, "there": there, "numbers": numbers, "drawn": drawn}
        if self.choices and self.choices.localiser:
            usual = config.jitter * self.choices.deviation[: self.choices.referents.objects]
            some, uncertainty = shown.positions[index].split([3, self.choices.uncertain], 2)
            some = some + usual * torch.randn(some.shape, generator=generator)
            said["positions"] = torch.cat([some, uncertainty], 2)
        truth, wanted = shown.truth[index], shown.wanted[index]
        if config.refused:
            truth, wanted = self._refused(truth, wanted, len(sentences.first) - 1)
        return {**said, "wanted": wanted, "truth": truth, **columns(pictures)}

    def _refused(self, asked: Tensor, wanted: Tensor, things: int) -> tuple[Tensor, Tensor]:
        """Of some, another of so many things is asked for (n,), and nothing is done (n, k)."""
        refused = torch.rand(len(asked), generator=self.generator) < self.config.refused
        other = (asked + torch.randint(1, things, asked.shape, generator=self.generator)) % things
        still = self.head.wanted(np.zeros((1, self.config.horizon * spec.size(self.task.commands)), np.float32))
        return torch.where(refused, other, asked), torch.where(refused[:, None], still, wanted)

    def _loss(self, batch: Batch) -> Tensor:
        """Of that."""
        told = self.policy.tell(batch["words"], batch["there"])
        if self.choices:  # whoever is to learn what is done about it has understood it
            told = replace(told, reference=self.choices.label(batch["truth"]), positions=batch.get("positions"))
        seen = self.head.see(self.policy, told, batch["numbers"], kept(batch))
        return self.head.loss(self.policy, seen, batch["wanted"], batch["drawn"])

    @torch.no_grad()
    def _settle(self, shown: Told, sentences: Sentences, weight: Tensor) -> None:
        """What has been learned is told what is usual."""
        index = torch.multinomial(weight, USUAL, True, generator=self.generator)
        told = self.average.tell(*sentences.draw(shown.asked[index], self.generator))
        self.head.settle(
            self.average, told, shown.numbers[index], {name: some[index] for name, some in shown.pictures.items()}
        )

    def controller(self) -> Policy:
        return self.head.controller(self.average, self.encoder)

    def dump_to(self, folder: Path) -> None:
        """Nothing is flown."""

    def state_dict(self) -> dict[str, Any]:
        learned_first = [stage.state_dict() for stage in self.stages]
        return super().state_dict() | {"generator": self.generator.get_state(), "stages": learned_first}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        for stage, own in zip(self.stages, state["stages"], strict=True):
            stage.load_state_dict(own)
        self.generator.set_state(state["generator"])
        if self.done >= self.config.updates:
            self.forget()
