"""Every fault, injected into a flying simulation at some moment, ends on the documented rung in its time."""

import numpy as np
import pytest

from deploy import replay as replay_command
from deploy.guard import LANDING, REASONS, SAFE, STAYING
from deploy.policy_file import PolicyFile
from deploy.recording import flight_log
from deploy.recording.recorder import Recorder
from tests.deploy.safety.faults import BY_HAND, ENVELOPE, FAULTS, LONG, STEPS, fly, rung_of, stopped_after


@pytest.fixture(scope="module")
def policy():
    return PolicyFile.load("quad_any")


def check(name, flight, steps=STEPS):
    """The documented end of the flight."""
    fault = FAULTS[name]
    sent = np.concatenate(flight.sent)
    assert np.isfinite(sent).all()
    assert (sent >= 0.0).all()
    assert (sent <= 1.0).all()
    assert sent[: flight.at].any(axis=1).all()  # it flew until then
    assert flight.stops == 1
    if name == "link lost":
        assert str(flight.error) == "the link is lost"
        assert len(sent) == flight.at
        return
    assert flight.error is None
    assert flight.record.interrupted == (name == "interrupted")
    if name == "interrupted":
        assert flight.guard.over
        assert not sent[-1].any()
    else:
        assert len(sent) == steps
    if fault.reason:
        after = stopped_after(flight)
        assert after is not None, "it was not stopped"
        assert after <= fault.limit
        rungs = flight.verdicts[flight.at + after - 1 :]
        assert rungs == sorted(rungs, key=[STAYING, LANDING, SAFE].index)  # never back up
        assert flight.rung() == rung_of(fault, flight)
        assert REASONS[flight.record.stopped[0]] == fault.reason
        if flight.rung() == "off":
            assert not sent[flight.at + after - 1 :].any()
    elif name == "override":
        assert flight.rung() == ""
    if name == "override":
        np.testing.assert_array_equal(sent[flight.at :], BY_HAND["motor_command"].repeat(steps - flight.at, axis=0))


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_flight_ends_safely_and_in_time(policy, name):
    check(name, fly(name, policy, np.random.default_rng(1)))


def test_a_wild_policy_may_not_change_its_command_at_once(policy):
    flight = fly("command out of range", policy, np.random.default_rng(3))
    before, after = flight.sent[flight.at - 1], flight.sent[flight.at]
    assert (after > before).all()
    assert (after <= before + ENVELOPE.max_change + 1e-6).all()


@pytest.mark.parametrize("count", [pytest.param(5, marks=pytest.mark.slow), pytest.param(300, marks=pytest.mark.long)])
def test_random_faults(policy, tmp_path, count):
    rng = np.random.default_rng(2026)
    landed, early = [], 0
    for k in range(count):
        name = str(rng.choice(list(FAULTS)))
        path = str(tmp_path / "flight.mcap")
        recorder = (
            (lambda f, path=path: Recorder(path, policy, f.driver, f.guard, "onnxruntime")) if k % 10 == 0 else None
        )
        flight = fly(name, policy, rng, recorder, steps=LONG)
        if {STAYING, LANDING, SAFE} & {*flight.verdicts[: flight.at]}:  # the policy tumbled before: 1 to 2 of 100 do
            early += 1
            landed.append(("before the fault", None, flight.landed, flight.landing))
            continue
        check(name, flight, LONG)
        if FAULTS[name].reason and flight.rung() != "off":
            landed.append((name, vars(flight).get("name"), flight.landed, flight.landing))
        if recorder is None:
            continue
        log = flight_log.read(path)
        assert log.complete
        np.testing.assert_array_equal(log.values("sent.motor_command")[:, 0], np.concatenate(flight.sent))
        if "command" not in name:  # there the policy itself was broken
            differences = replay_command.differences(log, replay_command.replay(log, policy, "onnxruntime"))
            assert [count for count, _ in differences.values()] == [0, 0]
        (tmp_path / "flight.mcap").unlink()
    fell = [fate for fate in landed if not fate[2]]
    print(f"{len(landed) - len(fell)} of {len(landed)} landed; fell: {fell}")
    assert len(landed) > 0.5 * count
    assert early <= 0.02 * count
    assert len(fell) <= 0.05 * len(landed), fell
