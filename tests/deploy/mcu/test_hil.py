"""The policy on the chip, emulated or (--hil-port) real: flights, and what becomes of them on a bad line."""

import json
import os
import shutil
import threading
import tty
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy import cli, hil
from deploy.drivers.simulated import Simulated
from deploy.drivers.tasks import task_for
from deploy.guard import REASONS
from deploy.loop import run
from deploy.mcu.emulator import Chip
from deploy.mcu.policy import OnChip, Statistics
from deploy.mcu.ports import EmulatedPort, LinkError, SerialPort
from deploy.mcu.protocol import Decoder, crc16, frame
from deploy.mcu.qemu import QEMU, QemuPort
from deploy.policy_file import PolicyFile
from deploy.runtimes import Connected
from sim.spec import Signal
from sim.tasks import make
from tests.deploy.sample_policy import CALM, exported, linear_hover, small
from tests.deploy.vision_policy import seeing


@pytest.fixture(scope="module")
def policy(request, tmp_path_factory):
    given = request.config.getoption("--hil-policy")
    if given:
        return PolicyFile.load(given)
    controller = linear_hover(make("quad_hover", **CALM))
    weight = controller.network.layers[0][0]  # a little of the past, so that a step too many shows
    weight[:, 18:] = 0.001 * np.random.default_rng(0).normal(size=weight[:, 18:].shape)
    return exported(tmp_path_factory.mktemp("hil") / "p.onnx", controller)


@pytest.fixture(scope="module")
def image(policy, tmp_path_factory):
    return hil.build(policy, tmp_path_factory.mktemp("image"))


@pytest.fixture
def port(request, image):
    name = request.config.getoption("--hil-port")
    line = SerialPort(name) if name != "emulated" else EmulatedPort(Chip(image[0]), image[1].seconds)
    yield line
    line.close()


@pytest.fixture
def chip(policy, port):
    return OnChip(policy, port, patience=0.05)


@dataclass
class BadLine:
    """A port whose bytes go through `spoil` on their way; `stalled` seconds are added before anything arrives."""

    port: object
    spoil: object = staticmethod(lambda data: data)
    both_ways: bool = True
    stalled: float = 0.0
    held: bytearray = field(default_factory=bytearray)

    def write(self, data):
        self.port.write(self.spoil(data))

    def read(self, patience):
        if self.stalled:
            self.held += self.port.read(patience)
            self.stalled -= patience
            return b""
        out, self.held = bytes(self.held), bytearray()
        return out or (self.spoil(self.port.read(patience)) if self.both_ways else self.port.read(patience))

    def now(self):
        return self.port.now()

    def close(self):
        self.port.close()


def signals_of(policy, step):
    return {name: value[step % len(value)][None] for name, value in policy.vectors.inputs.items()}


def commands(chip, policy, steps):
    return np.array([chip.step(signals_of(policy, k))[policy.outputs[0].name][0] for k in range(steps)])


def test_a_hover_by_the_chip_equals_onnxruntimes(policy, chip, image):
    report = hil.evaluate(policy, chip, hil.Config(policy.path, episodes=3, seed=1), image[1])
    assert report.success == report.success_onnxruntime == 1.0
    assert report.equal
    assert report.lost == report.repeated == 0
    assert 0.0 < report.load < 0.1
    assert 0.0 < report.round_trip_p50 < 0.05


@pytest.mark.parametrize("name", ["emulated", *(["qemu"] if shutil.which(QEMU[0]) else [])])
def test_every_kind_of_chip_flies_like_onnxruntime(policy, name):
    chip, cost = hil.connect(policy, name)
    try:
        report = hil.evaluate(policy, chip, hil.Config(policy.path, name, episodes=1, seed=1), cost)
    finally:
        chip.port.close()
    assert report.equal and report.lost == 0
    assert report.instructions > 0


