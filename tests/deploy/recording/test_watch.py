import contextlib
import fcntl
import itertools
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import rerun as rr
from hypothesis import given, settings
from hypothesis import strategies as st
from rerun.chunk import RrdReader

from deploy import cli, watch
from deploy.drivers.simulated import Simulated
from deploy.guard import REASONS, Guard
from deploy.loop import run
from deploy.recording import flight_log
from deploy.recording.flight_log import Flight, Layout
from deploy.recording.page import Page
from deploy.recording.recorder import Recorder
from deploy.recording.rerun import ARM, Picture
from sim.spec import Signal
from sim.tasks import make
from tests.deploy.sample_policy import CALM, exported, linear_hover

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return exported(tmp_path_factory.mktemp("policy") / "p.onnx", linear_hover())


class Faulty(Simulated):
    """Loses the second robot's position for good after 40 steps."""

    def read(self):
        reading = super().read()
        position = reading.signals["position"].copy()
        position[1:, 0] = np.nan if self._step >= 40 else position[1:, 0]
        return replace(reading, signals={**reading.signals, "position": position})


def begun(policy, path, robots=1):
    driver = Faulty(make("quad_hover", **CALM), robots)
    guard = Guard(policy.inputs, policy.outputs)
    recorder = Recorder(str(path), policy, driver, guard, "onnxruntime")
    return recorder, lambda steps: run(policy, driver, guard, steps, log=recorder)


def recorded(policy, path, robots=1, steps=100):
    recorder, fly = begun(policy, path, robots)
    fly(steps)
    assert recorder.close() == ""
    return flight_log.read(str(path))


def watched(*keys):
    return cli.call(watch.main, keys)


def content(path):
    """What is in a file of Rerun's: by entity and component, (ns since the beginning, or None where static; values)."""
    found = {}
    for chunk in RrdReader(path).stream():
        batch = chunk.to_record_batch()
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        times = None if chunk.is_static else columns["time"].cast("int64").to_pylist()
        for name in columns.keys() - {"rerun.controls.RowId", "time", "stamp"}:
            before = found.setdefault(chunk.entity_path, {}).get(name)
            rows = columns[name].to_pylist()
            found[chunk.entity_path][name] = (times, rows) if before is None else (before[0] + times, before[1] + rows)
    return found


def values(found, entity, component):
    """(ns, values) in the order of time."""
    times, rows = found[entity][component]
    order = np.argsort(times, kind="stable")
    return np.asarray(times)[order], [rows[k] for k in order]


def test_everything_in_the_log_is_in_the_picture(policy, tmp_path, capsys):
    flight = recorded(policy, tmp_path / "f.mcap", robots=2)
    assert watched(f"log={tmp_path / 'f.mcap'}", f"out={tmp_path / 'f.rrd'}") == 0
    assert "100 control steps, 2 robot(s)\n" in capsys.readouterr().out
    found = content(tmp_path / "f.rrd")
    stamps = np.round(flight.time * 1e9).astype(np.int64)
    parts = [f"signals/{s.name}" for s in policy.inputs] + [f"commands/motor_command/{p}" for p in ("wanted", "sent")]
    for k, part in itertools.product(range(2), parts):
        times, rows = values(found, f"/robot_{k}/{part}", "Scalars:scalars")
        np.testing.assert_array_equal(times, stamps)
        field = f"{part.split('/')[-1]}.motor_command" if "commands" in part else part.replace("/", ".")
        np.testing.assert_array_equal(np.array(rows), flight.values(field)[:, k].reshape(100, -1))
    _, ages = values(found, "/robot_1/ages", "Scalars:scalars")
    assert np.shape(ages) == (100, len(policy.inputs))
    assert len(values(found, "/late", "Scalars:scalars")[0]) == 100
    robots = {f"/robot_{k}/{part}" for k in range(2) for part in (*parts, "ages", "attitude", "tracking_error")}
    robots |= {f"/robot_{k}/guard/{part}" for k in range(2) for part in ("verdict", "reason", "log")}
    drawn = {"", "/arms", "/rotors", "/thrust"}
    robots |= {f"/world/robot_{k}{part}" for k in range(2) for part in drawn}
    robots |= {f"/world/{part}/robot_{k}" for k in range(2) for part in ("path", "target")}
    assert found.keys() == robots | {"/late", "/flight/log", "/flight/state", "/world", "/world/axes", "/__properties"}


