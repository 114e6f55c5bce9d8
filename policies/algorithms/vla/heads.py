"""How a cloned policy decides: by action tokens, or by a flow from noise to actions. What cloning needs of either."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from policies.language.minilm import SentenceEncoder
from policies.learning.vla import Hearing
from policies.learning.vla.flow import FlowEye, TinyFlow
from policies.learning.vla.grounding import Referents
from policies.learning.vla.kinds import Speaking, begun, controller_of
from policies.learning.vla.looking import Told
from policies.learning.vla.shown import held
from policies.learning.vla.steered import ToldPolicy
from policies.models.chunking import NoiseTable
from policies.models.controller import Policy
from policies.models.networks import Array
from policies.models.tokens import ActionTokens
from policies.models.tokens.bins import BinTokens
from policies.models.tokens.fast import FastTokens
from sim import spec
from sim.tasks.abilities import HasWords

if TYPE_CHECKING:
    from policies.algorithms.vla import VlaConfig

Pictures = Mapping[str, Tensor]


class Head(Protocol):
    """A way to decide."""

    def begin(self, referents: Referents, seed: int, device: str) -> tuple[Hearing, Any]:
        """What hears, and a new policy: `Looking`, or a `TokenPolicy`. ValueError where its folder does not fit."""

    def wanted(self, chunk: Array) -> Tensor:
        """What is to be learned of chunks (n, horizon * actions): (n, k)."""

    def floor(self, wanted: Tensor) -> dict[str, float]:
        """Metrics: "loss_floor", below which the loss cannot fall, where that is known."""

    def see(self, policy: Any, told: Any, numbers: Tensor, pictures: Pictures) -> Any:
        """What is decoded: of who is told, measures and sees that."""

    def draw(self, policy: Any, n: int, generator: torch.Generator) -> Tensor:
        """The random numbers (n, ...) that the loss of so many takes."""

    def loss(self, policy: Any, seen: Any, wanted: Tensor, drawn: Tensor) -> Tensor:
        """Of what is wanted (n, k) where that is seen."""

    def settle(self, policy: Any, told: Told, numbers: Tensor, pictures: Pictures) -> None:
        """The policy has been learned, and that was usual."""

    def controller(self, policy: Any, hearing: Hearing) -> Policy:
        """What is exported."""


class TokenHead:
    """A chunk's parts in bins, softened over their neighbours; or FAST tokens, until the end."""

    def __init__(self, task: HasWords, config: VlaConfig, chunks: Callable[[], Array]) -> None:
        """`chunks`: those demonstrated, to which FAST tokens are fitted."""
        self.task, self.config = task, config
        self.tokens: ActionTokens = BinTokens(config.parts, spec.size(task.commands), config.bins)
        if config.tokens == "fast":
            shown = self._parts(chunks())
            self.tokens = FastTokens.fit(shown, config.parts, vocabulary=config.vocabulary).shortened(shown)
        places = torch.arange(config.bins)
        apart = (places[:, None] - places).float() / config.softness
        self._soft = torch.softmax(-0.5 * apart**2, 1)

    def begin(self, referents: Referents, seed: int, device: str) -> tuple[Hearing, Speaking]:
        return begun(self.task, self.tokens, self.config.network, self.config.pretrained, referents, seed, device)

    def wanted(self, chunk: Array) -> Tensor:
        """Tokens (n, length) of the mean actions of the chunks' parts."""
        return torch.from_numpy(self.tokens.encode(self._parts(chunk)))

    def _parts(self, chunk: Array) -> Array:
        return held(chunk, self.config.horizon, self.config.parts)

    def floor(self, wanted: Tensor) -> dict[str, float]:
        """Of who knew the labels: those of bins are soft."""
        if self.tokens.end is not None:
            return {"loss_floor": 0.0}
        return {"loss_floor": float(torch.special.entr(self._soft).sum(1)[wanted].sum(1).mean())}

    def see(self, policy: Speaking, told: Any, numbers: Tensor, pictures: Pictures) -> Any:
        return policy.encode(told, numbers, pictures)

    def draw(self, policy: Speaking, n: int, generator: torch.Generator) -> Tensor:
        """None."""
        return torch.zeros(n, 0)

    def loss(self, policy: Speaking, seen: Any, wanted: Tensor, drawn: Tensor) -> Tensor:
        """Nats per chunk; the softened labels of bins do not let it fall below their own entropy."""
        if self.tokens.end is not None:
            return -policy.evaluate(seen, wanted).log_probability.sum(1).mean()
        return -(self._soft[wanted] * policy.likely(seen, wanted)).sum((1, 2)).mean()

    def settle(self, policy: Speaking, told: Any, numbers: Tensor, pictures: Pictures) -> None:
        """Nobody steers it."""

    def controller(self, policy: Speaking, hearing: Hearing) -> Policy:
        return controller_of(self.task, hearing, policy, self.config.horizon)


class FlowHead:
    """A chunk of actions out of noise: where experts differ it is one of theirs, not their mean."""

    def __init__(self, task: HasWords, config: VlaConfig, chunks: Callable[[], Array]) -> None:
        self.task, self.config = task, config
        self.chunk = config.horizon, spec.size(task.commands)

    def begin(self, referents: Referents, seed: int, device: str) -> tuple[SentenceEncoder, TinyFlow]:
        config = self.config
        encoder = SentenceEncoder(self.task.encoder, config.network.encoder_layers)
        numbers, pictures = spec.size(spec.numbers(self.task.policy)), spec.pictures(self.task.policy)
        return encoder, TinyFlow(
            self.chunk, numbers, pictures, encoder.size, config.network, config.flow, seed, referents
        )

    def wanted(self, chunk: Array) -> Tensor:
        """The chunks (n, horizon * actions)."""
        return torch.from_numpy(chunk)

    def floor(self, wanted: Tensor) -> dict[str, float]:
        """Unknown: it is how far experts and noise leave open what is meant."""
        return {}

    def see(self, policy: TinyFlow, told: Told, numbers: Tensor, pictures: Pictures) -> Tensor:
        return policy.observe(told, numbers, pictures)

    def draw(self, policy: TinyFlow, n: int, generator: torch.Generator) -> Tensor:
        """Times and noise."""
        return policy.draw(n, generator)

    def loss(self, policy: TinyFlow, seen: Tensor, wanted: Tensor, drawn: Tensor) -> Tensor:
        """Mean squared error of the velocity from noise to the chunk."""
        return policy.loss(seen, wanted, drawn)

    @torch.no_grad()
    def settle(self, policy: TinyFlow, told: Told, numbers: Tensor, pictures: Pictures) -> None:
        """Who steers it is told what its observations are usually like."""
        policy.settle(policy.observe(told, numbers, pictures))

    def controller(self, policy: TinyFlow, hearing: Hearing) -> Policy:
        assert isinstance(hearing, SentenceEncoder)
        eye = FlowEye(self.task.policy, hearing, policy)
        base = policy.base(eye)
        noise = NoiseTable.none if self.config.flow.noise == "none" else NoiseTable.normal
        return ToldPolicy.from_task(self.task, base, eye, noise(base.noise_size))


HEADS: dict[str, type[TokenHead] | type[FlowHead]] = {"tokens": TokenHead, "flow": FlowHead}
