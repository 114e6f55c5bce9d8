"""driver=mavlink in a program of its own, which is killed in the air."""

import subprocess
import sys

import pytest

pytest.importorskip("pymavlink")

from deploy.mavlink import px4
from tests.deploy.mavlink.bench import served, settles

PATIENT = "missed_in_a_row = 100000\nmissed_of_100 = 101\nlongest_pause = 60.0\n"  # limits, with a busy machine


@pytest.mark.timed
def test_what_is_killed_lands_by_the_vehicles_own_failsafe(tmp_path):
    limits = tmp_path / "patient.toml"
    limits.write_text(PATIENT)
    with served() as simulation:
        uri = simulation.config.uri.replace("udpout", "udpin")
        command = [sys.executable, "-m", "deploy.run", "policy=quad_any", "driver=mavlink", f"uri={uri}", "height=0.5"]
        command += [f"limits={limits}", "stamps=false", "connect_s=60", "link_loss_s=5"]  # it may be too slow for us
        program = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            assert settles(lambda: simulation.autopilot.setpoint and simulation.autopilot.setpoint[1] == "rates", 90.0)
        finally:
            program.kill()
            program.wait()
        assert settles(lambda: simulation.autopilot.mode == px4.LAND)
        assert settles(lambda: not simulation.autopilot.armed)
        assert simulation.autopilot.state.position[2] < 0.05