@pytest.mark.skipif(not shutil.which(QEMU[0]), reason="QEMU is not installed")
def test_flights_on_qemu_repeat_bit_for_bit(policy, image):
    """Whatever else this computer does: QEMU's clock is counted in instructions, and bytes come while it stands."""
    told = []
    for _ in range(2):
        chip = OnChip(policy, QemuPort(image[0], image[1].seconds), patience=0.05)
        try:
            _, flight = hil.fly(chip, Simulated(task_for(policy), 1, seed=1), 60)
        finally:
            chip.close()
        assert chip.statistics.lost == chip.statistics.repeated == 0
        told.append((chip.statistics.round_trips, {name: value.tobytes() for name, value in flight.items()}))
    assert told[0] == told[1] and len(told[0][0]) == 60


@pytest.mark.skipif(not shutil.which(QEMU[0]), reason="QEMU is not installed")
def test_qemu_that_ends_in_flight_is_an_error(policy, image):
    port = QemuPort(image[0])
    chip = OnChip(policy, port, patience=0.05)
    chip.reset()
    port._process.kill()
    with pytest.raises(LinkError, match="has ended"):
        chip.step(signals_of(policy, 0))
    port.close()


def test_without_qemu_it_says_what_needs_nothing(policy, image, monkeypatch):
    monkeypatch.setattr("deploy.mcu.qemu.arguments", lambda *_: ["/nowhere/qemu"])
    with pytest.raises(LinkError, match="qemu-system-arm is not installed; port=emulated needs nothing"):
        QemuPort(image[0])


@pytest.mark.skipif(not shutil.which("true"), reason="needs the program `true`")
def test_a_qemu_that_does_not_start_is_an_error(policy, image, monkeypatch):
    monkeypatch.setattr("deploy.mcu.qemu.arguments", lambda *_: ["true"])
    with pytest.raises(LinkError, match="qemu-system-arm does not start"):
        QemuPort(image[0])


def test_the_chip_sees_and_whoever_gets_no_answers_is_not_equal(tmp_path):
    seen = exported(tmp_path / "seeing.onnx", seeing(make("soccer_vision_1v1", opponent="still")))
    config = hil.Config(seen.path, episodes=1, seconds=0.5)
    chip, cost = hil.connect(seen, "emulated")
    report = hil.evaluate(seen, chip, config, cost)
    assert report.answered == 10 and report.lost == report.repeated == 0 and report.equal
    assert 0.04 < report.round_trip_p50 < 0.08  # a picture takes its time on the line
    assert report.shown and report.compared == 1 and 0.0 < report.command_difference < 1e-5
    chip.statistics, chip.patience = Statistics(), 0.05  # four attempts, of which none has time enough
    report = hil.evaluate(seen, chip, config, cost)
    assert report.answered == 0 and report.lost == 10 and not report.equal
    chip.close()


class Crashing(BadLine):
    """A line whose chip restarts with the second step of every flight."""

    def __init__(self, port):
        super().__init__(port)
        self.steps = 0

    def write(self, data):
        kind = chr(data[4])
        self.steps = 0 if kind == "B" else self.steps + (kind == "S")
        if self.steps == 2:
            self.port.write(frame("X", 0))
        self.port.write(data)


def test_a_chip_that_crashes_in_flight_is_not_equal(tmp_path):
    """What it said before is right. It was enough to be called equal where pictures are compared."""
    seen = exported(tmp_path / "seeing.onnx", seeing(make("soccer_vision_1v1", opponent="still")))
    chip, cost = hil.connect(seen, "emulated")
    chip.port = Crashing(chip.port)
    report = hil.evaluate(seen, chip, hil.Config(seen.path, episodes=1, seconds=0.5), cost)
    chip.close()
    assert report.answered == 1 and report.compared == 0 and not report.whole and not report.equal
    assert report.refused == {"it restarted or heard nothing for 200 ms": 9}
    assert "steps REFUSED by the chip 9: it restarted or heard nothing for 200 ms" in hil.describe(report, seen)


@pytest.mark.parametrize("line", [BadLine, Crashing])
def test_the_command_fails_where_the_chip_did(policy, port, image, monkeypatch, capsys, line):
    def connect(*_, **__):
        chip = OnChip(policy, port, patience=0.05)
        chip.port = line(port)
        return chip, image[1]

    monkeypatch.setattr(hil, "connect", connect)
    words = [f"policy={policy.path}", "episodes=1", "seed=1", "seconds=2"]
    if line is BadLine:
        assert cli.call(hil.main, words) == 0
    else:
        with pytest.raises(SystemExit) as ended:
            cli.call(hil.main, words)
        assert ended.value.code == 1
    assert ("REFUSED" in capsys.readouterr().out) == (line is Crashing)


