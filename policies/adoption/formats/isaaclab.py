"""A policy of Isaac Lab: the network (exported/policy.onnx, or rsl_rl's checkpoint) and its IO descriptors (YAML).

`descriptors` is what `export_io_descriptors.py --task NAME` or `train --export_io_descriptors` writes: terms in their
order with scale, clip and history, the action's joints, scale and offset, the joints' gains, the control period.
What it does not write, Isaac Lab decides: a term is clipped, then scaled; its history is oldest first, term by term,
and filled with the first value. A term of one's own without a descriptor is left out there. Source of the layout:
isaac-sim/IsaacLab@17ad46e1, envs/utils/io_descriptors.py, and managers/observation_manager.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from policies.adoption.description import load
from policies.adoption.fields import DescriptionError, Fields
from policies.adoption.formats import legged
from policies.adoption.formats.rsl_rl import from_rsl_rl
from policies.adoption.found import Found, Told, from_onnx

# The class of an action -> command, unit and what it means.
ACTIONS = {
    "JointPositionAction": ("position_target", "rad", "position"),
    "JointVelocityAction": ("velocity_target", "rad/s", "value"),
    "JointEffortAction": ("effort", "N m", "value"),
}
GROUP = "policy"  # what Isaac Lab exports, unless told otherwise
LONGEST = 1000  # control steps of a history


def from_isaaclab(path: str, told: Told, descriptors: str = "") -> Found:
    """PolicyFileError, or DescriptionError that names the field of the descriptors. Without them: the network alone."""
    found = (from_rsl_rl if path.endswith(".pt") else from_onnx)(path, told)
    if descriptors:
        try:
            _describe(found, Fields("", load(descriptors)))
        except DescriptionError as error:
            raise DescriptionError(f"{descriptors}: {error}") from None
    return found


def _describe(found: Found, said: Fields) -> None:
    joints = _act(found, said)
    names, size = [], 0
    for term in _group(said):
        name = term.text("name")
        names.append(name)
        size += _see(found, term, name, joints)
    found.signals = legged.signals(names, joints)
    found.history = {"order": "term", "newest": "last", "start": "first"}
    period = said.inner("scene").number("dt", low=0.0, above=True)
    found.rate_hz = round(1.0 / period, 6)
    if size != found.network.inputs:
        found.remarks.append(
            f"The descriptors make {size} numbers: terms without a descriptor are left out there. Add them in place."
        )
    robots = said.inner("articulations")
    for name in robots:
        robot = robots.inner(name)
        for key in ("stiffness", "damping"):
            if robot.has(f"default_joint_{key}"):
                values = ", ".join(f"{v:g}" for v in robot.numbers(f"default_joint_{key}"))
                found.remarks.append(f"joint_{key} of {name!r:.40}: {values} (0: its actuator model says it)")


def _act(found: Found, said: Fields) -> list[str]:
    """What the action does; the names of its joints in their order."""
    actions = list(said.items("actions"))
    if len(actions) != 1:
        raise DescriptionError(f"actions: has {len(actions)} terms; a policy with one is adopted")
    (action,) = actions
    kind = action.text("full_path").rpartition(".")[2]
    if kind not in ACTIONS:
        raise action.error("full_path", f"{kind!r:.80} is not one of {', '.join(ACTIONS)}")
    if action.has("clip"):
        raise action.error("clip", "what is commanded is clipped joint by joint, which a policy file cannot say")
    command, unit, means = ACTIONS[kind]
    joints = [str(joint) for joint in action.elements("joint_names") or ()]
    if not joints:
        raise action.error("joint_names", "is missing")
    found.action = {"elements": joints, "means": means}
    for key, usual in (("scale", 1.0), ("offset", 0.0)):
        if action.has(key):
            found.action[key] = _each(action, key, len(joints), usual)
    found.commands = [legged.command(command, unit, joints)]
    return joints


def _each(fields: Fields, key: str, size: int, usual: float) -> list[float] | float:
    """A number for all, or one for each; Isaac Lab may write such a list for every robot of the scene: the first."""
    value = fields.raw(key)
    rows = isinstance(value, list) and bool(value) and isinstance(value[0], list)
    values = (Fields(fields.where, {key: value[0]}) if rows else fields).numbers(key)
    if len(values) not in (1, size):
        raise fields.error(key, f"has {len(values)} numbers; needs one, or {size}")
    same = set(values) == {values[0]}
    return values[0] if same and (len(values) == 1 or values[0] == usual) else list(values)


def _group(said: Fields) -> Iterator[Fields]:
    """The terms that the policy sees."""
    groups = said.inner("observations", required=True)
    if not groups.has(GROUP):
        raise groups.error(GROUP, "is missing: the group of terms that the policy sees")
    return groups.items(GROUP)


def _see(found: Found, term: Fields, name: str, joints: list[str]) -> int:
    """One more term; how many numbers it adds."""
    own = [str(joint) for joint in term.elements("joint_names") or joints]
    offsets = [key for key in ("joint_pos_offsets", "joint_vel_offsets") if term.has(key)]
    offset = term.numbers(offsets[0]) if offsets else ()
    if offset and len(offset) != len(own):
        raise term.error(offsets[0], f"has {len(offset)} numbers for {len(own)} joints")
    if term.inner("extras").has("modifiers"):
        raise term.error("extras.modifiers", f"{name} goes through functions that no description knows")
    made, more = legged.term(name, own, offset), term.inner("overloads")
    size = _size(term, made, own)
    if more.has("scale"):
        scale = _each(more, "scale", size, 1.0)
        made |= {"scale": scale} if scale != 1.0 else {}
    if more.has("clip"):
        made["clip"] = list(more.limits("clip"))
    steps = more.whole("history_length", 0, 0, LONGEST)
    if steps > 1:
        if more.has("flatten_history_dim") and more.raw("flatten_history_dim") is not True:
            raise more.error("flatten_history_dim", f"the history of {name} is not flat: no network here takes it")
        made["history"] = steps
    found.observation.append(made)
    return size * max(steps, 1)


def _size(term: Fields, made: dict[str, Any], joints: list[str]) -> int:
    shape = term.numbers("shape")
    size = int(shape[-1])
    if "elements" in made and size != len(joints):
        raise term.error("shape", f"is {size}, but there are {len(joints)} joint_names")
    return size
