"""The app's C and its Python in the simulated vehicle do the same, whatever happens around them."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.crazyflie.guard import FLY, LIMITS, REASONS, STATES
from deploy.crazyflie.out_of_tree import OutOfTree, parameters
from deploy.crazyflie.simulator.onboard import Onboard
from deploy.crazyflie.simulator.sensed import Sensed
from deploy.crazyflie.simulator.setpoints import PLACE as NAMED
from deploy.crazyflie.simulator.setpoints import Modes, Setpoint
from sim.robots import robot
from sim.rotations import rotation_matrix
from tests.deploy.crazyflie.board import FORCE, NOTHING, PLACE, QUAD_ANY, Firmware, build, written

HOVER = 36000  # what the PID controller answers, of 65535


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build(written(tmp_path_factory.mktemp("app")))


@pytest.fixture(scope="module")
def library_with_a_task(tmp_path_factory):
    return build(written(tmp_path_factory.mktemp("app"), own_task=True))


class Twin:
    """The app in C and in Python, called with the same every millisecond."""

    def __init__(self, library, limits: dict[str, float], mode: int, late: int = 0) -> None:
        """`late`: ms that a step takes in a task of its own; 0: it has none."""
        self.board = Firmware(library)
        self.policy = Onboard(QUAD_ANY, robot("crazyflie"), 1000.0)
        assert self.policy.late == 0  # it fits the stabilizer's task
        self.board.late = self.policy.late = late
        self.parameters = {name: default for name, (_, default) in parameters(self.policy).items()}
        self.told = None
        self.app = OutOfTree(self.policy, self.parameters, self.pid, lambda text: None)
        for name, (usual, _, _) in LIMITS.items():
            self.write(name, limits.get(name, usual))
        self.write("mode", mode)
        self.board.set("pid_thrust", HOVER)
        self.began = self.board.now
        self.select()

    def pid(self, setpoint, ran):
        self.told = setpoint.position
        return (HOVER / 65535,) * 4

    def write(self, name: str, value: float) -> None:
        self.board.write(name, value)
        self.parameters[f"policy.{name}"] = self.board.parameter(name)

    def select(self) -> None:
        if self.policy.late:
            self.board.finish()
        self.board.select()
        self.app.select()

    def call(self, place=True, age=0, voltage=4.0, variance=1e-4, in_the_air=0, target=(0.0, 0.0, 1.0), **state):
        """One millisecond of both, whose states, reasons and forces are compared."""
        board, app = self.board, self.app
        for name, value in (("voltage", voltage), ("variance", variance), ("in_the_air", in_the_air)):
            board.set(name, value)
        kept = {name: [float(np.float32(v)) for v in values] for name, values in state.items()}
        mode, forces = board.call(PLACE if place else NOTHING, age, target_position=target, **kept)
        x, y, z, w = kept["quaternion"]
        sensed = Sensed(
            tuple(kept["position"]),
            tuple(kept["velocity"]),
            (0.0, 0.0, 0.0),
            np.asarray(rotation_matrix(w, x, y, z), float).ravel().tolist(),
            [w, x, y, z],
            tuple(math.radians(r) for r in kept["gyro"]),
            [0.0] * 4,
        )
        now = 1e-3 * (board.now - self.began)
        setpoint = Setpoint(now - 1e-3 * age, NAMED if place else Modes(), target)
        shares = app.update(setpoint, sensed, now, voltage, variance, bool(in_the_air))
        assert STATES[int(board.logged("state"))] == STATES[app.state]
        assert REASONS[int(board.logged("reason"))] == REASONS[app.reason]
        assert (board.logged("flying"), board.logged("failed")) == (app.flying, app.failed)
        if mode == FORCE:
            np.testing.assert_allclose(forces, shares, atol=2e-4)
        else:
            np.testing.assert_allclose(board.told(), self.told, atol=1e-4)
        np.testing.assert_allclose([board.logged(f"pid_{k}") for k in range(4)], app.pid, atol=1e-6)
        return app


EVENT = st.sampled_from(
    [
        ("fly on", {}),
        ("no place", {"place": False}),
        ("old", {"age": 201}),
        ("fast", {"velocity": (0.0, 5.0, 0.0)}),
        ("spinning", {"gyro": (0.0, 0.0, 2000.0)}),
        ("on its side", {"quaternion": (0.7, 0.0, 0.0, 0.714)}),
        ("far", {"position": (4.0, 0.0, 1.0)}),
        ("blind", {"position": (math.nan, 0.0, 1.0)}),
        ("uncertain", {"variance": 1.0}),
        ("low", {"voltage": 2.95}),
        ("empty", {"voltage": 2.5}),
        ("flying", {"in_the_air": 1}),
        ("selected", {}),
        ("switched off", {}),
    ]
)


ANY_LIMITS = st.fixed_dictionaries(
    {"ramp": st.sampled_from([0.0, 0.02, 5.0]), "seconds": st.sampled_from([1.0, -3.0])}
) | st.just({"cap": 0.5, "ramp": 0.0})


@settings(max_examples=10)
@given(
    mode=st.integers(0, 4),
    limits=ANY_LIMITS,
    events=st.lists(st.tuples(EVENT, st.integers(1, 45)), min_size=1, max_size=6),
)
def test_the_c_and_the_simulated_vehicle_do_the_same(library, mode, limits, events):
    happen(Twin(library, limits, mode), events)


@settings(max_examples=10)
@given(
    mode=st.integers(0, 4),
    limits=ANY_LIMITS,
    late=st.sampled_from([1, 2, 5]),
    events=st.lists(st.tuples(EVENT, st.integers(6, 45)), min_size=1, max_size=6),
)
def test_they_do_in_a_task_of_its_own_too(library_with_a_task, mode, limits, late, events):
    """Each event lasts longer than a step, so that none is under way when the policy begins anew."""
    happen(Twin(library_with_a_task, limits, mode, late), events)


@pytest.mark.parametrize("age", [200, 201])
@pytest.mark.parametrize("ramp", [0.003, 0.05, 0.1005])
def test_they_do_at_the_very_millisecond_of_a_limit(library, age, ramp):
    """A set point just as old as it may be, the end of taking over, of the flight, of the second that it stays."""
    twin = Twin(library, {"ramp": ramp, "seconds": 1.0}, FLY)
    for k in range(2100):
        twin.call(**hovering(k), age=age if k % 300 > 250 else 0)


def hovering(k: int) -> dict:
    """A flight that is never twice the same."""
    return {
        "position": (0.01 * math.sin(k), 0.0, 1.0),
        "velocity": (0.01, 0.0, 0.0),
        "quaternion": (0.0, 0.0, 0.0, 1.0),
        "gyro": (math.cos(k), 0.0, 0.0),
    }


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_a_thrust_curve_may_be_written_in_any_order_in_flight(library, order):
    """Steps towards it are too far from the airframe's, which the last good one bridges; what stays so is put right."""
    twin, tick = Twin(library, {"ramp": 0.0, "fence": 20.0}, FLY), itertools.count()
    own, most = twin.policy.curve, twin.policy.most  # 0, 0, most
    wanted = (0.1 * most, -0.5 * most, 1.4 * most)

    def fly(count: int) -> None:
        for _ in range(count):
            twin.call(**hovering(next(tick)))

    def tuned() -> list[float]:
        curve = [twin.board.parameter(f"thrust{k}") for k in range(3)]
        np.testing.assert_allclose(curve, [twin.parameters[f"policy.thrust{k}"] for k in range(3)], rtol=1e-6)
        return curve

    fly(20)
    before = int(twin.board.logged("replaced"))
    asked, good = list(own), own
    for done, k in enumerate(order):
        asked[k] = wanted[k]
        twin.write(f"thrust{k}", wanted[k])
        fly(400)
        if {*order[: done + 1]} in ({0}, {1, 2}, {0, 1, 2}):  # the others are further than a fifth of `most`
            good = tuple(asked)
        assert twin.policy.curve == pytest.approx(good, abs=1e-6) and tuned() == pytest.approx(asked)
    assert good == pytest.approx(wanted)
    assert int(twin.board.logged("replaced")) == before and not twin.app.replaced >> 30 & 1
    twin.write("thrust1", 9.0)
    fly(500)
    assert twin.policy.curve == pytest.approx(wanted) and tuned()[1] == 9.0
    fly(1)
    assert tuned() == pytest.approx(own) == twin.policy.curve
    assert int(twin.board.logged("replaced")) >> 30 & twin.app.replaced >> 30 & 1


def happen(twin: Twin, events) -> None:
    """Event after event, for so many ms each."""
    k = 0
    for (name, change), count in events:
        if name == "selected":
            twin.select()
        if name == "switched off":
            twin.write("mode", 0)
        for _ in range(count):
            k += 1
            twin.call(**{**hovering(k), **change})
