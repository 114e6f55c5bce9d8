"""The simulated Crazyflie in simulated time, commanded by the packets of cflib's own encoders."""

import errno
import math
import struct

import cflib.utils.encoding
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.crazyflie.crtp import Packet, Port
from deploy.crazyflie.simulator.setpoints import decompress
from deploy.crazyflie.simulator.supervisor import TRANSITIONS, Condition, State, next_state
from deploy.crazyflie.simulator.telemetry import compress
from tests.deploy.crazyflie.bench import Bench, ask

QUAD_ANY = "deploy/pretrained/quad_any.onnx"


@pytest.fixture
def bench():
    made = Bench()
    yield made
    made.close()


@pytest.fixture(scope="module")
def fuzzed():
    made = Bench()
    yield made
    made.close()


@pytest.fixture
def flying(bench: Bench) -> Bench:
    bench.fly()
    assert bench.state == "FLYING"
    return bench


# ---- supervisor


def test_take_off_go_to_and_land(bench: Bench):
    assert bench.state == "CHECKS_PASSED"
    bench.fly(1.0)
    np.testing.assert_allclose(bench.position, (0.0, 0.0, 1.0), atol=0.1)
    bench.client.plan.go_to(1.0, 0.5, 1.2, math.pi / 2, 2.0)
    assert bench.client.answers[0].data[3] == 0
    bench.run(5.0)
    np.testing.assert_allclose(bench.position, (1.0, 0.5, 1.2), atol=0.08)
    assert abs(bench.firmware.sensed.yaw - 90.0) < 5.0
    bench.client.plan.go_to(0.5, 0.0, 0.0, 0.0, 1.5, relative=True)
    bench.run(4.0)
    np.testing.assert_allclose(bench.position, (1.5, 0.5, 1.2), atol=0.08)
    bench.client.plan.land(0.0, 2.0)
    bench.run(2.5)
    assert bench.position[2] < 0.02 and bench.firmware.ratios == (0.0, 0.0, 0.0, 0.0)
    assert bench.state == "FLYING"  # for two seconds it does not trust the silence of the motors
    bench.run(2.5)
    assert bench.state == "LANDED"
    bench.run(3.2)
    assert bench.state == "CHECKS_PASSED" and not bench.firmware.supervisor.armed


def test_nothing_flies_unarmed(bench: Bench):
    bench.client.plan.takeoff(1.0, 1.0)
    assert bench.client.answers[0].data[3] == errno.EBUSY
    bench.run(1.0, lambda: bench.client.commander.send_hover_setpoint(0.0, 0.0, 0.0, 1.0))
    assert bench.position[2] == 0.0 and bench.firmware.ratios == (0.0, 0.0, 0.0, 0.0)


def test_auto_arming_and_preflight_timeout(bench: Bench):
    bench.client.supervisor.send_arming_request(True)
    assert bench.client.answers[0].data == bytes((0x81, 1, 1))
    bench.run(0.1)
    assert bench.state == "READY_TO_FLY"
    bench.firmware.parameters["supervisor.prefltTimeout"] = 3000
    bench.run(2.8)
    assert bench.state == "READY_TO_FLY"
    bench.run(0.4)
    assert bench.state == "CHECKS_PASSED"
    automatic = Bench(auto_arm=True)
    automatic.run(0.1)
    assert automatic.state == "READY_TO_FLY" and automatic.firmware.supervisor.bitfield & 0b1110 == 0b1110
    automatic.close()


def test_watchdog_levels_out_then_drops(flying: Bench):
    fly = flying.client.commander
    flying.run(1.0, lambda: fly.send_velocity_world_setpoint(0.8, 0.0, 0.0, 0.0))
    flying.run(0.3)
    assert flying.state == "FLYING" and flying.firmware.sensed.velocity[0] > 0.5
    flying.run(0.3)
    assert flying.state == "LEVEL_OUT"
    flying.run(0.5)
    assert abs(flying.firmware.sensed.pitch) < 3.0 and flying.position[2] > 0.7
    fly.send_velocity_world_setpoint(0.0, 0.0, 0.0, 0.0)
    flying.run(0.1)
    assert flying.state == "FLYING"  # a new set point in time is enough
    flying.run(2.1)
    assert flying.state == "LOCKED" and flying.firmware.ratios == (0.0, 0.0, 0.0, 0.0)
    flying.run(1.0)
    assert flying.position[2] == 0.0
    flying.client.supervisor.send_arming_request(True)
    assert flying.client.answers[0].data == bytes((0x81, 0, 0))


