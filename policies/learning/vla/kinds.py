"""Which policies speak, what hears for them, and what carries out what they say: `tiny_vla`, or one out of a folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from policies.language.minilm import SentenceEncoder
from policies.learning.networks import HasParameters
from policies.learning.vla import Hearing, TokenPolicy
from policies.learning.vla.controller import SpokenPolicy
from policies.learning.vla.grounding import Referents
from policies.learning.vla.in_torch import TorchSpokenPolicy, graded
from policies.learning.vla.looking import TinyConfig
from policies.learning.vla.pretrained import PretrainedConfig, PretrainedVla, opened
from policies.learning.vla.tiny import TinyVla
from policies.models.controller import Policy
from policies.models.tokens import ActionTokens
from sim import spec
from sim.language.folder import tokeniser
from sim.tasks.abilities import HasWords


class Speaking(TokenPolicy, HasParameters, Protocol):
    """A policy that speaks and learns."""

    def state_dict(self) -> dict[str, Any]:
        """What it learned."""

    def load_state_dict(self, state: Mapping[str, Any], /) -> Any:
        """Go on from there."""


def begun(
    task: HasWords,
    tokens: ActionTokens,
    network: TinyConfig,
    pretrained: PretrainedConfig,
    referents: Referents,
    seed: int,
    device: str,
) -> tuple[Hearing, Speaking]:
    """What hears and what speaks for a task whose words refer to that; ValueError where a folder does not fit."""
    if pretrained.folder:
        return opened(task, tokens, tokeniser(task.encoder), pretrained, seed, device)
    encoder = SentenceEncoder(task.encoder, network.encoder_layers)
    numbers, pictures = spec.size(spec.numbers(task.policy)), spec.pictures(task.policy)
    return encoder, TinyVla(tokens, numbers, pictures, encoder.size, network, seed, referents)


def controller_of(task: HasWords, hearing: Hearing, policy: Speaking, horizon: int) -> Policy:
    """The controller of a task with what was learned."""
    if isinstance(policy, PretrainedVla):
        return TorchSpokenPolicy.from_task(task, hearing, policy, horizon)
    assert isinstance(hearing, SentenceEncoder) and isinstance(policy, TinyVla)
    return SpokenPolicy.from_task(task, hearing, policy, horizon)


def final(task: HasWords, controller: Policy, pretrained: PretrainedConfig, seed: int) -> dict[str, float]:
    """What is told in the end of a controller for which there is no policy file to grade: its success."""
    if not (isinstance(controller, TorchSpokenPolicy) and pretrained.graded):
        return {}
    return {"success": graded(task, controller, pretrained.graded, seed)}
