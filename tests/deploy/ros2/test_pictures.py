"""Pictures as cameras publish them: what is converted, what is refused, and that nothing malformed gets through."""

import contextlib
import math
import warnings
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import CameraInfo, Image

from deploy.ros2 import topics
from deploy.ros2.node.cameras import camera_info, told_view
from deploy.ros2.pictures import KNOWN, LARGEST, UNFIT, PictureError, averaged, decode, other_view, seen_across
from deploy.ros2.simulation.fault_injection import PICTURES, Fault
from sim.spec import Signal

with warnings.catch_warnings():  # lark, which the message packages load when they are first sent, imports sre_parse
    warnings.simplefilter("ignore", DeprecationWarning)
    import rosidl_generator_py  # noqa: F401

HEIGHT, WIDTH = 3, 4
SIGNAL = Signal("camera", (HEIGHT, WIDTH, 3), "1", "", 0.0, 255.0, dtype="uint8")


def published(picture: np.ndarray, encoding: str = "rgb8", padding: int = 0) -> Image:
    """A picture (rows, columns, 3) as a camera gives it."""
    pixel, order = KNOWN[encoding]
    raw = np.full((*picture.shape[:2], pixel), 77, np.uint8)
    raw[:, :, list(order)] = picture
    rows = raw.reshape(len(raw), -1)
    rows = np.concatenate([rows, np.full((len(raw), padding), 99, np.uint8)], axis=1)
    height, width = picture.shape[:2]
    made = Image(height=height, width=width, step=rows.shape[1], encoding=encoding)
    made.data = array("B", rows.tobytes())
    return made


def drawn(seed: int = 0, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


@given(st.sampled_from([*KNOWN]), st.integers(0, 9), st.integers(0, 99))
def test_known_encodings_are_converted_and_rows_may_be_longer(encoding, padding, seed):
    picture = drawn(seed)
    message = published(picture, encoding, padding)
    got = decode(message, HEIGHT, WIDTH)
    np.testing.assert_array_equal(got, picture)
    message.data[0] ^= 255
    np.testing.assert_array_equal(got, picture)  # it has its own bytes


@pytest.mark.parametrize(
    ("encoding", "why"),
    [
        ("mono8", "has no colours"),
        ("32FC3", "has floating-point numbers, which may be NaN"),
        ("32FC1", "has floating-point numbers"),
        ("64FC3", "has floating-point numbers"),
        ("8UC3", "does not say which colour is which"),
        ("rgb16", "has 16 bits per colour"),
        ("16UC1", "has 16 bits per colour"),
        ("bayer_rggb8", "is not debayered yet"),
        ("yuv422_yuy2", "has colours by another rule"),
        ("nv21", "has colours by another rule"),
        ("jpeg", "is not known here"),
        ("", "is not known here"),
        ("RGB8", "is not known here"),
    ],
)
def test_other_encodings_are_refused_by_name(encoding, why):
    message = published(drawn())
    message.encoding = encoding
    with pytest.raises(PictureError, match=f"its encoding '{encoding}' {why}.*one of rgb8, bgr8, rgba8, bgra8"):
        decode(message, HEIGHT, WIDTH)


def test_a_strangers_encoding_is_one_printable_line():
    message = published(drawn())
    message.encoding = "rgb8\n\x1b[2Jfake" * 100
    with pytest.raises(PictureError) as caught:
        decode(message, HEIGHT, WIDTH)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"width": 5}, "it has 5 x 3 pixels, which is another shape than the policy's 4 x 3: crop it"),
        ({"height": 2}, "it has 4 x 2 pixels, the policy's picture has 4 x 3: publish larger ones"),
        ({"width": 0}, "it has 0 x 3 pixels"),
        ({"width": 8, "height": 6}, "it has 8 x 6 pixels, not 4 x 3: publish it so, or set resize"),
        ({"step": 11}, "rows of 4 pixels have 12 bytes, its step says 11"),
        ({"step": 0}, "rows of 4 pixels have 12 bytes, its step says 0"),
        ({"step": 13}, "got 36 bytes, not the 39 of 4 x 3 pixels: it is cut off, or padded"),
        ({"step": 2**31}, "got 36 bytes, not the"),
        ({"data": array("B", bytes(35))}, "got 35 bytes, not the 36"),
        ({"data": array("B")}, "got 0 bytes, not the 36"),
        ({"width": 2**32 - 1, "height": 2**32 - 1}, "which is another shape"),
    ],
)
def test_sizes_have_to_agree(change, why):
    message = published(drawn())
    for name, value in change.items():
        setattr(message, name, value)
    with pytest.raises(PictureError, match=why):
        decode(message, HEIGHT, WIDTH)


NUMBERS = st.one_of(st.integers(0, 40), st.integers(0, 2**32 - 1))


