"""An ONNX file of mjlab, whose exporter writes joints, terms, scales, clips and histories into its metadata.

What it does not write, its libraries decide: a term is clipped, then scaled; its history is oldest first, and filled
with the first value; actions are joint positions about the default pose. Numbers are rounded to three decimals there.
"""

from __future__ import annotations

from deploy.policy_file import PolicyFileError
from policies.adoption.formats import legged
from policies.adoption.found import Found, Told, from_onnx
from policies.adoption.networks import notes

NEEDED = ("joint_names", "default_joint_pos", "action_scale", "observation_names")
RELATIVE = ("joint_pos", "joint_pos_rel")


def from_mjlab(path: str, told: Told) -> Found:
    """PolicyFileError for a file without mjlab's metadata, or with lists of different lengths."""
    found, said = from_onnx(path, told), notes(path)
    if missing := [key for key in NEEDED if not said.get(key)]:
        raise PolicyFileError(f"{path}: its metadata lack {', '.join(missing)}, which mjlab writes; from=onnx takes it")
    joints, names = said["joint_names"].split(","), said["observation_names"].split(",")
    pose = _numbers(path, "default_joint_pos", said["default_joint_pos"].split(","), len(joints))
    scale = said["action_scale"].split(",")
    lists = {
        key: _list(path, said, f"observation_terms_{key}", usual, len(names))
        for key, usual in (("scale", "1.0"), ("clip", "-inf;inf"), ("history_length", "0"))
    }
    terms = []
    for k, name in enumerate(names):
        term = legged.term(name, joints, pose if name in RELATIVE else ())
        if (scales := _numbers(path, "observation_terms_scale", lists["scale"][k].split(";"))) != [1.0]:
            term["scale"] = scales
        if lists["clip"][k] not in ("-inf;inf", "None"):
            term["clip"] = _numbers(path, "observation_terms_clip", lists["clip"][k].split(";"), 2)
        steps = _numbers(path, "observation_terms_history_length", [lists["history_length"][k]])[0]
        if steps > 1:
            term["history"] = int(steps)
        terms.append(term)
    found.observation = terms
    found.history = {"order": "term", "newest": "last", "start": "first"}
    found.action = {
        "elements": joints,
        "scale": _numbers(path, "action_scale", scale, len(joints) if len(scale) > 1 else 1),
        "offset": pose,
        "means": "position",
    }
    found.signals, found.commands = legged.signals(names, joints), [legged.command("position_target", "rad", joints)]
    found.remarks = [
        "mjlab rounds its metadata to three decimals: write more digits where you know them.",
        *(f"{key}: {said[key]}" for key in ("joint_stiffness", "joint_damping") if key in said),
    ]
    return found


def _list(path: str, said: dict[str, str], key: str, usual: str, count: int) -> list[str]:
    if not said.get(key):
        return [usual] * count
    values = said[key].split(",")
    if len(values) != count:
        raise PolicyFileError(f"{path}: metadata {key} has {len(values)} entries, there are {count} observation_names")
    return values


def _numbers(path: str, key: str, texts: list[str], count: int | None = None) -> list[float]:
    if count is not None and len(texts) != count:
        raise PolicyFileError(f"{path}: metadata {key} has {len(texts)} numbers; needs {count}")
    try:
        return [float(text) for text in texts]
    except ValueError:
        raise PolicyFileError(f"{path}: metadata {key} holds {','.join(texts):.80}, which are no numbers") from None
