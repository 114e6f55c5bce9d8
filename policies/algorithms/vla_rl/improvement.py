"""PPO for a policy that speaks: one ratio per chunk, the product of its tokens' (VLA-RL, arXiv 2505.18719).

The clip is wider above than below (DAPO, arXiv 2503.14476). The learning rate follows the divergence from who had
practised, and a weak pull leads back to the clone. Pictures are not shifted here: a ratio compares the same inputs.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from policies.algorithms import LearningError
from policies.algorithms.vla_rl.practice import Chunks
from policies.learning import cosine
from policies.learning.networks import Stateful, learned
from policies.learning.parallel.learners import Learners
from policies.learning.vla.kinds import Speaking
from policies.learning.vla.looking import Looking
from policies.learning.vla.shown import Sentences

if TYPE_CHECKING:
    from policies.algorithms.vla_rl import VlaRlConfig

TOO_FAR = 3.0  # divergence of a minibatch, in targets, with which an iteration ends early
WIDE = 1.5  # from the target: within that factor the rate stays
SLOWER, FASTER = 1.0 / 1.4, 1.3  # the rate otherwise
FACTORS = 0.1, 4.0  # to which all of that together may come
LAST = 0.1  # of the rate, in the end
STEEPEST = 1.0  # norm of a gradient


class Improvement(Stateful):
    """The policy that practises, and its running average, which is kept."""

    state_parts = ("policy", "average", "optimizer")
    state_values = ("factor",)

    def __init__(self, clone: Speaking, config: VlaRlConfig, blur: Tensor, learners: Learners) -> None:
        self.learners = learners
        self.clone, self.config, self.blur = clone, config, blur
        self.policy, self.average = copy.deepcopy(clone), copy.deepcopy(clone)
        self.choices = self.policy.choices if isinstance(self.policy, Looking) else None
        self.optimizer = torch.optim.AdamW(
            learned(self.policy), config.learning_rate, betas=(0.9, 0.99), weight_decay=0.0
        )
        self.factor = 1.0  # of the rate, by the divergence

    def begin(self) -> None:
        """With the weights of the clone."""
        for network in (self.policy, self.average):
            network.load_state_dict(self.clone.state_dict())

    def likely(self, policy: Speaking, prefix: Any, tokens: Tensor) -> Tensor:
        """Log-probabilities of every token (n, length, bins), as they are drawn in practice."""
        return policy.likely(prefix, tokens, self.config.temperature, self.blur)

    def step(
        self,
        chunks: Chunks,
        sentences: Sentences,
        said: Tensor,
        advantage: Tensor,
        done: float,
        generator: torch.Generator,
    ) -> dict[str, float]:
        """Learn from chunks (n,), told the sentences `said` (n,), worth `advantage` (n,); `done` of the run is over."""
        config, every = self.config, torch.arange(len(advantage))
        old, clones = [], []
        with torch.no_grad():
            for rows in every.split(self._at_once(config.batch_size)):
                old.append(_chosen(self._judged(self.policy, chunks, sentences, said, rows), chunks.tokens[rows]))
                if config.anchor > 0.0:
                    clones.append(self._judged(self.clone, chunks, sentences, said, rows))
        log, clone = torch.cat(old), torch.cat(clones) if clones else None
        apart = float((log - chunks.logs).abs().max())
        if not apart <= self.policy.agreement:
            raise LearningError(
                f"a chunk is judged {apart:.2g} nats from how it was drawn: what a ratio compares is not the same"
            )
        for group in self.optimizer.param_groups:
            group["lr"] = config.learning_rate * self.factor * cosine(done, 1.0, LAST)
        found: list[dict[str, Tensor]] = []
        for _ in range(config.epochs):
            for rows in torch.randperm(len(every), generator=generator).split(config.batch_size):
                found.append(self._pull(chunks, sentences, said, rows, log, advantage, clone))
                if found[-1]["kl"] > TOO_FAR * config.target_kl:
                    break
                self._descend()
            else:
                continue
            break
        told = {name: float(torch.stack([m[name] for m in found if name in m]).mean()) for name in found[0]}
        self.learners.agree(learned(self.policy))
        self._adapt(told["kl"], float(found[-1]["kl"]))
        return {**told, "learning_rate": self.optimizer.param_groups[0]["lr"], "disagreement": apart}

    def _at_once(self, count: int) -> int:
        """Of so many chunks, how many are judged at a time."""
        return min(count, self.config.clone.micro_batch or count)

    def _pull(
        self,
        chunks: Chunks,
        sentences: Sentences,
        said: Tensor,
        rows: Tensor,
        log: Tensor,
        advantage: Tensor,
        clone: Tensor | None,
    ) -> dict[str, Tensor]:
        """The gradient of the chunks `rows`, a micro-batch at a time; what is told of them. Mine are of my shares."""
        pieces = rows.split(self._at_once(len(rows)))

        def own(place: int, piece: int) -> tuple[Tensor, dict[str, Tensor]]:
            cut, share = self.learners.cut({"rows": pieces[piece]}, place)
            some, share = cut["rows"], share * (len(pieces[piece]) / len(rows))
            likely = self._judged(self.policy, chunks, sentences, said, some)
            loss, metrics = self._loss(likely, chunks.tokens[some], log[some], advantage[some])
            if clone is not None:
                away = _divergence(likely, clone[some])
                loss = loss + self.config.anchor * away
                metrics["clone_kl"] = away.detach()
            return loss * share, {name: value * share for name, value in metrics.items()}

        return self.learners.gradient(own, learned(self.policy), len(pieces))

    def _judged(self, policy: Speaking, chunks: Chunks, sentences: Sentences, said: Tensor, rows: Tensor) -> Tensor:
        pictures = {name: shown[rows] for name, shown in chunks.pictures.items()}
        numbers, told = chunks.numbers[rows], policy.tell(*sentences.at(said[rows]))
        # The clone's localiser is as it was: it is asked what it would do there.
        if policy is self.clone and self.choices and self.choices.size:
            told = replace(told, positions=self.choices.positions(numbers, pictures))
        return self.likely(policy, policy.encode(told, numbers, pictures), chunks.tokens[rows])

    def _loss(self, likely: Tensor, tokens: Tensor, old: Tensor, advantage: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        config = self.config
        change = _chosen(likely, tokens) - old
        ratio = change.exp()
        lowest, highest = 1.0 - config.clip, 1.0 + config.clip_above
        gain = torch.min(ratio * advantage, ratio.clamp(lowest, highest) * advantage).mean()
        entropy = -(likely.exp() * likely).sum(-1).mean()
        with torch.no_grad():
            clipped = ((ratio < lowest) | (ratio > highest)).float().mean()
            kl = (ratio - 1.0 - change).mean()
        loss = -gain - config.entropy * entropy
        return loss, {"loss": loss.detach(), "entropy": entropy.detach(), "kl": kl, "clipped": clipped}

    def _descend(self) -> None:
        nn.utils.clip_grad_norm_(self.policy.parameters(), STEEPEST)
        self.optimizer.step()
        with torch.no_grad():
            share = 1.0 - self.config.ema_decay
            torch._foreach_lerp_(learned(self.average), learned(self.policy), share)

    def _adapt(self, mean: float, last: float) -> None:
        """The rate of the next iteration, by the divergences (nats per chunk) of this one."""
        target = self.config.target_kl
        if mean > WIDE * target or last > TOO_FAR * target:
            self.factor *= SLOWER
        elif mean < target / WIDE:
            self.factor *= FASTER
        self.factor = min(max(self.factor, FACTORS[0]), FACTORS[1])


def _chosen(likely: Tensor, tokens: Tensor) -> Tensor:
    """Log-probabilities (n,) of whole chunks."""
    return likely.gather(-1, tokens[..., None])[..., 0].sum(1)


def _divergence(likely: Tensor, reference: Tensor) -> Tensor:
    """Nats per chunk from a distribution to another, both (n, length, bins)."""
    return (likely.exp() * (likely - reference)).sum((1, 2)).mean()
