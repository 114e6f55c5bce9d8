"""target=raptor: what is written is what PX4's module reads, and what it cannot fly is refused."""

import io
import tarfile
from importlib.util import find_spec
from pathlib import Path

import h5py
import numpy as np
import onnx
import pytest
import yaml

from deploy import cli, export
from deploy.policy_file import PolicyFile
from deploy.px4.raptor import RaptorError, RaptorGraph
from deploy.trust.content import content_of
from policies import adopt
from tests.policies.adoption import foreign
from tests.policies.adoption.test_rl_tools import SEEN

CLIPS = {"position": 0.5, "linear_velocity": 1.0}  # as mc_raptor.hpp has them: m and m/s


def adopted(file: object, folder: Path, clips: dict[str, float] = CLIPS) -> Path:
    """As a policy file, its errors clipped."""
    words = [str(file), "from=rl_tools"]
    assert cli.call(adopt.main, [*words, f"draft={folder / 'a.yaml'}", "task=quad_any"]) == 0
    told = yaml.safe_load((folder / "a.yaml").read_text())
    for term in told["observation"]:
        if term.get("signal") in clips:
            term["clip"] = clips[term["signal"]]
    told["action"]["initial"] = 0.0
    (folder / "a.yaml").write_text(yaml.safe_dump(told))
    out = folder / f"{Path(str(file)).stem}.onnx"
    assert cli.call(adopt.main, [*words, f"description={folder / 'a.yaml'}", f"out={out}"]) == 0
    return out


def written(policy: object, folder: Path, *words: str) -> dict[str, bytes]:
    """What is in the archive, by path, as the standard library reads it."""
    assert cli.call(export.main, [f"policy={policy}", "target=raptor", f"out={folder}", *words]) == 0
    with tarfile.open(folder / "policy.tar") as tar:
        return {entry.name: tar.extractfile(entry).read() for entry in tar}


def refused(capsys, policy: object, folder: Path, *words: str) -> str:
    assert cli.call(export.main, [f"policy={policy}", "target=raptor", f"out={folder / 'no'}", *words]) == 2
    assert not (folder / "no").exists()
    return capsys.readouterr().err


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> str:
    return foreign.write_rl_tools(tmp_path_factory.mktemp("raptor") / "b.h5", SEEN, hidden=16, first_layer="RELU")


def test_weights_come_back_number_for_number(checkpoint, tmp_path):
    inside = written(adopted(checkpoint, tmp_path), tmp_path / "out")
    with h5py.File(checkpoint) as file:
        layers = file["actor/layers"]
        names = [f"{k}/{name}" for k in layers for name in layers[k]]
        assert len(names) == 9
        for name in names:
            path = f"actor/layers/{name}/parameters"
            assert inside[f"{path}/data"] == np.asarray(file[path], "<f4").tobytes()
    meta = inside["actor/layers/0/weights/parameters/meta"]
    assert meta == b"type: tensor\ndtype: float32\nnum_dims: 2\ndim_0: 16\ndim_1: 22\n"
    assert inside["actor/meta"].startswith(b"type: sequential\ncheckpoint_name: a sha256 ")
    assert all(len(inside[name]) < 100 for name in inside if name.endswith("/meta") and name != "actor/meta")
    assert len(inside["actor/meta"]) <= 255  # the module's buffers


def test_the_example_comes_out_of_equations_written_elsewhere(checkpoint, tmp_path):
    """policies.adopt refuses a checkpoint whose example its own reading of the network does not make."""
    written(adopted(checkpoint, tmp_path), tmp_path / "out")
    first = PolicyFile.load(tmp_path / "b.onnx")
    again = PolicyFile.load(adopted(tmp_path / "out/policy.tar", tmp_path))
    rng = np.random.default_rng(1)
    first.reset(3)
    again.reset(3)
    for _ in range(20):
        signals = {s.name: rng.normal(0.0, 0.4, (3, *s.shape)).astype(np.float32) for s in first.inputs}
        assert np.array_equal(first.step(signals)["motor_command"], again.step(signals)["motor_command"])


def test_the_shipped_policy_is_refused_by_name_and_written_where_that_is_accepted(tmp_path, capsys):
    said = refused(capsys, "quad_any", tmp_path)
    assert "mc_raptor clips the error of position at 0.5, the file squashes it at 1" in said
    assert "mc_raptor clips its actions, the file takes their tanh" in said
    inside = written("quad_any", tmp_path / "out", "approximate=true")
    reading = RaptorGraph(PolicyFile.load("quad_any"), content_of("quad_any"))
    weights = np.frombuffer(inside["actor/layers/0/weights/parameters/data"], "<f4").reshape(16, 22)
    assert np.array_equal(weights, reading.weights.encoder[0])
    assert "up to 0." in capsys.readouterr().out


