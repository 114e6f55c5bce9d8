"""Who looks on while it learns sees it, and changes nothing of it."""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np
import pytest

from policies import train
from policies.runner import config, live
from policies.runner.mistakes import SettingsError

SMALL = ["task=quad_hover", "algorithm.updates=12", "report=false", "seed=3"]


def weights(path):
    """All numbers of the graph."""
    import onnx

    graph = onnx.load(path).graph
    return {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}


@pytest.mark.timed
def test_a_training_that_is_looked_at_learns_the_same(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(live, "EVERY", 0.0)
    told, sent = [], []
    tell = live.Live.tell

    def counted(self, algorithm):
        if not told:
            assert self._pipe.poll(120)  # it has started, and asks: so few updates would be over before
        tell(self, algorithm)
        told.append(self._process is not None)
        sent.append(self.sent)

    monkeypatch.setattr(live.Live, "tell", counted)
    made = []
    for name, more in (("alone", []), ("seen", [f"view={tmp_path / 'live.rrd'}"])):
        settings = config.compose([*SMALL, f"out={tmp_path / name}", *more])
        made.append(weights(train.train(settings)))
    assert told and all(told) and sent[-1] >= 1
    assert "the live view has ended" not in capfd.readouterr().err
    assert made[0].keys() == made[1].keys()
    for name, value in made[0].items():
        np.testing.assert_array_equal(value, made[1][name])


def test_the_newest_policy_flies_in_a_process_of_its_own(tmp_path):
    settings = config.compose([*SMALL, f"view={tmp_path / 'live.rrd'}"])
    task, algorithm = train.built(settings)
    with live.beside(settings, task) as look:
        assert look._pipe.poll(120)  # it has started, and asks for a policy
        for _ in range(2):
            look._last = -live.EVERY
            look.tell(algorithm)
            assert look._pipe.poll(60)  # it flies that one, and asks for the next
    assert (tmp_path / "live.rrd").stat().st_size > 1000


def test_who_does_not_read_holds_nobody_up(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "ENDS", 0.5)
    settings = config.compose([*SMALL, f"view={tmp_path / 'live.rrd'}"])
    task, algorithm = train.built(settings)
    with live.beside(settings, task) as look:
        assert look._pipe.poll(120)
        os.kill(look._process.pid, signal.SIGSTOP)
        look._policies.put(bytes(10_000_000))  # more than a pipe holds
        began = time.monotonic()
        look._last = -live.EVERY
        look.tell(algorithm)
        assert time.monotonic() - began < 30.0
    assert look._process is None


def test_a_view_that_fails_ends_with_a_warning_and_the_training_goes_on(capsys):
    settings = config.compose([*SMALL, "view=radio"])
    task, algorithm = train.built(settings)
    with live.beside(settings, task) as look:
        assert look._pipe.poll(120)
        look.tell(algorithm)
        assert "the live view has ended: view 'radio' is not one of" in capsys.readouterr().err
        look.tell(algorithm)  # nothing more comes of it


def test_nothing_starts_where_nobody_looks_on():
    for view in ("", "none", "false"):
        settings = config.compose([*SMALL, f"view={view}"])
        assert type(live.beside(settings, None)) is live.Look


def test_what_cannot_be_shown_is_said_before_anything_is_trained(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    settings = config.compose([*SMALL, "view=true"])
    with pytest.raises(SettingsError, match=r"view=true: there is no terminal here.*sim2metal\[watch\]"):
        live.beside(settings, None)