def test_poses_are_those_of_the_log_and_stop_where_nobody_knows_them(policy, tmp_path):
    flight = recorded(policy, tmp_path / "f.mcap", robots=2)
    watched(f"log={tmp_path / 'f.mcap'}", f"out={tmp_path / 'f.rrd'}")
    found = content(tmp_path / "f.rrd")
    for k, known in ((0, 100), (1, 40)):
        position = flight.values("signals.position")[:known, k]
        _, places = values(found, f"/world/robot_{k}", "Transform3D:translation")
        np.testing.assert_array_equal(np.array(places)[:, 0], position)
        _, turned = values(found, f"/world/robot_{k}", "Transform3D:mat3x3")
        columns = np.array(turned).reshape(-1, 3, 3)  # Rerun's matrices are stored by column
        rotation = flight.values("signals.rotation")[:known, k].reshape(-1, 3, 3)
        np.testing.assert_array_equal(columns.transpose(0, 2, 1), rotation)
        times, strips = values(found, f"/world/path/robot_{k}", "LineStrips3D:strips")
        np.testing.assert_array_equal(times, 10_000_000 * np.arange(0, known, 4))
        lines = np.array(strips)[:, 0]  # (rows, 2, 3): each begins where the one before ends
        np.testing.assert_array_equal(lines[1:, 0], lines[:-1, 1])
        np.testing.assert_array_equal(lines[:, 1], position[::4])
    _, thrust = values(found, "/world/robot_0/thrust", "Arrows3D:vectors")
    sent = flight.values("sent.motor_command")[:, 0]
    np.testing.assert_allclose(np.array(thrust)[:, :, 2], 2.0 * ARM * sent, rtol=1e-6)
    _, (colours,) = found["/world/robot_0/rotors"]["Ellipsoids3D:colors"]
    assert [colour == 0xFFFFFFFF for colour in colours] == [True, False, False, True]  # the front ones are white
    _, targets = values(found, "/world/target/robot_1", "Points3D:positions")
    np.testing.assert_array_equal(np.array(targets)[:, 0], flight.values("signals.target_position")[:, 1])


