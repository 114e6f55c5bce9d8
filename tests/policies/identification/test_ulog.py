"""PX4's logs say the same of a vehicle as ours."""

import contextlib
import struct
import tracemalloc

import numpy as np
import pytest

from policies.identify import read_records
from sim.robots import robot
from sim.sysid import identify
from tests.identification_flights import fly, record, wrong
from tests.policies.identification.ulog_file import as_px4, message, ulog

pytest.importorskip("pyulog", reason="needs pyulog, the extra [ulog]")


@pytest.fixture(scope="module")
def flown():
    return fly("racer", seconds=20.0)


def write(tmp_path, topics, parameters=()):
    (tmp_path / "flight.ulg").write_bytes(ulog(topics, parameters))
    return str(tmp_path / "flight.ulg")


@pytest.mark.parametrize("factor", [0.0, 0.3])
def test_a_log_of_px4_is_the_flight(flown, tmp_path, factor):
    (found,) = read_records(write(tmp_path, *as_px4(flown, factor)))
    expected = record(flown)
    assert found.dt == pytest.approx(0.01, rel=1e-4)
    inside = slice(1, len(found.command) + 1)  # nothing lies before the first row
    np.testing.assert_allclose(found.command, expected.command[inside], atol=2e-6)
    np.testing.assert_allclose(found.rate, expected.rate[inside], atol=2e-6)
    np.testing.assert_allclose(found.velocity, expected.velocity[inside], atol=2e-6)
    np.testing.assert_allclose(found.rotation, expected.rotation[inside], atol=2e-2)  # of which ours has the noise


def test_the_same_airframe_comes_out(flown, tmp_path):
    """The rotors in PX4's order, its axes, its thrust model, and states at half the rate."""
    true = robot("racer")
    ours = identify([record(flown)], wrong(true))
    theirs = identify(read_records(write(tmp_path, *as_px4(flown, 0.4, states=2))), wrong(true))
    for name in ("thrust", "inertia_x", "inertia_y", "inertia_z", "rise_time"):
        assert theirs[name].value == pytest.approx(ours[name].value, rel=0.05), name


def test_what_was_not_flown_or_not_logged_is_left_out(flown, tmp_path):
    topics, parameters = as_px4({name: value[:400] for name, value in flown.items()})
    fields, time, control = topics["actuator_motors"]
    control = control.copy()
    control[:50] = np.nan  # not armed
    topics["actuator_motors"] = fields, time, control
    topics["vehicle_land_detected"] = ("bool landed",), time[[0, 100, 350]], [[True], [False], [True]]
    fields, _, q = topics["vehicle_attitude"]
    kept = np.r_[0:200, 230:400]  # a gap of 0.3 s
    topics["vehicle_attitude"] = fields, time[kept], q[kept]
    first, second = read_records(write(tmp_path, topics, parameters))
    assert (len(first.command), len(second.command)) == (100, 119)


def test_a_bad_log_is_named(flown, tmp_path):
    topics, parameters = as_px4({name: value[:60] for name, value in flown.items()})
    without = {name: topic for name, topic in topics.items() if name != "vehicle_attitude"}
    slow = topics | {"actuator_motors": tuple(x if k == 0 else x[::4] for k, x in enumerate(topics["actuator_motors"]))}
    fields, time, control = topics["actuator_motors"]
    off = topics | {"actuator_motors": (fields, time, np.full_like(control, np.nan))}
    for changed, changes, said in (
        (without, (), r"no topic vehicle_attitude; log it at a higher rate"),
        (slow, (), r"actuator_motors has 25 rows a second"),
        (off, (), r"no row in which the vehicle is armed"),
        (topics, (("CA_ROTOR_COUNT", 6),), r"a vehicle of 6 rotors"),
        (topics, (("CA_ROTOR1_PX", 0.1),), r"are not one in each corner"),
        (topics, (("THR_MDL_FAC", 7.0),), r"THR_MDL_FAC lies between 0 and 1"),
    ):
        with pytest.raises(ValueError, match=said):
            read_records(write(tmp_path, changed, [*parameters, *changes]))
    whole = bytearray(ulog(topics, parameters))
    rng = np.random.default_rng(0)
    for _ in range(60):  # damaged anywhere: an error in a sentence, or what is left is read
        damaged = whole.copy()
        for at in rng.integers(0, len(whole), 3):
            damaged[at] = rng.integers(256)
        (tmp_path / "flight.ulg").write_bytes(damaged)
        with contextlib.suppress(ValueError):
            read_records(str(tmp_path / "flight.ulg"))
    for content in (b"", b"no log at all, but some text", ulog(topics, parameters)[:700]):
        (tmp_path / "flight.ulg").write_bytes(content)
        with pytest.raises(ValueError, match=r"flight\.ulg"):
            read_records(str(tmp_path / "flight.ulg"))


def nested(*formats, added="n"):
    """A log of these formats, which says that it holds one of them."""
    text = [b"ULog\x01\x12\x35\x01" + struct.pack("<Q", 0), message("B", bytes(40))]
    text += [message("F", each.encode()) for each in formats]
    return b"".join([*text, message("A", struct.pack("<BH", 0, 0) + added.encode())])


@pytest.mark.parametrize(
    ("formats", "said"),
    [
        (("n:uint8_t[1500] x;", "m:n[1500] n;"), "the format of m has 2250000 numbers, more than 2000"),
        (("n:m[2] x;", "m:n[2] n;"), "numbers, more than 2000"),  # each in the other
        (("n:m[9999] x;m[9999] y;",), "numbers, more than 2000"),  # of what there is not
        (("actuator_motors:float[201] control;",), "the format of actuator_motors has 201 numbers, more than 200"),
        (("n:float x;", "actuator_motors:n[2] control;"), "the format of actuator_motors holds other formats"),
        (("n:float[-1] x;",), "the format 'n' is none"),
        (("n:float[2] x;", "n:float[3] x;"), "two formats of n"),
    ],
)
def test_formats_that_fill_memory_are_refused(tmp_path, formats, said):
    path = tmp_path / "flight.ulg"
    path.write_bytes(nested(*formats, added="m"))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=f"flight.ulg is no ULog, or a damaged one: .*{said}"):
            read_records(str(path))
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


def test_definitions_are_walked_as_the_reader_walks_them(tmp_path, capsys):
    path = tmp_path / "flight.ulg"
    content = nested("n:float x;")
    for odd in (message("D", bytes(20)), message("Z", message("F", b"n:uint8_t[60000] x;"))):
        path.write_bytes(content[:59] + odd + content[59:])
        with pytest.raises(ValueError, match="a message of the kind"):
            read_records(str(path))
    again = b"".join(message("A", struct.pack("<BH", 0, k) + b"n") for k in range(5000))
    path.write_bytes(content + again)
    with pytest.raises(ValueError, match="it adds more than 4096 topics"):
        read_records(str(path))
    path.write_bytes(content + message("D", struct.pack("<Hf", 77, 0.0)))  # the reader prints that it knows no 77
    with pytest.raises(ValueError, match="no topic actuator_motors"):
        read_records(str(path))
    assert capsys.readouterr().out == ""