def test_commands_without_limits_are_compared_too():
    """As a share of an infinite range every difference was nothing, and every chip equal."""
    policy = SimpleNamespace(outputs=(Signal("torque", (1,), "Nm"), Signal("speed", (1,), low=-2.0, high=2.0)))
    flights = [{"torque": np.full((3, 1, 1), x, np.float32), "speed": np.zeros((3, 1, 1))} for x in (0.0, 0.5)]
    assert hil._differences(policy, *flights) == (0.5, 0.0)


def test_what_the_chip_clips_is_no_difference():
    """A graph need not keep to the limits of its file; where its commands are used, they are clipped as on the chip."""
    speed = Signal("speed", (2,), low=-2.0, high=2.0)
    flights = [{"speed": np.array([[value]], np.float32)} for value in ([2.0, 0.5], [2.7, 0.5])]
    assert hil._differences(SimpleNamespace(outputs=(speed,)), *flights) == (0.0, 0.0)

    def saying(command):
        policy = SimpleNamespace(path="", robot="", rate_hz=1.0, vectors=None, inputs=(), outputs=(speed,))
        policy.step, policy.statistics = lambda _: {"speed": command}, Statistics()
        return policy

    sent = flights[1]["speed"][0]
    for told, apart in (([2.0, 0.5], 0.0), ([2.0, 0.9], 0.1)):
        listening = hil.Listening(saying(sent), saying(np.array([told], np.float32)))
        assert listening.step({})["speed"] is sent  # as onnxruntime said it
        assert listening.difference == pytest.approx(apart)


def test_a_chip_without_a_learner_says_so(chip):
    chip.lesson = (0, 10)
    with pytest.raises(LinkError, match="does not learn: its image was built without"):
        chip.reset()
    with pytest.raises(LinkError, match="does not say what it learned"):
        chip.learned()


def test_the_test_vectors_come_back_over_the_line(policy, chip):
    chip.reset()
    for step in range(policy.vectors.steps):
        got = chip.step(signals_of(policy, step))
        for signal in policy.outputs:
            error = np.abs(got[signal.name][0] - policy.vectors.outputs[signal.name][step]).max()
            assert error <= policy.vectors.tolerance * (signal.high - signal.low)


def test_a_chip_announces_itself_until_it_is_spoken_to(policy, image):
    port = EmulatedPort(Chip(image[0]))
    heard = b"".join(port.read(0.01) for _ in range(100))
    frames = Decoder(100).feed(heard)
    assert 5 <= len(frames) <= 11  # ten times in this second
    assert {kind for kind, _, _ in frames} == {"R"}
    assert all(content.endswith(policy.sha256.encode()) for _, _, content in frames)
    OnChip(policy, port)
    assert port.read(0.5) == b""


def spoiler(rng, dropped, doubled, changed, inserted):
    def spoil(data):
        out = bytearray()
        for byte in data:
            kind = rng.random()
            if kind < dropped:
                continue
            out += bytes([byte, byte]) if kind < dropped + doubled else bytes([byte])
            if rng.random() < changed:
                out[-1] ^= 1 << rng.integers(8)
            if rng.random() < inserted:
                out += bytes([0xA5, 0x5A, int(rng.integers(256))])
        return bytes(out)

    return spoil


@settings(max_examples=15)
@given(
    rates=st.tuples(*[st.sampled_from([0.0, 0.001, 0.01])] * 4),
    seed=st.integers(0, 999),
)
def test_on_a_bad_line_a_command_is_right_or_missing(policy, image, rates, seed):
    """Dropped, doubled, changed and inserted bytes, both ways: no step is made twice, none with damaged signals."""
    port = EmulatedPort(Chip(image[0]))
    chip = OnChip(policy, port, patience=0.2)
    chip.reset()
    want = commands(chip, policy, 25)
    chip.reset()
    chip.port = BadLine(port, spoiler(np.random.default_rng(seed), *rates))
    lost_before = chip.statistics.lost
    got = commands(chip, policy, 25)
    missing = np.isnan(got).any(axis=1)
    first = int(np.argmax(missing)) if missing.any() else len(got)
    np.testing.assert_array_equal(got[:first], want[:first])
    assert chip.statistics.lost - lost_before + sum(chip.statistics.faults.values()) == missing.sum()


