"""driver=crazyflie, whose vehicle still hears it but is not heard any more: it has to come down, not to fall."""

import os
import signal
import threading

import cflib.crtp
import pytest

from deploy import PolicyFile
from deploy.crazyflie.link import LinkError
from deploy.system.interrupts import as_ctrl_c
from tests.deploy.crazyflie.bench import Client, served
from tests.deploy.crazyflie.test_driver import LATE, QUAD_ANY, fenced, radio

HEIGHT, SOFT = 1.5, 1.5  # m; m/s: it lands at about 0.8


@pytest.mark.timed
@pytest.mark.waits
@pytest.mark.filterwarnings(LATE)
def test_a_vehicle_that_is_landing_by_itself_is_not_dropped():
    """Landing was asked for; then the link was closed, by which cflib tells its rotors to stop: it fell from 1.1 m."""
    policy, lost, speeds, ended = PolicyFile.load(QUAD_ANY), threading.Event(), list[float](), threading.Event()
    cflib.crtp.init_drivers()
    with served(policy=QUAD_ANY) as simulation, radio(simulation.vehicles[0].uri, lambda *_: lost.is_set()) as link:
        firmware = simulation.vehicles[0].firmware

        def watch() -> None:
            while not ended.wait(0.01):
                speeds.append(firmware.sensed.velocity[2])

        driver = simulation.driver(uri=link.uri, height=HEIGHT)
        write = driver.write

        def then_lost(commands):
            write(commands)
            if driver._handed_over:
                lost.set()

        driver.write = then_lost  # type: ignore[method-assign]
        watching = threading.Thread(target=watch)
        watching.start()
        try:
            with pytest.raises(LinkError, match="the link is lost"):
                simulation.fly(policy, driver, steps=3000)
            assert any("left to its own watchdogs" in note for note in driver.report())
            assert firmware.sensed.position[2] > 0.5, "it was in the air when we left it"
            end = simulation.clock() + 10.0
            while firmware.sensed.position[2] > 0.02 and simulation.clock() < end:
                simulation.clock.sleep(0.05)
            simulation.clock.sleep(0.5)
        finally:
            ended.set()
            watching.join()
        assert firmware.sensed.position[2] < 0.05 and min(speeds) > -SOFT
        assert max(firmware.ratios) == 0.0 and firmware.supervisor.state.name != "LOCKED"


@pytest.mark.timed
@pytest.mark.waits
@pytest.mark.filterwarnings(LATE)
def test_ctrl_c_while_the_guard_lands_it_does_not_drop_it():
    """Whoever stopped the driver took a landing that had begun for one that was over, and disarmed it: -5.4 m/s."""
    policy, ended = PolicyFile.load(QUAD_ANY), threading.Event()
    seen, told = list[tuple[float, float]](), list[float]()
    cflib.crtp.init_drivers()
    with served(policy=QUAD_ANY) as simulation:
        firmware = simulation.vehicles[0].firmware
        driver = simulation.driver(height=HEIGHT)

        def watch() -> None:
            while not ended.wait(0.01):
                seen.append((firmware.sensed.position[2], firmware.sensed.velocity[2]))
                if driver._landing.begun and not told and seen[-1][1] < -0.1:
                    told.append(seen[-1][0])
                    os.kill(os.getpid(), signal.SIGINT)

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            with as_ctrl_c(real_time=True):
                record = simulation.fly(policy, driver, fenced(policy, HEIGHT - 0.3), steps=3000)
        finally:
            ended.set()
            watching.join()
        assert record.interrupted and not record.left_behind and told[0] > 0.6, "it was in the air"
        assert seen[-1][0] < 0.05 and min(speed for _, speed in seen) > -SOFT
        assert driver.report().count("landed") == 1 and firmware.supervisor.state.name != "LOCKED"


@pytest.mark.timed
@pytest.mark.waits
@pytest.mark.filterwarnings(LATE)
def test_a_vehicle_in_the_air_is_refused_and_left_alone():
    """Its estimator had been reset in flight; and by the end of the connection it would have been dropped."""
    cflib.crtp.init_drivers()
    with served() as simulation:
        vehicle = simulation.vehicles[0]
        commands = Client(vehicle)
        end = simulation.clock() + 30.0
        while vehicle.firmware.sensed.position[2] < 0.4 and simulation.clock() < end:
            commands.supervisor.send_arming_request(True)
            simulation.clock.sleep(0.3)
            commands.plan.takeoff(0.5, 1.0)
            simulation.clock.sleep(1.5)
        assert vehicle.firmware.sensed.position[2] > 0.4
        driver = simulation.driver(onboard=False)
        with pytest.raises(LinkError, match="the vehicle is flying: land it first"):
            driver.__enter__()
        simulation.clock.sleep(0.5)
        assert vehicle.firmware.sensed.position[2] > 0.4
