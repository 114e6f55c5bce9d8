"""Lenses, exposure, blur and panoramas of the cameras on the pitch."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from deploy.drivers.tasks import task_for
from deploy.policy_file import PolicyFile
from policies.models.controller import FeaturePolicy
from policies.models.export import export
from policies.models.networks.feed_forward import Mlp
from policies.models.vision import FlatEncoder
from sim.engines.pitch import Pitch
from sim.engines.pitch.camera import IS_BALL, SKY, Eyes
from sim.engines.sight.lens import Lens
from sim.engines.sight.panorama import OVERHEAD, loaded, table
from sim.engines.sight.picture import ADAPTS, EXPOSURE, FLICKER, GAIN_R, METERED, SHUTTER
from sim.env import make_env
from sim.registry import StrangerError, names_from
from sim.robots.wheeled import DIFFERENTIAL
from sim.scenes.pitch import FIELDS, Ball
from sim.tasks import make
from sim.tasks.recorded import recorded

BENT = [
    Lens(48, 64, 90.0, 8.0, "pinhole", -0.1),
    Lens(48, 64, 100.0, 20.0, "pinhole", 0.3),
    Lens(48, 64, 110.0, 0.0, "fisheye"),
    Lens(48, 64, 150.0, -15.0, "fisheye", -0.03),
    Lens(48, 64, 60.0, 40.0),
]


def scene(lens: Lens, worlds: int = 1, seed: int = 0, **options: Any) -> Eyes:
    """Robots and ball anywhere, looking anywhere."""
    pitch, rng = Pitch(DIFFERENTIAL, FIELDS[2], Ball(), worlds, 4, 0.05), np.random.default_rng(seed)
    angle = rng.uniform(-np.pi, np.pi, (worlds, 4))
    state = {
        "position": rng.uniform(-1.5, 1.5, (worlds, 4, 2)),
        "ball_position": rng.uniform(-1.5, 1.5, (worlds, 2)),
        "heading": np.stack([np.cos(angle), np.sin(angle)], axis=-1),
    }
    pitch.reset(np.arange(worlds), state)
    return Eyes(pitch, 4, lens, **options)


@given(
    kind=st.sampled_from(["pinhole", "fisheye"]),
    view=st.floats(20.0, 110.0),
    distortion=st.floats(-0.03, 0.5),
    row=st.integers(0, 29),
    column=st.integers(0, 39),
)
def test_a_ray_meets_the_picture_where_its_pixel_is(kind: str, view: float, distortion: float, row: int, column: int):
    lens = Lens(30, 40, view, 0.0, kind, distortion)
    ahead, left, up, wide = lens.optics().rays[row, column].astype(float)
    angle = math.atan2(math.hypot(left, up), ahead)
    u = math.tan(angle) if kind == "pinhole" else angle
    radius = lens.focal * u * (1.0 + distortion * u * u)
    away = math.hypot(column + 0.5 - 20.0, row + 0.5 - 15.0)
    assert radius == pytest.approx(away, rel=2e-4, abs=1e-3) and wide > 0.0
    around = math.atan2(up, left) - math.atan2(15.0 - row - 0.5, 20.0 - column - 0.5)
    assert math.cos(around) == pytest.approx(1.0, abs=1e-5)


def test_the_view_is_what_is_seen_across():
    for lens in BENT:
        rays = Lens(31, 41, lens.view, 0.0, lens.kind, lens.distortion).optics().rays[15]
        edge = 2.0 * np.degrees(np.arctan2(rays[0, 1], rays[0, 0]))
        assert edge == pytest.approx(lens.view * 40.0 / 41.0, rel=0.04)


@pytest.mark.parametrize("lens", BENT)
def test_what_lies_in_some_columns_is_looked_for_in_all_of_them(lens: Lens):
    eyes = scene(lens, 24)
    narrow = eyes.see(extra=True)
    optics = eyes.optics
    spans = np.stack([np.full(lens.width, -np.inf), np.full(lens.width, np.inf)], axis=1).astype(np.float32)
    eyes.optics = optics._replace(spans=spans, ahead=False)
    whole = eyes.see(extra=True)
    np.testing.assert_array_equal(narrow[0], whole[0])
    np.testing.assert_array_equal(narrow[1], whole[1])
    assert (whole[1][:, 1] >= IS_BALL).any()


def test_a_fisheye_shows_the_ball_at_its_angle():
    for angle in (-60.0, -20.0, 0.0, 45.0):
        pitch = Pitch(DIFFERENTIAL, FIELDS[1], Ball(), 1, 2, 0.05)
        turn = math.radians(angle)
        ball = [[0.6 * math.cos(turn), 0.6 * math.sin(turn)]]
        pitch.reset(np.arange(1), {"position": [[[0.0, 0.0], [-1.8, 1.3]]], "ball_position": ball})
        eyes = Eyes(pitch, 1, Lens(120, 160, 150.0, 0.0, "fisheye"))
        where = np.argwhere(eyes.see(extra=True)[1][0, 1] == IS_BALL).mean(axis=0)
        down = math.atan((DIFFERENTIAL.eye[1] - Ball().radius) / 0.6)
        off = math.acos(math.cos(turn) * math.cos(down))
        radius, around = eyes.lens.focal * off, math.atan2(math.sin(down), math.sin(turn) * math.cos(down))
        wanted = (59.5 + radius * math.sin(around), 79.5 - radius * math.cos(around))
        np.testing.assert_allclose(where, wanted, atol=1.5)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"kind": "mirror"}, "lens 'mirror' is not one of pinhole, fisheye"),
        ({"distortion": -0.5}, "distortion -0.5 folds a picture of 90 degrees"),
        ({"distortion": 3.0}, "distortion must be between -1 and 1"),
        ({"tilt": 90.0}, "a camera is tilted by -89 to 89 degrees"),
        ({"kind": "fisheye", "view": 165.0}, "a fisheye sees 200 degrees from corner to corner, got 206"),
    ],
)
def test_lenses_that_cannot_be_are_refused(wrong: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        Lens(**wrong)


def test_turning_smears_what_is_seen_along_the_rows():
    lens = Lens(30, 40, 90.0, 0.0)
    sharp, smeared, still = (scene(lens, 6) for _ in range(3))
    for eyes in (smeared, still):
        eyes.looks[:, SHUTTER] = 0.02
    turning = np.full(24, 8.0, np.float32)
    plain = sharp.see()[0].astype(float)
    np.testing.assert_array_equal(still.see()[0], plain)  # who does not turn sees sharply
    blurred, other = smeared.see(turning=turning)[0].astype(float), smeared.see(turning=-turning)[0]
    np.testing.assert_array_equal(blurred, other)
    steps = [np.square(np.diff(some, axis=2)).mean() for some in (blurred, plain)]
    assert steps[0] < 0.6 * steps[1]
    half = 0.5 * 0.16 * lens.optics().swing  # columns
    middle = 20
    low, high = middle + 0.5 - half[middle], middle + 0.5 + half[middle]
    share = np.clip(np.minimum(np.arange(40) + 1.0, high) - np.maximum(np.arange(40.0), low), 0.0, None)
    wanted = (plain * (share / share.sum())[:, None]).sum(axis=2)
    np.testing.assert_allclose(blurred[:, :, middle], wanted, atol=1.5)


def test_blur_is_what_many_sharp_pictures_in_a_row_give():
    lens, swept = Lens(60, 80, 90.0, 0.0), 0.12
    eyes = scene(lens, 8)
    eyes.looks[:, SHUTTER] = 0.01
    blurred = eyes.see(turning=np.full(32, 100.0 * swept, np.float32))[0].astype(float)
    heading = eyes.pitch.read("heading")
    angle = np.arctan2(heading[..., 1], heading[..., 0])
    total = np.zeros_like(blurred)
    for k in range(25):
        now = angle + swept * ((k + 0.5) / 25 - 0.5)
        eyes.pitch.write(np.arange(8), {"heading": np.stack([np.cos(now), np.sin(now)], axis=-1)})
        total += eyes.see()[0] / 25
    inside = (slice(None), slice(20, 40), slice(10, -10))
    assert np.abs(blurred - total)[inside].mean() < 3.0


def test_exposure_finds_its_light_and_flickers():
    eyes = scene(Lens(), 4)
    eyes.looks[:, :3] = np.array([0.3, 1.0, 2.0, 1.2] * 4)[:, None]
    fixed = eyes.see()[0].mean(axis=(1, 2, 3)) / 255.0
    assert fixed.std() > 0.1 and (eyes.looks[:, EXPOSURE] == 1.0).all()
    eyes.looks[:, ADAPTS] = 0.4
    for _ in range(25):
        found = eyes.see()[0].mean(axis=(1, 2, 3)) / 255.0
    assert found.std() < 0.25 * fixed.std()
    inside = (eyes.looks[:, EXPOSURE] > 0.26) & (eyes.looks[:, EXPOSURE] < 3.9)
    np.testing.assert_allclose(found[inside], METERED, atol=0.03)
    flickering = scene(Lens(), 1)
    flickering.looks[:, FLICKER], flickering.looks[:, :3] = 0.1, 0.5
    light = np.stack([flickering.see()[0].mean(axis=(1, 2, 3)) for _ in range(300)])
    assert (light.std(axis=0) / light.mean(axis=0)) == pytest.approx(np.full(4, 0.1), rel=0.2)


def directions() -> np.ndarray:
    """A picture of all directions: red ahead, green to the left, blue behind, white to the right; dark overhead."""
    picture = np.zeros((64, 128, 3), np.uint8)
    colours = ((255, 255, 255), (0, 0, 255), (0, 255, 0), (255, 0, 0))  # by the middle of a quarter
    for column in range(128):
        left = (0.5 - (column + 0.5) / 128) * 360.0  # degrees to the left of x
        quarter = int(((left + 45.0) % 360.0) // 90.0)
        picture[:, column] = colours[{0: 3, 1: 2, 2: 1, 3: 0}[quarter]]
    picture[:6] = 20
    return picture


def test_a_panorama_lies_where_it_should():
    around = table(directions(), 2.0)
    assert around.shape[0] == 1 and around.shape[3] == 3
    for turn, wanted in ((0.0, (255, 0, 0)), (90.0, (0, 255, 0)), (180.0, (0, 0, 255)), (-90.0, (255, 255, 255))):
        eyes = scene(Lens(31, 41, 40.0, -25.0), 1, panorama=around)
        angle = math.radians(turn)
        eyes.pitch.write(np.arange(1), {"heading": np.tile([math.cos(angle), math.sin(angle)], (1, 4, 1))})
        picture, extra = eyes.see(extra=True)
        assert (extra[0, 1, 15] == SKY).all()
        np.testing.assert_allclose(picture[0, 15, 20], wanted, atol=2)
    up = scene(Lens(31, 41, 40.0, -85.0), 1, panorama=around).see()[0]
    assert up[0, 15, 20].max() <= 22  # overhead
    assert OVERHEAD == 2.0


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".npy", ".ppm"])
def test_panoramas_are_read_from_files(suffix: str, tmp_path):
    picture, path = directions(), tmp_path / f"hall{suffix}"
    if suffix == ".npy":
        np.save(path, picture)
    elif suffix == ".ppm":
        path.write_bytes(b"P6\n# a hall\n128 64\n255\n" + picture.tobytes())
    else:
        Image.fromarray(picture).save(path)
    found = loaded(str(path))
    assert found.dtype == np.uint8 and found.shape == picture.shape
    assert np.abs(found.astype(float) - picture).mean() < (8.0 if suffix == ".jpg" else 1e-9)
    task = make("soccer_vision_1v1", panorama=str(path), vary=False)
    env = make_env(task, 1, 0)
    env.reset([0], [0])
    assert env.sight.eyes.panoramas.shape[0] == 1 and recorded(task)["panorama"] == path.name


def test_files_that_are_no_panorama_are_refused_in_one_line(tmp_path):
    flat, texts = np.zeros((64, 100, 3), np.uint8), {}
    Image.fromarray(flat).save(tmp_path / "flat.png")
    np.save(tmp_path / "floats.npy", np.zeros((64, 128, 3)))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "text.png").write_text("no picture")
    (tmp_path / "text.npy").write_text("no picture")
    (tmp_path / "text.ppm").write_text("no picture")
    (tmp_path / "short.ppm").write_bytes(b"P6 128 64 255\n" + b"0" * 100)
    (tmp_path / "hall.gif").write_bytes(b"GIF89a")
    (tmp_path / "folder.png").mkdir()
    for name, said in {
        "flat.png": "100 x 64 pixels, but all directions are twice as wide as high",
        "floats.npy": r"float64 \(64, 128, 3\), but needs uint8",
        "objects.npy": "no array of numpy's",
        "text.png": "no picture in PNG or JPEG",
        "text.npy": "no array of numpy's",
        "text.ppm": "no binary PPM",
        "short.ppm": "cut off after 100 of 24576 bytes",
        "hall.gif": "known are .png, .jpg, .jpeg, .npy, .ppm",
        "folder.png": "there is no such file",
        "none.png": "there is no such file",
    }.items():
        with pytest.raises(ValueError, match=said) as error:
            make("soccer_vision_1v1", panorama=str(tmp_path / name))
        texts[name] = str(error.value)
    assert all(name in text and "\n" not in text for name, text in texts.items())


def test_a_policy_file_never_makes_us_open_a_panorama(tmp_path):
    path = tmp_path / "hall.png"
    Image.fromarray(directions()).save(path)
    task = make("soccer_vision_1v1", panorama=str(path), steps=3)
    numbers, actions = sum(s.size for s in task.policy[1:]), sum(s.size for s in task.commands)
    rng = np.random.default_rng(0)
    eye = FlatEncoder(task.policy[0].shape, [(np.zeros((1, 3, 3, 3), np.float32), np.zeros(1, np.float32))], [16])
    weight = rng.normal(0.0, 0.1, (actions, numbers + eye.size)).astype(np.float32)
    network = Mlp([(weight, np.zeros(actions, np.float32))])
    export(FeaturePolicy.from_task(task, network, encoders={"camera": eye}), tmp_path / "policy.onnx")
    policy = PolicyFile.load(tmp_path / "policy.onnx")
    assert policy.metadata["training"]["task_config"]["panorama"] == "hall.png"
    with pytest.raises(StrangerError, match="names the panorama 'hall.png', .* name it yourself with panorama="):
        task_for(policy)
    assert task_for(policy, settings={"panorama": str(path)}).panorama is not None
    assert task_for(policy, settings={"panorama": ""}).panorama is None
    with names_from("stranger.onnx"), pytest.raises(StrangerError):
        loaded(str(path))


@settings(max_examples=5, deadline=None)
@given(width=st.integers(8, 64), height=st.integers(8, 48), view=st.sampled_from([60.0, 90.0, 120.0]))
def test_pictures_are_as_large_as_the_task_says(width: int, height: int, view: float):
    task = make("soccer_vision_1v1", width=width, height=height, view=view, opponent="still", shutter=0.01)
    env = make_env(task, 2, 0)
    env.reset([0, 1], [0, 1])
    env.step({s.name: np.full((2, *s.shape), 0.5, np.float32) for s in task.commands})
    assert env.observe()["camera"].shape == (2, height, width, 3) == (2, *task.policy[0].shape)


def test_looks_differ_from_game_to_game_only_as_far_as_they_are_asked_to():
    plain, rich = (
        make("soccer_vision_1v1", **c) for c in ({}, {"shutter": 0.02, "auto_exposure": True, "flicker": 0.1})
    )
    looks = []
    for task in (plain, rich):
        env = make_env(task, 40, 0)
        env.reset(range(40), range(40))
        looks.append(env.sight.eyes.looks.copy())
    assert (looks[0][:, SHUTTER] == 0.0).all() and (looks[0][:, ADAPTS] == 0.0).all()
    np.testing.assert_array_equal(looks[0][:, GAIN_R], looks[1][:, GAIN_R])  # the rest of a game stays what it was
    for column, most in ((SHUTTER, 0.02), (ADAPTS, 0.5), (FLICKER, 0.1)):
        assert len(np.unique(looks[1][:, column])) == 40 and looks[1][:, column].max() <= most + 1e-6
    for wrong, said in (
        ({"shutter": 1.0}, "shutter must be between 0 and 0.1 s"),
        ({"flicker": -0.1}, "flicker is a share"),
        ({"width": 1000, "height": 1000, "latency": 4}, "6 pictures of 1000 x 1000 are more than"),
        ({"lens": "eye"}, "lens 'eye' is not one of"),
    ):
        with pytest.raises(ValueError, match=said):
            make("soccer_vision_1v1", **wrong)
