"""cflib, unmodified, flies the simulated Crazyflie over UDP in real time."""

import contextlib
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import cflib.crtp
import cflib.crtp.udpdriver
import numpy as np
import pytest
from cflib.crazyflie import Crazyflie
from cflib.crazyflie.log import LogConfig
from cflib.crazyflie.mem import MemoryElement, Poly4D
from cflib.crazyflie.swarm import CachedCfFactory, Swarm
from cflib.crazyflie.syncCrazyflie import SyncCrazyflie
from cflib.crazyflie.syncLogger import SyncLogger
from cflib.positioning.motion_commander import MotionCommander
from cflib.positioning.position_hl_commander import PositionHlCommander
from cflib.utils.power_switch import PowerSwitch

from deploy.crazyflie.crtp import Port
from deploy.crazyflie.simulator.world import MOST_BEHIND
from tests.deploy.crazyflie.bench import Served, reboot, served

QUAD_ANY = "deploy/pretrained/quad_any.onnx"
PATIENCE = 20.0  # s for anything that should happen; the machine may be busy

# cflib's latency thread may still send when its link has been closed, and then complains about itself.
LATE = "ignore:Exception in thread ping_thread:pytest.PytestUnhandledThreadExceptionWarning"
pytestmark = [pytest.mark.timed, pytest.mark.filterwarnings(LATE)]


@pytest.fixture(scope="module", autouse=True)
def drivers() -> None:
    cflib.crtp.init_drivers()


@pytest.fixture(scope="module")
def simulation() -> Iterator[Served]:
    with served(vehicles=2, policy=QUAD_ANY) as made:
        yield made


@pytest.fixture
def uri(simulation: Served) -> str:
    """Of a vehicle that has just been switched on, at its start; it checks itself for 0.04 s of its time."""
    for index, vehicle in enumerate(simulation.vehicles):
        reboot(vehicle.uri)
        simulation.world.place(index, position=(0.0, index - 0.5, 0.0))
    return simulation.vehicles[0].uri


@pytest.fixture
def scf(uri: str) -> Iterator[SyncCrazyflie]:
    connected = SyncCrazyflie(uri, cf=Crazyflie())
    connected.open_link()
    connected.wait_for_params()
    yield connected
    sent = threading.Event()  # the last that a client sends is a set point of zero thrust
    connected.cf.packet_sent.add_callback(lambda packet: sent.set() if packet.port == Port.COMMANDER else None)
    threading.Thread(target=connected.close_link).start()  # it takes a second
    assert sent.wait(30.0)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def rest(simulation: Served, seconds: float) -> None:
    """Let the vehicles' time pass, which is late on a busy machine."""
    end = simulation.world.time + seconds
    until(lambda: simulation.world.time >= end)


def armed(scf: SyncCrazyflie) -> Crazyflie:
    supervisor = scf.cf.supervisor
    until(lambda: supervisor.can_be_armed)  # a fast client is connected before the vehicle has checked itself
    supervisor.send_arming_request(True)
    until(lambda: supervisor.can_fly)
    return scf.cf


def where(simulation: Served, index: int = 0) -> np.ndarray:
    return np.array(simulation.vehicles[index].firmware.sensed.position)


def test_scan_finds_the_vehicles(simulation: Served, monkeypatch: pytest.MonkeyPatch):
    port = int(simulation.vehicles[0].uri.rpartition(":")[2])
    monkeypatch.setattr(cflib.crtp.udpdriver, "_BASE_PORT", port)
    monkeypatch.setattr(cflib.crtp.udpdriver, "_NR_OF_PORTS_TO_SCAN", 1)
    assert cflib.crtp.UdpDriver().scan_interface() == [[simulation.vehicles[0].uri, ""]]


def test_connects_with_everything_a_client_reads(uri: str):
    said: list[str] = []
    cf = Crazyflie()
    cf.console.receivedChar.add_callback(said.append)
    with SyncCrazyflie(uri, cf=cf) as scf:
        scf.wait_for_params()
        assert cf.platform.get_protocol_version() == 12
        assert float(cf.param.get_value("pid_rate.roll_kp")) == 250.0
        assert cf.log.toc.get_element_by_complete_name("stateEstimate.x").ctype == "float"
        assert cf.param.toc.get_element_by_complete_name("posCtlPid.xKp").is_persistent()
        until(lambda: cf.supervisor.read_state_list() == ["Can be armed", "Finished HL trajectory"])
    assert "simulated crazyflie is up and running!" in "".join(said)


def test_power_switch_reboots(uri: str, simulation: Served):
    before = simulation.vehicles[0].firmware
    for _ in range(20):  # cflib waits no longer than 0.1 s for the answer
        with contextlib.suppress(Exception):
            PowerSwitch(uri).reboot_to_fw()
            break
    assert simulation.vehicles[0].firmware is not before


