"""What `pip install` puts in place is enough to export a policy: no checkout needed."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILD = "import sys, setuptools.build_meta as backend; backend.build_wheel(sys.argv[1])"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with what the wheel holds."""
    base = tmp_path_factory.mktemp("wheel")
    copy, site = base / "checkout", base / "site"  # a copy: building leaves folders behind
    for name in ("sim", "policies", "deploy", "firmware", "tests/deploy"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    made = subprocess.run([sys.executable, "-c", BUILD, base], cwd=copy, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    (wheel,) = base.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    return site


def files(folder):
    return {
        path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_the_firmware_and_no_tests(installed):
    assert files(installed / "firmware") == files(ROOT / "firmware")
    packages = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert packages == {"sim", "policies", "deploy", "firmware"}


@pytest.mark.parametrize(
    ("target", "made"),
    [
        ("stm32f405", ["policy.c", "policy.elf", "policy_math.h"]),
        ("crazyflie", ["Makefile", "src/flight.c"]),
        ("ros2_control", ["package.xml", "src/controller.cpp"]),
        ("page", ["index.html"]),
    ],
)
def test_an_installation_exports(installed, tmp_path, target, made):
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    found = subprocess.run(
        [sys.executable, "-c", "import deploy; print(deploy.__file__)"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert found.stdout.startswith(str(installed))
    command = [sys.executable, "-m", "deploy.export", "policy=quad_any", f"target={target}", f"out={tmp_path / 'out'}"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all((tmp_path / "out" / name).stat().st_size > 0 for name in made)
