"""A checkpoint of rl_tools (.h5, .tar), as the published weights of "RAPTOR" come: dense layers and gated units.

A .tar, as PX4 reads it from its SD card, has the same groups as paths: `PATH/meta` holds attributes as lines,
`PATH/data` the numbers of a tensor.

The file names what its network sees (`meta`), and holds an example of its inputs and outputs, which must come out.
Its actions are -1 to 1 of the rotors' range, clipped by who flies it. The layout is read as foundation-policy 1.0.2
reads it: actor/layers/NUMBER with a `type`, and `parameters` of each matrix.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from typing import TYPE_CHECKING, Any

import numpy as np

from deploy.policy_file import PolicyFileError
from deploy.trust.onnx_limits import Limits
from policies.adoption.found import UNKNOWN, Found, Told, only
from policies.adoption.layers import Chain, Gated, MeanOfTwo
from policies.adoption.networks import onnx_content
from policies.models.networks import Array, Layer, Network
from policies.models.networks.feed_forward import FeedForward

if TYPE_CHECKING:
    import h5py

MOST_FILES, LONGEST_META = 500, 4000  # in an archive; characters of attributes
MOST, DEEPEST = 32, 2  # layers of a chain, and chains in one another
CLOSE = 1e-5  # of the example's outputs
ACTIVATIONS = {name.upper(): name for name in ("identity", "relu", "sigmoid", "tanh", "fast_tanh")}
# What it sees -> signal, what is subtracted, size, unit, frame. Source: rl_tools' l2f environment.
SEEN: dict[str, tuple[str, str, int, str, str]] = {
    "Position": ("position", "target_position", 3, "m", "world"),
    "OrientationRotationMatrix": ("rotation", "", 9, "1", "body->world"),
    "LinearVelocity": ("linear_velocity", "target_velocity", 3, "m/s", "world"),
    "AngularVelocity": ("angular_velocity", "", 3, "rad/s", "body"),
    "AngularVelocityDelayed(0)": ("angular_velocity", "", 3, "rad/s", "body"),
}
REMARKS = (
    "Rotors of rl_tools: front right, back right, back left, front left; 100 Hz.",
    "PX4 flies it with limits: clip: 0.5 (m) on the first term, clip: 1.0 (m/s) on the third.",
)


def from_rl_tools(path: str, told: Told) -> Found:
    """PolicyFileError for a file without an actor of such layers, or whose own example does not come out."""
    from policies.datasets import hdf5
    from policies.datasets.features import DatasetError

    only(path, told)
    try:
        content = onnx_content(path)
        with hdf5.opened(_as_hdf5(content) if content[257:262] == b"ustar" else io.BytesIO(content)) as file:
            actor, left = hdf5.member(file, "actor"), [Limits.declared().memory]
            network = _network(actor, "hidden", left)
            sides = hdf5.tree(file, "example")
            examples = [_numbers(sides[side], left) for side in ("input", "output")]
            seen = _meta(actor)
    except (DatasetError, KeyError, AttributeError, TypeError, OSError, RuntimeError, tarfile.TarError) as error:
        raise PolicyFileError(f"{path}: is no checkpoint of rl_tools: {' '.join(str(error).split())[:200]}") from None
    except PolicyFileError:
        raise
    except ValueError as error:
        raise PolicyFileError(f"{path}: {error}") from None
    _check(path, network, *examples)
    found = Found(network, action={"clip": [-1.0, 1.0], "means": "range"}, remarks=list(REMARKS))
    for name in seen:
        _see(found, name)
    if found.signals:
        found.commands = [{"name": "motor_command", "size": network.outputs, "unit": "1", "limits": [0.0, 1.0]}]
    return found


def _as_hdf5(content: bytes) -> io.BytesIO:
    """The same checkpoint as HDF5. ValueError, KeyError, tarfile.TarError: it is none."""
    from policies.datasets import hdf5

    attributes, arrays = dict[str, dict[str, str]](), dict[str, Array]()
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
        for count, entry in enumerate(tar):
            path, _, kind = entry.name.rpartition("/")
            plain = entry.isreg() and not entry.issparse()  # of a sparse one, zeros come out that are not in it
            if count >= MOST_FILES or not plain or kind not in ("meta", "data") or not path:
                raise ValueError(f"{entry.name!r:.80} is not what an archive of rl_tools holds")
            if kind == "data":
                continue
            lines = _inside(tar, entry.name)[:LONGEST_META].decode(errors="replace").splitlines()
            if path in attributes or path in arrays:
                raise ValueError(f"{path!r:.80} is there twice")
            told = dict(line.split(": ", 1) for line in lines if ": " in line)
            if told.get("type") != "tensor":
                attributes[path] = told
                continue
            shape = [int(told[f"dim_{k}"]) for k in range(int(told["num_dims"]))]
            if told.get("dtype") != "float32" or len(shape) > 9:
                raise ValueError(f"{path}: is of {told.get('dtype')!r:.40}, {len(shape)} dimensions; float32 is read")
            arrays[path] = np.frombuffer(_inside(tar, f"{path}/data"), "<f4").reshape(shape)
    return hdf5.made(attributes, arrays)


def _inside(tar: tarfile.TarFile, name: str) -> bytes:
    """The bytes of one file of an archive; KeyError when it is not there."""
    file = tar.extractfile(name)
    if file is None:
        raise KeyError(f"{name} is no file")
    return file.read()


def _text(group: h5py.Group, name: str) -> str:
    value: Any = group.attrs.get(name, "")
    return (value.decode(errors="replace") if isinstance(value, bytes) else str(value))[:10_000]


def _numbers(held: h5py.Dataset, left: list[float]) -> Array:
    """A dataset; `left`: how many bytes more are read, for what was never written takes no room in a file."""
    left[0] -= held.size * max(4, held.dtype.itemsize)
    if left[0] < 0:
        raise ValueError("it takes too much memory; if you trust it, SIM2METAL_MEMORY_MB=... allows more")
    return np.asarray(held, np.float32)


def _array(group: h5py.Group, name: str, left: list[float]) -> Array:
    from policies.datasets import hdf5

    held = hdf5.member(hdf5.member(group, name), "parameters")
    return _numbers(held, left)


def _layer(group: h5py.Group, weights: str, biases: str, left: list[float]) -> Layer:
    return _array(group, weights, left), _array(group, biases, left).reshape(-1)


def _activation(group: h5py.Group) -> str:
    said = _text(group, "activation_function")
    if said not in ACTIVATIONS:
        raise ValueError(f"{group.name}: the activation {said!r:.80} is not one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[said]


def _dense(group: h5py.Group, left: list[float]) -> FeedForward:
    return FeedForward([_layer(group, "weights", "biases", left)], "identity", _activation(group))


def _network(group: h5py.Group, name: str, left: list[float], inputs: int = 0, depth: int = 0) -> Network:
    """The layer, or the chain of layers, in a group. `name`: of what it remembers; `inputs`: what comes before."""
    from policies.datasets import hdf5

    kind = _text(group, "type")
    if kind == "dense":
        return _dense(group, left)
    if kind == "mlp":
        middle = range(int(group.attrs["num_layers"]) - 2)
        names = ["input_layer", *(f"hidden_layer_{k}" for k in middle[:MOST]), "output_layer"]
        return Chain([_dense(hdf5.member(group, each), left) for each in names])
    if kind == "gru":
        inward, across = (_layer(group, f"weights_{side}", f"biases_{side}", left) for side in ("input", "hidden"))
        return Gated(inward, across, _array(group, "initial_hidden_state", left).reshape(-1), name)
    if kind == "sample_and_squash":
        return MeanOfTwo(inputs)
    if kind == "sequential":
        held, parts = hdf5.member(group, "layers"), list[Network]()
        if len(held) > MOST or depth > DEEPEST:  # chains may hold one another, again and again
            raise ValueError(
                f"{group.name}: has {len(held)} layers, {depth} chains deep; at most {MOST}, {DEEPEST} deep"
            )
        for number in range(len(held)):
            before = parts[-1].outputs if parts else 0
            parts.append(_network(hdf5.member(held, str(number)), f"{name}_{number}", left, before, depth + 1))
        return Chain(parts)
    raise ValueError(f"{group.name}: a layer of type {kind!r:.80}; those of rl_tools that are read: dense, mlp, gru")


def _meta(actor: h5py.Group) -> list[str]:
    """What the network sees, in its order; nothing where the file does not say it."""
    try:
        said = json.loads(_text(actor, "meta"))["environment"]["observation"]
    except (ValueError, KeyError, TypeError):
        return []
    return said.split(".") if isinstance(said, str) else []


def _check(path: str, network: Network, seen: Array, wanted: Array) -> None:
    """PolicyFileError unless the network makes of the file's example (steps, n, k) what the file says it makes."""
    if not (seen.size and wanted.size and np.isfinite(seen).all() and np.isfinite(wanted).all()):
        raise PolicyFileError(f"{path}: its example is empty, or not finite: it proves nothing")
    if seen.ndim != 3 or wanted.shape != (*seen.shape[:2], network.outputs) or seen.shape[2] != network.inputs:
        raise PolicyFileError(
            f"{path}: its example is of shapes {seen.shape} and {wanted.shape}; the network takes {network.inputs} "
            f"numbers and returns {network.outputs}"
        )
    state, worst = network.initial_state(seen.shape[1]), 0.0
    for x, y in zip(seen, wanted, strict=True):
        made, state = network.forward(x, state)
        worst = max(worst, float(np.abs(made - y).max(initial=0.0)))
    if not worst <= CLOSE:
        raise PolicyFileError(f"{path}: its own example does not come out: an output is off by {worst:.3g}")


def _see(found: Found, name: str) -> None:
    """A term of what it sees, and the signals that this needs."""
    if past := re.fullmatch(r"ActionHistory\((\d{1,3})\)", name):
        steps = int(past[1])
        found.observation.append({"last_action": True} | ({"history": steps} if steps > 1 else {}))
        return
    if name not in SEEN:
        found.observation.append({"signal": f"{UNKNOWN}{name}"})
        found.signals.append({"name": f"{UNKNOWN}{name}", "size": 1, "unit": "1"})
        return
    signal, minus, size, unit, frame = SEEN[name]
    found.observation.append({"signal": signal} | ({"minus": minus} if minus else {}))
    found.signals += [
        {"name": each, "size": size, "unit": unit, "frame": frame} for each in filter(None, (signal, minus))
    ]
