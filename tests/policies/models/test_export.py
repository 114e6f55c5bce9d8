import errno
import os
import signal
import subprocess
import sys
import time

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy import PolicyFile, PolicyFileError
from policies.models.controller import FeaturePolicy
from policies.models.export import export, export_torch, random_signals, update_evaluation
from policies.models.networks.feed_forward import Mlp
from sim.spec import Signal
from sim.tasks import make
from sim.terms import Feature
from tests.deploy.sample_policy import exported, linear_hover, metadata_text, random_gru, random_mlp, small
from tests.policies.toy_reach import ToyReach
from tests.policies.toy_sight import ToySight


@st.composite
def controllers(draw):
    """Any mix of signals, features, limits, history and network."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    base = draw(st.integers(1, 3))
    inputs = [Signal("base", (base,))]
    inputs += [Signal(f"s{k}", (base * draw(st.integers(1, 3)),)) for k in range(draw(st.integers(0, 3)))]
    history = draw(st.integers(0, 3))
    outputs = []
    for k in range(draw(st.integers(1, 3))):
        low = draw(st.floats(-10.0, 10.0, width=32))
        high = low + draw(st.floats(0.125, 8.0, width=32))
        outputs.append(Signal(f"c{k}", (draw(st.integers(1, 3)),), low=low, high=high))
    features = []
    for s in draw(st.lists(st.sampled_from(inputs), min_size=1, max_size=4)):
        minus = draw(st.sampled_from([None, "base"]))
        scale = draw(st.sampled_from([1.0, 0.1, 3.0]))
        features.append(Feature(s.name, minus, scale, draw(st.sampled_from([None, 0.5, 2.0]))))
    features += [Feature("history")] * (history > 0)
    actions = sum(c.size for c in outputs)
    sizes = {s.name: s.size for s in inputs} | {"history": history * actions}
    width = sum(sizes[f.signal] for f in features)
    if draw(st.booleans()):
        network = random_gru(rng, width, actions, draw(st.integers(1, 8)), draw(st.integers(1, 8)))
    else:
        hidden = draw(st.lists(st.integers(1, 9), max_size=3))
        network = random_mlp(rng, width, actions, hidden, draw(st.sampled_from(["tanh", "relu"])))
    action = draw(st.floats(-1.0, 1.0, width=32))
    return FeaturePolicy(
        "any", "none", "any", 100.0, tuple(inputs), tuple(outputs), tuple(features), history, action, network
    )


@settings(deadline=None, max_examples=40)
@given(controllers(), st.integers(1, 5))
def test_the_graph_is_the_controller(tmp_path_factory, controller, n):
    policy = export(controller, tmp_path_factory.mktemp("export") / "policy.onnx")
    assert policy.inputs == controller.inputs
    assert policy.outputs == controller.outputs
    policy.reset(n)
    state = controller.initial_state(n)
    rng = np.random.default_rng(n)
    for _ in range(6):
        signals = {s.name: rng.normal(size=(n, *s.shape)).astype(np.float32) for s in controller.inputs}
        got = policy.step(signals)
        want, state = controller.act(signals, state)
        for s in controller.outputs:
            np.testing.assert_allclose(got[s.name], want[s.name], atol=2e-5 * (s.high - s.low))
            assert (got[s.name] >= np.float32(s.low)).all()
            assert (got[s.name] <= np.float32(s.high)).all()
        for name, value in policy.states().items():
            np.testing.assert_allclose(value, state[name], atol=2e-5)


def test_metadata_is_complete_and_exact(tmp_path):
    controller = linear_hover()
    policy = exported(tmp_path / "p.onnx", controller, training={"seed": 7, "loss": np.float32(0.5)})
    metadata = metadata_text(tmp_path / "p.onnx")
    assert list(metadata)[:2] == ["schema", "digest"]
    expected = {"schema", "digest", "name", "task", "robot", "rate_hz", "inputs", "outputs", "state", "envelope"}
    assert set(metadata) == expected | {"training", "evaluation", "vectors"}
    assert metadata["envelope"] == {"max_body_rate": 35.0}
    assert metadata["schema"] == 1
    assert metadata["training"]["seed"] == 7
    assert metadata["training"]["loss"] == 0.5
    assert metadata["training"]["task_config"]["tilt"] == 20.0
    assert metadata["evaluation"] is None
    assert metadata["inputs"][0]["max_age_s"] == 0.1
    assert metadata["state"][0]["name"] == "history"
    np.testing.assert_array_equal(
        np.array(metadata["state"][0]["initial"], np.float32), controller.initial_state(1)["history"][0]
    )
    assert policy.rate_hz == 100.0


@pytest.mark.parametrize("network", [random_mlp, random_gru])
def test_vectors_are_a_closed_loop_of_the_reference(tmp_path, network):
    controller = small(network)
    vectors = exported(tmp_path / "p.onnx", controller).vectors
    assert vectors.steps >= 8
    state = controller.initial_state(1)
    for step in range(vectors.steps):
        signals = {name: value[step : step + 1].astype(np.float32) for name, value in vectors.inputs.items()}
        commands, state = controller.act(signals, state)
        for name, value in commands.items():
            np.testing.assert_array_equal(vectors.outputs[name][step].astype(np.float32), value[0])
        for name, value in state.items():
            np.testing.assert_array_equal(vectors.state[name][step].astype(np.float32), value[0])
    assert np.ptp(vectors.state["history"], axis=0).max() > 0.01


def test_vectors_come_from_a_recorded_flight(tmp_path):
    controller = small()
    flight = random_signals(controller.inputs, 40, np.random.default_rng(9))
    policy = exported(tmp_path / "p.onnx", controller, vectors_from=flight)
    np.testing.assert_array_equal(
        policy.vectors.inputs["near"].astype(np.float32), flight["near"][: policy.vectors.steps]
    )


@pytest.mark.parametrize(
    ("flight", "message"),
    [
        (lambda f: {"near": f["near"]}, "lacks the signal 'goal'"),
        (lambda f: {k: v[:7] for k, v in f.items()}, "needs at least 8 steps"),
        (lambda f: {**f, "rate": f["near"]}, r"recorded 'rate' is \(16, 6\)"),
    ],
)
def test_a_recording_that_does_not_fit_is_refused(tmp_path, flight, message):
    controller = small()
    recorded = random_signals(controller.inputs, 20, np.random.default_rng(0))
    with pytest.raises(ValueError, match=message):
        export(controller, tmp_path / "p.onnx", vectors_from=flight(recorded))
    assert os.listdir(tmp_path) == []


def test_random_signals_are_plausible():
    group = (Signal("rotation", (9,), "1", "body->world"), Signal("level", (2,), low=2.0, high=3.0))
    drawn = random_signals(group, 20, np.random.default_rng(0))
    matrices = drawn["rotation"].reshape(-1, 3, 3)
    np.testing.assert_allclose(matrices @ matrices.transpose(0, 2, 1), np.tile(np.eye(3), (20, 1, 1)), atol=1e-5)
    np.testing.assert_allclose(np.linalg.det(matrices), 1.0, atol=1e-5)
    assert drawn["level"].min() >= 2.0
    assert drawn["level"].max() <= 3.0


def test_the_same_controller_gives_the_same_bytes(tmp_path):
    exported(tmp_path / "a.onnx")
    exported(tmp_path / "b.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_the_graph_is_valid_onnx_for_others(tmp_path):
    exported(tmp_path / "p.onnx", small(random_gru))
    model = onnx.load(tmp_path / "p.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 18)]


def test_update_evaluation_changes_nothing_else(tmp_path):
    path = tmp_path / "p.onnx"
    before = exported(path, training={"seed": 3})
    graph = onnx.load(path).graph.SerializeToString()
    after = update_evaluation(path, {"success": 0.99})
    assert after.metadata["evaluation"] == {"success": 0.99}
    skipped = ("evaluation", "digest")
    assert {k: v for k, v in after.metadata.items() if k not in skipped} == {
        k: v for k, v in before.metadata.items() if k not in skipped
    }
    assert onnx.load(path).graph.SerializeToString() == graph
    assert PolicyFile.load(path).metadata == after.metadata


def test_a_graph_that_disagrees_with_the_reference_is_not_written(tmp_path, monkeypatch):
    path = tmp_path / "p.onnx"
    exported(path)
    before = path.read_bytes()
    right = Mlp.write
    monkeypatch.setattr(Mlp, "write", lambda network, graph, x: graph.add("Neg", right(network, graph, x)))
    with pytest.raises(
        PolicyFileError, match=r"not exported, the graph and its reference disagree: .*'left' at step 0"
    ):
        export(small(), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["p.onnx"]


def test_a_trained_network_that_disagrees_with_its_data_is_not_written(tmp_path):
    controller = small()

    def right(signals, state):
        return controller.act(signals, state)[0]

    def wrong(signals, state):
        commands = right(signals, state)
        return {**commands, "right": commands["right"] * 1.02}

    export(controller, tmp_path / "p.onnx", reference=right)
    with pytest.raises(PolicyFileError, match="trained network and its data disagree: 'right' at step 0"):
        export(controller, tmp_path / "q.onnx", reference=wrong)
    assert os.listdir(tmp_path) == ["p.onnx"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_provenance_that_json_cannot_hold_is_refused(tmp_path, value):
    with pytest.raises(ValueError, match="metadata holds something that JSON cannot"):
        exported(tmp_path / "p.onnx", training={"loss": value})
    assert os.listdir(tmp_path) == []


def test_a_full_disk_keeps_the_previous_file(tmp_path, monkeypatch):
    path = tmp_path / "p.onnx"
    exported(path)
    before = path.read_bytes()

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        exported(path, small(seed=5))
    with pytest.raises(OSError, match="No space left"):
        update_evaluation(path, {"success": 0.0})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["p.onnx"]


SHORT_DISK = """
import resource, sys
from tests.deploy.sample_policy import small
from policies.models.export import export
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))  # every write beyond 3000 bytes fails in the kernel
try:
    export(small(seed=5), sys.argv[1])
