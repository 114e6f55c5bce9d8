"""Looking on: the best view there is, on this machine only, and of simulated robots only."""

import socket
import sys

import numpy as np
import pytest

from deploy import run, watch
from deploy.teleop import screen


def test_true_is_the_best_view_that_there_is(monkeypatch):
    there = {"rerun": True, "display": True}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: there["rerun"] or None)
    monkeypatch.setattr(watch, "has_display", lambda: there["display"])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert screen.asked("True") == "window"
    there["display"] = False
    assert screen.asked("true") == "web"
    there["rerun"] = False
    assert screen.asked("true") == "terminal"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    with pytest.raises(ValueError, match=r"view=true: there is no terminal here.*sim2metal\[watch\]"):
        screen.asked("true")
    assert (screen.asked("false"), screen.asked("web")) == ("none", "web")


def test_a_page_listens_on_the_loopback_only_and_takes_another_port_where_its_own_is_taken(monkeypatch, capsys):
    monkeypatch.setattr("deploy.recording.page.viewer", lambda: {})
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(watch, "PORT", taken.getsockname()[1])
        shown = screen.Viewer(True, "help")
        address = next(word for word in capsys.readouterr().err.split() if word.startswith("http://127.0.0.1:"))
        port = int(address.split(":")[2].split("/")[0])
        assert port != watch.PORT
        with socket.socket() as other:
            other.bind(("127.0.0.2", port))  # it would be taken, were it everybody's
        with socket.create_connection(("127.0.0.1", port), 5.0):
            pass
        shown.show(lambda side: np.zeros((side, side, 3), np.uint8), "line")
        shown.close()


def test_a_simulated_flight_is_shown_and_others_are_refused(tmp_path, capsys):
    recording = tmp_path / "flight.rrd"
    run.main(["policy=quad_any", "robot=racer", "seconds=0.2", f"view={recording}"])
    assert recording.stat().st_size > 1000
    assert "20 control steps" in capsys.readouterr().out
    refused = pytest.raises(ValueError, match=r"view=true shows simulated robots: follow another flight by log=FILE")
    with refused, run.looked_on(object(), "true"):
        pass
