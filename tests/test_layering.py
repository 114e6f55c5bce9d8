"""Who may import whom: sim <- deploy <- policies, in no circle; one home per heavy library; sizes."""

import ast
import builtins
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from graphlib import CycleError, TopologicalSorter
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
        "policies/learning/fused/*.py",
    ],
    "llvmlite": ["sim/engines/vector/simd.py", "sim/engines/vector/half.py", "sim/engines/vector/blocks.py"],
    "mujoco": [
        "sim/engines/mujoco.py",
        "sim/engines/car/mujoco.py",
        "sim/engines/pitch/mujoco.py",
        "sim/engines/scene.py",
        "sim/engines/threads.py",
        "sim/engines/workbench.py",
        "sim/engines/mujoco_warp.py",
        "sim/engines/warp_batch.py",
        "sim/engines/warp_limits.py",
        "sim/engines/isaacgym/model.py",
        "sim/render/stage.py",
        "sim/perception/mjcf.py",
        "sim/render/camera.py",
        "sim/robots/mjcf*.py",
        "sim/tasks/external/metaworld*.py",
    ],
    "mujoco_warp": ["sim/engines/warp_batch.py", "sim/engines/warp_limits.py"],
    "warp": ["sim/engines/warp_batch.py"],
    "isaacgym": ["sim/engines/isaacgym/worker.py"],
    "open3d": ["sim/perception/__init__.py"],
    "libusb_package": ["sim/perception/__init__.py"],
    "pybullet": ["sim/engines/bullet.py"],
    "libsumo": ["sim/engines/sumo/installed.py"],
    "sumo": ["sim/engines/sumo/installed.py"],
    "pettingzoo": ["sim/parallel.py"],
    "gymnasium": [
        "sim/gym.py",
        "sim/parallel.py",
        "sim/tasks/external/gymnasium_robotics.py",
        "sim/tasks/external/metaworld.py",
    ],
    "gymnasium_robotics": ["sim/tasks/external/gymnasium_robotics.py"],
    "metaworld": ["sim/tasks/external/metaworld.py"],
    "libero": ["sim/tasks/external/libero*.py"],
    "robosuite": ["sim/tasks/external/libero_scenes.py"],
    "imageio_ffmpeg": ["sim/render/offscreen.py", "policies/datasets/images.py"],
    "PIL": [
        "policies/datasets/images.py",
        "sim/engines/sight/panorama.py",
        "sim/scenes/occupancy.py",
        "sim/render/caption.py",
    ],
    "yaml": [
        "sim/plain_yaml.py",
        "policies/adoption/draft.py",
    ],
    "rosbags": ["policies/datasets/recordings/bags.py"],
    "pyulog": ["policies/identification/ulog.py"],
    "contourpy": ["sim/scenes/corridor.py"],
    "pyarrow": ["policies/datasets/*.py"],
    "h5py": ["policies/datasets/hdf5.py"],
    "onnxruntime": ["deploy/policy_file.py"],
    "mcap": ["deploy/recording/*.py"],
    "zstandard": ["deploy/recording/records.py"],
    "lz4": ["deploy/recording/records.py"],
    "rerun": [
        "deploy/recording/rerun.py",
        "deploy/watch.py",
        "policies/datasets/__main__.py",
        "deploy/teleop/screen.py",
    ],
    "cflib": ["deploy/crazyflie/link.py"],
    "pymavlink": ["deploy/mavlink/link.py"],
    "onnx": [
        "policies/adoption/networks.py",
        "policies/models/export.py",
        "policies/models/graph.py",
        "policies/models/joined.py",
        "policies/models/reading.py",
        "deploy/codegen/onnx_graph.py",
        "deploy/remote/subgraph.py",
    ],
    "cryptography": ["deploy/trust/signature.py"],
    "huggingface_hub": ["deploy/hub/__main__.py"],
    "websockets": ["deploy/remote/client.py", "deploy/serve.py"],
    "msgpack": ["deploy/remote/client.py", "deploy/serve.py"],
    "unicorn": ["deploy/mcu/emulator.py", "deploy/mcu/processors/*.py"],
    "capstone": ["deploy/mcu/processors/*.py"],
    "elftools": ["deploy/mcu/emulator.py"],
    "hydra": [
        "policies/cluster/space.py",
        "policies/runner/cli.py",
        "policies/runner/config.py",
        "policies/runner/mistakes.py",
    ],
    "omegaconf": ["policies/runner/cli.py", "policies/runner/config.py", "policies/runner/mistakes.py"],
    "rich": ["policies/runner/log.py"],
    "ray": ["sim/cluster/nodes.py"],
    "optuna": ["policies/cluster/study.py"],
    "cmaes": ["policies/find_motions.py"],
    "matplotlib": [
        "deploy/recording/plot.py",
        "policies/reports/told.py",
        "policies/runner/report.py",
        "policies/runner/plots.py",
    ],
    "wandb": ["policies/runner/loggers.py"],
    "trackio": ["policies/runner/loggers.py"],
    "transformers": ["policies/advisers/vision_language.py", "policies/language/checkpoints.py"],
    "peft": ["policies/learning/vla/pretrained.py"],
    "rclpy": [*ROS2, "deploy/launching/lifecycle.py"],
    "lifecycle_msgs": ["deploy/launching/lifecycle.py"],
    **dict.fromkeys(("rcl_interfaces", "std_msgs", "std_srvs", "geometry_msgs", "tf2_msgs"), ROS2),
    **dict.fromkeys(("nav_msgs", "sensor_msgs", "trajectory_msgs", "diagnostic_msgs", "rosgraph_msgs"), ROS2),
    "launch": ["deploy/launch.py", "deploy/launching/files.py"],
    "launch_ros": ["deploy/launch.py", "deploy/launching/files.py"],
    "ament_index_python": ["deploy/launch.py", "deploy/launching/files.py", "deploy/launching/ros.py"],
    "torch": [
        "sim/engines/isaacgym/worker.py",
        "sim/vec_env.py",
        "sim/vec_world.py",
        "sim/channel.py",
        "sim/terms.py",
        "policies/adoption/formats/tensors.py",
        "policies/adoption/lerobot/*.py",
        "policies/advisers/advice.py",
        "policies/advisers/vision_language.py",
        "policies/algorithms/*.py",
        "policies/language/*.py",
        "policies/train_detector.py",
        "policies/train_emissions.py",
        "policies/train_world.py",
        "policies/learning/*.py",
        "policies/models/export.py",
        "policies/models/graph.py",
        "policies/runner/checkpoint.py",
    ],
}
# Where torch may not be imported before it is needed: it costs seconds.
TORCH_LATER = [
    "sim/engines/isaacgym/worker.py",
    "sim/terms.py",
    "policies/adoption/formats/tensors.py",
    "policies/advisers/vision_language.py",
    "policies/models/export.py",
    "policies/runner/checkpoint.py",
    "policies/algorithms/apg/__init__.py",
]
# What deploy may use of sim anywhere; the rest only where a simulator stands in for the robot.
FREE_OF_SIM = {"sim.spec", "sim.registry", "sim.robots", "sim.rotations", "sim.language"}
SIMULATORS = [
    "deploy/drivers/simulated.py",
    "deploy/drivers/tasks.py",
    "deploy/crazyflie/simulator/world.py",
    "deploy/crazyflie/app.py",
    "deploy/ros2/simulation/scene.py",
    "deploy/ros2/simulation/game.py",
    "deploy/ros2/robot.py",
    "deploy/ros2/simulation/robot.py",
]

