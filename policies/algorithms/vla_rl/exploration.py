"""What is tried: a policy's own words, blurred over neighbouring bins.

A converged clone is sure to a bin or so, which is less than changes anything: its own samples hardly differ in worth.
"""

from __future__ import annotations

import torch
from torch import Tensor

from policies.models.tokens.bins import BinTokens


def blurred(tokens: BinTokens, deviations: list[float]) -> Tensor:
    """Of each place (length, bins, bins), what a token becomes: Gaussians with these deviations in bins, 0 for none.

    One deviation is that of all numbers of an action. ValueError for another count than one or the action's.
    """
    if len(deviations) not in (1, tokens.actions) or min(deviations) < 0.0:
        raise ValueError(
            f"blur has one deviation, or one for each of the {tokens.actions} numbers of an action, none of them "
            f"negative; got {deviations}"
        )
    of_each = (deviations * tokens.actions if len(deviations) == 1 else deviations) * tokens.horizon
    place = torch.arange(tokens.bins)
    apart = (place[:, None] - place).float()
    none = torch.eye(tokens.bins)
    return torch.stack([torch.softmax(-0.5 * (apart / d) ** 2, 1) if d else none for d in of_each])