def test_what_the_guard_did_is_told_when_it_changes(policy, tmp_path):
    recorded(policy, tmp_path / "f.mcap", robots=2)
    watched(f"log={tmp_path / 'f.mcap'}", f"out={tmp_path / 'f.rrd'}")
    found = content(tmp_path / "f.rrd")

    def told(entity, component):
        times, rows = values(found, entity, component)
        return [(t // 10_000_000, row[0]) for t, row in zip(times, rows, strict=True)]

    assert told("/robot_0/guard/verdict", "StateChange:state") == [(0, "pass")]
    assert told("/robot_1/guard/verdict", "StateChange:state") == [(0, "pass"), (40, "hold"), (45, "safe")]
    assert told("/robot_1/guard/reason", "StateChange:state") == [(0, "none"), (40, "non-finite signal")]
    texts = [(0, "pass"), (40, "hold: non-finite signal"), (45, "safe: non-finite signal")]
    assert told("/robot_1/guard/log", "TextLog:text") == texts
    assert told("/robot_1/guard/log", "TextLog:level") == [(0, "INFO"), (40, "WARN"), (45, "ERROR")]


def test_the_screen_is_laid_out(policy, tmp_path):
    recorded(policy, tmp_path / "f.mcap", robots=2)
    watched(f"log={tmp_path / 'f.mcap'}", f"out={tmp_path / 'f.rrd'}")
    reader = RrdReader(tmp_path / "f.rrd")
    (blueprint,) = reader.blueprints()
    views = []
    for chunk in reader.stream(store=blueprint):
        batch = chunk.to_record_batch()
        if "ViewBlueprint:class_identifier" in batch.schema.names:
            views += [kind for row in batch["ViewBlueprint:class_identifier"].to_pylist() for kind in row]
    plots = 2 * (len(policy.inputs) + 3)  # position and target share one, the rotation is three angles, and the error
    assert sorted(views) == ["3D", "StateTimeline", "TextLog", *["TimeSeries"] * plots]


def wait_for(condition, seconds=30.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_growing_log_is_followed(policy, tmp_path):
    path = tmp_path / "f.mcap"
    recorder, fly = begun(policy, path)
    pieces = flight_log.follow(str(path), every=0.01)
    fly(60)
    early = list(itertools.takewhile(lambda piece: not len(piece.steps), pieces))
    assert not any(piece.complete for piece in early)
    fly(60)
    assert recorder.close() == ""
    rest = list(pieces)
    assert [piece.complete for piece in rest] == [False] * (len(rest) - 1) + [True]
    whole = flight_log.read(str(path)).steps
    assert len(whole) == 120
    seen = b"".join(piece.steps.tobytes() for piece in rest)
    assert 0 < len(seen) < whole.nbytes  # what was there after 60 steps was in the piece that ended `early`
    assert whole.tobytes().endswith(seen)


def test_a_log_is_no_longer_followed_once_its_writer_is_dead(policy, tmp_path, capsys):
    path = tmp_path / "f.mcap"
    recorder, fly = begun(policy, path)
    fly(100)
    with closing(flight_log.Reader(str(path))) as reader:
        wait_for(lambda: (piece := reader.piece(last=False)) and len(piece.steps))
    recorder._writer.kill()
    assert recorder.close() != ""
    assert watched(f"log={path}", f"out={tmp_path / 'f.rrd'}") == 0
    known = len(flight_log.read(str(path)).steps)
    assert f"{known} control steps, 1 robot(s); the end of the file is missing\n" in capsys.readouterr().out
    times, notes = values(content(tmp_path / "f.rrd"), "/note", "TextLog:text")
    assert [note for (note,) in notes] == [
        "here the log was cut short: its end is missing",
        "the log has no end: the controller died, or the machine lost power, or its log could not be written",
    ]
    assert set(times) == {10_000_000 * (known - 1)}


@pytest.mark.timed
def test_a_flight_is_watched_while_another_process_flies_it(policy, tmp_path, capsys):
    path = tmp_path / "f.mcap"
    keys = [f"policy={policy.path}", "real_time=true", "seconds=3", "settle=0", f"log={path}"]
    pilot = subprocess.Popen([sys.executable, "-m", "deploy.run", *keys], cwd=ROOT, stdout=subprocess.DEVNULL)
    wait_for(lambda: path.exists() and path.stat().st_size)
    assert watched(f"log={path}", f"out={tmp_path / 'f.rrd'}") == 0
    assert pilot.wait(timeout=120) == 0
    out = capsys.readouterr().out
    assert "following the log until the flight ends" in out
    assert "300 control steps, 1 robot(s)\n" in out
    flight = flight_log.read(str(path))
    times, rows = values(content(tmp_path / "f.rrd"), "/robot/signals/position", "Scalars:scalars")
    np.testing.assert_array_equal(times, np.round(flight.time * 1e9))
    np.testing.assert_array_equal(np.array(rows), flight.values("signals.position")[:, 0])


@pytest.fixture(scope="module")
def log(policy, tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "f.mcap"
    recorded(policy, path, robots=2)
    return path


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.floats(0.0, 1.0), max_size=6))
def test_pieces_cut_anywhere_make_the_whole(log, tmp_path_factory, cuts):
    flight, whole = flight_log.read(str(log)), log.read_bytes()
    path = tmp_path_factory.mktemp("growing") / "f.mcap"
    path.touch()
    reader, steps, begin = flight_log.Reader(str(path)), b"", 0
    for end in [*sorted({round(cut * (len(whole) - 1)) for cut in cuts}), len(whole)]:
        with path.open("ab") as file:
            file.write(whole[begin:end])
        begin, piece = end, reader.piece(last=False)
        assert (piece is not None and piece.complete) == (end == len(whole))
        steps += b"" if piece is None else piece.steps.tobytes()
        assert flight.steps.tobytes().startswith(steps)
    assert len(steps) == flight.steps.nbytes
    reader.close()


def test_the_lock_tells_whether_more_will_come(log, tmp_path):
    path = tmp_path / "f.mcap"
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(log.read_bytes()[:-1])
        file.flush()
        pieces = flight_log.follow(str(path), every=0.0)
        assert [next(pieces).complete for _ in range(3)] == [False] * 3
        file.write(log.read_bytes()[-1:])
    assert next(pieces).complete
    assert list(pieces) == []


def invented(signals, kinds, steps=60):
    """A flight of one robot with any signals, in random values."""
    layout = Layout(signals, kinds, (Signal("steer", (1,), "rad", low=-1.0, high=1.0),))
    table = np.zeros((steps, 1), layout.dtype)
    rng = np.random.default_rng(0)
    for s in signals:
        kind = np.dtype(kinds.get(s.name, "f4"))
        drawn = rng.integers(0, 255, (steps, 1, s.size)) if kind.kind in "iu" else rng.normal(size=(steps, 1, s.size))
        table[f"signals.{s.name}"] = drawn.astype(kind)
    stamp = 1_700_000_000_000_000_000 + 20_000_000 * np.arange(steps)
    table["stamp.sec"][:, 0], table["stamp.nanosec"][:, 0] = np.divmod(stamp, 1_000_000_000)
    about = {"robots": 1, "rate_hz": 50.0, "reasons": REASONS}
    return Flight("f.mcap", about, b"", layout, table, True)


def drawn(flight, path):
    recording = rr.RecordingStream("sim2metal")
    recording.save(path)
    Picture(recording, flight).add(flight)
    recording.disconnect()
    return content(path)


def test_any_signals_are_shown_without_a_pose(tmp_path):
    signals = (
        Signal("camera", (6, 8, 3)),
        Signal("range", (90,), "m", "body", max_age=0.2),
        Signal("speed", (1,), "m/s", "body"),
        Signal("word", (50,)),
    )
    flight = invented(signals, {"camera": "u1", "word": "i8"})
    found = drawn(flight, tmp_path / "f.rrd")
    times, images = values(found, "/robot/signals/camera", "Image:buffer")
    np.testing.assert_array_equal(times, 40_000_000 * np.arange(30))
    np.testing.assert_array_equal(np.array(images).reshape(30, 6, 8, 3), flight.values("signals.camera")[::2, 0])
    for name in ("range", "word"):
        _, bars = values(found, f"/robot/signals/{name}", "BarChart:values")
        (heights,) = {len(bar[0]["buffer"]) for bar in bars}
        assert (len(bars), heights) == (30, 90 if name == "range" else 50)
    assert len(values(found, "/robot/signals/speed", "Scalars:scalars")[0]) == 60
    _, (names,) = found["/robot/ages"]["SeriesLines:names"]
    assert names[1] == "range, at most 0.2 s"
    assert {entity for entity in found if entity.startswith("/world")} == {"/world", "/world/axes"}


def test_a_robot_that_is_no_quadrotor_is_a_box(tmp_path):
    signals = (Signal("position", (3,), "m", "world"), Signal("rotation", (9,), "1", "body->world"))
    found = drawn(invented(signals, {}), tmp_path / "f.rrd")
    drawn_of_it = {entity for entity in found if entity.startswith("/world/") and entity != "/world/axes"}
    assert drawn_of_it == {"/world/robot", "/world/robot/body", "/world/path/robot"}


def test_what_was_written_before_a_sigterm_is_whole(policy, tmp_path):
    recorder, fly = begun(policy, tmp_path / "f.mcap")
    fly(100)
    command = [sys.executable, "-m", "deploy.watch", f"log={tmp_path / 'f.mcap'}", f"out={tmp_path / 'f.rrd'}"]
    watcher = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    told = [watcher.stdout.readline() for _ in range(3)]
    assert told[2] == "following the log until the flight ends; Ctrl-C ends only the watching\n"
    watcher.send_signal(signal.SIGTERM)
    assert watcher.communicate(timeout=120.0)[0] == "no longer watching\n"
    assert watcher.returncode == 0
    recorder.close()
    known = RrdReader(tmp_path / "f.rrd").store()  # which needs the end of the file
    assert "/robot/signals/position" in known.summary()


def test_errors_say_what_to_do(policy, tmp_path, capsys, monkeypatch):
    path = tmp_path / "f.mcap"
    recorded(policy, path, steps=5)
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    (tmp_path / "text.mcap").write_text("this is not a log")
    (tmp_path / "empty.mcap").touch()
    for keys, message in (
        ([], "log=... is missing"),
        (["log=none.mcap"], "none.mcap: cannot be read: No such file"),
        ([f"log={tmp_path / 'text.mcap'}"], "not an MCAP file"),
        ([f"log={tmp_path / 'empty.mcap'}"], "not a flight log of sim2metal"),
        ([f"log={path}"], "no display here: web=true"),
        ([f"log={path}", f"out={path}"], "ends in .rrd"),
        ([f"log={path}", "out=f.rrd", "web=true"], "choose one"),
        ([f"log={path}", f"out={tmp_path / 'none' / 'f.rrd'}"], "No such file or directory"),
        ([f"log={path}", "web=true", "port=0"], "needs 1 to 65535"),
        ([f"log={path}", "web=true", "host=192.0.2.1"], "192.0.2.1 port 9090: Cannot assign requested address"),
    ):
        assert watched(*keys) == 2
        shown = capsys.readouterr().err
        assert shown.startswith("error: ") and message in shown
    monkeypatch.setitem(sys.modules, "rerun", None)
    assert watched(f"log={path}", "out=f.rrd") == 2
    assert "pip install 'sim2metal[watch]'" in capsys.readouterr().err


def test_where_there_is_a_display_the_window_is_opened(policy, tmp_path, capsys, monkeypatch):
    path, started, held = tmp_path / "f.mcap", [], socket.socket()
    recorded(policy, path, steps=5)

    def start(command, **settings):
        started.append(command)
        held.bind(("127.0.0.1", int(command[command.index("--port") + 1])))
        held.listen()

    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("deploy.recording.page.subprocess.Popen", start)
    with held:
        address = watch.window()
    (words,) = started
    module, *options = words[words.index("-m") + 1 :]
    assert (module, options[:2]) == ("rerun", ["--bind", "127.0.0.1"])
    assert address == f"rerun+http://127.0.0.1:{options[3]}/proxy"
    monkeypatch.setattr(watch, "window", lambda: "rerun+http://127.0.0.1:1/proxy")
    monkeypatch.setattr(rr.RecordingStream, "connect_grpc", lambda stream, where: stream.save(tmp_path / "f.rrd"))
    assert watched(f"log={path}") == 0
    assert "in the window of Rerun" in capsys.readouterr().out


def test_attitude_and_tracking_error_are_numbers_that_people_know(policy, tmp_path, capsys):
    flight = recorded(policy, tmp_path / "f.mcap")
    assert watched(f"log={tmp_path / 'f.mcap'}", f"out={tmp_path / 'f.rrd'}") == 0
    found = content(tmp_path / "f.rrd")
    _, (names,) = found["/robot/attitude"]["SeriesLines:names"]
    assert names == ["roll", "pitch", "yaw"]
    _, angles = values(found, "/robot/attitude", "Scalars:scalars")
    roll, pitch, yaw = np.radians(np.array(angles)).T
    matrix = flight.values("signals.rotation")[:, 0].reshape(-1, 3, 3)
    np.testing.assert_allclose(matrix[:, 2, 0], -np.sin(pitch), atol=1e-6)
    np.testing.assert_allclose(matrix[:, 2, 1], np.sin(roll) * np.cos(pitch), atol=1e-6)
    np.testing.assert_allclose(matrix[:, 1, 0], np.sin(yaw) * np.cos(pitch), atol=1e-6)
    _, errors = values(found, "/robot/tracking_error", "Scalars:scalars")
    apart = flight.values("signals.target_position")[:, 0] - flight.values("signals.position")[:, 0]
    want = np.linalg.norm(apart.astype(np.float64), axis=1)
    np.testing.assert_allclose(np.array(errors)[:, 0], want, rtol=1e-6)
    told = capsys.readouterr().out
    rms = np.sqrt((want**2).mean())
    assert f"off the target by {rms:.3f} m (RMS), {want.max():.3f} m at most, {want[-1]:.3f} m at the end\n" in told
    assert "the end: the flight was over (the controller)\n" in told
    assert f"tilt at most {np.degrees(np.arccos(matrix[:, 2, 2].min())):.0f} degrees" in told


def test_what_happened_is_told_where_it_happened(policy, tmp_path):
    path = tmp_path / "f.mcap"
    recorder, fly = begun(policy, path)
    recorder.event("armed", "by hand", "\x1b[31mthe supervisor")
    fly(50)
    recorder.event("rung", "land")
    recorder.event("diagnostic", "the wind")
    assert recorder.close("a second publisher of commands", "the robot") == ""
    watched(f"log={path}", f"out={tmp_path / 'f.rrd'}")
    found = content(tmp_path / "f.rrd")
    times, texts = values(found, "/flight/log", "TextLog:text")
    assert [text for (text,) in texts] == [
        "armed: by hand (\\x1b[31mthe supervisor)",
        "rung: land",
        "diagnostic: the wind",
        "end: a second publisher of commands (the robot)",
    ]
    assert times.tolist() == [0, *[500_000_000] * 3]
    _, levels = values(found, "/flight/log", "TextLog:level")
    assert [level for (level,) in levels] == ["INFO", "WARN", "WARN", "INFO"]
    assert len(values(found, "/flight/state", "StateChange:state")[0]) == 3


def listening(process):
    """Where a process listens: {(ip, port)}, as the kernel writes them, IPv4 and IPv6."""
    own = set()
    for entry in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):
            own.add(entry.readlink().name)
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in own:
                host, port = local.split(":")
                found.add((host, int(port, 16)))
    return found


def asked(address, method="GET", data=None, follow=True, **headers):
    """(status, content, headers)."""
    request = urllib.request.Request(address, data=data, headers=headers, method=method)
    handlers = [urllib.request.ProxyHandler({})] + ([] if follow else [Stays()])
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=10) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), error.headers


