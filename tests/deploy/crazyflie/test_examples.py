"""Bitcraze's own example scripts, files unmodified, against the simulated Crazyflie as it is by default.

CFLIB_EXAMPLES=FOLDER: `examples` of a checkout of bitcraze/crazyflie-lib-python (GPL, so not here).
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deploy.crazyflie.simulator.simulation import Simulation
from tests.deploy.crazyflie.bench import served

FOLDER = Path(os.environ.get("CFLIB_EXAMPLES", "/nowhere"))
LIKE_REAL = {"positioning": "flow", "auto_arm": None}
# Radio addresses become those of simulated vehicles, in the order in which they are asked for. The script is as it is.
RUNNER = """
import runpy, sys
import cflib.crtp as crtp
known, free, find = {}, sys.argv[1].split(","), crtp.get_link_driver
def get_link_driver(uri, *rest):
    if uri.startswith("radio://"):
        uri = known[uri] if uri in known else known.setdefault(uri, free.pop(0))
    return find(uri, *rest)
crtp.get_link_driver = get_link_driver
import cflib.crazyflie
cflib.crazyflie.cflib.crtp.get_link_driver = get_link_driver
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
STORED = """
params:
  pm.lowVoltage:
    default_value: 3.2
    is_stored: true
    stored_value: 3.3
type: persistent_param_state
version: '1'
"""
EXAMPLES = [
    "autonomy/autonomous_sequence.py",
    "autonomy/autonomous_sequence_high_level.py",
    "autonomy/motion_commander_demo.py",
    "logging/basiclog.py",
    "logging/basiclog_sync.py",
    "parameters/basicparam.py",
    "parameters/persistent_params.py",
    "parameters/persistent_params_from_file.py",
    "step-by-step/sbs_connect_log_param.py",
    "step-by-step/sbs_motion_commander.py",
    "step-by-step/sbs_swarm.py",
]
PATIENCE = 60.0  # s
FLIES = {"autonomy", "step-by-step/sbs_motion_commander.py", "step-by-step/sbs_swarm.py"}
pytestmark = [
    pytest.mark.long,
    pytest.mark.timed,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="CFLIB_EXAMPLES names no folder"),
]


def run(script: str, simulation: Simulation, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The script in a process of its own; its files go into `folder`."""
    uris = ",".join(vehicle.uri for vehicle in simulation.vehicles)
    command = [sys.executable, "-c", RUNNER, uris, str(FOLDER / script), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=180.0)


@pytest.mark.parametrize("script", EXAMPLES)
def test_an_example_runs_to_its_end(script: str, tmp_path: Path):
    arguments: tuple[str, ...] = ()
    if script.endswith("from_file.py"):
        (tmp_path / "stored.yaml").write_text(STORED)
        arguments = ("-f", str(tmp_path / "stored.yaml"))
    highest = 0.0
    with served(vehicles=4 if "swarm" in script else 1, **LIKE_REAL) as simulation:
        step = simulation.world.step

        def watched(ratios):
            nonlocal highest
            step(ratios)
            highest = max(highest, *(each.position[2] for each in simulation.world.sense()))

        simulation.world.step = watched  # type: ignore[method-assign]
        done = run(script, simulation, tmp_path, *arguments)
        until = time.monotonic() + PATIENCE  # a simulation on a busy machine is behind
        while max(each.position[2] for each in simulation.world.sense()) > 0.1 and time.monotonic() < until:
            time.sleep(0.1)
        ends = [vehicle.firmware.supervisor.state.name for vehicle in simulation.vehicles]
        low = [each.position[2] for each in simulation.world.sense()]
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    flies = script in FLIES or script.partition("/")[0] in FLIES
    assert (highest > 0.2) is flies
    assert max(low) < 0.1 and not {"LOCKED", "CRASHED"} & set(ends)
    if script.endswith("from_file.py"):
        assert simulation.vehicles[0].firmware.parameters.stored["pm.lowVoltage"] == pytest.approx(3.3)


def test_no_example_is_left_out():
    assert sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.py")) == sorted(EXAMPLES)
