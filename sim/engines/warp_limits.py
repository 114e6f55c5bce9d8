"""What MuJoCo Warp cannot step as MuJoCo does, refused by one sentence that names the element of the model."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import mujoco
import numpy as np

try:
    import mujoco_warp
except ModuleNotFoundError as error:
    hint = f"{error.name} is not installed: pip install 'sim2metal[warp]'"
    raise ModuleNotFoundError(hint, name=error.name) from error

INSTEAD = "engine=mujoco can"
LOOKS = ("light_", "mat_", "geom_rgba", "geom_matid")  # what only pictures depend on; Warp draws none here
FOR_SLEEP = "dof_length"  # follows from masses and places, and only who may fall asleep depends on it
# Of each kind of element: which array says of what type they are, MuJoCo's names of types, and which Warp has.
TYPES = (
    ("actuator", "actuator_trntype", mujoco.mjtTrn, mujoco_warp.TrnType),
    ("actuator", "actuator_dyntype", mujoco.mjtDyn, mujoco_warp.DynType),
    ("actuator", "actuator_gaintype", mujoco.mjtGain, mujoco_warp.GainType),
    ("actuator", "actuator_biastype", mujoco.mjtBias, mujoco_warp.BiasType),
    ("geom", "geom_type", mujoco.mjtGeom, mujoco_warp.GeomType),
    ("sensor", "sensor_type", mujoco.mjtSensor, mujoco.mjtSensor.__members__.values()),
)
OPTIONS = (
    ("integrator", mujoco.mjtIntegrator, mujoco_warp.IntegratorType),
    ("cone", mujoco.mjtCone, mujoco_warp.ConeType),
    ("solver", mujoco.mjtSolver, mujoco_warp.SolverType),
)
# What Warp says it has, or does not say, and MuJoCo 3.10 does otherwise: found by comparing them, element by element.
DIFFERS = {
    "sensor_type": {int(mujoco.mjtSensor.mjSENS_USER), int(mujoco.mjtSensor.mjSENS_E_KINETIC)},
    "actuator_trntype": {int(mujoco.mjtTrn.mjTRN_SLIDERCRANK)},
    "actuator_dyntype": {int(mujoco.mjtDyn.mjDYN_USER)},  # what is called back then is a function of this process
    "actuator_gaintype": {int(mujoco.mjtGain.mjGAIN_USER)},
    "actuator_biastype": {int(mujoco.mjtBias.mjBIAS_USER)},
    "integrator": {int(mujoco.mjtIntegrator.mjINT_IMPLICIT)},
}
ACCELERATIONS = {int(mujoco.mjtSensor.mjSENS_ACCELEROMETER), int(mujoco.mjtSensor.mjSENS_FRAMELINACC)}
CARRIED = {
    int(mujoco.mjtObj.mjOBJ_SITE): "site_bodyid",
    int(mujoco.mjtObj.mjOBJ_GEOM): "geom_bodyid",
    int(mujoco.mjtObj.mjOBJ_CAMERA): "cam_bodyid",
}
FLAGS = (
    ("disableflags", mujoco.mjtDisableBit, mujoco_warp.DisableBit),
    ("enableflags", mujoco.mjtEnableBit, mujoco_warp.EnableBit),
)


def put_model(model: Any, sizes: Mapping[str, int]) -> Any:
    """Warp's copy of a model, in which these arrays are as many. ValueError names what Warp cannot step as MuJoCo."""
    for reason in refused(model):
        raise ValueError(f"mujoco_warp cannot step {reason}; {INSTEAD}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # it says so of what comes out differently, or NaN
            return mujoco_warp.put_model(model, dict(sizes))
    except (NotImplementedError, ValueError, UserWarning) as error:
        raise ValueError(f"mujoco_warp cannot step this model: {str(error).rstrip('.')}; {INSTEAD}") from error


def refused(model: Any) -> Iterator[str]:
    """Of everything it cannot do, what it is."""
    for kind, array, names, known in TYPES:
        for i, value in enumerate(getattr(model, array)):
            if int(value) not in {int(one) for one in known} - DIFFERS.get(array, set()):
                yield f"{named(model, kind, i)}: {names(int(value)).name}"
    for name, names, known in OPTIONS:
        value = getattr(model.opt, name)
        if int(value) not in {int(one) for one in known} - DIFFERS.get(name, set()):
            yield f"the option {name}: {names(int(value)).name}"
    for name, names, known in FLAGS:
        left = int(getattr(model.opt, name)) & ~int(np.bitwise_or.reduce([int(one) for one in known]))
        for bit in range(left.bit_length()):
            if left >> bit & 1:
                yield f"the flag {names(1 << bit).name} of {name}"
    if model.opt.noslip_iterations > 0:
        yield f"the option noslip_iterations: {model.opt.noslip_iterations}"
    for i, group in enumerate(model.actuator_group):
        if 0 <= group < 31 and model.opt.disableactuator >> int(group) & 1:
            yield f"{named(model, 'actuator', i)}, whose group is disabled (actuatorgroupdisable)"
    for i in range(model.nsensor):
        if int(model.sensor_type[i]) in ACCELERATIONS and model.body_treeid[carrier(model, i)] < 0:
            yield f"{named(model, 'sensor', i)}: an acceleration of what nothing moves, which MuJoCo takes for 0"
    for kind in ("body", "actuator", "sensor"):
        for number in np.flatnonzero(getattr(model, f"{kind}_plugin") >= 0):
            yield f"{named(model, kind, int(number))}, which is a plugin"


def carrier(model: Any, sensor: int) -> int:
    """The body of what a sensor tells of."""
    number, kind = int(model.sensor_objid[sensor]), int(model.sensor_objtype[sensor])
    return int(getattr(model, CARRIED[kind])[number]) if kind in CARRIED else number


def named(model: Any, kind: str, number: int) -> str:
    """An element as its file calls it, or by its number."""
    name = getattr(model, kind)(number).name
    return f"the {kind} {name!r}" if name else f"{kind} {number} (it has no name)"


def batched(model: Any) -> tuple[str, ...]:
    """The arrays of the model that physics depend on and that may differ from world to world."""
    fields = dataclasses.fields(mujoco_warp.Model)
    several = [f.name for f in fields if getattr(f.type, "shape", ())[:1] == ("*",) and not f.name.startswith(LOOKS)]
    return tuple(name for name in several if getattr(model, name).size)


def changed(common: Any, model: Any, varied: tuple[str, ...]) -> list[str]:
    """What else differs from the common model that Warp looks at: arrays and options."""
    arrays = [f.name for f in dataclasses.fields(mujoco_warp.Model) if f.name not in varied]
    arrays = [name for name in arrays if isinstance(getattr(common, name, None), np.ndarray)]
    asleep = bool(common.opt.enableflags & int(mujoco.mjtEnableBit.mjENBL_SLEEP))
    arrays = [name for name in arrays if not name.startswith(LOOKS) and (asleep or name != FOR_SLEEP)]
    options = [f.name for f in dataclasses.fields(mujoco_warp.Option) if hasattr(common.opt, f.name)]
    return [
        *(name for name in arrays if not np.array_equal(getattr(common, name), getattr(model, name))),
        *(f"opt.{name}" for name in options if not np.array_equal(getattr(common.opt, name), getattr(model.opt, name))),
    ]