@pytest.mark.parametrize("how", ["supervisor", "localization", "parameter", "watchdog"])
def test_emergency_stop(flying: Bench, how: str):
    client = flying.client
    if how == "supervisor":
        client.supervisor.send_emergency_stop()
    elif how == "localization":
        flying.firmware.receive(Packet(Port.LOCALIZATION, 1, b"\x03"))
    elif how == "parameter":
        names = [entry.name for entry in flying.firmware.parameters.table]
        ask(flying, Port.PARAMETERS, 2, struct.pack("<HB", names.index("stabilizer.stop"), 1))
    else:
        client.supervisor.send_emergency_stop_watchdog()
        flying.run(0.95)
        assert flying.state == "FLYING"
        flying.run(0.1)
    flying.run(0.1)
    assert flying.state == "LOCKED" and flying.firmware.ratios == (0.0, 0.0, 0.0, 0.0)
    assert flying.firmware.supervisor.bitfield & 0x40


def test_disarming_in_flight_stops_the_motors(flying: Bench):
    flying.client.supervisor.send_arming_request(False)
    flying.run(0.05)
    assert flying.firmware.ratios == (0.0, 0.0, 0.0, 0.0)


def test_a_tumbled_vehicle_has_crashed_and_recovers_once_upright(flying: Bench):
    flying.world.place(0, position=(0.0, 0.0, 0.0), quaternion=(0.0, 1.0, 0.0, 0.0))
    flying.run(0.5)
    assert flying.state == "CRASHED" and flying.firmware.supervisor.bitfield & 0xA0 == 0xA0
    flying.client.supervisor.send_crash_recovery_request()
    assert flying.client.answers[0].data == bytes((0x82, 0, 0))
    flying.world.place(0, position=(0.0, 0.0, 0.0))
    flying.run(0.1)
    flying.client.supervisor.send_crash_recovery_request()
    assert flying.client.answers[0].data == bytes((0x82, 1, 1))
    flying.run(0.1)
    assert flying.state == "CHECKS_PASSED"


@given(st.sampled_from(State), st.integers(0, 2 ** len(Condition) - 1).map(Condition))
@settings(deadline=None)
def test_every_state_obeys_an_emergency(state: State, conditions: Condition):
    assert next_state(state, conditions) in {new for new, _ in TRANSITIONS[state]} | {state}
    after = next_state(state, conditions | Condition.EMERGENCY)
    if state in (State.READY_TO_FLY, State.FLYING, State.LEVEL_OUT, State.CHECKS_PASSED, State.ARMING):
        assert after in (State.FREE_FALL, State.CRASHED)


def test_older_clients_arm_through_the_platform_port(bench: Bench):
    assert ask(bench, Port.PLATFORM, 0, b"\1\1") == b"\1\1\1"
    bench.run(0.1)
    assert bench.state == "READY_TO_FLY"
    assert ask(bench, Port.PLATFORM, 1, b"\0") == struct.pack("<BI", 0, 12)
    assert ask(bench, Port.LINK, 1, b"\0").startswith(b"Bitcraze Crazyflie")
    assert ask(bench, Port.LINK, 0, b"echo") == b"echo"


def test_external_positions_are_accepted(bench: Bench):
    bench.client.localization.send_extpos((1.0, 2.0, 3.0))
    assert [bench.firmware.logs.read(f"locSrv.{axis}") for axis in "xyz"] == [1.0, 2.0, 3.0]
    bench.client.localization.send_extpose((3.0, 2.0, 1.0), (0.0, 0.0, 0.0, 1.0))
    assert [bench.firmware.logs.read(f"locSrv.{axis}") for axis in "xyz"] == [3.0, 2.0, 1.0]


# ---- set points


