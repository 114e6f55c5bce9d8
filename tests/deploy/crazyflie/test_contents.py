"""The tables of contents: what a client of the real firmware finds, it finds here."""

import struct

import pytest

from deploy.crazyflie.crtp import Port
from deploy.crazyflie.simulator import contents
from deploy.crazyflie.simulator.logs import TYPES as LOGGED
from deploy.crazyflie.simulator.parameters import GIVEN
from deploy.crazyflie.simulator.parameters import TYPES as KEPT
from deploy.crazyflie.simulator.telemetry import OF_APP, TABLE
from tests.deploy.crazyflie.bench import Bench, ask


@pytest.mark.parametrize(("build", "parameters", "variables"), [("cf2", 294, 495), ("cf21bl", 286, 499)])
def test_every_entry_has_a_type_that_can_be_sent(build: str, parameters: int, variables: int):
    """The numbers are those of the firmware's sources at 2a18fc29, after its own preprocessor conditionals."""
    kept, logged = contents.parameters(build), contents.variables(build)
    assert len(kept) == parameters and len(logged) == variables
    assert {kind.partition(" ")[0] for kind, _ in kept.values()} <= KEPT.keys()
    assert set(logged.values()) <= LOGGED.keys()
    assert all(name.count(".") == 1 and len(name) < 28 for name in (*kept, *logged))
    assert kept["led.bitmask"] == ("uint8", 0.0)
    assert kept["pm.lowVoltage"] == ("float persistent", 3.2 if build == "cf2" else 3.35)
    assert kept["cpu.flash"][0] == "uint16 read-only" and logged["acc.x"] == "float"


def test_what_is_simulated_is_among_it():
    kept, logged = contents.parameters("cf2"), contents.variables("cf2")
    assert GIVEN.keys() <= kept.keys()
    assert TABLE.keys() <= logged.keys() | OF_APP.keys()
    assert not logged.keys() & OF_APP.keys() and OF_APP.keys() <= TABLE.keys()


def test_what_is_not_simulated_keeps_what_is_written_and_reads_zero():
    bench = Bench()
    names = [entry.name for entry in bench.firmware.parameters.table]
    index = names.index("led.bitmask")
    assert ask(bench, Port.PARAMETERS, 2, struct.pack("<HB", index, 255)) == struct.pack("<HB", index, 255)
    assert bench.firmware.parameters["led.bitmask"] == 255
    assert bench.firmware.logs.read("lighthouse.status") == 0.0
    assert ask(bench, Port.LOGGING, 0, b"\x03")[1:3] == struct.pack("<H", 495)
    bench.close()