@given(
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.sampled_from([*KNOWN, *UNFIT, "", "rgb8\0"]) | st.text(max_size=20),
    st.binary(max_size=400),
    st.booleans(),
    st.integers(0, 1),
)
def test_nothing_malformed_gets_through(height, width, step, encoding, data, resize, big):
    """One line, or a picture of the policy's size; and no more memory than the message has."""
    message = Image(height=height, width=width, step=step, is_bigendian=big)
    message.encoding, message.data = encoding, array("B", data)
    try:
        got = decode(message, HEIGHT, WIDTH, resize)
    except PictureError as error:
        assert len(str(error).splitlines()) == 1
        return
    assert got.shape == (HEIGHT, WIDTH, 3) and got.dtype == np.uint8 and len(data) == step * height


@given(st.data())
def test_damaged_bytes_on_the_line_are_no_message_or_a_refused_one(data):
    whole = bytearray(serialize_message(published(drawn())))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(4, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(4, len(whole)))])
    try:
        message = deserialize_message(cut, Image)
    except (RuntimeError, ValueError):  # as `Letterbox.opened` takes it
        return
    with contextlib.suppress(PictureError):
        assert decode(message, HEIGHT, WIDTH).shape == (HEIGHT, WIDTH, 3)


def test_the_largest_picture():
    side = math.isqrt(LARGEST // 3) + 2
    message = Image(height=side, width=side, step=3 * side, encoding="rgb8")
    message.data = array("B", bytes(3 * side * side))
    with pytest.raises(PictureError, match="publish smaller ones"):
        decode(message, 1, 1, resize=True)


@given(st.integers(1, 5), st.integers(0, 99))
def test_larger_pictures_are_averaged_by_area(times, seed):
    picture = drawn(seed)
    large = picture.repeat(times, axis=0).repeat(times, axis=1)
    np.testing.assert_array_equal(decode(published(large, "bgr8"), HEIGHT, WIDTH, resize=True), picture)
    noisy = drawn(seed, HEIGHT * times, WIDTH * times)
    mean = noisy.reshape(HEIGHT, times, WIDTH, times, 3).mean(axis=(1, 3))
    assert np.abs(averaged(noisy, HEIGHT, WIDTH) - mean).max() <= 0.5 + 1e-3


def test_pixels_that_lie_in_two_of_the_new_ones_count_in_both():
    large = np.zeros((2, 3, 3), np.uint8)
    large[:, 1] = 90
    assert averaged(large, 2, 2)[:, :, 0].tolist() == [[30, 30], [30, 30]]  # half a pixel of one and a half
    flat = np.full((45, 60, 3), 123, np.uint8)
    assert (averaged(flat, 30, 40) == 123).all()


def test_how_far_a_camera_sees_is_compared():
    info = camera_info(SIGNAL, 90.0)
    assert seen_across(info) == pytest.approx(90.0) and other_view(info, 90.0) == "" and other_view(info, 92.0) == ""
    assert "sees 90.0 degrees across, the policy's saw 60: crop it" in other_view(info, 60.0)
    fisheye = camera_info(SIGNAL, 120.0, "fisheye")
    assert fisheye.distortion_model == "equidistant" and fisheye.k[0] == pytest.approx(0.5 * WIDTH / (np.pi / 3.0))
    assert seen_across(fisheye) == pytest.approx(120.0) and other_view(fisheye, 120.0) == ""
    info.roi.width = 2  # only the middle is published
    assert seen_across(info) == pytest.approx(math.degrees(2 * math.atan(0.5)))
    assert math.isnan(seen_across(CameraInfo())) and "not calibrated" in other_view(CameraInfo(), 90.0)


@pytest.mark.parametrize("told", [{}, {"training": 3}, {"training": {"task_config": [1]}}])
@pytest.mark.parametrize("view", [None, "90", math.nan, math.inf, -1.0, 0, 500, True])
def test_what_a_file_tells_of_its_camera_is_a_strangers_word(told, view):
    assert told_view(told) == 0.0
    assert told_view({"training": {"task_config": {"view": view}}}) in (0.0, 1.0)
    assert told_view({"training": {"task_config": {"view": 75}}}) == 75.0


@pytest.mark.parametrize("kind", PICTURES)
def test_faults_of_a_camera(kind):
    source = topics.image_source(SIGNAL)
    fault, message, first = Fault(kind), source.message(), source.message()
    source.fill(first, {"camera": drawn(1)})
    source.fill(message, {"camera": drawn(2)})
    fault.message(source.topic, first, 0.0)
    treated = fault.message(source.topic, message, 0.1)
    expected = {"black": np.zeros((HEIGHT, WIDTH, 3)), "repeated": drawn(1)}
    if kind in expected:
        np.testing.assert_array_equal(source.read(treated)["camera"], expected[kind])
    else:
        with pytest.raises(topics.TopicError, match="cut off|floating-point|larger ones"):
            source.read(treated)
    assert Fault(f"{kind}:other").message(source.topic, message, 0.2) is message