# The tables of the nouns. Only they ask what a task, a robot or an environment can do: a default elsewhere would be a
# field of a protocol that nobody has written down.
TABLES = {
    "sim/tasks/__init__.py",
    "sim/tasks/abilities.py",
    "sim/tasks/recorded.py",
    "sim/env.py",
    "sim/engines/__init__.py",
    "sim/robots/__init__.py",
    "policies/algorithms/__init__.py",
}
NOUNS = ("sim/tasks/", "sim/robots/", "sim/env.py", "sim/simulation/", "sim/vec_env.py", "sim/vec_world.py")
SUBJECTS = {"task", "robot", "env", "world"}

# A module has at most 400 lines, a folder at most 16 modules. What is longer today: this list only shrinks.
MOST_LINES, MOST_MODULES = 400, 16
LONGER = {  # and even these have at most 500
    "sim/engines/flight/dynamics.py",
    "sim/vec_env.py",
}
# What a package uses while it is imported only, so that a module may have its name.
ONCE = {"sim/tasks/race/__init__.py": {"field"}}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


TREES = {name(path): ast.parse(path.read_text()) for path in FILES}
MODULES = {where.removesuffix(".py").removesuffix("/__init__").replace("/", "."): where for where in TREES}


def imports(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """(module or module.name, at import time) for every import that runs; `if TYPE_CHECKING:` does not."""
    todo: list[tuple[ast.AST, bool]] = [(tree, True)]
    while todo:
        node, early = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, early) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{node.module}.{alias.name}", early) for alias in node.names)
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        todo += [(child, early and not function) for child in ast.iter_child_nodes(node)]


def crossing(where: str, module: str) -> str | None:
    """What is wrong with this file's import of a module of ours."""
    layer, top = where.partition("/")[0], module.partition(".")[0]
    if top not in MAY_IMPORT[layer]:
        return f"{where} imports {module}"
    if layer == "deploy" and top == "sim" and where not in SIMULATORS:
        return None if ".".join(module.split(".")[:2]) in FREE_OF_SIM else f"{where} imports {module}"
    return None


