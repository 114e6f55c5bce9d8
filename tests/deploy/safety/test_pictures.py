"""Cameras that fail, seen by the control loop: lost and malformed pictures stop the robot, blank ones are told."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.drivers import Reading
from deploy.drivers.simulated import Simulated
from deploy.guard import REASONS, Guard
from deploy.loop import run
from deploy.recording.flight_log import read
from deploy.recording.recorder import Recorder
from deploy.safety.envelope import Envelope
from deploy.safety.pictures import ALIKE, TELL, PictureWatch, blank
from sim.spec import Signal
from sim.tasks import make
from tests.deploy.sample_policy import exported
from tests.deploy.vision_policy import seeing

CAMERA = Signal("camera", (30, 40, 3), "1", "", 0.0, 255.0, dtype="uint8")
LATE, STEPS, FROM = 0.2, 40, 10  # s; control steps, of which the camera fails from the tenth on


def scene(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (1, 30, 40, 3), np.uint8)


@given(st.tuples(*[st.integers(0, 255)] * 3), st.integers(0, 99))
def test_a_single_colour_is_blank_whatever_the_noise_and_hot_pixels(colour, seed):
    rng = np.random.default_rng(seed)
    picture = np.full((30, 40, 3), colour) + rng.integers(-ALIKE // 4, ALIKE // 4, (30, 40, 3))
    picture = picture.clip(0, 255).astype(np.uint8)
    picture[rng.integers(0, 30, 5), rng.integers(0, 40, 5)] = 255
    assert blank(picture)
    picture[:, 20:] ^= 128  # half of it is something else
    assert not blank(picture)


def test_what_a_robot_sees_of_a_match_is_not_blank():
    task = make("soccer_vision_1v1")
    driver = Simulated(task, 50)
    with driver:
        assert not any(blank(picture) for picture in driver.read().signals["camera"])


def test_what_lasts_is_told_and_counted():
    watch = PictureWatch((CAMERA, Signal("pan", (1,))))
    for k in range(30):
        watch.look({"camera": scene(k)}, 0.05 * k)
    assert watch.troubles() == {} and watch.report() == []
    for k in range(30, 30 + round(TELL / 0.05) + 2):
        assert watch.troubles() == {}
        watch.look({"camera": scene(30)}, 0.05 * k)
    assert watch.troubles() == {"camera": "it shows the very same picture for 1.0 s"}
    watch.look({"camera": scene(31)}, 10.0)
    assert watch.troubles() == {} and watch.report() == [
        "camera: it shows the very same picture on 21 of 53 control steps"
    ]
    watch.begin()
    for k in range(30):
        watch.look({"camera": np.zeros((1, 30, 40, 3), np.uint8)}, 0.05 * k)
    assert watch.troubles()["camera"].startswith("all its pixels are alike for 1.")


@given(st.sampled_from([None, np.nan, "camera", [], np.zeros(3), np.zeros((0, 2, 2, 3)), np.zeros((1, 2, 2, 3))]))
def test_it_looks_at_anything(given_):
    watch = PictureWatch((CAMERA,))
    watch.look({"camera": given_}, 0.0)
    watch.look({}, 1.0)


class Failing(Simulated):
    """A simulated robot in real time whose camera fails as `spoil` says: (picture, control step) -> picture, age."""

    def __init__(self, task, spoil):
        super().__init__(task, 1, real_time=True)
        self.spoil, self.sent = spoil, []

    def read(self):
        reading = super().read()
        picture, age = self.spoil(reading.signals["camera"], self._step) if self._step >= FROM else (..., 0.0)
        if picture is ...:
            return reading
        signals = {name: value for name, value in reading.signals.items() if name != "camera"}
        signals |= {} if picture is None else {"camera": picture}
        return Reading(signals, {**reading.age, "camera": age})

    def write(self, commands):
        self.sent.append({name: value.copy() for name, value in commands.items()})
        super().write(commands)


class Clock:
    """A clock that stands but for sleeping: real time without waiting for it."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1e-5
        return self.now

    def sleep(self, seconds):
        self.now += max(seconds, 0.0)


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    task = make("soccer_vision_1v1", opponent="still", vary=True)
    return exported(tmp_path_factory.mktemp("seeing") / "seeing.onnx", seeing(task))