def test_position_and_full_state(flying: Bench):
    fly = flying.client.commander
    flying.run(4.0, lambda: fly.send_position_setpoint(0.5, -0.3, 1.1, 30.0))
    np.testing.assert_allclose(flying.position, (0.5, -0.3, 1.1), atol=0.12)
    assert abs(flying.firmware.sensed.yaw - 30.0) < 4.0
    turned = [0.0, 0.0, math.sin(math.radians(5.0)), math.cos(math.radians(5.0))]
    flying.run(4.0, lambda: fly.send_full_state_setpoint((0, 0, 1), (0, 0, 0), (0, 0, 0), turned, 0, 0, 0))
    np.testing.assert_allclose(flying.position, (0.0, 0.0, 1.0), atol=0.12)
    assert abs(flying.firmware.sensed.yaw - 10.0) < 4.0


def test_velocities_in_world_and_heading_axes(flying: Bench):
    fly = flying.client.commander
    flying.run(3.0, lambda: fly.send_position_setpoint(0.0, 0.0, 1.0, 90.0))
    flying.run(2.0, lambda: fly.send_velocity_world_setpoint(0.4, 0.0, 0.1, 0.0))
    np.testing.assert_allclose(flying.firmware.sensed.velocity, (0.4, 0.0, 0.1), atol=0.08)
    flying.run(2.0, lambda: fly.send_hover_setpoint(0.4, 0.0, 0.0, 1.0))
    np.testing.assert_allclose(flying.firmware.sensed.velocity, (0.0, 0.4, 0.0), atol=0.1)
    before = flying.firmware.sensed.yaw
    flying.run(1.0, lambda: fly.send_hover_setpoint(0.0, 0.0, 30.0, 1.0))
    assert 20.0 < flying.firmware.sensed.yaw - before < 40.0


@pytest.mark.parametrize("packet", ["angles", "height", "manual", "rates"])
def test_leaning_forward_flies_forward(flying: Bench, packet: str):
    fly = flying.client.commander
    thrust = int(flying.firmware.cascade.thrust)
    percent = 100.0 * (thrust - 10001) / (60000 - 10001)
    sends = {
        "angles": lambda: fly.send_setpoint(0.0, 10.0, 0.0, thrust),
        "height": lambda: fly.send_zdistance_setpoint(0.0, -10.0, 0.0, 1.0),
        "manual": lambda: fly.send_setpoint_manual(0.0, 10.0, 0.0, percent, False),
        "rates": lambda: fly.send_setpoint_manual(0.0, 20.0, 0.0, percent, True),
    }
    fly.send_setpoint(0.0, 0.0, 0.0, 0)  # unlocks the thrust
    flying.run(0.6, sends[packet])
    vx, vy, _ = flying.firmware.sensed.velocity
    assert vx > 0.2 and abs(vy) < 0.05
    assert flying.firmware.sensed.pitch < -5.0  # nose down


def test_yaw_rates_of_the_two_ports_have_opposite_signs(flying: Bench):
    fly = flying.client.commander
    flying.run(1.0, lambda: fly.send_zdistance_setpoint(0.0, 0.0, 40.0, 1.0))
    assert flying.firmware.sensed.yaw > 20.0
    thrust = int(flying.firmware.cascade.thrust)
    fly.send_setpoint(0.0, 0.0, 0.0, 0)
    flying.run(1.0, lambda: fly.send_setpoint(0.0, 0.0, 80.0, thrust))
    assert flying.firmware.sensed.yaw < 0.0


def test_thrust_is_locked_until_it_was_zero(bench: Bench):
    bench.client.supervisor.send_arming_request(True)
    bench.run(0.1)
    bench.firmware.commander.priority = 0  # as at boot
    bench.client.commander.send_setpoint(0.0, 0.0, 0.0, 40000)
    bench.run(0.1)
    assert bench.firmware.ratios == (0.0, 0.0, 0.0, 0.0)


def test_stop_drops_and_notify_gives_the_planner_its_turn(flying: Bench):
    client = flying.client
    client.commander.send_hover_setpoint(0.0, 0.0, 0.0, 1.0)
    flying.run(0.1)
    client.plan.land(0.0, 2.0)  # outranked
    flying.run(0.1)
    assert flying.firmware.setpoint.position == (0.0, 0.0, 1.0)
    assert "ignored until send_notify_setpoint_stop" in flying.firmware._text.decode()
    client.commander.send_notify_setpoint_stop()
    client.plan.land(0.0, 2.0)
    flying.run(2.5)
    assert flying.position[2] < 0.02
    assert not any(flying.firmware.ratios)


