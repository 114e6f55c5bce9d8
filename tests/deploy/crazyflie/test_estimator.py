"""What the vehicle believes of itself: the filter's equations, the sensors, and both in flight."""

import math

import numpy as np
import pytest

from deploy.crazyflie.simulator import contents
from deploy.crazyflie.simulator.estimator import kalman
from deploy.crazyflie.simulator.estimator.kalman import Kalman, cross_matrix, matrix, turned
from deploy.crazyflie.simulator.estimator.sensors import BURST, Faults, FlowDeck, LowPass
from deploy.crazyflie.simulator.sensed import Sensed
from tests.deploy.crazyflie.bench import Bench

PARAMETERS = {name: default for name, (_, default) in contents.parameters("cf2").items()}
RATE, FORCE, DT = np.array([0.3, -0.2, 0.5]), np.array([0.4, -0.3, 10.5]), 0.01
QUIET = {"dropout": 0.0, "outliers": 0.0}


def somewhere() -> Kalman:
    made = Kalman(PARAMETERS)
    made.state[:6] = 0.3, -0.2, 1.1, 0.7, -0.4, 0.2
    made.quaternion = turned(made.quaternion, np.array([0.2, -0.15, 0.8]))
    made.rotation = matrix(made.quaternion)
    return made


def moved(error: np.ndarray, flying: bool) -> tuple[np.ndarray, np.ndarray]:
    """The state one prediction after it was off by `error` (9): position and velocity (6), quaternion."""
    other = somewhere()
    other.state[:6] += error[:6]
    other.quaternion = turned(other.quaternion, error[6:])
    other.rotation = matrix(other.quaternion)
    other.predict(FORCE, RATE, DT, flying)
    return other.state[:6], other.quaternion


@pytest.mark.parametrize("flying", [True, False])
def test_the_covariance_follows_the_motion(flying: bool):
    """Against numerical derivatives. On the ground the attitude is pulled back besides, which the filter ignores."""
    state, quaternion = moved(np.zeros(9), flying)
    derivative = np.zeros((9, 9))
    for k in range(9):
        error = 1e-6 * np.eye(9)[k]
        there, turn = moved(error, flying)
        derivative[:6, k] = (there - state) / 1e-6
        w, x, y, z = quaternion * (1.0, -1.0, -1.0, -1.0)
        back = np.array([[x, w, -z, y], [y, z, w, -x], [z, -y, x, w]]) @ turn
        derivative[6:, k] = 2.0 * back / 1e-6
    rng = np.random.default_rng(0)
    root = rng.normal(0.0, 0.1, (9, 9))
    one = somewhere()
    one.covariance = root @ root.T
    one.predict(FORCE, RATE, DT, flying)
    expected = derivative @ root @ root.T @ derivative.T
    # The attitude's own block turns by half of the angle, as in the firmware: 0.3 % of it at this rate.
    np.testing.assert_allclose(one.covariance, expected, atol=5e-3 * np.abs(expected).max())
    np.testing.assert_allclose(one.covariance[:6, :6], expected[:6, :6], atol=1e-4)


def test_measurements_that_were_expected_change_nothing_and_teach():
    one = somewhere()
    before, upright = one.state.copy(), one.rotation[2, 2]
    one.take_range(before[2] / math.cos(math.acos(upright) - kalman.CONE), 0.01)
    scale = kalman.PIXELS * DT / kalman.APERTURE
    across = scale * (before[3] * upright / before[2] - RATE[1]), scale * (before[4] * upright / before[2] + RATE[0])
    one.take_flow(across, RATE, DT, 0.2)
    one.take_place(before[:3].copy(), 0.01)
    one.take_attitude(one.quaternion, 0.01)
    one.take_yaw(0.0, 0.01)
    np.testing.assert_allclose(one.state, before, atol=1e-9)
    assert np.diag(one.covariance)[:3].max() < 2e-4 and np.diag(one.covariance)[6:].max() < 1e-4


def test_what_was_not_expected_is_learned():
    one = Kalman(PARAMETERS)
    attitude = turned(turned(one.quaternion, np.array([0.0, 0.0, 2.5])), np.array([0.02, -0.03, 0.0]))
    one.quaternion = turned(one.quaternion, np.array([0.0, 0.0, 2.5]))
    for _ in range(50):
        one.take_place(np.array([1.0, -2.0, 0.5]), 0.01)
        one.take_attitude(attitude, 4.5e-3)
        one.close()
        one.add_noise(0.01)
    np.testing.assert_allclose(one.state[:3], (1.0, -2.0, 0.5), atol=1e-2)
    np.testing.assert_allclose(matrix(one.quaternion), matrix(attitude), atol=2e-3)


