"""A zip of Stable-Baselines3: PPO, A2C, SAC, TD3 or DDPG with MlpPolicy.

policy.pth is read as tensors, `data` as JSON. What that keeps pickled (":serialized:") is never looked at: beside it
stand texts that say the same. VecNormalize writes a pickle of its own, which is not read at all: its statistics come as
an .npz.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from typing import Any

from deploy.policy_file import PolicyFileError
from deploy.trust.onnx_limits import Limits
from policies.adoption.formats import tensors
from policies.adoption.found import UNKNOWN, Found, Told, layers_of, only, perceptron
from policies.adoption.networks import onnx_content
from policies.models.networks import Array, Layer

CLASSES = {"Tanh": "tanh", "ReLU": "relu", "ELU": "elu", "SELU": "selu", "SiLU": "silu", "LeakyReLU": "leaky_relu"}
STATISTICS = (
    "Statistics of VecNormalize are a pickle, which is not read. Write them where you trust it:",
    "  v = VecNormalize.load(FILE, env); np.savez('stats.npz', mean=v.obs_rms.mean, var=v.obs_rms.var,",
    "                                             epsilon=v.epsilon, clip=v.clip_obs)",
    "and say file: stats.npz below; leave `normalisation` out where it was trained without VecNormalize.",
)


def from_sb3(path: str, told: Told) -> Found:
    """PolicyFileError for a zip that holds anything but a policy of linear layers, or says of itself what cannot be."""
    only(path, told, "activation")
    weights, data = _members(path)
    held = tensors.arrays(path, tensors.load(path, weights))
    layers, usual, squash = _actor(path, held)
    keywords = data.get("policy_kwargs")
    if isinstance(keywords, dict) and keywords.get("squash_output") is True:
        squash = True
    activation = told.get("activation") or _activation(path, keywords, usual)
    space = data.get("action_space")
    low, high = (_limits(space.get(side)) if isinstance(space, dict) else None for side in ("low", "high"))
    return Found(
        perceptron(path, layers, activation),
        about={"activation": activation},
        action=_action(squash, low, high),
        normalisation={"file": UNKNOWN},
        remarks=list(STATISTICS),
    )


def _members(path: str) -> tuple[bytes, dict[str, Any]]:
    """policy.pth, and `data` as JSON."""
    most = Limits.declared().memory / 3
    try:
        with zipfile.ZipFile(io.BytesIO(onnx_content(path))) as archive:
            found = {}
            for name in ("policy.pth", "data"):
                if archive.getinfo(name).file_size > most:
                    raise PolicyFileError(f"{path}: {name} in it would take more than {most:.0f} bytes")
                found[name] = archive.read(name)
        data = json.loads(found["data"])
    except KeyError as error:
        raise PolicyFileError(f"{path}: is no zip of Stable-Baselines3: {error}") from None
    except PolicyFileError:
        raise
    except (
        zipfile.BadZipFile,
        RuntimeError,
        NotImplementedError,
        OSError,
        ValueError,
        RecursionError,
        EOFError,
    ) as error:
        raise PolicyFileError(f"{path}: is no zip of Stable-Baselines3: {error}") from None
    if not isinstance(data, dict):
        raise PolicyFileError(f"{path}: `data` in it is no JSON object")
    return found["policy.pth"], data


def _actor(path: str, held: dict[str, Array]) -> tuple[list[Layer], str, bool]:
    """The layers that act, the activation that goes without saying, and whether tanh follows."""
    if odd := [name for name in held if "features_extractor" in name or "lstm" in name]:
        raise PolicyFileError(f"{path}: the policy has {odd[0]}: only those of linear layers (MlpPolicy) are adopted")
    if "action_net.weight" in held:  # PPO, A2C
        hidden = layers_of(path, held, "mlp_extractor.policy_net") if _has(held, "mlp_extractor.policy_net") else []
        return [*hidden, _layer(path, held, "action_net")], "tanh", False
    if "actor.mu.weight" in held:  # SAC
        hidden = layers_of(path, held, "actor.latent_pi") if _has(held, "actor.latent_pi") else []
        return [*hidden, _layer(path, held, "actor.mu")], "relu", True
    if _has(held, "actor.mu"):  # TD3, DDPG
        return layers_of(path, held, "actor.mu"), "relu", True
    known = ", ".join(sorted({name.split(".")[0] for name in held})[:6]) or "nothing"
    raise PolicyFileError(f"{path}: no actor of PPO, A2C, SAC, TD3 or DDPG in it, but {known}")


def _has(held: dict[str, Array], prefix: str) -> bool:
    return any(name.startswith(f"{prefix}.") for name in held)


def _layer(path: str, held: dict[str, Array], name: str) -> Layer:
    if f"{name}.bias" not in held:
        raise PolicyFileError(f"{path}: {name}.bias is missing")
    return held[f"{name}.weight"], held[f"{name}.bias"]


def _activation(path: str, keywords: Any, usual: str) -> str:
    """As the text beside the pickled class says it."""
    text = keywords.get("activation_fn") if isinstance(keywords, dict) else None
    if text is None:
        return usual
    named = re.fullmatch(r"<class 'torch\.nn\.modules\.activation\.(\w+)'>", str(text)[:200])
    if named is None or named.group(1) not in CLASSES:
        raise PolicyFileError(f"{path}: network.activation: the file says {text!s:.80}: say which it is")
    return CLASSES[named.group(1)]


def _limits(text: Any) -> list[float] | None:
    """Numpy's text of a short array, "[-1. -1.]"."""
    try:
        return [float(number) for number in str(text)[:10_000].strip("[]").split()] or None
    except ValueError:
        return None


def _action(squash: bool, low: list[float] | None, high: list[float] | None) -> dict[str, Any]:
    """SB3 squashes into the space of actions, or clips to it."""
    made: dict[str, Any] = {"squash": "tanh"} if squash else {}
    if not low or not high or len(low) != len(high):
        return made
    if {*low} == {-1.0} and {*high} == {1.0}:
        return {**made, "clip": [-1.0, 1.0]}
    if squash:
        pairs = list(zip(low, high, strict=True))
        return {
            **made,
            "scale": [0.5 * (top - bottom) for bottom, top in pairs],
            "offset": [0.5 * (top + bottom) for bottom, top in pairs],
        }
    return {**made, "clip": [min(low), max(high)]}