def test_client_overrides_the_planner_and_stop_stops(flying: Bench):
    flying.client.commander.send_stop_setpoint()
    flying.run(0.05)
    assert flying.firmware.ratios == (0.0, 0.0, 0.0, 0.0)


def test_spiral_and_uploaded_trajectory(flying: Bench):
    client = flying.client
    client.plan.spiral(math.pi, 0.5, 0.5, 0.2, 5.0)  # half a circle to the left
    flying.run(8.0)
    np.testing.assert_allclose(flying.position, (0.0, 1.0, 1.2), atol=0.1)
    rising = np.zeros((4, 8))
    rising[0, 1], rising[2, 0], rising[3, 0] = 0.25, 1.0, math.pi  # x = t / 4, z = 1, looking back
    piece = struct.pack("<33f", *rising.ravel(), 2.0)
    for start in range(0, len(piece), 24):
        part = piece[start : start + 24]
        assert ask(flying, Port.MEMORY, 2, struct.pack("<BI", 0, start) + part)[5:] == b"\0"
    assert ask(flying, Port.MEMORY, 1, struct.pack("<BIB", 0, 0, 24))[6:] == piece[:24]
    client.plan.define_trajectory(1, 0, 1)
    client.plan.start_trajectory(1, relative_position=True)
    assert client.answers[0].data[3] == 0
    x, y, z = flying.position
    flying.run(5.0)
    np.testing.assert_allclose(flying.position, (x + 0.5, y, z), atol=0.1)
    before = flying.firmware.planner.path
    client.plan.start_trajectory(7)  # never defined: the firmware says 0, and goes on with what it does
    assert client.answers[0].data[3] == 0 and flying.firmware.planner.path is before


@given(st.lists(st.floats(-1.0, 1.0), min_size=4, max_size=4).filter(lambda q: np.linalg.norm(q) > 0.1))
@settings(deadline=None)
def test_compressed_quaternions_are_those_of_the_client(values: list[float]):
    x, y, z, w = unit = np.array(values) / np.linalg.norm(values)
    code = cflib.utils.encoding.compress_quaternion(unit)
    assert compress([w, x, y, z]) == code
    np.testing.assert_allclose(decompress(code), cflib.utils.encoding.decompress_quaternion(code), atol=1e-6)
    assert abs(abs(np.dot(decompress(code), unit)) - 1.0) < 1e-3


# ---- logs, parameters, memory


def contents(bench: Bench, port: int) -> list[tuple[int, str]]:
    """Type and name of every entry."""
    (count,) = struct.unpack("<H", ask(bench, port, 0, b"\x03")[1:3])
    items = [ask(bench, port, 0, struct.pack("<BH", 2, k))[3:] for k in range(count)]
    assert all(len(item) <= 27 for item in items)  # a packet holds no more
    return [(item[0], ".".join(item[1:-1].decode().split("\0"))) for item in items]


def test_every_variable_can_be_logged(bench: Bench):
    for index, (kind, name) in enumerate(contents(bench, Port.LOGGING)):
        create = struct.pack("<BBBH", 6, 1, kind << 4 | kind, index)
        assert ask(bench, Port.LOGGING, 1, create) == bytes((6, 1, 0)), name
        assert ask(bench, Port.LOGGING, 1, bytes((3, 1, 1))) == bytes((3, 1, 0))
        bench.firmware.now += 0.011
        (packet,) = [p for p in bench.firmware.outgoing() if p.port == Port.LOGGING]
        assert packet.data[0] == 1 and len(packet.data) > 4
        assert ask(bench, Port.LOGGING, 1, bytes((2, 1))) == bytes((2, 1, 0))


def test_log_blocks_come_at_their_rates_with_the_vehicles_time(bench: Bench):
    names = [name for _, name in contents(bench, Port.LOGGING)]
    for block, tens in ((1, 1), (2, 5)):
        create = struct.pack("<BBBH", 6, block, 0x77, names.index("stateEstimate.z"))
        ask(bench, Port.LOGGING, 1, create)
        ask(bench, Port.LOGGING, 1, bytes((3, block, tens)))
    stamps: dict[int, list[int]] = {1: [], 2: []}
    for _ in range(500):
        bench.simulation.tick()
        for packet in bench.firmware.outgoing():
            if packet.port == Port.LOGGING:
                stamps[packet.data[0]].append(int.from_bytes(packet.data[1:4], "little"))
    assert len(stamps[1]) == 100 and len(stamps[2]) == 20
    assert set(np.diff(stamps[1])) == {10} and set(np.diff(stamps[2])) == {50}
    assert abs(stamps[1][-1] - 1e3 * bench.firmware.now) <= 10


