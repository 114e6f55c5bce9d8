"""Plans from elsewhere: the loop does not wait, they are joined at the right step, and what is too late stops it."""

import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from websockets.sync.server import serve as listen

from deploy import replay, run
from deploy.guard import REASONS, Guard
from deploy.loop import HandshakeError
from deploy.loop import run as fly
from deploy.policy_file import PolicyFile, PolicyFileError
from deploy.recording.flight_log import FlightLogError
from deploy.remote.client import Client, ServerError, pack, unpack
from deploy.remote.planned import Planned, planned
from deploy.remote.plans import Plans
from deploy.serve import PLANS, PlanService, opened
from policies.models.chunking import ChunkPolicy, NoiseTable
from policies.models.export import export
from policies.models.realtime import planned as realtime
from sim import spec
from tests.deploy.remote.test_client import listening
from tests.deploy.remote.timetable import HORIZON, HZ, REPLAN, TICK, Counting, timetable
from tests.deploy.sample_policy import small
from tests.deploy.told_policy import obedient
from tests.policies.models.test_chunking import base
from tests.policies.models.test_realtime import aware
from tests.policies.toy_reach import ToyReach

PERIOD = 1.0 / HZ
SLOW = 0.3  # s of a plan: six control steps


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return timetable(tmp_path_factory.mktemp("planned") / "timetable.onnx")


@contextmanager
def slow(file, monkeypatch, *seconds):
    """The policy, whose plans take so long: one after the other, and from then on as the last."""
    left, plan = [*seconds], Plans.plan

    def late(self, *given):
        time.sleep(left.pop(0) if len(left) > 1 else left[0])
        return plan(self, *given)

    server = opened(file, "127.0.0.1", 0, answers=PLANS)
    monkeypatch.setattr(Plans, "plan", late)
    with listening(server) as address:
        policy = planned(file, address)
        try:
            yield policy
        finally:
            policy.close()


class Waiting(PolicyFile):
    """As it was: the loop waits for a plan."""

    def __init__(self, file):
        self.__dict__ |= file.__dict__

    def step(self, signals):
        if self.states()["left"][0, 0] <= 0.0:
            time.sleep(SLOW)
        return super().step(signals)


def periods(robot):
    """s between two commands: median, 99 %."""
    return np.percentile(np.diff(robot.times), (50, 99))


def guard_of(policy):
    return Guard(policy.inputs, policy.outputs)


class Scripted:
    """A client whose server answers when the test says so."""

    address = "here"

    def __init__(self, file):
        self.metadata, self.may = {"plans": True, "sha256": file.sha256}, threading.Semaphore(0)
        self.asked, self.higher = [], 0.0  # by so much all plans but the first are

    def plan(self, request, shape):
        self.asked.append(request)
        self.may.acquire()
        first = float(request["clock"][0, 0])
        due = np.broadcast_to(first + TICK * np.arange(shape[1])[:, None], shape[1:])
        made = np.stack([due[:, 0] + self.higher * (len(self.asked) > 1), np.full(shape[1], first)], axis=1)
        return np.repeat(made[None], shape[0], axis=0).astype(np.float32)

    def close(self):
        self.may.release(100)


def until(happened):
    end = time.monotonic() + 30.0
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.001)


def scripted(file, blend=0):
    """The policy, and the client whose first answer may come."""
    client = Scripted(file)
    client.may.release()
    return Planned(file, client, blend), client


def begun(file, blend=0):
    """They have their first plan."""
    policy, client = scripted(file, blend)
    policy.prepare({"clock": np.zeros((1, 1), np.float32)})
    return policy, client


def test_a_robot_that_frees_itself_goes_on_with_its_plan(file):
    """There is nothing here to begin anew with, least of all the state of the file, which plans elsewhere."""
    policy, _ = scripted(file)
    signals = {"clock": np.zeros((2, 1), np.float32)}
    policy.reset(2)
    policy.prepare(signals)
    before = policy._plan
    policy.restart(np.array([False, True]))
    assert policy._plan is before and policy.step(signals)["due"].shape[0] == 2
    policy.close()