def test_a_lost_answer_does_not_make_the_policy_step_twice(policy, port, chip):
    chip.reset()
    want = commands(chip, policy, 10)
    chip.reset()
    heard = []

    def every_other(data):
        heard.append(data)
        return b"" if data and len(heard) % 2 else data

    chip.port = BadLine(port)
    chip.port.spoil = lambda data: data
    original = chip.port.read
    chip.port.read = lambda patience: every_other(original(patience))
    np.testing.assert_array_equal(commands(chip, policy, 10), want)
    assert chip.statistics.repeated >= 10


class Flight:
    """One flight by the chip in which `event` happens at control step `at`."""

    def __init__(self, policy, chip, event, at=100):
        self.driver = Simulated(task_for(policy), 1, seed=1)
        self.step, self.event, self.at = 0, event, at
        write = self.driver.write

        def written(values):
            write(values)
            self.step += 1
            if self.step == self.at:
                self.event()

        self.driver.write = written
        self.record = run(chip, self.driver, steps=200)
        self.sent = self.driver.flight()["motor_command"][:, 0]

    def assert_safe_after(self, policy):
        """Held for five steps, then the safe command for good."""
        held = self.sent[self.at : self.at + 5]
        np.testing.assert_array_equal(held, np.repeat(self.sent[self.at - 1 : self.at], 5, axis=0))
        assert (self.sent[self.at + 5 :] == 0.0).all()
        assert np.isfinite(self.sent).all()
        assert [REASONS[code] for code in self.record.stopped] == ["non-finite command"]


def test_a_line_that_goes_dead_ends_in_the_safe_command(policy, port, chip):
    line = chip.port = BadLine(port)

    def die():
        line.spoil = lambda data: b""

    Flight(policy, chip, die).assert_safe_after(policy)
    assert chip.statistics.lost == 100


def test_a_chip_that_restarts_in_flight_ends_in_the_safe_command_and_flies_again(policy, port, chip):
    Flight(policy, chip, lambda: port.write(frame("X", 0))).assert_safe_after(policy)
    assert "it restarted or heard nothing for 200 ms" in chip.statistics.faults
    again = Flight(policy, chip, lambda: None)
    assert not again.record.interventions


def test_a_chip_that_hears_nothing_for_200_ms_wants_a_new_flight(policy, port, chip):
    chip.reset()
    port.read(0.5)  # a flight may begin at any time
    assert np.isfinite(commands(chip, policy, 3)).all()
    port.read(0.15)
    assert np.isfinite(commands(chip, policy, 3)).all()
    port.read(0.25)
    assert np.isnan(commands(chip, policy, 3)).all()
    chip.reset()
    assert np.isfinite(commands(chip, policy, 3)).all()


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_one(policy, port, chip):
    chip.reset()
    line = chip.port = BadLine(port)
    first = chip.step(signals_of(policy, 0))
    line.stalled = 0.08
    late = chip.step(signals_of(policy, 1))
    line.stalled = 0.0
    after = chip.step(signals_of(policy, 2))
    assert np.isfinite(first["motor_command"]).all() and np.isnan(late["motor_command"]).all()
    chip.reset()
    np.testing.assert_array_equal(commands(chip, policy, 3)[2], after["motor_command"][0])


def test_signals_that_are_not_finite_are_refused_by_the_chip(policy, chip):
    chip.reset()
    broken = signals_of(policy, 0)
    broken["position"] = np.full((1, 3), np.nan, np.float32)
    assert np.isnan(chip.step(broken)["motor_command"]).all()
    assert chip.statistics.faults == {"a signal or a command is not finite": 1}
    assert np.isfinite(commands(chip, policy, 2)).all()


def test_another_policy_on_the_chip_is_refused(policy, image, tmp_path):
    other = exported(tmp_path / "p.onnx", small())
    with pytest.raises(LinkError, match="another policy"):
        OnChip(other, EmulatedPort(Chip(image[0])))