def played(policy, spoil, log=None, task=None):
    driver = Failing(task or make("soccer_vision_1v1", opponent="still"), spoil)
    guard = Guard(policy.inputs, policy.outputs, Envelope.from_json(driver.task.envelope))
    clock = Clock()
    recorder = Recorder(str(log), policy, driver, guard, "onnxruntime") if log else None
    record = run(policy, driver, guard, STEPS, clock=clock, sleep=clock.sleep, log=recorder)
    if recorder is not None:
        assert not recorder.close()
    return driver, record


def moves(sent) -> bool:
    return any(np.any(value) for value in sent.values())


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda picture, step: (picture, LATE), "stale signal"),  # a frozen camera, whose stamps stand still
        (lambda picture, step: (picture, -LATE), "stale signal"),  # or are from the future
        (lambda picture, step: (None, 0.0), "stale signal"),  # dropped
        (lambda picture, step: (picture[:, :, :20], 0.0), "malformed signal"),
        (lambda picture, step: (picture[..., :1], 0.0), "malformed signal"),
        (lambda picture, step: (picture.astype(np.float32) * np.nan, 0.0), "non-finite signal"),
        (lambda picture, step: (picture.astype(np.float32) + 300.0, 0.0), "signal out of range"),
        (lambda picture, step: ("picture", 0.0), "malformed signal"),
    ],
    ids=["frozen", "future", "dropped", "size", "channels", "nan", "range", "text"],
)
def test_a_camera_that_fails_is_bridged_and_then_the_robot_stops(policy, spoil, reason):
    driver, record = played(policy, spoil)
    assert REASONS[record.stopped[0]] == reason
    assert record.interventions == {reason: STEPS - FROM} and record.trouble == ""
    hold = Envelope().hold_steps
    for step in range(FROM, FROM + hold):  # what it was told last
        for name, value in driver.sent[step].items():
            np.testing.assert_array_equal(value, driver.sent[FROM - 1][name])
    assert moves(driver.sent[FROM + hold - 1])
    assert not any(map(moves, driver.sent[FROM + hold :]))


def test_a_few_lost_pictures_are_bridged_and_it_plays_on(policy):
    driver, record = played(policy, lambda picture, step: (None, 0.0) if step % 4 else (..., 0.0))
    assert record.stopped[0] == 0 and 0 < record.interventions["stale signal"] < STEPS - FROM
    assert moves(driver.sent[-1])


@pytest.mark.parametrize("kind", ["black", "repeated"])
def test_a_covered_or_frozen_camera_is_told_and_it_plays_on(policy, kind, tmp_path):
    kept = scene()
    shown = {"black": lambda step: np.zeros_like(kept), "repeated": lambda step: kept}[kind]
    driver, record = played(policy, lambda picture, step: (shown(step), 0.0), tmp_path / "flight.mcap")
    assert record.stopped[0] == 0 and record.interventions == {} and moves(driver.sent[-1])
    says = {"black": "all its pixels are alike on 30", "repeated": "it shows the very same picture on 29"}[kind]
    assert record.pictures == [f"camera: {says} of 40 control steps"]
    (told,) = (e for e in read(str(tmp_path / "flight.mcap")).events if e.kind == "diagnostic")
    assert told.who == "policy" and told.text.startswith("camera: ") and told.text.endswith("for 1.0 s")


def test_a_car_stops_where_its_camera_fails_and_drives_on_where_it_is_covered(tmp_path):
    task = make("car_race_vision", track="oval", touch="costs")
    seen = exported(tmp_path / "seeing.onnx", seeing(task))
    driver, record = played(seen, lambda picture, step: (picture.astype(np.float32) * np.nan, 0.0), task=task)
    assert record.interventions == {"non-finite signal": STEPS - FROM}
    assert moves(driver.sent[FROM]) and not any(map(moves, driver.sent[FROM + Envelope().hold_steps :]))
    driver, record = played(seen, lambda picture, step: (np.zeros_like(picture), 0.0), task=task)
    assert record.stopped[0] == 0 and record.interventions == {} and moves(driver.sent[-1])
    assert "camera: all its pixels are alike on 30 of 40 control steps" in record.pictures
