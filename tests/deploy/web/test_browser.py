"""Every kind of page in a browser without a screen, where there is one: what it computes, shows and answers."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deploy import PolicyFile
from deploy.web import page as pages
from deploy.web import wasm
from policies.models.export import random_signals
from tests.deploy.sample_policy import exported
from tests.deploy.web.games import linear_player
from tests.deploy.web.laps import linear_driver
from tests.deploy.web.node import NODE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PRETRAINED = "deploy/pretrained/quad_any.onnx"
KINDS = ("quadrotor", "car", "soccer")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not (CHROMIUM and NODE), reason="no chromium, or no node, is installed"),
]


@pytest.fixture(scope="module", params=KINDS)
def shown(request, tmp_path_factory):
    """A policy file of each kind, and its page."""
    folder = tmp_path_factory.mktemp(request.param)
    made = {
        "quadrotor": lambda: PolicyFile.load(PRETRAINED),
        "car": lambda: exported(folder / "p.onnx", linear_driver(2.5, 0.6)),
        "soccer": lambda: exported(folder / "p.onnx", linear_player()),
    }
    policy = made[request.param]()
    (folder / "index.html").write_bytes(pages.page(policy, policy.content()))
    return request.param, policy, folder / "index.html"


def browsed(page: Path, **told) -> dict:
    """What tests/deploy/web/browser.mjs reports of a page; the browser must not complain."""
    script, where = Path(__file__).with_name("browser.mjs"), f"file://{page}{told.pop('part', '')}"
    done = subprocess.run(
        [NODE, script, CHROMIUM, where], input=json.dumps(told), capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["complaints"] == []
    return report


def pixels(path: Path) -> np.ndarray:
    """The picture (height, width, 3) in a file."""
    return np.asarray(Image.open(path).convert("RGB"), int)


SCORES = {
    "quadrotor": lambda scores: scores["throws"]["held"] == scores["throws"]["count"] == 100,
    "car": lambda scores: scores["laps"]["done"] == scores["laps"]["count"] == 20,
    "soccer": lambda scores: scores["games"]["count"] == 100 and scores["games"]["won"] > 5,
}


def test_the_page_tests_itself(shown):
    kind, policy, page = shown
    report = browsed(page, part="#check", settle=4)
    scores = json.loads(report["report"])
    print(kind, scores)
    assert scores["used"] < 0.1
    assert SCORES[kind](scores)
    assert scores["painted"] > 0.001
    assert scores["ground"] > 0.001
    assert f"Self-test passed: {policy.vectors.steps} recorded steps" in report["test"]


def test_the_browser_commands_what_onnxruntime_commands(shown):
    """The page's own module, in the browser's WebAssembly."""
    _, policy, page = shown
    signals = random_signals(policy.inputs, 40, np.random.default_rng(8))
    steps = [{name: value[k].ravel().tolist() for name, value in signals.items()} for k in range(40)]
    script = (wasm.WEB / "policy.mjs").read_text().replace("export ", "")
    code = """(async () => {%s
        const text = JSON.parse(document.getElementById("module").textContent);
        const policy = await load(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)));
        return %s.map((signals) => Object.values(policy.step(signals)).flatMap((value) => [...value]));
    })()"""
    (got,) = browsed(page, acts=[{"ask": code % (script, json.dumps(steps))}])["acts"]
    policy.reset(1)
    span = np.concatenate([np.full(s.size, s.high - s.low) for s in policy.outputs])
    for k in range(40):
        made = policy.step({name: value[k] for name, value in signals.items()})
        want = np.concatenate([np.ravel(made[s.name]) for s in policy.outputs])
        assert (np.abs(want - got[k]) <= policy.vectors.tolerance * span).all()


@pytest.mark.parametrize(
    ("size", "phone", "dark"), [((1280, 800), False, False), ((390, 844), True, True), ((844, 390), True, False)]
)
def test_what_is_seen_moves_and_fits(shown, tmp_path, size, phone, dark):
    """Light and dark, on screens and phones: pictures are neither blank nor the same, and nothing is cut off."""
    _, _, page = shown
    panel = "document.getElementById('panel').getBoundingClientRect().right"
    fits = f"document.documentElement.scrollWidth <= innerWidth && {panel} <= innerWidth"
    shots, (width, height) = [tmp_path / f"{k}.png" for k in (0, 1)], size
    acts = [{"ask": fits}, {"shot": str(shots[0])}, 1.2, {"shot": str(shots[1])}]
    report = browsed(page, acts=acts, width=width, height=height, phone=phone, dark=dark)
    assert report["acts"] == [True]
    pictures = [pixels(shot) for shot in shots]
    one, other = pictures
    assert one.shape[:2] == ((2 if phone else 1) * size[1], (2 if phone else 1) * size[0])
    assert (one.mean() < 80) == dark
    assert len(np.unique(one.reshape(-1, 3), axis=0)) > 50
    assert (np.abs(one - other).max(axis=2) > 30).sum() > 50


def around(count: int = 60) -> list[list[float]]:
    """A closed line on the screen."""
    angle = np.arange(count) * 2.0 * np.pi / count
    return (np.array([480.0, 430.0]) + np.stack([300.0 * np.cos(angle), 230.0 * np.sin(angle)], 1)).tolist()


def says(element: str) -> dict:
    return {"ask": f"document.getElementById('{element}').textContent"}


def key(name: str) -> dict:
    return {"key": name}


LINE = [{"mouse": p, "type": "mouseMoved" if k else "mousePressed"} for k, p in enumerate(around())]
DRAWN = [*LINE, {"mouse": around()[-1], "type": "mouseReleased"}]
CHOSEN = {"ask": "document.getElementById('airframe').value"}
DISABLED = {"ask": "document.getElementById('rival').disabled"}
RACED = [key("m"), 0.5, says("word"), key("ArrowUp"), 1.5, says("about"), key("m")]
# What is done, and whether what was asked for then is right.
ANSWERS = {
    "quadrotor": (
        [0.5, key("ArrowRight"), key(" "), 0.3, says("distance"), key("3"), 0.3, CHOSEN],
        lambda said: said[0].endswith("m") and float(said[0].split()[0]) > 0.0 and said[1] == "2",
    ),
    "car": (
        [*RACED, key("d"), 0.3, says("word"), *DRAWN, 1.0, says("word"), says("lap")],
        lambda said: (
            said[0].startswith("Arrow keys")
            and "m ahead" in said[1].replace("behind", "ahead")
            and said[2:4] == ["Draw a closed line.", ""]
            and float(said[4].split()[0]) > 0.2
        ),
    ),
    "soccer": (
        [key("p"), 0.4, says("about"), DISABLED, key("ArrowUp"), 0.6, key("p"), 0.3, says("about")],
        lambda said: said == ["the policy : you", True, "the policy : the other"],
    ),
}


def test_keys_and_mouse_are_answered(shown):
    kind, _, page = shown
    acts, right = ANSWERS[kind]
    said = browsed(page, acts=acts)["acts"]
    assert right(said), said


def test_a_finger_drags_the_target(shown):
    """On a phone: what is touched follows, and the page does not scroll away."""
    kind, _, page = shown
    middle = [{"x": 195, "y": 330}]
    way = [{"touch": [{"x": 195 + 4 * k, "y": 330 - 3 * k}], "type": "touchMove"} for k in range(12)]
    acts = [0.5, {"touch": middle, "type": "touchStart"}, *way, {"touch": [], "type": "touchEnd"}, 0.3]
    report = browsed(page, width=390, height=844, phone=True, acts=[*acts, {"ask": "[scrollX, scrollY].join()"}])
    assert report["acts"] == ["0,0"], kind
