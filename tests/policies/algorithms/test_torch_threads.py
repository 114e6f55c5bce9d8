"""Gradients of parts of a batch, side by side: the same as those of the whole, and laid out as the parameters are."""

import pytest
import torch
from torch import nn

from policies.learning.parallel.learners import Learners


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_step_is_that_of_the_whole_batch(threads):
    generator = torch.Generator().manual_seed(0)
    whole, parted = (
        nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 49, 2)).to(
            memory_format=torch.channels_last  # whose gradients must lie as the weights do
        )
        for _ in range(2)
    )
    parted.load_state_dict(whole.state_dict())
    optimizers = [torch.optim.Adam(network.parameters(), lr=1e-2, fused=True) for network in (whole, parted)]
    shared = Learners(1, threads, pieces=3)
    for _ in range(5):
        x, y = torch.randn(12, 3, 16, 16, generator=generator), torch.randn(12, 2, generator=generator)
        optimizers[0].zero_grad()
        (whole(x) - y).square().mean().backward()
        parts = zip(x.chunk(3), y.chunk(3), strict=True)
        losses = [lambda a=a, b=b: (parted(a) - b).square().mean() for a, b in parts]

        def loss(place, piece, losses=losses):
            value = losses[piece]() / 3
            return value, {"loss": value, "piece": torch.tensor(float(piece))}

        told = shared.gradient(loss, [*parted.parameters()])
        assert told["piece"] == 3.0 and told["loss"] > 0.0
        for optimizer in optimizers:
            optimizer.step()
    for one, other in zip(whole.parameters(), parted.parameters(), strict=True):
        assert one.grad.stride() == other.grad.stride() == one.stride()
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
