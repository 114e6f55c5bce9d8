"""Advice for an off-policy learner: some of what it does is told an adviser, and what he says is noted down later.

What is in the replay is known by its number, so that an answer about what has been overwritten meanwhile is recognised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from policies.advisers import AdviserConfig, make
from policies.advisers.process import AdviserProcess, Heard
from policies.advisers.worker import Question
from policies.learning.buffers import Batch, ReplayBuffer
from policies.learning.networks import Normalizer
from sim.tasks import Task, history_of
from sim.terms import HISTORY
from sim.vec_env import Observation

ASKING = int.from_bytes(b"asking")  # mixed into the seed of what is asked


@dataclass
class AdviceConfig(AdviserConfig):
    """Of whom what is asked, and how much it counts. Values are measured by what is usual in a batch."""

    ask: int = 8  # environments, drawn at random, about which the adviser is asked
    every: int = 2  # control steps from one question to the next
    margin: float = 0.5  # deviations of the values by which advice should be better than what is far from it
    margin_weight: float = 1.0  # of that in the critics' loss
    guidance: float = 1.0  # weight of the distance from better advice in the actor's loss
    temperature: float = 1.0  # mean advantages of advice that let it count e times as much
    bonus: float = 0.0  # reward per step, at most, for what the adviser likes
    until: float = 0.5  # share of the training in which all of this fades out, linearly; then nobody is asked

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.ask <= self.batch or self.every < 1:
            raise ValueError(f"needs 1 <= ask <= batch and every >= 1, got {self.ask}, {self.batch} and {self.every}")
        if min(self.margin, self.margin_weight, self.guidance, self.bonus) < 0.0 or not self.temperature > 0.0:
            raise ValueError("margin, margin_weight, guidance and bonus must be at least 0, temperature above it")
        if not 0.0 < self.until <= 1.0:
            raise ValueError(f"until is a share of the training, 0 < until <= 1, got {self.until}")

    def left(self, done: float) -> float:
        """How much advice counts when so much of the training is done, 0..1."""
        return max(0.0, 1.0 - done / self.until)


def blank(action: Tensor) -> Batch:
    """What stands in the replay beside actions (n, k) about which nothing has been said."""
    nothing = torch.zeros(len(action), device=action.device)
    return {"advice": torch.zeros_like(action), "advice_weight": nothing, "bonus": nothing}


class Advice:
    """Asks about what is put into `buffer`, and puts there what is heard."""

    def __init__(self, task: Task, config: AdviceConfig, seed: int, buffer: ReplayBuffer, device: str = "cpu") -> None:
        """ValueError where the adviser cannot advise about the task."""
        make(task, config)
        self.task, self.config, self.buffer, self.device = task, config, buffer, device
        self.adviser = AdviserProcess(task, config)
        self.scores = Normalizer(1, device)
        self.steps = 0
        self._rng = np.random.default_rng([seed, ASKING])

    def ask(self, seen: Observation, action: Tensor) -> None:
        """Now and then about some of the transitions that were just added: `action` (n, k) followed what was `seen`."""
        self.steps += 1
        if self.steps % self.config.every == 0:
            rows = self._rng.permutation(len(action))[: self.config.ask]
            serial = self.buffer.added - len(action) + rows
            self.adviser.submit(Question(serial, _told(self.task, seen, rows), action.cpu().numpy()[rows]))
        for heard in self.adviser.wait() if self.config.synchronous else self.adviser.poll():
            self._note(heard)

    @torch.no_grad()
    def _note(self, heard: Heard) -> None:
        """What was heard into the replay: as annotations of the transitions that are still there."""
        parts = (heard.action, heard.weight, heard.score)
        action, weight, score = (torch.from_numpy(np.ascontiguousarray(part)).to(self.device) for part in parts)
        self.scores.update(score[:, None])
        bonus = self.scores(score[:, None])[:, 0].clamp(-1.0, 1.0)
        serial = torch.from_numpy(heard.serial).to(self.device)
        there = int(self.buffer.annotate(serial, advice=action, advice_weight=weight, bonus=bonus).sum())
        self.adviser.counts["answered"] += there
        self.adviser.counts["late"] += len(serial) - there

    def metrics(self) -> dict[str, float]:
        """What has become of all questions, and how often the adviser's process was begun anew."""
        counts = {f"advice_{name}": float(count) for name, count in self.adviser.counts.items()}
        return counts | {"adviser_restarts": float(self.adviser.restarts)}

    def told(self) -> dict[str, Any]:
        """For the policy file: who advised, and how often."""
        return {"adviser": self.config.adviser, "states": self.adviser.counts["answered"]}

    def close(self) -> None:
        """Nobody is asked any more; what has not been answered is lost."""
        self.adviser.close()

    def state_dict(self) -> dict[str, Any]:
        """All but what has not been answered yet: it counts as lost."""
        adviser = self.adviser
        counts = {**adviser.counts, "lost": adviser.counts["lost"] + adviser.waiting}
        kept = {"counts": counts, "restarts": adviser.restarts, "scores": self.scores.state_dict()}
        return {**kept, "steps": self.steps, "asking": self._rng.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there, with the buffer that belongs to it."""
        self.close()
        self.adviser.counts = {name: int(count) for name, count in state["counts"].items()}
        self.adviser.restarts = int(state["restarts"])
        self.scores.load_state_dict(state["scores"])
        self.steps = int(state["steps"])
        self._rng.bit_generator.state = state["asking"]


def _told(task: Task, seen: Observation, rows: NDArray[np.int64]) -> dict[str, Any]:
    """Every signal of these rows by name (n, *shape), noise-free, and "history", where the policy has one."""
    known = {**seen["truth"], **seen["privileged"], **seen["pictures"]}
    shapes = {s.name: s.shape for s in (*task.policy, *task.privileged)}
    told = {name: known[name].cpu().numpy()[rows].reshape(-1, *shape) for name, shape in shapes.items()}
    return told | ({HISTORY: seen["history"].cpu().numpy()[rows]} if history_of(task) else {})
