"""What is wrong with a command line of `policies.runner.config`, in one short sentence with the choices."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable
from typing import Any

# What a setting was called before -> what it is called now, the first of these that there is where it was looked for.
RENAMED = {
    "actor_rate": ("actor_learning_rate_share",),
    "backup": ("n_step",),
    "batch": ("batch_size",),
    "beside": ("offsets",),
    "discount": ("gamma",),
    "doubt": ("pessimism",),
    "ema": ("ema_decay", "ema_rate"),
    "env_steps": ("total_steps",),
    "episodes": ("episodes_per_round", "evaluation_episodes"),
    "finder": ("localiser",),
    "finding": ("localisation",),
    "final_rate": ("final_learning_rate_share",),
    "horizon": ("rollout_steps",),
    "max_gradient": ("gradient_clip",),
    "passes": ("epochs",),
    "points": ("keypoints",),
    "polyak": ("tau",),
    "returns_over": ("n_step",),
    "scenes": ("num_envs",),
    "segment": ("rollout_steps",),
    "steps": ("total_steps", "denoise_steps"),
    "subset": ("target_critics",),
    "target_rate": ("tau",),
    "updates": ("updates_per_step", "updates_per_round"),
    "warm_up": ("warmup_episodes",),
    "warmup": ("warmup_steps",),
}


PARTS = ("task", "algorithm")  # whose settings are named with them


class SettingsError(ValueError):
    """The command line asks for something that does not exist; the message says what does."""


class UnknownSettingError(SettingsError):
    """There is no setting of that name, or none any more."""


def unknown(kind: str, name: str, choices: Iterable[str], where: str = "") -> str:
    """A name that is none of the choices, and the nearest one."""
    near = difflib.get_close_matches(name, choices, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"unknown {kind} {name!r}{hint}; choices{where}: {', '.join(sorted(choices))}"


def learnable(group: str, config: Any) -> Any:
    """The settings of a task or an algorithm; SettingsError for a learning rate by which nothing can be learned.

    The final one may be 0, where it is not reached exponentially, which algorithms check themselves.
    """
    for name, value in vars(config).items():
        if dataclasses.is_dataclass(value):
            learnable(f"{group}.{name}", value)
        if not name.endswith("learning_rate") or not isinstance(value, float):
            continue
        if name == "final_learning_rate" and not 0.0 <= value < math.inf:
            raise SettingsError(f"{group}.{name} must not be negative, and finite, got {value:g}")
        if name != "final_learning_rate" and not 0.0 < value < math.inf:
            raise SettingsError(f"{group}.{name} must be positive and finite, got {value:g}")
    return config


def explained(error: Exception) -> SettingsError:
    """One short sentence for what hydra, omegaconf or a `Config` objects to."""
    from hydra.errors import OverrideParseException
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

    if isinstance(error, SettingsError):
        return error
    if isinstance(error, OverrideParseException):
        return SettingsError(f"cannot read {error.override!r}; write it as key=value, special characters in quotes")
    chain: list[BaseException] = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    for link in chain:
        if not isinstance(link, OmegaConfBaseException):
            continue
        if isinstance(link, ConfigAttributeError | ConfigKeyError) and link.full_key:
            return UnknownSettingError(_key(link.full_key, link.parent_node))
        return SettingsError(f"{link.full_key}: {str(link.msg).strip().partition(chr(10))[0]}")
    return SettingsError(str(error).strip().partition("\n")[0])


def _key(full_key: str, parent: Any) -> str:
    group, _, key = str(full_key).rpartition(".")
    choices = [str(k) for k in parent] if parent is not None else []
    choices = [k for k in choices if k not in ("hydra", "defaults")]
    where = f"{group}." if group else ""
    if now := [name for name in RENAMED.get(key, ()) if name in choices]:
        return f"{str(full_key)!r} is called {where}{now[0]} now"
    near = [f"{part}.{key}" for part in PARTS if not group and part in choices and key in (parent[part] or ())]
    near = near or [where + name for name in difflib.get_close_matches(key or full_key, choices, n=1)]
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"unknown setting {full_key!r}{hint}; there are: {', '.join(where + k for k in choices)}"
