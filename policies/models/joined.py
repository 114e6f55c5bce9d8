"""A policy that is told what a detector sees, and a detector, as one policy file that takes the picture."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from deploy.policy_file import PolicyFile, PolicyFileError
from policies.models.export import exact, seal
from policies.models.graph import OPSET
from sim import spec
from sim.tasks.sight import CameraConfig
from sim.tasks.soccer import SightConfig

if TYPE_CHECKING:
    import onnx

PREFIX = "detector/"  # of the names of what is its in the graph


def joined(policy: PolicyFile, detector: PolicyFile, path: str) -> bytes:
    """The bytes of the joined file, which `path` names in errors; PolicyFileError when the two do not fit.

    Its test vectors are what the two files do one after the other, from the pictures in the detector's vectors and the
    signals in the policy's.
    """
    _check(policy, detector)
    told = {s.name for s in detector.outputs}
    model = _model(policy, detector)
    steps = min(policy.vectors.steps, detector.vectors.steps)
    inputs = (*detector.inputs, *(s for s in policy.inputs if s.name not in told))
    shown = {**policy.vectors.inputs, **detector.vectors.inputs}
    signals = {s.name: np.asarray(shown[s.name][:steps]) for s in inputs}
    outputs, states = _run(policy, detector, signals, steps)
    kept = {k: v for k, v in policy.metadata.items() if k not in ("schema", "digest", "evaluation", "training")}
    metadata = kept | {
        "name": f"{policy.name}_pixels",
        "inputs": spec.to_json(inputs),
        "training": _training(policy, detector),
        "evaluation": None,
        "vectors": {"inputs": exact(signals), "outputs": exact(outputs), "state": exact(states)},
    }
    return seal(model, metadata, path)


def _check(policy: PolicyFile, detector: PolicyFile) -> None:
    """PolicyFileError says why the policy does not take what the detector tells."""
    if not [s for s in detector.outputs if s.name.startswith("seen_")] or len(spec.pictures(detector.inputs)) != 1:
        given = ", ".join(s.name for s in detector.outputs)
        raise PolicyFileError(f"{detector.path} is no detector but gives {given}; python -m policies.train_detector")
    if detector.state or len(detector.inputs) != 1:
        raise PolicyFileError(f"{detector.path} takes more than a picture, or remembers; a detector does neither")
    wanted = {s.name: s for s in policy.inputs}
    for signal in detector.outputs:
        mine = wanted.get(signal.name)
        if mine is None or (mine.shape, mine.unit, mine.frame) != (signal.shape, signal.unit, signal.frame):
            raise PolicyFileError(
                f"{policy.path} takes no {signal.name!r} of {detector.path}: it must be trained with "
                "task.perception=detector, with as many players"
            )
    if detector.inputs[0].name in wanted:
        raise PolicyFileError(f"{policy.path} takes {detector.inputs[0].name!r} itself")
    missing = [s.name for s in policy.inputs if s.name.startswith("seen_") and s.name not in _names(detector)]
    if missing:
        raise PolicyFileError(f"{policy.path} takes {missing[0]!r}, which {detector.path} does not tell")
    if (policy.task, policy.rate_hz) != (detector.task, detector.rate_hz):
        raise PolicyFileError(
            f"{policy.path} is for {policy.task} at {policy.rate_hz:g} Hz, {detector.path} for {detector.task} at "
            f"{detector.rate_hz:g} Hz"
        )
    views = [_settings(file).get("view", SightConfig.view) for file in (policy, detector)]
    if views[0] != views[1]:
        raise PolicyFileError(
            f"{policy.path} was told of {views[0]!s:.9} degrees, {detector.path} sees {views[1]!s:.9}"
        )


def _names(file: PolicyFile) -> set[str]:
    return {s.name for s in file.outputs}


def _settings(file: PolicyFile) -> dict[str, Any]:
    """Of its task, as the file has them."""
    found = file.metadata.get("training", {}).get("task_config", {})
    if not isinstance(found, dict):
        raise PolicyFileError(f"{file.path}: the settings of its task are malformed; export it again")
    return found


def _training(policy: PolicyFile, detector: PolicyFile) -> dict[str, Any]:
    """Where it comes from: the policy's task, seen by the detector's camera."""
    theirs = _settings(detector)
    camera = {f.name: theirs[f.name] for f in dataclasses.fields(CameraConfig) if f.name in theirs}
    about = {
        kind: {"name": file.name, "sha256": file.sha256, "training": file.metadata.get("training", {})}
        for kind, file in (("policy", policy), ("detector", detector))
    }
    settings = {**_settings(policy), **camera, "panorama": "", "perception": "pixels"}
    return {"task_config": settings, "joined": about}


def _model(policy: PolicyFile, detector: PolicyFile) -> onnx.ModelProto:
    """The detector's graph, with what it tells going into the policy's."""
    import onnx
    from onnx import compose

    models = []
    for file in (detector, policy):
        model = onnx.load_from_string(file.content())
        versions = {o.domain: o.version for o in model.opset_import}
        if versions not in ({"": OPSET}, {"ai.onnx": OPSET}) or model.functions:
            raise PolicyFileError(f"{file.path} is of another opset than {OPSET}: export it again")
        del model.metadata_props[:]
        models.append(model)
    first = compose.add_prefix(models[0], PREFIX, rename_inputs=False, rename_outputs=False)
    first.ir_version = models[1].ir_version = max(model.ir_version for model in models)
    try:
        made = compose.merge_models(first, models[1], [(s.name, s.name) for s in detector.outputs])
    except ValueError as error:
        raise PolicyFileError(f"{policy.path} and {detector.path} cannot be joined: {error}") from None
    del made.opset_import[:]
    made.opset_import.append(onnx.helper.make_opsetid("", OPSET))
    return made


def _run(
    policy: PolicyFile, detector: PolicyFile, signals: dict[str, Any], steps: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Commands and states (steps, *shape) of the two, one after the other, from their beginning."""
    policy.reset()
    detector.reset()
    commands, states = [], []
    for step in range(steps):
        now = {name: value[step] for name, value in signals.items()}
        commands.append(policy.step({**now, **detector.step(now)}))
        states.append({name: value[0] for name, value in policy.states().items()})
    policy.reset()
    outputs = {s.name: np.stack([c[s.name] for c in commands]) for s in policy.outputs}
    return outputs, {name: np.stack([s[name] for s in states]) for name in (states[0] if states else {})}