class Stays(urllib.request.HTTPRedirectHandler):
    """Follows nobody."""

    def redirect_request(self, *_):
        return None


@pytest.fixture(scope="module")
def page(log):
    """deploy.watch web=true in a process of its own: (its address, what it told, the process)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "deploy.watch", f"log={log}", "web=true", f"port={port}"]
    environment = {"PATH": "/usr/bin:/bin"}  # and no display: no browser is opened
    server = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    told = [server.stdout.readline() for _ in range(6)]
    yield told[1].strip(), told, listening(server.pid), port
    server.send_signal(signal.SIGINT)
    assert server.communicate(timeout=120.0)[0].endswith("no longer watching\n")
    assert server.returncode == 0


def test_the_page_is_on_this_machine_only(page):
    address, told, found, port = page
    assert re.fullmatch(rf"http://127\.0\.0\.1:{port}/[A-Za-z0-9_-]{{20,}}/", address)
    assert told[2] == "Ctrl-C ends it\n"
    assert found == {("0100007F", port)}


def test_the_page_shows_the_recording_to_who_knows_its_token(page, tmp_path, log):
    address, *_ = page
    status, _, headers = asked(address, follow=False)
    assert status == 302
    data = urllib.parse.unquote(headers["Location"].partition("?url=")[2])
    assert data == f"{address}flight.rrd"
    status, shown, headers = asked(address)
    assert status == 200 and b"re_viewer.js" in shown
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    assert asked(f"{address}re_viewer_bg.wasm")[1][:4] == b"\0asm"
    status, recording, _ = asked(data)
    (tmp_path / "f.rrd").write_bytes(recording)
    drawn_here, drawn_there = tmp_path / "here.rrd", content(tmp_path / "f.rrd")
    watched(f"log={log}", f"out={drawn_here}")
    assert drawn_there.keys() == content(drawn_here).keys()


def test_the_page_is_nothing_to_anybody_else(page):
    address, *_ = page
    root = address.rsplit("/", 2)[0]
    token = address.rsplit("/", 2)[1]
    for place in ("/", "/flight.rrd", "/index.html", f"/{token[:-1]}/", f"/{token}x/flight.rrd", "//flight.rrd"):
        assert asked(root + place)[0] == 404
    for place in ("../../etc/passwd", "%2e%2e/flight.rrd", "/etc/passwd", "f.mcap"):
        assert asked(address + place)[0] == 404
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
        assert asked(address, method, b"x" * 10)[0] == 501
    assert asked(address, Host="evil.example/@x", follow=False)[0] == 400


def test_a_taken_port_is_named(log, tmp_path):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        keys = [f"log={log}", "web=true", f"port={port}"]
        command = [sys.executable, "-m", "deploy.watch", *keys]
        refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert refused.stderr == (
        f"error: 127.0.0.1 port {port}: Address already in use; choose others with host=... port=...\n"
    )


def test_a_growing_recording_is_served_until_it_ends(tmp_path, monkeypatch):
    file = tmp_path / "f.rrd"
    file.write_bytes(b"first ")
    monkeypatch.setattr("deploy.recording.page.viewer", lambda: {})
    page = Page("127.0.0.1", 0, file)
    try:
        address = f"{page.address('127.0.0.1')}flight.rrd"
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address, timeout=10) as answer:
            assert answer.read(6) == b"first "
            with file.open("ab") as more:
                more.write(b"second")
            assert answer.read(6) == b"second"
            page.finished.set()
            assert answer.read() == b""
    finally:
        page.close()


def test_help_lists_the_keys(capsys):
    assert watched("help") == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {key} " in shown for key in ("log", "web", "host", "port", "out"))