def test_a_chip_that_computes_wrongly_is_refused(policy, image):
    broken = Chip(image[0])
    weights = max((size, at) for name, (at, size) in broken.sizes.items() if name.startswith("weights_"))[1]
    broken.write(weights, np.float32([9.0]).tobytes())
    with pytest.raises(LinkError, match="self-test failed"):
        OnChip(policy, EmulatedPort(broken))


def test_nobody_on_the_line_is_an_error(policy):
    class Silence:
        time = 0.0

        def write(self, data):
            pass

        def read(self, patience):
            self.time += patience
            return b""

        def now(self):
            return self.time

    with pytest.raises(LinkError, match="no chip answers"):
        OnChip(policy, Silence())
    with pytest.raises(LinkError, match="/dev/nothing: No such file"):
        SerialPort("/dev/nothing")


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=12).map(lambda b: ("", b)), st.tuples(st.sampled_from("RSBC"), st.binary(max_size=30))
        )
    )
)
def test_frames_are_found_among_anything(pieces):
    """Garbage may hide a frame that follows it only by claiming to be the beginning of a longer one."""
    stream, frames = bytearray(), []
    for number, (kind, payload) in enumerate(pieces):
        if kind:
            frames.append((kind, number % 256, payload))
            stream += frame(kind, number % 256, payload)
        else:
            stream += payload.replace(b"\xa5", b"\x00")
    decoder = Decoder(30)
    assert [f for byte in stream for f in decoder.feed(bytes([byte]))] == frames
    assert Decoder(30).feed(bytes(stream)) == frames


def test_the_checksum_is_the_standard_one():
    assert crc16(b"123456789") == 0x29B1


def test_a_serial_device_carries_a_flight(policy, image):
    """A pseudo-terminal with the emulated board at its other end."""
    master, slave = os.openpty()
    tty.setraw(master)
    board, done = EmulatedPort(Chip(image[0])), threading.Event()

    def pump():
        device = SerialPort.__new__(SerialPort)
        device._file = master
        while not done.is_set():
            board.write(device.read(0.001))
            answer = board.read(0.001)
            if answer:
                os.write(master, answer)

    thread = threading.Thread(target=pump)
    thread.start()
    try:
        line = SerialPort(os.ttyname(slave))
        chip = OnChip(policy, line, patience=5.0)
        chip.reset()
        assert np.isfinite(commands(chip, policy, 20)).all()
        assert 0.0 < np.median(chip.statistics.round_trips) < 5.0
        assert isinstance(chip, Connected) and not isinstance(policy, Connected)
        chip.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            line.write(b"x")
    finally:
        done.set()
        thread.join()
        os.close(master)
        os.close(slave)


def test_the_command_reports(policy, tmp_path, capsys):
    path = tmp_path / "report.json"
    assert cli.call(hil.main, [f"policy={policy.path}", "episodes=2", "seed=1", f"json={path}"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("2 flights of 5 s at 100 Hz by the chip on emulated")
    assert "equal within" in shown and "NOT EQUAL" not in shown
    report = json.loads(path.read_text())
    assert report["equal"] and report["episodes"] == report["compared"] == 2 and report["instructions"] > 0
    assert 1_000 < report["flash"] < 100_000 and 0 < report["memory"] < 10_000 and 0 < report["stack"] < 1_000
    assert f"image: {report['flash']} bytes of flash" in shown


def test_flights_that_nobody_wins_say_nothing_of_the_chip(policy, chip, image):
    report = hil.evaluate(policy, chip, hil.Config(policy.path, episodes=1, seconds=0.1), image[1])
    assert report.success == 0.0 and report.compared == 0 and not report.equal
    assert "chip and onnxruntime were not compared: no flight succeeded" in hil.describe(report, policy)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("episodes=0", "needs episodes >= 1"),
        ("port=/dev/nothing", "port=emulated needs no hardware"),
        ("baud=1", "unknown key 'baud'"),
    ],
)
def test_mistakes_get_one_short_line(policy, capsys, argument, message):
    assert cli.call(hil.main, [f"policy={policy.path}", argument]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