def test_log_errors(bench: Bench):
    def control(*data: int) -> int:
        return ask(bench, Port.LOGGING, 1, bytes(data))[2]

    assert control(6, 1, 7, 0, 0) == 0
    assert control(6, 1, 7, 0, 0) == errno.EEXIST
    assert control(3, 9, 1) == errno.ENOENT
    assert control(6, 2, 7, 0xFF, 0x7F) == errno.ENOENT
    assert control(7, 1, *(7, 0, 0) * 6) == errno.E2BIG
    for block in range(3, 17):
        control(6, block)
    assert control(6, 40) == errno.ENOMEM
    assert control(5, 0) == 0 and not bench.firmware.logs.blocks


def test_parameters(bench: Bench):
    names = [name for _, name in contents(bench, Port.PARAMETERS)]
    assert names == sorted(names)

    def number(name: str) -> bytes:
        return struct.pack("<H", names.index(name))

    limit = number("posCtlPid.xVelMax")
    assert ask(bench, Port.PARAMETERS, 1, limit) == limit + b"\0" + struct.pack("<f", 1.0)
    assert ask(bench, Port.PARAMETERS, 2, limit + struct.pack("<f", 0.5)) == limit + struct.pack("<f", 0.5)
    assert bench.firmware.parameters["posCtlPid.xVelMax"] == 0.5
    frozen = number("cpu.flash")
    assert bench.firmware.receive(Packet(Port.PARAMETERS, 2, frozen + b"\1\0")) == ()  # no answer at all
    assert ask(bench, Port.PARAMETERS, 1, frozen)[3:] == struct.pack("<H", 1024)
    assert ask(bench, Port.PARAMETERS, 1, b"\xff\x7f")[2:] == bytes((errno.ENOENT,))
    assert ask(bench, Port.PARAMETERS, 3, b"\0ring\0effect\0\x08\x05")[-1] == 0
    assert bench.firmware.parameters["ring.effect"] == 5
    assert ask(bench, Port.PARAMETERS, 3, b"\0no\0such\0\x08\x05")[-1] == errno.ENOENT
    assert ask(bench, Port.PARAMETERS, 3, b"\x07" + limit)[3:] == b"\0\1"
    assert ask(bench, Port.PARAMETERS, 3, b"\x08" + limit)[3:] == b"\0" + struct.pack("<f", 1.0)
    assert ask(bench, Port.PARAMETERS, 3, b"\x03" + limit)[3:] == b"\0"
    assert ask(bench, Port.PARAMETERS, 3, b"\x04" + limit)[3:] == b"\1" + struct.pack("<ff", 1.0, 0.5)
    vehicle = bench.simulation.vehicles[0]
    vehicle._radio_chip(b"\xfe\xf0\x01")
    assert bench.firmware.parameters["posCtlPid.xVelMax"] == 0.5  # stored
    assert bench.firmware.parameters["ring.effect"] == 0  # not stored
    assert ask(bench, Port.PARAMETERS, 3, b"\x05" + limit)[3:] == b"\0"
    vehicle._radio_chip(b"\xfe\xf0\x01")
    assert bench.firmware.parameters["posCtlPid.xVelMax"] == 1.0


def test_velocity_limit_parameter_acts(flying: Bench):
    flying.firmware.parameters["posCtlPid.xVelMax"] = 0.3
    flying.run(2.0, lambda: flying.client.commander.send_position_setpoint(3.0, 0.0, 1.0, 0.0))
    assert 0.2 < flying.firmware.sensed.velocity[0] < 0.4


