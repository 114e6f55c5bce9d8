"""The table of subcommands: group -> name -> the module that carries it out, as `python -m MODULE` does."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]  # where our packages lie

GROUPS = {
    "begin": {
        "demo": "policies.demo",
        "list": "deploy.command.listing",
        "completion": "deploy.command.completion",
    },
    "train": {
        "train": "policies.train",
        "sweep": "policies.sweep",
        "train_world": "policies.train_world",
        "train_in_world": "policies.train_in_world",
        "train_success": "policies.train_success",
        "train_detector": "policies.train_detector",
        "train_emissions": "policies.train_emissions",
        "find_motions": "policies.find_motions",
    },
    "evaluate": {
        "evaluate": "policies.evaluate",
        "tournament": "policies.tournament",
        "inspect": "deploy.inspect",
        "replay": "deploy.replay",
        "watch": "deploy.watch",
    },
    "deploy": {
        "run": "deploy.run",
        "export": "deploy.export",
        "hil": "deploy.hil",
        "serve": "deploy.serve",
        "sign": "deploy.sign",
        "hub": "deploy.hub",
        "crazyflie_sim": "deploy.crazyflie_sim",
        "crazyflie_plot": "deploy.crazyflie.plot",
        "mavlink_sim": "deploy.mavlink.simulator",
    },
    "policies of others, policies of several": {
        "adopt": "policies.adopt",
        "join": "policies.join",
    },
    "data": {
        "collect": "policies.collect",
        "datasets": "policies.datasets",
        "recordings": "policies.datasets.recordings",
        "minari": "policies.datasets.minari",
        "libero": "policies.datasets.libero",
        "identify": "policies.identify",
    },
    "ROS 2": {
        "launch": "deploy.launch",
        "policy_node": "deploy.ros2.policy_node",
        "robot_node": "deploy.ros2.robot_node",
        "supervisor_node": "deploy.ros2.supervisor_node",
        "ask": "deploy.ros2.ask",
        "key": "deploy.ros2.key",
    },
}
COMMANDS = {name: module for group in GROUPS.values() for name, module in group.items()}


def source(module: str) -> Path:
    """The file of one of our modules."""
    path = ROOT.joinpath(*module.split("."))
    if path.is_dir():
        return path / ("__main__.py" if (path / "__main__.py").is_file() else "__init__.py")
    return path.with_suffix(".py")


def summary(module: str) -> str:
    """What a command does: its docstring's first line, after the usage. Nothing is imported."""
    with open(source(module), encoding="utf-8") as file:
        line = file.readline()
    return line.strip().strip('"').partition(": ")[2].rstrip(".")
