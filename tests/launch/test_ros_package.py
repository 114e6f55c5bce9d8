"""The wheel is a ROS 2 package: `ros2 launch sim2metal ...` and `ros2 run sim2metal policy_node` find their files."""

import os
import shutil
import stat
import subprocess
import sys
import xml.etree.ElementTree as ET
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("sim", "policies", "deploy", "firmware", "launch", "resource", "scripts")
FILES = ("pyproject.toml", "setup.py", "package.xml", "README.md", "LICENSE")
BUILD = "import sys, setuptools.build_meta as backend; backend.build_wheel(sys.argv[1])"
NODES = ("policy_node", "robot_node", "supervisor_node")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    base = tmp_path_factory.mktemp("package")
    copy = base / "checkout"  # building leaves folders behind
    for name in SOURCES:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, copy)
    made = subprocess.run([sys.executable, "-c", BUILD, base], cwd=copy, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    (path,) = base.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def prefix(wheel, tmp_path_factory):
    """Where pip has installed it."""
    folder = tmp_path_factory.mktemp("prefix")
    options = [
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-compile",
        "--disable-pip-version-check",
        "--ignore-installed",
    ]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, f"--prefix={folder}", str(wheel)], check=True)
    return folder


@pytest.fixture
def installed(prefix, monkeypatch, tmp_path):
    """This process and its children see that installation, not the checkout."""
    (site,) = prefix.glob("lib/python*/site-packages")
    before = [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), *before]))
    monkeypatch.setenv("AMENT_PREFIX_PATH", os.pathsep.join([str(prefix), sys.prefix]))
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"])
    monkeypatch.chdir(tmp_path)
    return prefix


def test_the_wheel_holds_what_ros_2_looks_for(wheel):
    names = zipfile.ZipFile(wheel).infolist()
    data = {info.filename.partition(".data/data/")[2]: info for info in names if ".data/data/" in info.filename}
    files = (path for path in (ROOT / "launch").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    launch = {f"share/sim2metal/{path.relative_to(ROOT)}" for path in files}
    programs = {f"lib/sim2metal/{name}" for name in NODES}
    index = "share/ament_index/resource_index/packages/sim2metal"
    assert data.keys() == {index, "share/sim2metal/package.xml", *programs, *launch}
    assert all(data[name].external_attr >> 16 & stat.S_IXUSR for name in programs)
    assert "deploy/ros2/node/localhost.xml" in {info.filename for info in names}


def test_the_manifest_agrees_with_the_distribution(wheel):
    manifest = ET.parse(ROOT / "package.xml").getroot()
    assert wheel.name.startswith(f"{manifest.findtext('name')}-{manifest.findtext('version')}-")
    assert manifest.findtext("export/build_type") == "ament_python"
    imported = {name.partition(".")[0] for name in manifest.itertext() if name.endswith("_msgs")}
    used = {word for path in (ROOT / "deploy").rglob("*.py") for word in words_after_from(path) if "_msgs" in word}
    assert used <= imported


def words_after_from(path):
    """The packages that a file imports."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[1].partition(".")[0] for words in lines if len(words) > 1 and words[0] in ("from", "import")}


def test_the_index_finds_it(installed):
    from ament_index_python.packages import get_package_prefix, get_package_share_directory

    assert get_package_prefix("sim2metal") == str(installed)
    assert Path(get_package_share_directory("sim2metal"), "launch", "quad_hover.launch.py").is_file()


@pytest.mark.parametrize("node", NODES)
def test_its_nodes_run(installed, node):
    """As `ros2 run` runs them; here with a parameter that none of them takes."""
    program = installed / "lib" / "sim2metal" / node
    words = [program, "--ros-args", "-p", "policy:=3", "-p", "fence:=true", "-p", "engine:=true"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert "must be a" in done.stderr.splitlines()[-1]


def test_its_launch_files_start_its_nodes(installed):
    """`ros2 launch sim2metal quad_hover.launch.py`, with a policy that does not exist."""
    words = [sys.executable, "-m", "deploy.launch", "sim2metal", "quad_hover.launch.py", "policy:=nobody.onnx"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    assert "there is no file 'nobody.onnx'" in done.stdout
    assert f"cmd '{installed}/lib/sim2metal/policy_node --ros-args" in done.stdout