@pytest.mark.timed
@pytest.mark.waits
def test_the_loop_goes_on_while_a_plan_is_made(file, monkeypatch):
    robot = Counting(60)
    with slow(file, monkeypatch, SLOW) as policy:
        record = fly(policy, robot, guard_of(policy))
    due, asked = np.array(robot.sent).T
    np.testing.assert_allclose(due, np.arange(60), atol=0.05)  # each command at the step that it is meant for
    assert not record.trouble and not record.interventions
    late = policy.steps_late
    assert min(late) >= 6 and len({*asked.round()}) >= 4 and (np.diff(asked) >= -0.05).all()
    assert policy.report()[0].startswith(f"{len(policy.took)} plans by 127.0.0.1:")
    waiting = Counting(60)
    waiting.real_time = False  # in real time the watch would take it for one that hangs
    fly(Waiting(PolicyFile.load(file.path)), waiting, guard_of(file))
    middle, most = periods(robot)
    print(f"period {1e3 * middle:.1f} ms, 99 % {1e3 * most:.1f}; waiting: 99 % {1e3 * periods(waiting)[1]:.1f}")
    assert abs(middle - PERIOD) < 0.1 * PERIOD and most < 0.5 * SLOW < SLOW < periods(waiting)[1]


@pytest.mark.timed
@pytest.mark.waits
@pytest.mark.parametrize("late", [2, 9])
def test_a_plan_that_comes_when_the_last_is_over_is_bridged_or_stops_the_robot(file, late):
    robot, (policy, client) = Counting(60), scripted(file)
    robot.on_step = lambda step: client.may.release() if step >= HORIZON + late - 1 else None
    record = fly(policy, robot, guard_of(policy))
    due = [d for d, _ in robot.sent]
    np.testing.assert_allclose(due[:HORIZON], np.arange(HORIZON), atol=0.05)  # what is left is carried out
    assert "LateError: the plan ended 1 steps ago, after 32: no plan from here yet" in record.trouble
    missing = record.interventions["policy failed"]
    if late < 6:
        assert late <= missing <= 5 and not record.stopped[0]
        np.testing.assert_allclose(due[HORIZON : HORIZON + missing], HORIZON - 1, atol=0.05)
        after = HORIZON + missing
        np.testing.assert_allclose(due[after:], np.arange(after, after + len(due[after:])), atol=0.05)
    else:
        assert due[HORIZON : HORIZON + 5] == pytest.approx([HORIZON - 1] * 5, abs=0.05)
        assert due[HORIZON + 5 :] == [0.0] * (60 - HORIZON - 5)  # for good, also when the plan has come
        assert REASONS[record.stopped[0]] == "policy failed" and missing == 60 - HORIZON
    policy.close()


@pytest.mark.timed
@pytest.mark.waits
def test_a_server_that_dies_leaves_what_is_left_of_the_plan(file):
    robot = Counting(50)
    with listening(opened(file, "127.0.0.1", 0, answers=PLANS)) as address:
        policy = planned(file, address)
        robot.on_step = lambda step: policy.client.close() if step == 5 else None
        record = fly(policy, robot, guard_of(policy))
        policy.close()
    np.testing.assert_allclose([d for d, _ in robot.sent[:HORIZON]], np.arange(HORIZON), atol=0.05)
    assert "has closed the connection" in record.trouble and REASONS[record.stopped[0]] == "policy failed"


def stepped(policy, client, count, answers=()):
    """`due` of so many steps; before which the server answers."""
    due = []
    for step in range(count):
        if step in answers:
            client.may.release()
            until(lambda: not policy._answers.empty())
        due.append(float(policy.step({"clock": np.full((1, 1), TICK * step, np.float32)})["due"][0, 0]) / TICK)
    return due


@pytest.mark.parametrize("blend", [0, 3, 100])
def test_the_new_plan_takes_over_at_its_step_at_once_or_by_and_by(file, blend):
    policy, client = begun(file, blend)
    client.higher = 0.1
    due = stepped(policy, client, 20, answers=(12,))  # asked at 8; the new plan is 100 ticks higher
    overlap = min(blend, HORIZON - 12)
    share = np.minimum((np.arange(8) + 1) / (blend + 1), 1.0)
    share[overlap:] = 1.0
    np.testing.assert_allclose(due[:12], np.arange(12), atol=0.01)
    np.testing.assert_allclose(due[12:], np.arange(12, 20) + 100.0 * share, atol=0.01)
    assert policy.steps_late == [4]
    committed = client.asked[1]["committed"][0]
    assert "committed" not in client.asked[0] and committed.shape == (HORIZON, 2)
    np.testing.assert_allclose(committed[:, 0] / TICK, np.minimum(np.arange(8, 8 + HORIZON), HORIZON - 1), atol=0.01)
    policy.close()


