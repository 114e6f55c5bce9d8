"""Eyes of their own (`policies.learning.vla.finding`) learn on in practice, from its pictures and truth.

What is worth more or less says nothing of the places that words point at; and demonstrations show only the poses of an
expert, which whoever practises leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from policies.algorithms.vla.descent import descend
from policies.algorithms.vla.stages import looked, missed
from policies.algorithms.vla_rl.improvement import Improvement
from policies.algorithms.vla_rl.insight import Insight
from policies.algorithms.vla_rl.practice import Chunks
from policies.learning import cosine
from policies.learning.networks import Stateful, learned
from policies.learning.vla.looking import Looking
from sim import spec
from sim.tasks.abilities import HasWords, meaning_of

if TYPE_CHECKING:
    from policies.algorithms.vla_rl import VlaRlConfig

RATE = 0.1  # of the clone's learning rate, at first
LAST = 0.02  # of the clone's learning rate, in the end


class Eyes(Stateful):
    """Those of who practises, and of his average; nobody's where things are measured, or `config.finding` is 0."""

    def __init__(
        self, task: HasWords, insight: Insight, improvement: Improvement, config: VlaRlConfig, draws: torch.Generator
    ) -> None:
        self.improvement, self.config, self.generator = improvement, config, draws
        policy = improvement.policy
        self.pointing = policy.pointing if isinstance(policy, Looking) else None
        self.find = self.pointing.find if self.pointing and config.finding else None
        if self.find:
            self.things = spec.slices(insight.signals)[meaning_of(task)[0]]
            self.optimizer = torch.optim.AdamW(learned(self.find), weight_decay=config.clone.weight_decay)
            self.state_parts = ("optimizer",)

    def learn(self, chunks: Chunks, done: float) -> dict[str, float]:
        """From these chunks, when `done` (0..1) of the run is over; by how many m things were found elsewhere."""
        pointing, clone, learners = self.pointing, self.config.clone, self.improvement.learners
        if not (pointing and self.find):
            return {}
        truth = torch.from_numpy(chunks.seen[:, self.things]).unflatten(1, (-1, 3))
        for group in self.optimizer.param_groups:
            group["lr"] = clone.learning_rate * cosine(done, RATE, LAST)
        off = torch.zeros(())
        for _ in range(self.config.finding):
            index = torch.randint(len(truth), (clone.batch_size,), generator=self.generator)
            off += descend(
                learners,
                self.optimizer,
                learned(self.find),
                index.split(clone.micro_batch or clone.batch_size),
                lambda rows: looked(pointing, chunks.pictures, truth, rows, self.generator),
                lambda batch: missed(pointing, batch),
            )["told"]
        learners.agree(learned(self.find))
        average: Any = self.improvement.average
        average.pointing.find.load_state_dict(self.find.state_dict())
        return {"localisation_error": float((off / self.config.finding).sqrt())}
