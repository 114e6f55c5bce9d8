"""Files as other libraries write them, made here of a few random numbers."""

import io
import json
import zipfile
from itertools import pairwise

import h5py
import numpy as np
import torch
from onnx import TensorProto, helper, numpy_helper


def layers(sizes, seed=0):
    """W and b of each layer."""
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(0.0, 1.0 / np.sqrt(i), (o, i)).astype(np.float32), rng.normal(0.0, 0.1, o).astype(np.float32))
        for i, o in pairwise(sizes)
    ]


def apply(layers, x, activation):
    for weight, bias in layers[:-1]:
        x = activation(x @ weight.T + bias)
    return x @ layers[-1][0].T + layers[-1][1]


def write_onnx(path, layers, opset=18, batch="N", operator="Tanh", metadata=None, extra=()):
    """A perceptron as exporters write it."""
    nodes, constants, x = [], [], "obs"
    for k, (weight, bias) in enumerate(layers):
        constants += [numpy_helper.from_array(weight, f"w{k}"), numpy_helper.from_array(bias, f"b{k}")]
        last = k == len(layers) - 1
        nodes.append(helper.make_node("Gemm", [x, f"w{k}", f"b{k}"], ["actions" if last else f"y{k}"], transB=1))
        if not last:
            nodes.append(helper.make_node(operator, [f"y{k}"], [f"x{k}"], doc_string="model.py:12"))
            x = f"x{k}"
    inputs = [helper.make_tensor_value_info("obs", TensorProto.FLOAT, [batch, layers[0][0].shape[1]]), *extra]
    outputs = [helper.make_tensor_value_info("actions", TensorProto.FLOAT, [batch, layers[-1][0].shape[0]])]
    graph = helper.make_graph(nodes, "net", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    helper.set_model_props(model, metadata or {})
    path.write_bytes(model.SerializeToString())
    return str(path)


def tensors(layers, prefix):
    return {
        f"{prefix}.{2 * k}.{kind}": torch.from_numpy(value)
        for k, pair in enumerate(layers)
        for kind, value in zip(("weight", "bias"), pair, strict=True)
    }


def write_sb3(path, layers, data=None, held=None):
    """PPO's zip: what acts is mlp_extractor.policy_net, then action_net."""
    if held is None:
        held = tensors(layers[:-1], "mlp_extractor.policy_net")
        held |= {f"action_net.{k}": torch.from_numpy(v) for k, v in zip(("weight", "bias"), layers[-1], strict=True)}
    stream = io.BytesIO()
    torch.save(held, stream)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", json.dumps({"policy_kwargs": {}} if data is None else data))
        archive.writestr("policy.pth", stream.getvalue())
    return str(path)


def write_rsl_rl(path, layers, mean=None, std=None, old=False):
    """A checkpoint of version 5, or of those before it."""
    norm = "actor_obs_normalizer" if old else "obs_normalizer"
    held = tensors(layers, "actor" if old else "mlp")
    if mean is not None:
        held |= {f"{norm}._mean": torch.tensor([mean]), f"{norm}._std": torch.tensor([std])}
    torch.save({"model_state_dict" if old else "actor_state_dict": held, "iter": 1, "infos": None}, path)
    return str(path)


def write_rl_tools(
    path, seen="", seed=0, inputs=22, hidden=5, squash=False, spoil=0.0, first_layer="FAST_TANH", **attributes
):
    """A dense layer, a gated unit and a dense layer (then, with `squash`, tanh of a mean) as rl_tools keeps them.

    The file's example comes from equations written down here once more. Groups, names, shapes and attributes are those
    of the checkpoint in foundation-policy 1.0.2.
    """
    rng = np.random.default_rng(seed)
    sizes = {"into": (hidden, inputs), "inward": (3 * hidden, hidden), "across": (3 * hidden, hidden)}
    sizes |= {"out": (8 if squash else 4, hidden)}
    w = {name: rng.normal(0.0, 0.5, size).astype(np.float32) for name, size in sizes.items()}
    b = {name: rng.normal(0.0, 0.2, size[0]).astype(np.float32) for name, size in sizes.items()}
    first = rng.normal(0.0, 0.3, hidden).astype(np.float32)
    x = rng.normal(0.0, 0.5, (6, 2, inputs)).astype(np.float32)
    h, made = np.tile(first, (2, 1)), []
    for step in x:
        z = step @ w["into"].T + b["into"]
        fast = np.clip(z, -3, 3) * (27 + np.clip(z, -3, 3) ** 2) / (27 + 9 * np.clip(z, -3, 3) ** 2)
        z = np.maximum(z, 0.0) if first_layer == "RELU" else fast
        i, a = z @ w["inward"].T + b["inward"], h @ w["across"].T + b["across"]
        gate = 1.0 / (1.0 + np.exp(-(i + a)[:, : 2 * hidden]))
        new = np.tanh(i[:, 2 * hidden :] + gate[:, :hidden] * a[:, 2 * hidden :])
        h = gate[:, hidden:] * h + (1.0 - gate[:, hidden:]) * new
        y = h @ w["out"].T + b["out"]
        made.append(np.tanh(y[:, :4]) if squash else y)
    with h5py.File(path, "w") as file:
        dense = {"type": "dense", "activation_function": first_layer}
        layers = [
            (dense, {"weights": w["into"], "biases": b["into"][None]}),
            (
                {"type": "gru"},
                {
                    "weights_input": w["inward"],
                    "biases_input": b["inward"],
                    "weights_hidden": w["across"],
                    "biases_hidden": b["across"],
                    "initial_hidden_state": first,
                },
            ),
            ({**dense, "activation_function": "IDENTITY"}, {"weights": w["out"], "biases": b["out"][None]}),
            *([({"type": "sample_and_squash"}, {})] if squash else []),
        ]
        actor = file.create_group("actor")
        meta = json.dumps({"environment": {"name": "l2f", "observation": seen}})
        actor.attrs.update({"type": "sequential", "meta": meta, **attributes})
        for k, (about, arrays) in enumerate(layers):
            group = actor.create_group(f"layers/{k}")
            group.attrs.update(about)
            for name, value in arrays.items():
                group.create_dataset(f"{name}/parameters", data=value)
        file["example/input"], file["example/output"] = x, np.array(made, np.float32) + spoil
    return str(path)


def cleanrl(layers, kind="ppo", scale=1.0, bias=0.0):
    """A state_dict of CleanRL's Agent (PPO) or Actor (SAC, TD3): names and shapes of vwxyzjn/cleanrl@fe8d8a03."""
    outputs = len(layers[-1][1])
    if kind == "ppo":
        held = tensors(layers, "actor_mean") | tensors(layers, "critic")
        return held | {"actor_logstd": torch.zeros(1, outputs)}
    names = ("fc1", "fc2", "fc_mu" if kind == "td3" else "fc_mean")
    held = {
        f"{name}.{part}": torch.from_numpy(value)
        for name, pair in zip(names, layers, strict=True)
        for part, value in zip(("weight", "bias"), pair, strict=True)
    }
    if kind == "sac":
        held |= {f"fc_logstd.{part}": held[f"fc_mean.{part}"] for part in ("weight", "bias")}
    return held | {"action_scale": torch.full((outputs,), scale), "action_bias": torch.full((outputs,), bias)}


def descriptors(joints, pose, terms=(), action=None, dt=0.02):
    """What Isaac Lab's export_io_descriptors.py writes; fields and their order as in its documentation.

    `terms`: (name, shape, fields of its own, fields of `overloads`), after angular velocity, joints, and last action.
    """

    def term(name, size, more=None, overloads=None):
        usual = {"clip": None, "flatten_history_dim": True, "history_length": 0, "scale": None}
        return {
            "dtype": "torch.float32",
            "extras": {"description": "...", "modifiers": None},
            "full_path": f"isaaclab.envs.mdp.observations.{name}",
            "mdp_type": "Observation",
            "name": name,
            "observation_type": "JointState",
            "overloads": usual | (overloads or {}),
            "shape": [size],
            **(more or {}),
        }

    size = len(joints)
    robot = {f"default_joint_{key}": [value] * size for key, value in (("stiffness", 25.0), ("damping", 0.5))}
    command = {
        "action_type": "JointAction",
        "clip": None,
        "dtype": "torch.float32",
        "extras": {"description": "..."},
        "full_path": "isaaclab.envs.mdp.actions.joint_actions.JointPositionAction",
        "joint_names": joints,
        "mdp_type": "Action",
        "name": "joint_position_action",
        "offset": pose,
        "scale": 0.25,
        "shape": [size],
    }
    seen = [
        term("base_ang_vel", 3, None, {"scale": 0.2}),
        term("joint_pos_rel", size, {"joint_names": joints, "joint_pos_offsets": pose}, {"clip": [-1.0, 1.0]}),
        term("joint_vel_rel", size, {"joint_names": joints, "joint_vel_offsets": [0.0] * size}, {"history_length": 2}),
        term("last_action", size),
        *(term(*each) for each in terms),
    ]
    return {
        "actions": [command | (action or {})],
        "articulations": {"robot": robot | {"joint_names": joints, "default_joint_pos": pose}},
        "observations": {"policy": seen},
        "scene": {"decimation": 4, "dt": dt, "physics_dt": dt / 4},
    }