def test_it_asks_earlier_where_plans_take_longer(file):
    policy, client = begun(file)
    policy._lately.append(HORIZON - 1 - 4)
    stepped(policy, client, 5)
    until(lambda: len(client.asked) == 2)
    assert client.asked[1]["clock"] == pytest.approx(TICK * 4)
    policy.close()


def test_an_answer_to_the_flight_before_is_none(file):
    policy, client = begun(file)
    stepped(policy, client, REPLAN + 1)
    client.may.release(2)
    policy.prepare({"clock": np.full((1, 1), 0.5, np.float32)})  # another flight begins
    until(lambda: not policy._answers.empty())
    assert policy.step({"clock": np.full((1, 1), 0.5, np.float32)})["asked"][0, 0] == pytest.approx(0.5)
    policy.close()


def test_the_next_flight_waits_for_the_question_that_was_left_open(file, monkeypatch):
    with slow(file, monkeypatch, 0.0, 0.5, 0.0) as policy:
        for first in (0.0, 0.5):
            policy.prepare({"clock": np.full((1, 1), first, np.float32)})
            for _ in range(REPLAN + 2):  # asks
                asked = policy.step({"clock": np.full((1, 1), first, np.float32)})["asked"]
            assert asked[0, 0] == pytest.approx(first)


def test_whom_it_does_not_ask(file, tmp_path):
    other = obedient(tmp_path / "told.onnx")
    plain = export(small(), tmp_path / "plain.onnx")
    with listening(opened(other, "127.0.0.1", 0, answers=PLANS)) as address:
        with pytest.raises(ServerError, match=f"at {address} plans for another file than"):
            planned(file, address)
        with pytest.raises(PolicyFileError, match=f"plans nothing ahead .* goes without server={address}"):
            planned(plain, address)
        told = Counting(5)
        told.real_time = False
        policy = Planned(other, Client(address))
        with pytest.raises(HandshakeError):
            fly(policy, told)
        policy.close()
    for words, why in (({"answers": "all"}, "answers=all is not one of base, plans"), ({}, "has no base")):
        with pytest.raises(ValueError, match=why):
            from deploy.serve import main

            main([f"policy={file.path}", "port=0", *(f"{name}={value}" for name, value in words.items())])


def test_where_nobody_waits_for_the_clock_it_is_refused(file):
    policy, _ = begun(file)
    robot = Counting(5)
    robot.real_time = False
    with pytest.raises(HandshakeError, match="come by the clock: real_time=true"):
        fly(policy, robot)
    policy.close()


def test_plans_that_take_longer_than_they_last_do_not_begin(file, monkeypatch):
    with slow(file, monkeypatch, 0.0) as policy:
        monkeypatch.setattr("deploy.remote.planned.time.perf_counter", iter(np.arange(0.0, 100.0, 1.7)).__next__)
        with pytest.raises(ServerError, match="takes 1700 ms, and lasts 1600 ms: the robot would wait"):
            policy.prepare({"clock": np.zeros((1, 1), np.float32)})


@pytest.mark.parametrize(
    ("actions", "why"),
    [
        (np.zeros((1, HORIZON - 1, 2)), "wanted are"),
        (np.zeros((2, HORIZON, 2)), "wanted are"),
        (np.full((1, HORIZON, 2), np.nan), "not finite"),
        (np.full((1, HORIZON, 2), "x"), "actions of <U1"),
        ("rubbish", "sends a"),
    ],
)
def test_a_server_that_answers_nonsense_is_a_stranger(file, actions, why):
    answer = pack(actions) if isinstance(actions, str) else pack({"actions": actions})

    def talk(connection):
        connection.send(pack({"plans": True, "sha256": file.sha256}))
        for _ in connection:
            connection.send(answer)

    with listening(listen(talk, "127.0.0.1", 0)) as address:
        policy = planned(file, address)
        with pytest.raises(ServerError, match=why):
            policy.prepare({"clock": np.zeros((1, 1), np.float32)})
        policy.close()


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ({"clock": np.zeros((1, 1)), "committed": np.zeros((1, 3, 2))}, "committed has shape (1, 3, 2)"),
        ({"clock": np.zeros((1, 1)), "committed": np.full((1, HORIZON, 2), np.inf)}, "committed is not finite"),
        ({"clock": np.full((1, 1), np.nan)}, "not finite"),
        ({}, "the request lacks clock"),
    ],
)
def test_what_a_planner_is_asked_by_strangers(file, request_, why):
    service = PlanService(file)
    assert why in service.reply(pack(request_))
    huge = {"clock": np.full((1, 1), 1e30), "committed": np.full((1, HORIZON, 2), -1e30)}
    actions = unpack(service.reply(pack(huge)))["actions"]
    assert np.isfinite(actions).all() and actions.min() >= 0.0 and actions.max() <= 1.0


