"""The experience of an earlier run as a replay for the torch path; see `policies.algorithms.sac.earlier`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from policies.learning.buffers import ReplayBuffer
from policies.learning.encoders import PICTURE
from sim.spec import pictures
from sim.tasks import Task
from sim.vec_world import AnyVecEnv


def replay(
    run: str, state: Mapping[str, Any], others: ReplayBuffer | None, task: Task, env: AnyVecEnv, device: str
) -> ReplayBuffer:
    """The experience of that run beside that of `others`; each transition of all of them is as likely as another.

    ValueError where it is not such as a run in `env` makes.
    """
    wide = {"x": env.feature_size, "c": env.critic_size, "action": env.action_size, "terms": len(env.term_names)}
    wide |= {f"next_{name}": wide[name] for name in ("x", "c")}
    try:
        data = {name: torch.as_tensor(value) for name, value in state["data"].items()}
        shown = {f"{when}{PICTURE}{s.name}": s.shape for s in pictures(task.policy) for when in ("", "next_")}
        shapes = {name: (size,) for name, size in wide.items()} | dict.fromkeys(("lost", "done"), ()) | shown
        size = int(state["size"])
        if data.keys() != shapes.keys() or size < 1 or not 1 <= int(state["stride"]) <= size:
            raise ValueError(f"it holds {size} transitions of {', '.join(data)}")
        for name, shape in shapes.items():
            kind = torch.uint8 if name in shown else torch.bool if not shape else torch.float32
            if data[name].dtype != kind or tuple(data[name].shape) != (size, *shape):
                raise ValueError(f"its {name} are {data[name].dtype} {tuple(data[name].shape)}")
            if not torch.isfinite(data[name]).all():
                raise ValueError("it holds what is not finite")
        share = others.whole / (others.whole + size) if others else 0.5
        made = ReplayBuffer(size, others, share)
        made.load_state_dict({**state, "data": data, "prior": None, "prior_share": share}, device)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"algorithm.earlier: {run} cannot be used: {error}") from error
    made.prior = others
    return made
