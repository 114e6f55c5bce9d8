"""What makes this distribution a ROS 2 package, too: the files that ROS 2 looks for outside Python's folders.

Everything else stands in pyproject.toml; colcon's symlinked build folder has none, hence `SOURCE`.
"""

import tomllib
from pathlib import Path

from setuptools import find_namespace_packages, setup

SOURCE = Path(__file__).resolve().parent
PROJECT = tomllib.loads((SOURCE / "pyproject.toml").read_text())
NAME = PROJECT["project"]["name"]


def files(*patterns: str) -> list[str]:
    """Paths of the matching files, relative to the source folder."""
    return sorted(str(path.relative_to(SOURCE)) for pattern in patterns for path in SOURCE.glob(pattern))


distribution = setup(
    name=NAME,
    version=PROJECT["project"]["version"],
    packages=find_namespace_packages(str(SOURCE), include=PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]),
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{NAME}"]),  # ROS 2's index: such a package is here
        (f"share/{NAME}", ["package.xml"]),
        (f"share/{NAME}/launch", files("launch/*.launch.py", "launch/*.yaml")),
        (f"share/{NAME}/launch/security", files("launch/security/*.xml")),
        (f"lib/{NAME}", files("scripts/*")),  # what `ros2 run` and Node(package=...) start
    ],
)
# colcon asks for what is configured and reads the answer as Python literals, which a SpecifierSet is not.
distribution.python_requires = distribution.metadata.python_requires = PROJECT["project"]["requires-python"]