def test_what_learned_to_go_on_from_what_is_committed_does(tmp_path):
    delay, k = 2, 2
    made = realtime(ToyReach(), aware(6, delay), NoiseTable.normal(6 * k), 3, delay)
    file = export(made, tmp_path / "realtime.onnx")
    plans, rng = Plans(file), np.random.default_rng(0)
    seen = {s.name: rng.uniform(-1.0, 1.0, (1, *s.shape)).astype(np.float32) for s in file.inputs}
    first, kept = plans.plan(seen, None, {})
    committed = np.concatenate([first[:, 3:], np.repeat(first[:, -1:], 3, axis=1)], axis=1)
    second, _ = plans.plan(seen, committed, kept)
    np.testing.assert_allclose(second[:, :delay], committed[:, :delay], atol=1e-6)
    assert np.abs(second[:, delay:] - committed[:, delay:]).max() > 1e-3
    file.reset(1)  # and as the file itself does where nobody is late
    own = [spec.pack(file.outputs, file.step(seen))[0] for _ in range(6)]
    np.testing.assert_allclose(np.concatenate([first[0, :3], second[0, :3]]), own, atol=1e-6)


def test_whose_plans_are_not_to_be_had(tmp_path):
    plain = ChunkPolicy.from_task(ToyReach(), base(), NoiseTable.normal(6), 3)
    plain.history = 0
    with pytest.raises(PolicyFileError, match="plans nothing ahead"):
        Plans(export(small(), tmp_path / "plain.onnx"))
    file = export(plain, tmp_path / "file.onnx")
    for changed, why in (
        ({"horizon": 2, "replan": 2}, "does not keep what is left of its plan"),
        ({"horizon": 3, "replan": 4}, "renewed after 4, are none"),
        ({}, "plans of 0 steps"),
    ):
        file.metadata["plan"] = changed
        with pytest.raises(PolicyFileError, match=why):
            Plans(file)


@pytest.mark.timed
def test_a_planner_of_its_own_flies_an_arm_told_in_words(tmp_path, capfd):
    file, log = obedient(tmp_path / "told.onnx"), tmp_path / "flight.mcap"
    words = [f"policy={file.path}", "server=process", "instruction=stop", "real_time=true", "seconds=2", "blend=2"]
    run.main([*words, f"log={log}"])
    said = capfd.readouterr().out
    assert "40 control steps at 20 Hz" in said and re.search(r"\d+ plans by 127.0.0.1:\d+, \d+ ms each", said)
    with pytest.raises(FlightLogError, match="actions came from a server"):
        replay.main([f"log={log}"])
    with pytest.raises(ValueError, match="blend is 0 to 1000"):
        run.main([*words[:-1], "blend=-1"])


def running(process):
    """Its command line; empty once it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.timed
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_planner_ends_with_the_robot_s_process(file, end):
    code = (
        "import time; from deploy.policy_file import PolicyFile; from deploy.remote.planned import planned\n"
        f"policy = planned(PolicyFile.load({file.path!r}), 'process'); print('there', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as robot:
        assert robot.stdout.readline() == "there\n"
        (child,) = Path(f"/proc/{robot.pid}/task/{robot.pid}/children").read_text().split()
        robot.send_signal(end)
        robot.wait(20)
    deadline = time.monotonic() + 60.0
    while b"deploy.serve" in running(child):
        assert time.monotonic() < deadline, "it outlives its robot"
        time.sleep(0.05)