def test_parameters_are_written_and_read(scf: SyncCrazyflie):
    param, answers = scf.cf.param, queue.Queue[tuple[str, str]]()
    param.add_update_callback("ring", "effect", lambda name, value: answers.put((name, value)))
    param.set_value("ring.effect", 7)
    assert answers.get(timeout=30.0) == ("ring.effect", "7")
    stored = queue.Queue[object]()
    param.set_value("posCtlPid.xVelMax", 0.7)
    param.persistent_store("posCtlPid.xVelMax", lambda name, done: stored.put(done))
    assert stored.get(timeout=30.0) is True
    param.persistent_get_state("posCtlPid.xVelMax", lambda name, state: stored.put(state))
    state = stored.get(timeout=30.0)
    assert state.is_stored and state.stored_value == pytest.approx(0.7) and state.default_value == 1.0
    param.persistent_clear("posCtlPid.xVelMax", lambda name, done: stored.put(done))
    assert stored.get(timeout=30.0) is True
    param.get_default_value("posCtlPid.xVelMax", lambda name, value: stored.put(value))
    assert stored.get(timeout=30.0) == 1.0


def test_log_blocks_arrive_at_their_rate(scf: SyncCrazyflie, simulation: Served):
    config = LogConfig("state", 10)
    for name in ("stateEstimate.x", "stateEstimate.z", "acc.z", "gyro.x"):
        config.add_variable(name, "float")
    config.add_variable("pm.vbat", "FP16")
    config.add_variable("supervisor.info")
    began, stamps = simulation.clock(), []
    with SyncLogger(scf, config) as logger:
        for entry in logger:
            stamps.append(entry[0])
            if len(stamps) == 100:
                break
    took = simulation.clock() - began
    assert set(np.diff(stamps)) == {10}
    assert 0.9 < took < 3.0  # s of the simulation, real ones when the machine has the time
    values = entry[1]
    assert values["acc.z"] == pytest.approx(1.0, abs=1e-3) and 3.9 < values["pm.vbat"] < 4.2
    assert values["supervisor.info"] & 1


def test_a_block_of_more_variables_than_a_packet_holds(scf: SyncCrazyflie):
    config = LogConfig("many", 10)
    names = [f"{group}.{axis}" for group in ("stateEstimate", "gyro", "acc", "ctrltarget") for axis in "xyz"]
    for name in names:
        config.add_variable(name, "FP16")
    with SyncLogger(scf, config) as logger:
        _, values, _ = next(iter(logger))
    assert [*values] == names and values["acc.z"] == pytest.approx(1.0, abs=1e-2)


