"""A checkpoint of rsl_rl (.pt): the actor's weights and the statistics of its normaliser, of versions 1 to 5."""

from __future__ import annotations

from deploy.policy_file import PolicyFileError
from policies.adoption.description import Normalisation
from policies.adoption.formats import tensors
from policies.adoption.found import Found, Told, layers_of, only, perceptron
from policies.adoption.networks import onnx_content
from policies.models.networks import Array

EPSILON = 1e-2  # EmpiricalNormalization's, added to the deviation; no checkpoint says it
USUAL = "elu"  # rsl_rl's; no checkpoint says it
# The prefix of the actor's layers, and those of its statistics, newest version first.
LAYOUTS = (
    ("actor_state_dict.mlp", ("actor_state_dict.obs_normalizer",)),
    ("model_state_dict.actor", ("model_state_dict.actor_obs_normalizer", "obs_norm_state_dict")),
)


def from_rsl_rl(path: str, told: Told) -> Found:
    """PolicyFileError for a file that holds more than tensors, an actor that remembers, or none."""
    only(path, told, "activation")
    held = tensors.arrays(path, tensors.load(path, onnx_content(path)))
    if odd := [name for name in held if ".rnn." in name or ".memory_a." in name]:
        raise PolicyFileError(f"{path}: the actor remembers ({odd[0]}): only those of linear layers are adopted")
    for actor, statistics in LAYOUTS:
        if any(name.startswith(f"{actor}.") for name in held):
            activation = told.get("activation", USUAL)
            return Found(
                perceptron(path, layers_of(path, held, actor), activation),
                _statistics(path, held, statistics),
                about={"activation": activation},
                remarks=["The checkpoint does not say its activation: elu is rsl_rl's usual one."],
            )
    known = ", ".join(sorted({name.split(".")[0] for name in held})[:6]) or "no tensors"
    raise PolicyFileError(f"{path}: no actor of rsl_rl in it, but {known}")


def _statistics(path: str, held: dict[str, Array], places: tuple[str, ...]) -> Normalisation:
    for place in places:
        if f"{place}._mean" in held:
            if f"{place}._std" not in held:
                raise PolicyFileError(f"{path}: {place} has _mean, but no _std")
            mean, std = (held[f"{place}.{name}"].reshape(-1) for name in ("_mean", "_std"))
            return Normalisation(tuple(map(float, mean)), tuple(float(v) + EPSILON for v in std))
    return Normalisation()
