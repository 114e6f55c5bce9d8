"""apg through a task's own world: its gradient against differences, exact resume, what it refuses."""

from typing import Any

import numpy as np
import pytest
import torch

from policies.algorithms import check_needs
from policies.algorithms.apg import Apg, ApgConfig
from policies.algorithms.apg.worlds import Worlds
from policies.runner import checkpoint
from sim.tasks import make

NUM, WINDOW = 64, 8


def start(seed: int = 0, vary: bool = False, **changes: Any) -> Worlds:
    settings = {"network": "mlp", "hidden": [16], "num_envs": NUM, "window": WINDOW, "updates": 4, "adjoint_clip": 1e9}
    path: Worlds = Apg(make("car_race", tracks=2, vary=vary), ApgConfig(**{**settings, **changes}), seed).path
    return path


def gradient(path: Worlds) -> list[torch.Tensor]:
    found = [p.grad.clone() for p in path.policy.parameters()]
    for p in path.policy.parameters():
        p.grad = None
    return found


@pytest.mark.parametrize(("network", "hidden"), [("mlp", [16]), ("gru", [16, 16])])
def test_the_gradient_agrees_with_differences(network: str, hidden: list[int]) -> None:
    """Of the policy's weights, through cars, sensors and memory: closed loop."""
    path = start(network=network, hidden=hidden)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in path.policy.parameters():
            p.copy_(0.15 * torch.randn(p.shape, generator=generator))
    state = path.world.state_dict()

    def cost() -> tuple[float, np.ndarray]:
        path.world.load_state_dict(state)
        path.hidden.zero_()
        found, _ = path.window()
        return float(found.sum(dtype=np.float64)), path.world.costs()[1]

    counts = cost()[1]
    assert counts.mean() > 0.9
    by_hand, pairs = gradient(path), []
    for _ in range(6):
        ways = [torch.randn(p.shape, generator=generator) for p in path.policy.parameters()]
        ends = []
        for step in (1e-3, -2e-3):
            with torch.no_grad():
                for p, way in zip(path.policy.parameters(), ways, strict=True):
                    p += step * way
            ends.append(cost()[0])
            gradient(path)
        with torch.no_grad():
            for p, way in zip(path.policy.parameters(), ways, strict=True):
                p += 1e-3 * way
        along = sum(float((g * way).sum()) for g, way in zip(by_hand, ways, strict=True)) * counts.sum()
        pairs.append((along, (ends[0] - ends[1]) / 2e-3))
    found, numeric = np.array(pairs).T
    # The way jumps from point to point, and beams from wall to wall: differences feel that.
    assert np.linalg.norm(found - numeric) < 0.25 * np.linalg.norm(numeric)


def test_it_goes_on_exactly(tmp_path: Any) -> None:
    settings: dict[str, Any] = {"vary": True, "adjoint_clip": 20.0, "updates": 6, "network": "gru", "hidden": [16, 16]}
    whole, first = start(**settings), start(**settings)
    metrics = list(whole.learn())
    assert metrics[-1]["progress"] == 1.0 and metrics[-1]["env_steps"] == 6 * NUM * WINDOW
    learning = first.learn()
    for _ in range(3):
        next(learning)
    checkpoint.save(tmp_path / "state", first.state_dict())
    again = start(**settings)
    again.load_state_dict(checkpoint.load(tmp_path / "state"))
    list(again.learn())
    for a, b in zip(whole.policy.parameters(), again.policy.parameters(), strict=True):
        assert torch.equal(a, b)


def test_what_it_cannot_do_it_says() -> None:
    with pytest.raises(ValueError, match="algorithm.ahead must be within 0..window - 1, got 8 of 8"):
        start(ahead=WINDOW)
    with pytest.raises(ValueError, match="without algorithm.critic"):
        start(critic=True)
    with pytest.raises(ValueError, match="or a world that can be differentiated; car_race_vision has none"):
        check_needs("apg", Apg, make("car_race_vision", tracks=1))
