"""The page that flies a policy: its module in node, its text, what is refused; and where there is one, a browser."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from deploy import PolicyFile, cli, export
from deploy.web import page as pages
from policies.models.controller import FeaturePolicy
from policies.models.export import random_signals
from sim.engines.flight import Flight
from sim.robots import robot
from sim.tasks import make
from tests.deploy.sample_policy import exported, linear_hover, random_mlp, resealed, small
from tests.deploy.web.node import needs_node, ran

PRETRAINED = "deploy/pretrained/quad_any.onnx"
F = np.float32


def made(path) -> bytes:
    policy = PolicyFile.load(path)
    return pages.page(policy, policy.content())


@pytest.fixture(scope="module")
def quad_any(tmp_path_factory):
    """The page of quad_any."""
    path = tmp_path_factory.mktemp("page") / "index.html"
    path.write_bytes(made(PRETRAINED))
    return path


class Seen(HTMLParser):
    """What a browser makes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.texts, self.attributes, self.inside = [], {}, [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.inside = tag
        self.attributes += attrs

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        self.texts.setdefault(self.inside, []).append(data)


@needs_node
def test_a_hundred_throws_come_back(quad_any):
    found = ran("world.mjs", quad_any, told={"throws": 100})["throws"]
    assert found["count"] == found["held"] == 100
    assert found["worst"] < 0.1


@needs_node
def test_the_page_commands_what_onnxruntime_commands(quad_any):
    policy = PolicyFile.load(PRETRAINED)
    signals = random_signals(policy.inputs, 60, np.random.default_rng(5))
    steps = [{name: value[k].tolist() for name, value in signals.items()} for k in range(60)]
    got = np.array(ran("world.mjs", quad_any, told={"signals": steps})["signals"])
    want = [policy.step({name: value[k] for name, value in signals.items()})["motor_command"] for k in range(60)]
    np.testing.assert_allclose(got, want, rtol=0, atol=policy.vectors.tolerance)


CHANGED = {
    "mass": lambda v, rng: v * 1.3,
    "thrust_scale": lambda v, rng: rng.uniform(0.97, 1.0, 4),
    "rotor_lag": lambda v, rng: v * 1.5,
    "wind": lambda v, rng: rng.uniform(-3.0, 3.0, 3),
    "force": lambda v, rng: rng.uniform(-0.02, 0.02, 3),
    "torque": lambda v, rng: rng.uniform(-1e-5, 1e-5, 3),
    "ground_effect": lambda v, rng: v + 5.0,
    "drag": lambda v, rng: v + 0.01,
}


@needs_node
@pytest.mark.parametrize("latency", [0, 2])
def test_the_pages_physics_is_the_engines(quad_any, latency):
    """Every airframe, as it is and changed in everything that can be, under random commands for a second."""
    rng, policy = np.random.default_rng(0), PolicyFile.load(PRETRAINED)
    names = [vehicle.name for vehicle in pages.quadrotors.airframes(policy)]
    assert len(names) == 7
    flights, want = [], []
    for index, name in enumerate(names * 2):
        nominal = robot(name).parameters()
        changed = {k: F(CHANGED[k](nominal[k], rng)) for k in CHANGED} if index >= len(names) else {}
        hover = robot(name).hover_command
        commands = np.clip(hover + rng.uniform(-0.05, 0.05, (100, 4)), 0.0, 1.0).astype(F)
        start = np.zeros(17, F)
        start[:3], start[3:7] = (0.2, -0.1, 1.0), rng.normal(size=4)
        start[3:7] /= np.linalg.norm(start[3:7])
        start[7:13], start[13:] = rng.uniform(-1.0, 1.0, 6), hover
        engine = Flight(robot(name), 1, 0.01, substeps=pages.quadrotors.substeps(policy))
        engine.set_parameters(None, {k: v[None] for k, v in changed.items()})
        at = {"position": 0, "quaternion": 3, "linear_velocity": 7, "angular_velocity": 10, "rotor_speed": 13}
        size = {"quaternion": 4, "rotor_speed": 4}
        engine.reset(None, {k: start[None, i : i + size.get(k, 3)] for k, i in at.items()})
        late = np.concatenate([np.full((latency, 4), hover, F), commands])[:100]
        states = []
        for command in late:
            engine.step(command[None])
            states.append(np.concatenate([engine.read(k)[0] for k in at]))
        want.append(states)
        told = {"airframe": index % len(names), "latency": latency * 0.01, "start": start.tolist()}
        told["parameters"] = {k: v.tolist() for k, v in changed.items()}
        flights.append({**told, "commands": commands.tolist()})
    got = np.array(ran("world.mjs", quad_any, told={"flights": flights})["flights"])
    assert np.abs(got[:, -1, :3] - got[:, 0, :3]).max() > 1.0
    largest = np.abs(want).max(1, keepdims=True)
    # A rotor of the Crazyflie turns it with 480 rad/s^2, and four of them cancel: float32 leaves 1e-4 after a second.
    assert (np.abs(got - want) / (1.0 + largest)).max() < 3e-4


@needs_node
def test_a_target_goes_where_it_is_put_no_faster_than_in_training(quad_any):
    shown = ran("world.mjs", quad_any, told={"shown": {"aim": [2.0, -1.0, 2.0], "steps": 400}})["shown"]
    velocity = np.array([signals["target_velocity"] for signals in shown])
    position = np.array([signals["target_position"] for signals in shown])
    assert np.linalg.norm(velocity, axis=1).max() == pytest.approx(1.5, rel=1e-4)
    assert np.linalg.norm(np.diff(velocity, axis=0), axis=1).max() * 100.0 <= 3.0 * 1.001
    np.testing.assert_allclose(np.diff(position, axis=0) * 100.0, velocity[1:], atol=1e-3)
    np.testing.assert_allclose(position[-1], [2.0, -1.0, 2.0], atol=1e-3)
    assert position[:, 0].max() < 2.01


def tracker(folder, **options):
    task = make("quad_track")
    network = random_mlp(np.random.default_rng(0), 3 + 9 + 3 + 3 + 3 + 9 + 4 * task.history, 4)
    return exported(folder / "p.onnx", FeaturePolicy.from_task(task, network), **options)


@needs_node
def test_a_preview_looks_as_far_ahead_as_the_file_says(tmp_path):
    policy = tracker(tmp_path, training={"task_config": {"preview": 0.1}})
    (tmp_path / "index.html").write_bytes(made(policy.path))
    told = {"shown": {"aim": [2.0, 0.0, 1.5], "steps": 120}}
    shown = ran("world.mjs", tmp_path / "index.html", told=told)["shown"]
    for point in range(3):
        ahead = np.array([signals["target_preview"][3 * point : 3 * point + 3] for signals in shown])
        later = np.array([signals["target_position"] for signals in shown])
        gap = 10 * (point + 1)
        np.testing.assert_allclose(ahead[:-gap], later[gap:], atol=5e-3)


def test_the_page_is_small_and_asks_nobody_for_anything(quad_any):
    text = quad_any.read_text()
    assert len(text.encode()) < 100_000 < pages.LARGEST
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(|\bfetch\(|XMLHttpRequest|WebSocket|\beval\(", text)
    seen = Seen(text)
    addresses = [value for key, value in seen.attributes if key in ("src", "href", "action")]
    assert addresses == ["data:,"]
    allowed = next(value for key, value in seen.attributes if key == "content" and "script-src" in value)
    for tag in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256("".join(seen.texts[tag][-1:]).encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in allowed
    assert allowed.startswith("default-src 'none'; ")
    assert "unsafe-inline" not in allowed
    assert "'unsafe-eval'" not in allowed
    assert not re.search(r"\son[a-z]+=|\sstyle=", text.partition("<script")[0].partition("</style>")[2])


HOSTILE = "</title></script><script>alert(1)</script><img src=x onerror=alert(1)>\"'{name}&lt;%s"


def test_names_from_a_file_are_text(tmp_path):
    task = make("quad_hover")
    controller = linear_hover(task)
    controller.name = controller.task = HOSTILE
    text = made(exported(tmp_path / "p.onnx", controller).path).decode()
    seen = Seen(text)
    assert seen.tags.count("script") == 2
    assert "img" not in seen.tags
    assert seen.texts["h1"] == [HOSTILE]
    assert seen.texts["title"] == [f"{HOSTILE} - try it"]
    assert HOSTILE[:20] not in text


def refused(folder, path, *options) -> int:
    out = folder / "out"
    out.mkdir()
    (out / "index.html").write_text("the old one")
    status = cli.call(export.main, [f"policy={path}", "target=page", f"out={out}", *options])
    assert [(f.name, f.read_text()) for f in out.iterdir()] == [("index.html", "the old one")]
    return status


def test_what_is_no_quadrotors_is_refused(tmp_path, capsys):
    assert refused(tmp_path, exported(tmp_path / "p.onnx", small()).path) == 2
    assert re.search(
        r"is for the robot 'bench'; pages are for quadrotors: crazyflie, .*; cars: car_1_10, car_1_18",
        capsys.readouterr().err,
    )


def test_signals_that_a_quadrotor_lacks_are_refused(tmp_path, capsys):
    controller = small()
    controller.robot = "any"
    assert refused(tmp_path, exported(tmp_path / "p.onnx", controller).path) == 2
    said = capsys.readouterr().err
    for reason in ("signal 'near'", "signal 'rate'", "command 'left'", "'motor_command'", "it has: position, rotation"):
        assert reason in said


def test_a_preview_of_unknown_length_is_refused(tmp_path, capsys):
    resealed(tracker(tmp_path), tmp_path / "silent.onnx", training={"task_config": {"preview": "soon"}})
    assert refused(tmp_path, tmp_path / "silent.onnx") == 2
    assert "does not say how far ahead 'target_preview' looks" in capsys.readouterr().err


def test_what_makes_too_large_a_page_is_refused(tmp_path, capsys):
    task = make("quad_hover")
    wide = random_mlp(np.random.default_rng(0), 18 + 4 * task.history, 4, hidden=(180, 180))
    assert refused(tmp_path, exported(tmp_path / "p.onnx", FeaturePolicy.from_task(task, wide)).path) == 2
    assert re.search(
        r"its page would have \d+ bytes, more than 150000, .*weights=float16 or int8", capsys.readouterr().err
    )


def test_the_command_writes_the_page(tmp_path, quad_any, capsys):
    assert cli.call(export.main, ["policy=quad_any", "target=page", f"out={tmp_path / 'new'}"]) == 0
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["index.html"]
    assert (tmp_path / "new" / "index.html").read_bytes() == quad_any.read_bytes()
    assert f"{len(quad_any.read_bytes())} bytes" in capsys.readouterr().out