def test_process_noise_is_the_firmwares_whatever_the_cycle():
    """kalman_core.c adds (noise * 1 ms)^2 in each of its cycles of 1 ms."""
    one = Kalman(PARAMETERS)
    before = np.diag(one.covariance).copy()
    for _ in range(50):
        one.add_noise(0.002)
    added = np.diag(one.covariance) - before
    np.testing.assert_allclose(added[3:], 100 * np.array([0.5, 0.5, 1.0, 0.1, 0.1, 0.1]) ** 2 * 1e-6)
    assert one.covariance[0, 0] == kalman.MOST  # the initial 100 m are cut to the bound


def test_cross_matrix():
    a, b = np.array([1.0, -2.0, 0.5]), np.array([0.3, 0.7, -1.1])
    np.testing.assert_allclose(cross_matrix(a) @ b, np.cross(a, b))


def test_the_low_pass_lags_as_its_cutoff_says():
    """Its phase at the cutoff is -90 degrees, its gain there 1 / sqrt(2)."""
    filter, rate, cutoff = LowPass(500.0, [30.0]), 500.0, 30.0
    t = np.arange(1000) / rate
    out = np.array([filter.update(np.array([math.sin(2.0 * math.pi * cutoff * each)]))[0] for each in t])[500:]
    wave = np.exp(-2j * math.pi * cutoff * t[500:])
    got = 2.0 * np.mean(out * wave) * 1j
    assert abs(got) == pytest.approx(math.sqrt(0.5), rel=1e-3) and np.angle(got) == pytest.approx(
        -math.pi / 2, abs=1e-3
    )


def test_drop_outs_come_in_bursts_and_take_their_share():
    faults = Faults(np.random.default_rng(1), dropout=0.1, outliers=0.01)
    out = np.array([faults.out(0.01) for _ in range(400_000)])
    assert out.mean() == pytest.approx(0.1, rel=0.1)
    bursts = np.count_nonzero(np.diff(out.astype(int)) == 1)
    assert 0.01 * out.sum() / bursts == pytest.approx(BURST, rel=0.1)
    wrong = [faults.wrong(1, 1.0)[0] for _ in range(100_000)]
    assert np.count_nonzero(wrong) == pytest.approx(1000, rel=0.15)
    assert not any(Faults(np.random.default_rng(1), 0.0, 0.0).out(1.0) for _ in range(100))


@pytest.mark.parametrize(("height", "speed"), [(0.5, 0.4), (1.5, -0.3)])
def test_flow_measures_speed_with_a_noise_that_grows_with_height(height: float, speed: float):
    deck = FlowDeck(np.random.default_rng(2), Faults(np.random.default_rng(3), 0.0, 0.0), 0.002)
    deck.scale = 1.0
    level = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]
    truth = Sensed(
        (0.0, 0.0, height), (speed, 0.0, 0.0), (0.0,) * 3, level, [1.0, 0.0, 0.0, 0.0], (0.0,) * 3, [0.7] * 4
    )
    found = []

    class Listener(Kalman):
        def take_flow(self, pixels, rate, dt, deviation):
            found.append(pixels[0] * height * kalman.APERTURE / (kalman.PIXELS * dt))

    listener = Listener(PARAMETERS)
    for _ in range(5000):
        deck.measure(truth, np.zeros(3), listener)
    assert len(found) == 1000
    assert np.mean(found) == pytest.approx(speed, abs=0.03 * height)
    assert np.std(found) == pytest.approx(0.42 * height, rel=0.1)  # 2 counts of 0.1 pixels
    assert deck.said["range.zrange"] == pytest.approx(1e3 * height, abs=15.0)
    assert listener.state[2] == pytest.approx(height, abs=0.01)


def test_the_ranger_sees_no_further_than_four_metres():
    deck = FlowDeck(np.random.default_rng(2), Faults(np.random.default_rng(3), 0.0, 0.0), 0.002)
    one = Kalman(PARAMETERS)
    for height, heard in ((3.9, True), (4.1, False)):
        deck.said.clear()
        level = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]
        truth = Sensed((0.0, 0.0, height), (0.0,) * 3, (0.0,) * 3, level, [1.0, 0.0, 0.0, 0.0], (0.0,) * 3, [0.7] * 4)
        for _ in range(50):
            deck.measure(truth, np.zeros(3), one)
        assert ("range.zrange" in deck.said) is heard


