"""A .cleanrl_model of CleanRL: the weights of PPO (RPO too), SAC, TD3 or DDPG with continuous actions.

Read of vwxyzjn/cleanrl@fe8d8a03, cleanrl/*_continuous_action.py: PPO's actor is `actor_mean`, tanh between; the others
are `fc1`, `fc2` and `fc_mu` or `fc_mean` with relu, and hold the limits of the actions as `action_scale` and
`action_bias`. TD3 and DDPG write their actor first, then their critics. What SAC's script does not save itself is
torch.save(actor.state_dict(), FILE). The statistics of NormalizeObservation are in none of these files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deploy.policy_file import PolicyFileError
from policies.adoption.formats import tensors
from policies.adoption.found import UNKNOWN, Found, Told, layers_of, only, perceptron
from policies.adoption.networks import onnx_content
from policies.models.networks import Array, Layer

HIDDEN = ("fc1", "fc2")
LAST = ("fc_mean", "fc_mu")
STATISTICS = (
    "PPO saw what gymnasium's NormalizeObservation made, whose statistics CleanRL does not save. Write them there:",
    "  rms = envs.envs[0].get_wrapper_attr('obs_rms')  # where the policy was trained",
    "  np.savez('stats.npz', mean=rms.mean, var=rms.var, epsilon=1e-8, clip=10.0)",
    "and say file: stats.npz below; leave `normalisation` out where the script normalised nothing.",
)


def from_cleanrl(path: str, told: Told) -> Found:
    """PolicyFileError for a file that holds more than tensors, or no actor of these scripts."""
    only(path, told, "activation")
    loaded = tensors.load(path, onnx_content(path))
    held = tensors.arrays(path, loaded[0] if isinstance(loaded, (tuple, list)) and loaded else loaded)
    if any(name.startswith("actor_mean.") for name in held):
        activation = told.get("activation", "tanh")
        return Found(
            perceptron(path, layers_of(path, held, "actor_mean"), activation),
            about={"activation": activation},
            action={"clip": [UNKNOWN, UNKNOWN]},  # ClipAction: the environment's limits
            normalisation={"file": UNKNOWN},
            remarks=list(STATISTICS),
        )
    last = next((name for name in LAST if f"{name}.weight" in held), None)
    if last is None:
        known = ", ".join(sorted({name.split(".")[0] for name in held})[:6]) or "no tensors"
        raise PolicyFileError(f"{path}: no actor of CleanRL's PPO, SAC, TD3 or DDPG in it, but {known}")
    activation = told.get("activation", "relu")
    network = perceptron(path, [_layer(path, held, name) for name in (*HIDDEN, last)], activation)
    return Found(network, about={"activation": activation}, action=_action(path, held, network.outputs))


def _layer(path: str, held: Mapping[str, Array], name: str) -> Layer:
    if missing := [kind for kind in ("weight", "bias") if f"{name}.{kind}" not in held]:
        raise PolicyFileError(f"{path}: {name}.{missing[0]} is missing")
    return held[f"{name}.weight"], held[f"{name}.bias"]


def _action(path: str, held: Mapping[str, Array], size: int) -> dict[str, Any]:
    """tanh, then the environment's limits, as the file says them."""
    made: dict[str, Any] = {"squash": "tanh"}
    for field, name, usual in (("scale", "action_scale", 1.0), ("offset", "action_bias", 0.0)):
        if name not in held:
            raise PolicyFileError(f"{path}: {name} is missing: the limits of the actions are not known")
        values = held[name].reshape(-1).tolist()
        if len(values) not in (1, size):
            raise PolicyFileError(f"{path}: {name} has {len(values)} numbers, the actor returns {size}")
        if {*values} != {usual}:
            made[field] = values
    return made
