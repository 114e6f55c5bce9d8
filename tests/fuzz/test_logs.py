"""Mutants of flight logs: each is read around its damage or refused in a sentence, in bounded time and memory."""

import contextlib
import io
import resource
import time
from itertools import islice

import numpy as np
import pytest

from deploy import replay as replay_command
from deploy.drivers.simulated import Simulated
from deploy.guard import Guard
from deploy.loop import run
from deploy.policy_file import PolicyFile
from deploy.recording import flight_log
from deploy.recording.recorder import Recorder
from policies.identify import read_records
from sim.tasks import make
from tests.deploy.sample_policy import CALM, exported, linear_hover
from tests.fuzz.logs import bombs, mutants
from tests.fuzz.mutants import rounds

STEPS = 60


@pytest.fixture(scope="module")
def flown(tmp_path_factory):
    """A policy and the log of a short flight in chunks, with events."""
    folder = tmp_path_factory.mktemp("fuzz")
    policy = exported(folder / "p.onnx", linear_hover())
    driver, guard = Simulated(make("quad_hover", **CALM)), Guard(policy.inputs, policy.outputs)
    recorder = Recorder(str(folder / "f.mcap"), policy, driver, guard, "onnxruntime")
    recorder.event("armed", "by hand", "the supervisor")
    run(policy, driver, guard, STEPS, log=recorder)
    assert recorder.close() == ""
    return PolicyFile.load(folder / "p.onnx"), folder / "f.mcap"


def attempt(path, replayed):
    """Whether it could be used; anything but a sentence is an error of ours."""
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            if replayed:
                replay_command.main([f"log={path}"])
            else:
                list(flight_log.follow(str(path)))
                read_records(str(path), None)
        return True
    except ValueError as error:
        message = str(error)
        assert message.startswith(str(path)) or ".onnx" in message, message
        assert "\n" not in message and message.isprintable() and len(message) < 1000, message
        return False
    finally:
        assert all(ch.isprintable() or ch == "\n" for ch in out.getvalue())


def test_mutants_of_logs(flown, tmp_path):
    _, log = flown
    whole, about = log.read_bytes(), dict(flight_log.read(str(log)).about)
    rng, path = np.random.default_rng(0), tmp_path / "mutant.mcap"
    counts: dict[str, list[int]] = {}
    slowest = 0.0
    few = rounds(200)
    for k, (kind, content) in enumerate(islice(mutants(whole, about, rng), few)):
        path.write_bytes(content)
        began = time.monotonic()
        try:
            usable = attempt(path, replayed=k % 5 == 4 or k % 11 == 0)
        except BaseException as error:
            raise AssertionError(f"mutant {k} of {few}, seed 0, {kind}: {type(error).__name__}: {error}") from error
        slowest = max(slowest, time.monotonic() - began)
        counts.setdefault(kind, [0, 0])[usable] += 1
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{few} logs, (refused, usable): {counts}; slowest {slowest:.2f} s, peak of the process {most} MB")
    assert slowest < 10.0


def test_bombs_are_bounded(flown, tmp_path):
    _, log = flown
    about = dict(flight_log.read(str(log)).about)
    path = tmp_path / "bomb.mcap"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    whole = rounds(0) >= 1000
    for k, (name, content) in enumerate(bombs(log.read_bytes(), about, 1.0 if whole else 0.05)):
        if k > 20 and k % 9 and not whole:
            continue
        path.write_bytes(content)
        began = time.process_time()
        with contextlib.suppress(ValueError):
            flight_log.read(str(path))
        spent = time.process_time() - began
        assert spent < 2.0 + len(content) / 5e6, f"{name}: {spent:.1f} s of CPU for {len(content)} bytes"
        if whole or k % 9 == 0:
            attempt(path, replayed=False)
        now = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        assert now < max(before, 300) + 512, f"{name}: {now} MB, {before} MB before"
        del content
