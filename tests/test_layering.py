"""Who may import whom: sim <- deploy <- policies, and one home for each heavy library."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYERS = ("sim", "deploy", "policies")
FILES = sorted(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))
MAY_IMPORT = {"sim": {"sim"}, "deploy": {"deploy", "sim"}, "policies": set(LAYERS)}

ROS2 = ["deploy/drivers/ros2.py", "deploy/ros2/*.py", "deploy/teleop/ros2.py"]
# Every library that is neither numpy nor the standard library: the files that may import it at all.
HOMES = {
    "numba": [
        "sim/engines/flight/*.py",
        "sim/engines/vector/*.py",
        "policies/algorithms/*/fused*.py",
    ],
    "llvmlite": ["sim/engines/vector/simd.py", "sim/engines/vector/blocks.py"],
    "mujoco": [
        "sim/engines/mujoco.py",
        "sim/engines/workbench.py",
        "sim/engines/mujoco_warp.py",
        "sim/render/offscreen.py",
        "sim/render/camera.py",
        "sim/tasks/external/metaworld.py",
    ],
    "mujoco_warp": ["sim/engines/mujoco_warp.py"],
    "warp": ["sim/engines/mujoco_warp.py"],
    "pybullet": ["sim/engines/bullet.py"],
    "gymnasium": ["sim/gym.py", "sim/tasks/external/gymnasium_robotics.py", "sim/tasks/external/metaworld.py"],
    "gymnasium_robotics": ["sim/tasks/external/gymnasium_robotics.py"],
    "metaworld": ["sim/tasks/external/metaworld.py"],
    "imageio_ffmpeg": ["sim/render/offscreen.py", "policies/datasets/images.py"],
    "PIL": ["policies/datasets/images.py"],
    "pyarrow": ["policies/datasets/*.py"],
    "h5py": ["policies/datasets/minari.py"],
    "onnxruntime": ["deploy/policy_file.py"],
    "mcap": ["deploy/recording/*.py"],
    "zstandard": ["deploy/recording/records.py"],
    "lz4": ["deploy/recording/records.py"],
    "rerun": [
        "deploy/recording/rerun.py",
        "deploy/watch.py",
        "policies/datasets/__main__.py",
        "policies/teleop/view.py",
    ],
    "cflib": ["deploy/crazyflie/link.py"],
    "onnx": ["policies/models/export.py", "deploy/codegen/onnx_graph.py", "deploy/remote/subgraph.py"],
    "cryptography": ["deploy/trust/signature.py"],
    "websockets": ["deploy/remote/client.py", "deploy/serve.py"],
    "msgpack": ["deploy/remote/client.py", "deploy/serve.py"],
    "unicorn": ["deploy/mcu/emulator.py"],
    "capstone": ["deploy/mcu/emulator.py"],
    "elftools": ["deploy/mcu/emulator.py"],
    "hydra": ["policies/runner/config.py", "policies/runner/mistakes.py"],
    "omegaconf": ["policies/runner/config.py", "policies/runner/mistakes.py"],
    "rich": ["policies/runner/log.py"],
    "matplotlib": ["policies/runner/report.py", "policies/runner/plots.py"],
    "rclpy": [*ROS2, "deploy/launching/lifecycle.py"],
    "lifecycle_msgs": ["deploy/launching/lifecycle.py"],
    **dict.fromkeys(("rcl_interfaces", "std_msgs", "std_srvs", "geometry_msgs", "tf2_msgs"), ROS2),
    **dict.fromkeys(("nav_msgs", "sensor_msgs", "trajectory_msgs", "diagnostic_msgs", "rosgraph_msgs"), ROS2),
    "launch": ["deploy/launch.py", "deploy/launching/files.py"],
    "launch_ros": ["deploy/launch.py", "deploy/launching/files.py"],
    "ament_index_python": ["deploy/launch.py", "deploy/launching/files.py", "deploy/launching/ros.py"],
    "torch": [
        "sim/env.py",
        "sim/channel.py",
        "sim/gym.py",
        "sim/terms.py",
        "policies/algorithms/*.py",
        "policies/learning/*.py",
        "policies/models/export.py",
        "policies/runner/checkpoint.py",
    ],
}
# Where torch may not be imported before it is needed: it costs seconds.
TORCH_LATER = [
    "sim/terms.py",
    "policies/models/export.py",
    "policies/runner/checkpoint.py",
    "policies/algorithms/apg/__init__.py",
]
# What deploy may use of sim anywhere; the rest only where a simulator stands in for the robot.
FREE_OF_SIM = {"sim.spec", "sim.registry", "sim.robots", "sim.rotations"}
SIMULATORS = [
    "deploy/drivers/simulated.py",
    "deploy/drivers/workcell.py",
    "deploy/drivers/tasks.py",
    "deploy/crazyflie/world.py",
    "deploy/crazyflie/app.py",
    "deploy/ros2/arm.py",
    "deploy/ros2/robot.py",
    "deploy/ros2/simulated_robot.py",
]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """(module, at import time) for every import that runs; `if TYPE_CHECKING:` does not."""
    todo: list[tuple[ast.AST, bool]] = [(tree, True)]
    while todo:
        node, early = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, early) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield from ((module if module.count(".") else f"{module}.{alias.name}", early) for alias in node.names)
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        todo += [(child, early and not function) for child in ast.iter_child_nodes(node)]


@pytest.mark.parametrize("path", FILES, ids=name)
def test_imports_stay_in_their_layer(path: Path):
    where = name(path)
    layer = where.partition("/")[0]
    for module, early in imports(ast.parse(path.read_text())):
        top = module.partition(".")[0]
        if top in LAYERS:
            assert top in MAY_IMPORT[layer], f"{where} imports {module}"
            if layer == "deploy" and top == "sim" and where not in SIMULATORS:
                assert ".".join(module.split(".")[:2]) in FREE_OF_SIM, f"{where} imports {module}"
        elif top not in sys.stdlib_module_names and top != "numpy":
            assert top in HOMES, f"{where} imports {top}, which has no home in this test's table"
            assert any(fnmatch(where, home) for home in HOMES[top]), f"{where} imports {top}; its home is {HOMES[top]}"
            late = top == "torch" and any(fnmatch(where, pattern) for pattern in TORCH_LATER)
            assert not (late and early), f"{where} imports torch at its top"


@pytest.mark.parametrize("path", FILES, ids=name)
def test_files_stay_short(path: Path):
    assert len(path.read_text().splitlines()) <= 500


@pytest.mark.parametrize("folder", ["tests", "launch"])
def test_folders_that_must_not_be_packages(folder: str):
    assert not list((ROOT / folder).rglob("__init__.py"))


@pytest.mark.parametrize("layer", LAYERS)
def test_packages_are_typed(layer: str):
    assert (ROOT / layer / "py.typed").exists()


def loaded_by(statement: str) -> set[str]:
    """The top-level modules in memory after a statement, in a fresh interpreter."""
    code = f"{statement}\nimport sys\nprint(*{{m.partition('.')[0] for m in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "allowed"),
    [
        ("import sim.spec", set()),
        ("import sim.tasks.quad_hover, sim.tasks.quad_track, sim.robots, sim.engines", set()),
        ("import deploy, deploy.loop, deploy.guard, deploy.drivers", set()),
        ("import deploy.export, deploy.mcu.emulator, deploy.codegen.host", set()),
        ("import policies.train", set()),
        ("import policies.models.export, policies.evaluate", set()),
        ("import sim.engines.flight", {"numba", "llvmlite", "yaml"}),
        ("import policies.algorithms.apg", {"numba", "llvmlite", "yaml"}),
    ],
)
def test_import_brings_nothing_heavy(statement: str, allowed: set[str]):
    assert loaded_by(statement) & HOMES.keys() <= allowed