@pytest.mark.parametrize(
    ("positioning", "place", "drifts"), [("flow", 0.2, True), ("lighthouse", 0.06, False), ("mocap", 0.03, False)]
)
def test_it_flies_by_what_it_believes(positioning: str, place: float, drifts: bool):
    bench = Bench(positioning=positioning, **QUIET)
    bench.run(0.5)
    bench.fly(0.7)
    bench.client.plan.go_to(0.4, 0.3, 0.7, 0.0, 1.5)
    bench.run(3.0)
    (truth,), believed = bench.world.sense(), bench.firmware.sensed
    assert bench.state == "FLYING"
    assert 0.0 < math.dist(truth.position, believed.position) < place
    assert 0.0 < math.dist(truth.velocity, believed.velocity) < 0.15
    assert abs(truth.roll - believed.roll) < 1.5 and abs(truth.pitch - believed.pitch) < 1.5
    assert math.dist(truth.position, (0.4, 0.3, 0.7)) < place + 0.1
    variance = bench.firmware.variances()
    assert (max(variance[:2]) > 99.0) is drifts and variance[2] < 1e-4 and max(variance[3:]) < 1e-2
    deck = {"flow": "deck.bcFlow2", "lighthouse": "deck.bcLighthouse4"}.get(positioning)
    assert {name for name, value in bench.firmware.parameters.items() if name.startswith("deck.bc") and value} == (
        {deck, "deck.bcZRanger2"} if positioning == "flow" else {deck} - {None}
    )
    np.testing.assert_allclose(believed.specific_force, (0.0, 0.0, 1.0), atol=0.5)
    bench.close()


def test_a_seed_repeats_and_another_does_not():
    ends = []
    for seed in (1, 1, 2):
        bench = Bench(positioning="flow", seed=seed)
        bench.run(0.5)
        ends.append(bench.firmware.sensed.velocity)
        bench.close()
    assert ends[0] == ends[1] != ends[2]


def test_a_reset_begins_where_the_parameters_say():
    bench = Bench(positioning="flow")
    bench.firmware.parameters.update({"kalman.initialX": 2.0, "kalman.initialYaw": 1.0})
    bench.firmware.estimator.reset(0.0)
    bench.run(0.02)
    assert bench.firmware.sensed.position[0] == pytest.approx(2.0, abs=0.01)
    assert bench.firmware.sensed.yaw == pytest.approx(math.degrees(1.0), abs=0.5)
    bench.close()


def test_external_positions_count():
    bench = Bench(positioning="flow")
    for _ in range(20):
        bench.client.localization.send_extpos((1.0, -1.0, 0.0))
        bench.run(0.01)
    assert math.dist(bench.firmware.sensed.position, (1.0, -1.0, 0.0)) < 0.02
    assert max(bench.firmware.variances()) < 1e-2
    bench.close()


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"positioning": "gps"}, "positioning must be one of flow, lighthouse, mocap, truth, got 'gps'"),
        ({"dropout": 0.9}, "dropout must be in 0..0.5"),
        ({"outliers": math.nan}, "outliers must be in 0..0.5"),
        ({"resistance": -1.0}, "resistance must be in 0..1 Ohm"),
    ],
)
def test_settings_that_are_none(setting: dict, says: str):
    with pytest.raises(ValueError, match=says):
        Bench(**setting)


@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38, 0.0])
def test_no_parameter_ends_the_simulation(value: float):
    bench = Bench(positioning="flow")
    groups = ("kalman.", "locSrv.ext", "motion.flowStdFixed")
    for name in [name for name in bench.firmware.parameters if name.startswith(groups)]:
        usual = bench.firmware.parameters[name]
        bench.firmware.parameters[name] = value
        bench.firmware._changed("kalman.resetEstimation", 1.0)
        bench.client.localization.send_extpose((0.1, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0))
        bench.run(0.03)
        bench.firmware.parameters[name] = usual
    bench.firmware._changed("kalman.resetEstimation", 1.0)
    bench.run(0.1)
    assert max(map(abs, bench.firmware.sensed.position)) < 0.1
    assert bench.world.sense()[0].position[2] == 0.0
    bench.close()