@given(st.integers(0, 15), st.integers(0, 3), st.binary(max_size=30))
@settings(deadline=None, max_examples=300)
def test_no_packet_breaks_the_firmware(fuzzed: Bench, port: int, channel: int, data: bytes):
    bench = fuzzed
    for answer in bench.firmware.receive(Packet(port, channel, data)):
        assert len(answer.data) <= 30 and len(answer.encode()) == len(answer.data) + 1
    bench.run(0.02)
    assert all(math.isfinite(x) for x in (*bench.position, *bench.firmware.ratios))


def test_two_vehicles_share_the_air():
    bench = Bench(vehicles=2, spacing=0.0)
    bench.fly(1.0)  # both, one inside the other: they do not collide
    low, high = bench.clients
    high.plan.go_to(0.0, 0.0, 1.6, 0.0, 2.0)
    bench.run(4.0)
    under, over = (np.mean(vehicle.firmware.ratios) for vehicle in bench.simulation.vehicles)
    low.plan.go_to(2.0, 0.0, 1.0, 0.0, 3.0)
    bench.run(6.0)
    alone = np.mean(bench.simulation.vehicles[0].firmware.ratios)
    assert under > alone + 0.005
    assert abs(over - alone) < 0.01
    bench.close()


def test_power_switch():
    bench = Bench()
    bench.fly()
    (vehicle,) = bench.simulation.vehicles
    vehicle._radio_chip(b"\xfe\x02")  # off
    bench.run(1.5)
    assert not vehicle.powered and bench.world.sense()[0].position[2] == 0.0
    vehicle._radio_chip(b"\xfe\x03")
    bench.run(0.1)
    assert bench.state == "CHECKS_PASSED" and bench.firmware.now < 0.2
    bench.close()


def test_motor_parameters_override_even_the_supervisor(bench: Bench):
    for name, value in (("m1", 30000), ("m2", 30000), ("m3", 30000), ("m4", 30000), ("enable", 1)):
        bench.firmware.parameters[f"motorPowerSet.{name}"] = value
    bench.run(0.1)
    assert bench.firmware.ratios == pytest.approx([30000 / 65535] * 4)
    assert bench.state == "CHECKS_PASSED"


def test_battery_is_drained_by_flying(flying: Bench):
    before = flying.firmware.battery.charge
    flying.run(5.0)
    assert 5.0 / 600.0 < before - flying.firmware.battery.charge < 5.0 / 300.0  # empty after five to ten minutes


def test_sensors_at_rest_and_turning(bench: Bench):
    sensed = bench.firmware.sensed
    np.testing.assert_allclose(sensed.specific_force, (0.0, 0.0, 1.0), atol=1e-6)
    angle = math.radians(20.0)
    bench.world.place(0, position=(0.0, 0.0, 5.0), quaternion=(math.cos(angle / 2), 0.0, math.sin(angle / 2), 0.0))
    bench.run(0.002)
    assert bench.firmware.sensed.pitch == pytest.approx(-20.0, abs=0.1)  # about y is nose down: negative here
    np.testing.assert_allclose(bench.world.sense()[0].specific_force, (0.0, 0.0, 0.0), atol=1e-2)  # it falls


def test_without_a_policy_there_is_no_controller_6(bench: Bench):
    names = [name for _, name in contents(bench, Port.PARAMETERS)]
    number = struct.pack("<H", names.index("stabilizer.controller"))
    assert ask(bench, Port.PARAMETERS, 2, number + b"\6") == number + b"\6"  # the echo is of what was written
    bench.run(0.002)
    assert ask(bench, Port.PARAMETERS, 1, number) == number + b"\0\1"
    assert "there is no controller 6" in bench.firmware._text.decode()
    assert not any(name.startswith("policy.") for _, name in contents(bench, Port.LOGGING))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"policy": QUAD_ANY, "runtime": "chipp"}, "unknown runtime 'chipp'"),
        ({"vehicles": 0}, "vehicles must be in 1..100"),
        ({"battery": 9.0}, "battery must be"),
        ({"spacing": -1.0}, "spacing"),
        ({"robot": "x500"}, "is no Crazyflie"),
        ({"uri": "radio://0/80/2M"}, "udp://HOST:PORT"),
    ],
)
def test_bad_settings(settings: dict, words: str):
    from deploy.crazyflie.simulator import Config
    from deploy.crazyflie.simulator.simulation import Simulation

    with pytest.raises(ValueError, match=words):
        Simulation(Config(**{"uri": "udp://127.0.0.1:0", **settings}))
