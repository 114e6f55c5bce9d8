"""Robots that are stopped in flight hold, land and are off; what is measured is the simulation's truth."""

from dataclasses import replace

import numpy as np
import pytest

from deploy.drivers.simulated import Simulated
from deploy.guard import HOLD, LANDING, PASS, REASONS, SAFE, STAYING, Guard
from deploy.loop import run
from deploy.policy_file import PolicyFile
from deploy.safety import ladder as rungs
from deploy.safety.envelope import Envelope
from deploy.safety.ladder import DESCENT, HOLD_S, WAYS, Ladder
from sim.tasks import make

NUM, AT = 20, 250
RATE = 100.0


@pytest.fixture(scope="module")
def policy():
    return PolicyFile.load("quad_any")


class Flights:
    """NUM flights with a fault at the same control step; how each met the ground."""

    def __init__(
        self,
        policy,
        robot="crazyflie",
        fault=lambda signals: signals,
        command=None,
        envelope=None,
        steps=1100,
        press=None,
    ):
        task = make("quad_any", robot=robot, path="hold", tilt=20.0, velocity=0.3)
        self.driver = Simulated(task, NUM, seed=3)
        self.ladder = Ladder(policy.inputs, RATE)
        self.guard = Guard(policy.inputs, policy.outputs, envelope or Envelope(), self.driver.signals, self.ladder)
        self.fault, self.press, self.step = fault, press, 0
        self.down = np.full(NUM, -1)
        self.speed, self.tilt = np.full((2, NUM), np.nan)
        self.verdicts, self.sent = [], []
        read, write = self.driver.read, self.driver.write

        def faulty():
            self._look()
            reading = read()
            signals = {name: np.array(value) for name, value in reading.signals.items()}
            if self.step >= AT:
                signals = self.fault(signals)
                if self.press is not None and self.step == AT + self.press:
                    self.guard.stop()
            self.step += 1
            return replace(reading, signals=signals)

        def noted(commands):
            self.verdicts.append(self.guard.verdict.copy())
            self.sent.append(commands["motor_command"].copy())
            write(commands)

        class Broken:
            def __getattr__(self, name):
                return getattr(policy, name)

            def step(inner, signals):  # noqa: N805
                wanted = policy.step(signals)
                return {n: np.full_like(v, command) for n, v in wanted.items()} if late(self.step) else wanted

        def late(step):
            return command is not None and step > AT

        self.driver.read, self.driver.write = faulty, noted
        self.record = run(Broken(), self.driver, self.guard, steps)
        self.verdicts, self.sent = np.array(self.verdicts), np.array(self.sent)

    def _look(self):
        engine = self.driver.env.engine
        new = (engine.read("position")[:, 2] < 0.05) & (self.down < 0) & (self.step > AT)
        self.down[new] = self.step
        self.speed[new] = -engine.read("linear_velocity")[new, 2]
        self.tilt[new] = np.degrees(np.arccos(np.clip(engine.read("rotation")[new, 8], -1.0, 1.0)))

    @property
    def landed(self):
        """The share that met the ground slowly and upright."""
        return float(((self.down >= 0) & (self.speed < 1.5) & (self.tilt < 30.0)).mean())

    @property
    def reasons(self):
        return {REASONS[code] for code in self.record.stopped}


def without(*names):
    """Those signals are not numbers any more."""
    return lambda signals: {k: np.full_like(v, np.nan) if k in names else v for k, v in signals.items()}


