"""The localiser (`policies.learning.vla.localiser`) learns on in practice, from its pictures and where objects are.

What is worth more or less says nothing of where objects are; and demonstrations show only the poses of an
expert, which whoever practises leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from policies.algorithms.vla.descent import descend
from policies.algorithms.vla.glimpses import sights
from policies.algorithms.vla.stages import losses, samples
from policies.algorithms.vla_rl.improvement import Improvement
from policies.algorithms.vla_rl.insight import Insight
from policies.algorithms.vla_rl.practice import Chunks
from policies.learning import cosine
from policies.learning.networks import Stateful, learned
from policies.learning.vla.looking import Looking
from sim import spec
from sim.tasks.abilities import HasWords, referents_of

if TYPE_CHECKING:
    from policies.algorithms.vla_rl import VlaRlConfig

# Of the clone's learning rate, not of the localiser's own: a tenth of that was too slow on a toy.
RATE = 0.1  # at first
LAST = 0.02  # in the end


class Localisation(Stateful):
    """Of who practises, and of his average; of nobody where objects are measured, or `config.localisation` is 0."""

    def __init__(
        self, task: HasWords, insight: Insight, improvement: Improvement, config: VlaRlConfig, draws: torch.Generator
    ) -> None:
        self.improvement, self.config, self.generator = improvement, config, draws
        policy = improvement.policy
        self.task, self.choices = task, policy.choices if isinstance(policy, Looking) else None
        self.localiser = self.choices.localiser if self.choices and config.localisation else None
        if self.localiser:
            places = spec.slices(insight.signals)
            self.objects = np.concatenate([np.r_[places[name]] for name in referents_of(task)[0]])
            self.optimizer = torch.optim.AdamW(learned(self.localiser), weight_decay=config.clone.weight_decay)
            self.state_parts = ("optimizer",)

    def learn(self, chunks: Chunks, things: Tensor, done: float) -> dict[str, float]:
        """From these chunks of episodes that ask for things (episodes,), when `done` (0..1) of the run is over.

        By how many m objects were off.
        """
        choices, localiser = self.choices, self.localiser
        clone, learners = self.config.clone, self.improvement.learners
        if not (choices and localiser):
            return {}
        truth = torch.from_numpy(chunks.seen[:, self.objects]).unflatten(1, (-1, 3))
        seen = sights(self.task, chunks.pictures, truth, things[chunks.episode], localiser.scenes)
        for group in self.optimizer.param_groups:
            group["lr"] = clone.learning_rate * cosine(done, RATE, LAST)
        off = torch.zeros(())
        for _ in range(self.config.localisation):
            index = torch.randint(len(truth), (clone.batch_size,), generator=self.generator)
            off += descend(
                learners,
                self.optimizer,
                learned(localiser),
                index.split(clone.micro_batch or clone.batch_size),
                lambda rows: samples(localiser, seen, rows, self.generator),
                lambda batch: losses(choices, batch),
                localiser.clipped(),
            )["told"]
        learners.agree(learned(localiser))
        average: Any = self.improvement.average
        average.choices.localiser.load_state_dict(localiser.state_dict())
        return {"localisation_error": float((off / self.config.localisation).sqrt())}