except OSError as error:
    print(error.strerror)
"""


def test_a_write_that_the_kernel_cuts_short_keeps_the_previous_file(tmp_path):
    path = tmp_path / "p.onnx"
    exported(path)
    before = path.read_bytes()
    done = subprocess.run([sys.executable, "-c", SHORT_DISK, path], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "File too large"
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["p.onnx"]


WRITE_FOREVER = """
import sys
from tests.deploy.sample_policy import small
from policies.models.export import export
seed = 0
while True:
    seed += 1
    export(small(seed=seed), sys.argv[1])
    print(seed, flush=True)
"""


def test_a_killed_export_leaves_a_whole_file(tmp_path):
    path = tmp_path / "p.onnx"
    rng = np.random.default_rng(0)
    with subprocess.Popen([sys.executable, "-c", WRITE_FOREVER, path], stdout=subprocess.PIPE, text=True) as process:
        for _ in range(3):
            process.stdout.readline()
        time.sleep(rng.uniform(0.0, 0.05))
        process.send_signal(signal.SIGKILL)
    assert PolicyFile.load(path).name == "small"


def test_a_kill_between_write_and_rename_leaves_the_previous_file(tmp_path):
    path = tmp_path / "p.onnx"
    exported(path)
    before = path.read_bytes()
    die = (
        "import os, signal, sys\nfrom tests.deploy.sample_policy import small\n"
        "from policies.models.export import export\n"
        "os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)\nexport(small(seed=5), sys.argv[1])"
    )
    done = subprocess.run([sys.executable, "-c", die, path], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == before


def test_importing_export_is_cheap():
    heavy = ("torch", "onnx", "numba", "onnxruntime")
    code = f"import sys, policies.models.export; print(*(m for m in {heavy} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_any_torch_module_exports(tmp_path):
    torch.manual_seed(0)
    task = make("quad_hover")

    class Residual(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(30, 16), torch.nn.Linear(16, 4)
            self.norm = torch.nn.LayerNorm(16)

        def forward(self, x):
            y = torch.nn.functional.gelu(self.first(x))
            return 2.0 * self.second(self.norm(y + torch.sin(y)))  # leaves [-1, 1]: must be clipped

    module = Residual()
    policy = export_torch(module, task, tmp_path / "p.onnx", name="residual")
    assert policy.name == "residual"
    n = 5
    policy.reset(n)
    signals = {s.name: np.random.default_rng(0).normal(size=(n, *s.shape)).astype(np.float32) for s in task.policy}
    values = signals | {"history": np.full((n, 12), np.float32(task.initial_action))}
    packed = np.concatenate([f.evaluate(values) for f in task.features], axis=-1, dtype=np.float32)
    with torch.no_grad():
        action = module(torch.from_numpy(packed)).clamp(-1, 1).numpy()
    assert (np.abs(action) == 1.0).any()
    np.testing.assert_allclose(policy.step(signals)["motor_command"], (action + 1.0) / 2.0, atol=1e-5)
    np.testing.assert_allclose(policy.states()["history"][:, :4], action, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_torch_module_for_a_world_of_its_own_but_not_for_pictures(tmp_path):
    module = torch.nn.Linear(4, 2)
    policy = export_torch(module, ToyReach(), tmp_path / "p.onnx")
    signals = {"position": np.float32([[0.1, -0.2]]), "goal": np.float32([[0.3, 0.4]])}
    policy.reset(1)
    with torch.no_grad():
        wanted = module(torch.tensor([[0.1, -0.2, 0.3, 0.4]])).clamp(-1.0, 1.0).numpy()
    np.testing.assert_allclose(policy.step(signals)["velocity"], wanted, atol=1e-6)
    with pytest.raises(
        ValueError, match=r"toy_sight shows its policy more than numbers \(.*\): export_torch takes features"
    ):
        export_torch(module, ToySight(), tmp_path / "q.onnx")
