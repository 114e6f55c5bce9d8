"""Real torch modules, exported by torch, as C: against onnxruntime on random inputs."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from torch import nn

from deploy.policy_file import PolicyFile
from policies.models.graph import OPSET
from tests.deploy.codegen.graph_policy import policy_of
from tests.deploy.codegen.native import Native

SIZE = 8
IMAGE = (21, 18, 3)


class Recurrent(nn.Module):
    """One step (or several) of nn.GRU or nn.LSTM with its state as input and output."""

    def __init__(self, lstm, layers=1, batch_first=True, steps=1):
        super().__init__()
        kind = nn.LSTM if lstm else nn.GRU
        self.cell = kind(6 // steps, SIZE, layers, batch_first=batch_first)
        self.head = nn.Linear(SIZE, 2)
        self.lstm, self.batch_first, self.steps, self.layers = lstm, batch_first, steps, layers

    def forward(self, x, hidden, memory=None):
        x = x.reshape(-1, self.steps, 6 // self.steps)
        given = (hidden, memory) if self.lstm else (hidden,)
        state = [s.reshape(-1, self.layers, SIZE).transpose(0, 1).contiguous() for s in given]
        y, after = self.cell(x if self.batch_first else x.transpose(0, 1), tuple(state) if self.lstm else state[0])
        last = y[:, -1] if self.batch_first else y[-1]
        after = [s.transpose(0, 1).reshape(-1, self.layers * SIZE) for s in (after if self.lstm else (after,))]
        return torch.tanh(self.head(last)), *after


class Sees(nn.Module):
    """A small network over an image of bytes."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, image):
        return torch.tanh(self.layers(image.permute(0, 3, 1, 2).float() / 255.0))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(6, SIZE), nn.LayerNorm(SIZE)
        self.inner = nn.Sequential(nn.Linear(SIZE, SIZE), nn.GELU(), nn.Linear(SIZE, SIZE), nn.SiLU(), nn.RMSNorm(SIZE))
        self.last = nn.Linear(SIZE, 2)

    def forward(self, x):
        x = self.norm(self.first(x))
        return self.last(x + self.inner(x)).clamp(-1.0, 1.0)


class Attention(nn.Module):
    """A transformer's layer over three steps of two values."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(2, SIZE), nn.Linear(SIZE, 2)
        self.layer = nn.TransformerEncoderLayer(SIZE, 2, 16, batch_first=True)

    def forward(self, x):
        return torch.tanh(self.last(self.layer(self.first(x.reshape(-1, 3, 2))).mean(dim=1)))


def pooled():
    first = [nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.AvgPool2d(3, 2, 1)]
    then = [nn.Conv2d(8, 8, 3, padding=1, groups=4), nn.ELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(8)]
    return Sees(*first, *then, nn.Linear(8, 8), nn.Softmax(-1), nn.Linear(8, 2))


def temporal():
    """Convolutions over a history of three steps of two values."""
    return nn.Sequential(
        nn.Unflatten(1, (2, 3)),
        nn.Conv1d(2, 4, 2, padding=1),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.Flatten(),
        nn.Linear(8, 2),
    )


MODULES = {
    "convolutions": lambda: Sees(nn.Conv2d(3, 6, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 9 * 7, 2)),
    "pools": pooled,
    "layer normalisation": Residual,
    "attention": Attention,
    "convolution over time": temporal,
    "activations": lambda: nn.Sequential(
        *(nn.Linear(6, 6), nn.Mish(), nn.Linear(6, 6), nn.SELU(), nn.Hardswish(), nn.Linear(6, 6), nn.PReLU()),
        *(nn.LeakyReLU(), nn.Softsign(), nn.GELU("tanh"), nn.Linear(6, 2)),
    ),
    "GRU": lambda: Recurrent(False),
}


@pytest.fixture(scope="module", params=MODULES)
def exported(request, tmp_path_factory):
    """A module as a policy file around what torch's exporter makes of it."""
    torch.manual_seed(0)
    module = MODULES[request.param]().eval()
    sees, state = isinstance(module, Sees), {}
    if isinstance(module, Recurrent):
        memory = np.linspace(-1.0, 1.0, module.layers * SIZE)
        state = {"hidden": memory, "memory": -memory} if module.lstm else {"hidden": memory}
    inputs = {"image": IMAGE} if sees else {"x": (6,)}
    shapes = {**inputs, **{f"state.{name}": value.shape for name, value in state.items()}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        model = torch.onnx.export(
            module,
            tuple(torch.zeros(2, *shape, dtype=torch.uint8 if sees else torch.float32) for shape in shapes.values()),
            dynamo=True,
            opset_version=OPSET,
            input_names=list(shapes),
            output_names=["y", *(f"next_state.{name}" for name in state)],
            dynamic_shapes=({0: torch.export.Dim("N")},) * len(shapes),
            verbose=False,
        ).model_proto
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    path = tmp_path_factory.mktemp("torch") / "p.onnx"
    return policy_of(
        path, list(model.graph.node), inputs, {"y": (2,)}, constants, state, {"image": "|u1"} if sees else {}
    )


@pytest.fixture(scope="module")
def both(exported):
    return Native(exported), PolicyFile.load(exported)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from([0.0, 0.01, 1.0, 30.0]))
def test_a_torch_module_in_c_commands_what_onnxruntime_commands(both, seed, size):
    native, policy = both
    assert native.selftest < 0.5
    rng = np.random.default_rng(seed)
    policy.reset()
    for _ in range(3):
        now = {s.name: (size * rng.normal(size=s.shape)).astype(np.float32) for s in policy.inputs}
        if "image" in now:
            now["image"] = rng.integers(0, 256, IMAGE, np.uint8)
        for name, value in policy.states().items():
            native.state[name][:] = value[0]
        want, got = policy.step(now), native.step(now)
        np.testing.assert_allclose(got["y"], want["y"], rtol=1e-5, atol=2e-6)
        for name, value in policy.states().items():
            np.testing.assert_allclose(native.state[name], value[0], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("weights", ["float16", "int8"])
def test_smaller_weights_do_what_the_graph_with_such_weights_does(exported, weights):
    assert Native(exported, weights=weights).selftest < 0.7