@pytest.mark.parametrize("robot", ["crazyflie", pytest.param("x500", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "lost",
    [("target_position",), ("position",), ("linear_velocity",), ("angular_velocity",), ("position", "linear_velocity")],
    ids="+".join,
)
def test_whoever_loses_a_sensor_lands(policy, robot, lost):
    flights = Flights(policy, robot, without(*lost), steps=1500)
    assert flights.landed >= 0.95
    assert flights.reasons == {"non-finite signal"}
    first = STAYING if lost == ("target_position",) else LANDING
    assert (flights.verdicts[AT : AT + 5] == HOLD).all()
    assert (flights.verdicts[AT + 5] == first).all()
    assert (flights.ladder.rung == rungs.OFF).all()


@pytest.mark.parametrize("robot", ["crazyflie", "racer", "x500"])
def test_a_policy_that_computes_nonsense_is_replaced_and_the_robot_lands(policy, robot):
    flights = Flights(policy, robot, command=np.nan)
    assert flights.landed == 1.0
    assert np.median(flights.speed) == pytest.approx(DESCENT, abs=0.05)
    held = flights.verdicts[AT + 5 : AT + 5 + round(HOLD_S * RATE)]
    assert (held == STAYING).all()
    assert (flights.verdicts[AT + 5 + round(HOLD_S * RATE)] == LANDING).all()


@pytest.mark.parametrize(
    ("envelope", "reason"),
    [
        (Envelope(max_speed=0.5), "speed"),
        (Envelope(fence_low=(-9.0, -9.0, 0.0), fence_high=(9.0, 9.0, 2.5)), "geofence"),
    ],
)
def test_a_policy_that_flies_away_is_braked_and_landed(policy, envelope, reason):
    flights = Flights(policy, command=0.95, envelope=envelope, steps=1500)
    assert flights.reasons == {reason}
    assert flights.landed >= 0.95


def test_a_lost_attitude_is_the_end(policy):
    flights = Flights(policy, fault=without("rotation"), steps=400)
    assert (flights.verdicts[AT + 5 :] == SAFE).all()
    assert not flights.sent[AT + 5 :].any()


@pytest.mark.parametrize("after", [0, 3, 60])
def test_an_emergency_stop_is_at_once_off_also_on_the_ladder(policy, after):
    flights = Flights(policy, fault=without("position"), press=after, steps=400)
    assert flights.sent[AT + after - 1].any()
    assert not flights.sent[AT + after :].any()


def test_robots_of_a_batch_go_down_one_by_one(policy):
    def some(signals):
        signals["position"][::2] = np.nan
        return signals

    flights = Flights(policy, fault=some)
    assert (flights.ladder.rung[::2] == rungs.OFF).all()
    assert (flights.verdicts[:, 1::2] == PASS).all()
    assert flights.landed == 0.5
    alone = Flights(policy)
    np.testing.assert_array_equal(flights.sent[:, 1::2], alone.sent[:, 1::2])


def test_a_robot_that_came_down_does_not_start_again(policy):
    gone = []

    def once(signals):
        gone.append(1)
        return without("position")(signals) if len(gone) < 20 else signals

    flights = Flights(policy, fault=once)
    assert (flights.ladder.rung == rungs.OFF).all()
    assert flights.landed == 1.0
    assert not flights.sent[-200:].any()


@pytest.mark.parametrize("height", [0.0, -1e3, 50.0])
def test_one_wrong_position_on_the_way_down_is_no_ground(policy, height):
    steps = []

    def lies(signals):
        steps.append(1)
        if len(steps) < 8:
            signals["target_position"][:] = np.nan
        if len(steps) in (220, 260):
            signals["position"][:, 2] = height
        return signals

    flights = Flights(policy, fault=lies, steps=1500)
    assert flights.landed >= 0.95


def test_a_policy_that_ignores_its_moved_set_point_is_replaced(policy):
    class Climber:
        def __getattr__(self, name):
            return getattr(policy, name)

        def step(self, signals):
            return policy.step({**signals, "target_position": np.full_like(signals["target_position"], 3.0)})

    flights = Flights(Climber(), fault=without("target_position"), steps=1900)
    assert flights.landed >= 0.95


def test_a_path_ahead_becomes_a_set_point_ahead():
    task = make("quad_any", robot="racer", preview=True, heading=True)
    ladder = Ladder(task.policy, RATE)
    ladder.reset(2)
    ladder.active, ladder.own[:], ladder.goal[:] = True, [True, False], [1.0, 2.0, 3.0]
    told = {signal.name: np.full((2, *signal.shape), 7.0, np.float32) for signal in task.policy}
    aimed = ladder.aim(told, {})
    np.testing.assert_array_equal(aimed["target_preview"], [[1.0, 2.0, 3.0] * 2, [7.0] * 6])
    for name in ("target_acceleration", "target_preview_velocity", "target_preview_acceleration"):
        np.testing.assert_array_equal(aimed[name], np.array([[0.0], [7.0]]) * np.ones_like(told[name]))
    np.testing.assert_array_equal(aimed["target_heading"], told["target_heading"])  # it need not turn


@pytest.mark.parametrize(
    ("lost", "rung", "own"),
    [
        (("target_heading",), rungs.HOLD, True),
        (("target_heading", "target_position"), rungs.HOLD, True),
        (("target_heading", "position"), rungs.LAND, False),
    ],
)
def test_whoever_loses_a_heading_stays_by_its_own_policy(lost, rung, own):
    task = make("quad_any", robot="racer", heading=True)
    envelope = Envelope()
    flying = {s.name: np.zeros((1, *s.shape), np.float32) for s in task.policy}
    flying["rotation"][:] = np.eye(3).ravel()
    flying["position"][:] = flying["target_position"][:] = [0.0, 0.0, 5.0]
    flying["target_heading"][:] = [0.6, 0.8]
    ladder = Ladder(task.policy, RATE)
    guard = Guard(task.policy, task.robot.commands, envelope, task.policy, ladder)
    guard.reset(1)
    hover = {"motor_command": np.full((1, 4), 0.5, np.float32)}
    for step in range(3 + envelope.hold_steps + 1):
        seen = {k: np.full_like(v, np.nan) if k in lost and step >= 3 else v for k, v in flying.items()}
        told = guard.screen(seen, dict.fromkeys(seen, 0.0))
        guard.filter(hover)
    assert guard.reasons.tolist() == [REASONS.index("non-finite signal")]
    assert ladder.rung.tolist() == [rung] and ladder.own.tolist() == [own]
    np.testing.assert_array_equal(told["target_heading"], flying["target_heading"])  # the last good one


def test_every_reason_of_the_guard_has_its_way():
    assert {*REASONS} - {"none"} <= WAYS.keys()