def test_the_shipped_policy_flies_as_the_module_makes_it(tmp_path):
    """100 vehicles: nearly as many hold their place as with the file itself."""
    from sim.env import make_env
    from sim.tasks import make

    reading = RaptorGraph(PolicyFile.load("quad_any"), content_of("quad_any"))
    task = make("quad_any", tilt=20.0)
    env = make_env(task, 100, 20261126)
    env.reset(range(100), range(100))
    state, last = np.zeros((100, 16), np.float32), np.zeros((100, 4), np.float32)
    worst = np.zeros(100)
    for step in range(500):
        seen = env.observe()
        away = np.clip(seen["position"] - seen["target_position"], -0.5, 0.5)
        moving = np.clip(seen["linear_velocity"] - seen["target_velocity"], -1.0, 1.0)
        x = np.concatenate([away, seen["rotation"], moving, seen["angular_velocity"], last], axis=1)
        action, state = reading.weights.step(x, state)
        last = np.clip(action, -1.0, 1.0)
        env.step({"motor_command": 0.5 * (last + 1.0)})
        if step >= 400:
            worst = np.maximum(worst, np.linalg.norm(seen["position"] - seen["target_position"], axis=1))
    assert (worst < 0.3).mean() >= 0.93


def test_what_the_module_cannot_fly_is_named(checkpoint, tmp_path, capsys):
    assert "clips the error of linear_velocity at 1, the file takes it as it is" in refused(
        capsys, adopted(checkpoint, tmp_path, {"position": 0.5}), tmp_path
    )
    small = foreign.write_rl_tools(tmp_path / "small.h5", SEEN, first_layer="RELU")
    assert "mc_raptor's network is 22 inputs, a dense layer of 16" in refused(
        capsys, adopted(small, tmp_path), tmp_path
    )
    tanh = foreign.write_rl_tools(tmp_path / "tanh.h5", SEEN, hidden=16)
    assert "this one is another" in refused(capsys, adopted(tanh, tmp_path), tmp_path)
    assert "weights go without" in refused(capsys, "quad_any", tmp_path, "weights=int8")
    assert cli.call(export.main, ["policy=quad_any", "target=c", "approximate=true", f"out={tmp_path / 'no'}"]) == 2


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda files: files.pop("actor/layers/1/biases_hidden/parameters/data"), "biases_hidden/parameters/data"),
        (lambda files: files.update({"actor/layers/0/meta": b"type: lstm\n"}), "a layer of type 'lstm'"),
        (lambda files: files.update({"../evil": b"x"}), "is not what an archive of rl_tools holds"),
        (lambda files: files.update({"example/output/data": bytes(16000)}), "its own example does not come out"),
    ],
)
def test_archives_that_are_not_whole_are_refused(checkpoint, tmp_path, capsys, spoil, said):
    files = written(adopted(checkpoint, tmp_path), tmp_path / "out")
    spoil(files)
    with tarfile.open(tmp_path / "bad.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    assert (
        cli.call(
            adopt.main, [str(tmp_path / "bad.tar"), "from=rl_tools", f"draft={tmp_path / 'x.yaml'}", "task=quad_any"]
        )
        == 2
    )
    assert said in capsys.readouterr().err


@pytest.mark.skipif(find_spec("foundation_policy") is None, reason="foundation-policy is not installed")
def test_raptor_itself_is_written_back_byte_for_byte(tmp_path):
    library = pytest.importorskip("foundation_policy")
    checkpoint = Path(library.__file__).with_name("blob") / "checkpoint.h5"
    inside = written(adopted(checkpoint, tmp_path), tmp_path / "out")
    with h5py.File(checkpoint) as file:
        for name in [f"{k}/{name}" for k in file["actor/layers"] for name in file[f"actor/layers/{k}"]]:
            path = f"actor/layers/{name}/parameters"
            assert inside[f"{path}/data"] == np.asarray(file[path], "<f4").tobytes()


def _root_of_a_signal(model: onnx.ModelProto) -> None:
    root = next(node for node in model.graph.node if node.op_type == "Sqrt")
    root.input[0] = "position"


def _one_bound(model: onnx.ModelProto) -> None:
    root = next(node for node in model.graph.node if node.op_type == "Sqrt")
    squashed = next(node for node in model.graph.node if root.output[0] in node.input)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(-1.0), "low"))
    made = onnx.helper.make_node("Clip", [squashed.input[0], "low"], [squashed.output[0]], "one_bound")
    squashed.CopyFrom(made)


def _deep(model: onnx.ModelProto) -> None:
    nodes = list(model.graph.node)
    at = next(k for k, node in enumerate(nodes) if node.op_type == "Concat")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(2.0), "two"))
    name, chain = nodes[at].input[0], []
    for k in range(2000):
        chain.append(onnx.helper.make_node("Mul", [name, "two"], [f"deep{k}"], f"deep{k}"))
        name = f"deep{k}"
    nodes[at].input[0] = name
    del model.graph.node[:]
    model.graph.node.extend([*nodes[:at], *chain, *nodes[at:]])


@pytest.mark.parametrize("change", [_root_of_a_signal, _one_bound, _deep])
def test_graphs_of_strangers_end_in_a_sentence(change):
    model = onnx.load_from_string(content_of("quad_any"))
    change(model)
    with pytest.raises(RaptorError, match="mc_raptor"):
        RaptorGraph(PolicyFile.load("quad_any"), model.SerializeToString())