def homeless(where: str, module: str, early: bool) -> str | None:
    """What is wrong with this file's import of a library."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top == "numpy":
        return None
    if top not in HOMES:
        return f"{where} imports {top}, which has no home in this test's table"
    if not any(fnmatch(where, home) for home in HOMES[top]):
        return f"{where} imports {top}; its home is {HOMES[top]}"
    late = top == "torch" and any(fnmatch(where, pattern) for pattern in TORCH_LATER)
    return f"{where} imports torch at its top" if late and early else None


def asked(tree: ast.Module, kinds: set[str]) -> Iterator[str]:
    """Every question of what a task, a robot or an environment is or has, besides what its protocol declares."""

    def last(node: ast.AST) -> str:
        return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""

    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[subject, kind]):
                named = {last(part) for part in ast.walk(kind)} - {""}
                found = bool(named & kinds) or (last(subject) in SUBJECTS and not named <= vars(builtins).keys())
            case ast.Call(func=ast.Name(id="hasattr"), args=[subject, _]):
                found = last(subject) in SUBJECTS
            case ast.Call(func=ast.Name(id="getattr"), args=[subject, _, _]):
                found = last(subject) in SUBJECTS
            case _:
                found = False
        if found:
            yield ast.unparse(node)


def circles(graph: dict[str, set[str]]) -> Iterator[str]:
    """Every circle of module -> modules that it imports; takes an arrow out of each."""
    while True:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            circle = error.args[1]  # each is imported by the next
            graph[circle[1]].remove(circle[0])
            yield " <- ".join(circle)
        else:
            return


def test_imports_stay_in_their_layer():
    wrong = {
        crossing(where, module) if module.partition(".")[0] in LAYERS else homeless(where, module, early)
        for where, tree in TREES.items()
        for module, early in imports(tree)
    }
    found = sorted(line for line in wrong if line)
    assert not found, "\n".join(found)


def test_only_tables_ask_what_a_task_a_robot_or_an_environment_is():
    classes = {
        node.name
        for where, tree in TREES.items()
        if where.startswith(NOUNS)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    found = [f"{where}: {line}" for where in TREES.keys() - TABLES for line in asked(TREES[where], classes)]
    assert not found, "\n".join(sorted(found))
    missed = ("isinstance(made, OwnWorld)", "hasattr(self.task, 'grid')", "getattr(task.robot, 'mass', 1.0)")
    assert [*asked(ast.parse("; ".join(missed)), {"OwnWorld"})] == [*missed]


def test_imports_run_in_no_circle():
    graph: dict[str, set[str]] = {}
    for here, where in MODULES.items():
        graph[here] = set()
        for module, early in imports(TREES[where]):
            parts = module.split(".") if early else []
            loaded = {".".join(parts[: k + 1]) for k in range(len(parts))} & MODULES.keys()
            graph[here] |= {there for there in loaded if not f"{here}.".startswith(f"{there}.")}
    found = list(circles(graph))
    assert not found, "\n".join(found)


def test_modules_stay_short():
    lines = {name(path): len(path.read_text().splitlines()) for path in FILES}
    long = {where for where, n in lines.items() if n > MOST_LINES}
    assert long == LONGER, f"too long: {sorted(long - LONGER)}; no longer too long: {sorted(LONGER - long)}"
    assert not [where for where in long if lines[where] > 500]


def test_folders_stay_small():
    modules = Counter(name(path.parent) for path in FILES)
    full = {folder: n for folder, n in modules.items() if n > MOST_MODULES}
    assert not full, f"modules per folder: {full}; at most {MOST_MODULES}"


def test_no_module_takes_the_name_of_what_its_package_uses():
    """Importing package.name sets `name` in the package, in the place of what a function there would call."""
    for where, tree in TREES.items():
        if not where.endswith("/__init__.py"):
            continue
        package = where.removesuffix("/__init__.py")
        inside = {name(path).removeprefix(f"{package}/").partition("/")[0].removesuffix(".py") for path in FILES}
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and not f"{node.module}.".startswith(package.replace("/", ".") + "."):
                taken = {alias.asname or alias.name for alias in node.names} & inside
                assert not taken - ONCE.get(where, set()), f"{where} uses {taken}, which are also its modules' names"


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
        ("import sim.perception.fusion, sim.perception.registration", set()),
        ("import sim.engines.flight", {"numba", "llvmlite", "yaml"}),
        ("import policies.algorithms.apg", {"numba", "llvmlite", "yaml"}),
    ],
)
def test_import_brings_nothing_heavy(statement: str, allowed: set[str]):
    assert loaded_by(statement) & HOMES.keys() <= allowed
