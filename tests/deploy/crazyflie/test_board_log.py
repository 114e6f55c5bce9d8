"""What policy and PID controller on board asked for: written, read, drawn; and the driver's settings of it."""

import math
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from deploy import cli
from deploy.crazyflie import plot
from deploy.crazyflie.board_log import TIME, VARIABLES, BoardLog, read
from deploy.crazyflie.guard import AS_SHADOW, BY_PID, FLYING, LIMITS, SPEED
from deploy.drivers.crazyflie import Crazyflie, Settings


def packet(k: int) -> dict[str, float]:
    state = BY_PID if k < 20 else AS_SHADOW if k < 60 else FLYING
    values = {f"policy.force_{i}": 0.5 + 0.1 * i for i in range(4)} | {f"policy.pid_{i}": 0.5 for i in range(4)}
    return {**values, "policy.state": state, "policy.reason": SPEED if k > 90 else 0}


@pytest.fixture
def path(tmp_path):
    log = BoardLog(str(tmp_path / "flight.csv"))
    for k in range(100):
        for _ in range(2):  # asked more often than packets arrive
            log.note(7.0 + 0.01 * k, packet(k))
    assert log.close() == [f"board log        {tmp_path / 'flight.csv'}, 100 lines"]
    return tmp_path / "flight.csv"


def test_what_was_written_is_read(path):
    board = read(str(path))
    np.testing.assert_allclose(board.time, 0.01 * np.arange(100), atol=1e-9)
    np.testing.assert_allclose(board.force, np.tile([0.5, 0.6, 0.7, 0.8], (100, 1)))
    assert (board.pid[:60] == 0.5).all() and np.isnan(board.pid[60:]).all()  # it does not compute then
    assert board.reason[-1] == SPEED and list(np.unique(board.state)) == [BY_PID, AS_SHADOW, FLYING]


def test_the_picture_and_its_numbers(path, tmp_path, capsys):
    out = tmp_path / "flight.svg"
    assert cli.call(plot.main, [f"log={path}", f"out={out}"]) == 0
    said = capsys.readouterr().out
    assert "policy less PID, rms per rotor: 0.000, 0.100, 0.200, 0.300" in said
    assert f"without what all rotors have in common: {np.std([0, 0.1, 0.2, 0.3]):.3f}" in said
    assert "0.91 s: speed" in said and "   0.20 s to    0.59 s  shadow" in said
    lines = [e for e in ET.parse(out).getroot() if e.tag.endswith("polyline")]
    assert [len(line.get("points").split()) for line in lines] == [60, 100] * 4


def test_a_log_of_bitcraze_s_client_will_do(path, tmp_path):
    """Other columns, in another order."""
    rows = [line.split(",") for line in path.read_text().splitlines()]
    other = tmp_path / "client.csv"
    lines = [",".join([row[0], "1" if k else "pm.vbat", *reversed(row[1:])]) for k, row in enumerate(rows)]
    other.write_text("\n".join(lines))
    np.testing.assert_array_equal(read(str(other)).force, read(str(path)).force)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no Timestamp"),
        ('"' + 200_000 * "x", "bad.csv: field larger than field limit"),
        (f"{TIME},policy.state\n1,2\n", "has no policy.force_0"),
        (",".join((TIME, *VARIABLES)) + "\n" + "1," * 10 + "x\n", "could not convert"),
        (",".join((TIME, *VARIABLES)) + "\n" + ",".join("1" * 11) + "\n", "at least two lines"),
        (",".join((TIME, *VARIABLES)) + "\n" + (",".join("1" * 9) + ",99,0\n") * 2, "states are 0..8"),
        (",".join((TIME, *VARIABLES)) + "\n" + ("1,2\n" * 3), "needs at least two lines of 11 numbers"),
    ],
)
def test_what_is_no_such_log_is_refused(tmp_path, text, said):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        read(str(path))


def test_a_log_is_not_overwritten(path, tmp_path):
    with pytest.raises(ValueError, match="exists"):
        BoardLog(str(path))
    with pytest.raises(ValueError, match="no such folder"):
        BoardLog(str(tmp_path / "nowhere" / "x.csv"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mode": "glide"}, "is fly, shadow or bench"),
        ({"mode": "off"}, "is fly, shadow or bench"),
        ({"mode": "bench", "onboard": False}, "need onboard=true"),
        ({"board": "cup=1"}, "there is no 'cup=1'; choices: fence"),
        ({"board": "cap=high"}, "'cap=high' has no number"),
        ({"board_log": "x.mcap"}, "ends in .csv"),
    ],
)
def test_settings_that_make_no_sense(settings, said):
    with pytest.raises(ValueError, match=said):
        Settings(**settings)


def test_every_limit_is_written_and_what_is_not_allowed_is_said():
    """Those of an earlier flight must not hold on."""
    driver = Crazyflie(100.0, Settings(board="cap=2, fence=0.5,seconds=-1,tilt=nan", mode="shadow"))
    written: dict[str, float] = {}
    driver.link.write = lambda name, value: written.setdefault(name, value)  # type: ignore[method-assign,assignment]
    driver.link.parameter = lambda name: 0.0  # type: ignore[method-assign]  # nobody flies: no deck is there
    driver._allow()
    wanted = {f"policy.{name}": usual for name, (usual, _, _) in LIMITS.items()}
    assert written == {**wanted, "policy.fence": 0.5, "policy.mode": 2}
    assert driver._notes[0] == "board: tilt=nan is not allowed, it is 60"
    assert driver._notes[1:] == ["board: cap=2 is not allowed, it is 1", "board: seconds=-1 is not allowed, it is 30"]
    assert math.isclose(written["policy.cap"], 1.0)