@pytest.fixture
def timed(simulation: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """cflib's commanders, which turn, climb or fly for so long, count the vehicle's time."""
    times = SimpleNamespace(sleep=simulation.clock.sleep, time=simulation.clock)
    for name in ("motion_commander", "position_hl_commander"):
        monkeypatch.setattr(f"cflib.positioning.{name}.time", times)


@pytest.mark.usefixtures("timed")
def test_motion_commander(scf: SyncCrazyflie, simulation: Served):
    armed(scf)
    with MotionCommander(scf, default_height=0.4) as motion:
        until(lambda: abs(where(simulation)[2] - 0.4) < 0.15)
        motion.turn_left(90, rate=180)
        motion.forward(0.3, velocity=0.5)
        x, y, _ = where(simulation)
        assert abs(x) < 0.15 and y > -0.35
    until(lambda: where(simulation)[2] < 0.1)  # it falls the last centimetres


@pytest.mark.usefixtures("timed")
def test_position_high_level_commander(scf: SyncCrazyflie, simulation: Served):
    armed(scf)
    # It resets the estimator, waits, and flies to places.
    with PositionHlCommander(scf, y=-0.5, default_velocity=0.6, default_height=0.5) as commander:
        commander.go_to(0.5, -0.5, 0.6)
        until(lambda: np.allclose(where(simulation), (0.5, -0.5, 0.6), rtol=0.0, atol=0.15))
    until(lambda: where(simulation)[2] < 0.05)


def test_trajectory_and_policy_between_take_off_and_landing(scf: SyncCrazyflie, simulation: Served):
    (memory,) = scf.cf.mem.get_mems(MemoryElement.TYPE_TRAJ)
    still = Poly4D.Poly()
    memory.trajectory = [Poly4D(1.0, x=Poly4D.Poly([0.0, 0.5, *[0.0] * 6]), y=still, z=still, yaw=still)]
    assert memory.write_data_sync()
    cf, firmware = armed(scf), simulation.vehicles[0].firmware
    cf.high_level_commander.define_trajectory(1, 0, 1)
    cf.high_level_commander.takeoff(0.5, 1.0)
    rest(simulation, 1.2)
    cf.param.set_value("policy.mode", 3)
    cf.param.set_value("stabilizer.controller", 6)
    cf.high_level_commander.start_trajectory(1, relative_position=True)
    rest(simulation, 2.0)
    assert firmware.policy_flies
    np.testing.assert_allclose(where(simulation), (0.5, -0.5, 0.5), atol=0.12)
    cf.param.set_value("stabilizer.controller", 1)
    cf.high_level_commander.land(0.0, 1.0)
    rest(simulation, 1.5)
    assert where(simulation)[2] < 0.05 and not any(firmware.ratios)


def test_swarm(uri: str, simulation: Served):
    uris = [vehicle.uri for vehicle in simulation.vehicles]

    def fly(scf: SyncCrazyflie) -> None:
        armed(scf).high_level_commander.takeoff(0.5, 1.0)
        rest(simulation, 1.5)

    with Swarm(uris, factory=CachedCfFactory()) as swarm:
        places = swarm.get_estimated_positions()
        assert [round(places[each].y, 1) for each in uris] == [-0.5, 0.5]
        swarm.parallel_safe(fly)
        assert all(abs(where(simulation, k)[2] - 0.5) < 0.15 for k in (0, 1))
        swarm.parallel_safe(lambda scf: scf.cf.high_level_commander.land(0.0, 1.0))
        rest(simulation, 1.3)
    assert all(where(simulation, k)[2] < 0.1 for k in (0, 1))


@contextlib.contextmanager
def started(*arguments: str, flags: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own, which SIGINT interrupts; a job in the background starts with it ignored."""
    command = [sys.executable, *flags, "-m", "deploy.crazyflie_sim", "uri=udp://127.0.0.1:0", *arguments]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_eight_vehicles_log_at_100_hz_in_real_time():
    """The simulation runs in a process of its own, as a user's would."""
    with started("vehicles=8") as process:
        assert process.stdout is not None
        uris = [process.stdout.readline().split()[1] for _ in range(8)]
        stamps: dict[str, list[int]] = {uri: [] for uri in uris}
        clients = [SyncCrazyflie(uri, cf=Crazyflie()) for uri in uris]
        times = []
        for uri, scf in zip(uris, clients, strict=True):
            began = time.perf_counter()
            scf.open_link()
            scf.wait_for_params()
            times.append(time.perf_counter() - began)
            config = LogConfig("state", 10)
            for axis in ("x", "y", "z", "vx", "vy", "vz"):
                config.add_variable(f"stateEstimate.{axis}", "float")
            config.data_received_cb.add_callback(lambda stamp, values, block, uri=uri: stamps[uri].append(stamp))
            scf.cf.log.add_config(config)
            config.start()
        time.sleep(2.0)
        until(lambda: min(map(len, stamps.values())) > 100)
        for scf in clients:
            threading.Thread(target=scf.close_link).start()  # a second each, for cflib
        process.send_signal(signal.SIGINT)
        behind = process.communicate(timeout=120.0)[0]
    # A machine that was too busy for real time: then it says by how much, and that is all that may be missing.
    slipped = float(behind.removeprefix("behind the clock: ").split()[0]) if behind else 0.0
    # 0.07 s where nothing else runs. Each of its 300 packets waits for a step of all vehicles, and for this process:
    # a busy machine may starve it though the simulation keeps up.
    assert min(times) < 30.0, f"fully connected after {times} s, {slipped} s behind the clock"
    for seen in stamps.values():
        steps = np.diff(seen)  # of the vehicle's clock: none is lost, nor late
        assert len(seen) > 100 and all(step == 10 or step > 1e3 * MOST_BEHIND for step in steps)
        assert steps.sum() - 10 * len(steps) <= 1e3 * slipped + 6  # both rounded


def test_the_command_says_where_it_listens(uri: str):
    with started("vehicles=2") as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        assert [line.partition(": udp://127.0.0.1:")[0] for line in lines] == ["listening"] * 2
        with SyncCrazyflie(lines[1].split()[1], cf=Crazyflie()) as scf:
            until(lambda: scf.cf.supervisor.is_armed)  # a cf2 arms itself
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=120.0)[1] == "interrupted\n"
        assert process.returncode == 130


def test_the_command_is_interrupted_while_it_still_imports():
    with started(flags=("-X", "importtime")) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.endswith(" deploy.crazyflie.crtp\n"):
                break
        process.send_signal(signal.SIGINT)
        lines = [line for line in process.communicate(timeout=120.0)[1].splitlines() if "import time:" not in line]
        assert (lines, process.returncode) == (["interrupted"], 130)


@pytest.mark.parametrize("argument", ["vehicles=0", "robot=car", "speed=2", "uri=radio://0"])
def test_the_command_explains_mistakes(argument: str):
    done = subprocess.run([sys.executable, "-m", "deploy.crazyflie_sim", argument], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and "Traceback" not in done.stderr
