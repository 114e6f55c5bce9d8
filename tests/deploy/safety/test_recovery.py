"""A vehicle that is stuck: what it notices, what it does, for how long, and that the guard has the last word."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy import replay, run
from deploy.drivers import Reading
from deploy.drivers.simulated import Simulated
from deploy.guard import PASS, SAFE, Guard
from deploy.loop import run as fly
from deploy.policy_file import PolicyFile
from deploy.recording import flight_log
from deploy.safety.limits import LimitError, guard_of, limits_of
from deploy.safety.recovery import CRASHED, DRIVING, LOST, RECOVERING, STUCK, TELEOPERATED, Recovery, Rules
from policies.models.controller import FeaturePolicy
from policies.models.export import export
from policies.models.networks.feed_forward import Mlp
from sim.registry import load
from sim.robots import LISTED
from sim.spec import Signal, size
from sim.tasks import make
from tests.deploy.sample_policy import random_gru
from tests.deploy.test_loop import Clock

RATE = 10.0
INPUTS = (
    Signal("speed", (1,), "m/s", "body"),
    Signal("lidar", (8,), "m", "body"),
    Signal("acceleration", (3,), "m/s^2", "body"),
)
COMMANDS = (Signal("speed", (1,), "m/s", "", -1.0, 5.0), Signal("steering", (1,), "rad", "", -0.4, 0.4))
RULES = Rules(drives="speed", steers="steering", back=-0.5, forth=0.5, feels="acceleration")


def told(speed=0.0, scan=1.0, hit=0.0, n=1):
    """Signals of `n` robots."""
    return {
        "speed": np.full((n, 1), speed, np.float32),
        "lidar": np.full((n, 8), scan, np.float32),
        "acceleration": np.full((n, 3), hit, np.float32),
    }


def wish(speed=2.0, steering=0.1, n=1):
    return {"speed": np.full((n, 1), speed, np.float32), "steering": np.full((n, 1), steering, np.float32)}


def free(n=1):
    return np.zeros(n, bool)


def made(rules=RULES, seed=0, n=1):
    one = Recovery(rules, RATE, COMMANDS, seed)
    one.reset(n)
    return one


def drive(one, steps, **signals):
    return [(one.step(told(**signals), wish(), free()), int(one.state[0])) for _ in range(steps)]


def test_who_wants_to_drive_and_does_not_is_stuck_and_backs_out():
    one = made()
    states = [state for _, state in drive(one, 15)]
    assert states == [DRIVING] * 14 + [STUCK]  # 1.5 s
    done = drive(one, 9, speed=0.5)
    assert {state for _, state in done} == {RECOVERING}
    assert all(sent["speed"] == -0.5 and abs(float(sent["steering"][0, 0])) <= 0.4 for sent, _ in done)
    assert len({float(sent["steering"][0, 0]) for sent, _ in done}) == 1  # it does not waver
    sent, state = drive(one, 1, speed=1.0)[0]
    assert state == DRIVING and sent["speed"] == 2.0
    drive(one, 10, speed=1.0)
    assert one.counts == {"stuck": 1, "crashed": 0, "freed": 1, "lost": 0}


@pytest.mark.parametrize(("wheels", "steers", "backing"), [(True, 0.4, -1.0), (True, -0.4, 1.0), (False, 0.4, 1.0)])
def test_it_turns_to_where_its_policy_steers(wheels, steers, backing):
    one = made(Rules(**{**vars(RULES), "wheels": wheels}))
    for _ in range(15):
        sent = one.step(told(), wish(steering=steers), free())
    assert one.state[0] == STUCK and 0.27 <= backing * float(sent["steering"][0, 0]) <= 0.4
    for _ in range(8):  # backing out is not possible
        sent = one.step(told(), wish(steering=steers), free())
    assert sent["speed"] == 0.5 and 0.2 <= np.sign(steers) * float(sent["steering"][0, 0]) <= 0.4


def test_it_keeps_to_its_side_and_turns_at_random_where_nobody_says_or_that_did_not_help():
    def sides(steers, tried):
        one = made(n=200)
        one._attempts[:], one._turn[:] = tried, 1.0  # to the left
        for _ in range(15):
            sent = one.step(told(n=200), wish(steering=steers, n=200), free(200))
        return set(np.sign(sent["steering"][:, 0]).tolist())

    assert sides(-0.4, 0) == {1.0} and sides(-0.4, 3) == {-1.0}
    assert sides(0.0, 0) == {-1.0, 1.0} == sides(0.4, 4)


def test_who_may_not_stand_for_long_is_stuck_when_it_does():
    one = made(Rules(**{**vars(RULES), "stands_s": 3.0}))
    for k in range(30):
        one.step(told(), wish(speed=0.0), free())
        assert one.state[0] == (STUCK if k == 29 else DRIVING)


def test_who_is_stopped_while_it_gets_free_does_not_try_the_other_way():
    one = made()
    drive(one, 16)
    for _ in range(8):
        sent = one.step(told(), wish(), np.ones(1, bool))
    assert one.state[0] == RECOVERING and sent["speed"] == -0.5 and one._attempts[0] == 1


def test_who_does_not_want_to_drive_is_not_stuck():
    one = made()
    for _ in range(100):
        one.step(told(), wish(speed=0.0), free())
    assert one.state[0] == DRIVING and one.counts["stuck"] == 0


def changed(**settings):
    return Rules(**{**vars(RULES), **settings})


def test_where_it_cannot_back_out_it_goes_ahead_and_then_waits_for_help():
    one, ways = made(changed(attempts=3)), []
    for _ in range(14 + 3 * 33):
        sent = one.step(told(), wish(), free())
        ways.append(float(sent["speed"][0, 0]))
    again = [-0.5] * 8 + [0.5] * 10 + [2.0] * 14  # 0.8 s, 1 s, and the policy for 1.5 s
    assert ways[14 : 14 + 3 * 32 + 1] == 3 * again + [0.0]
    assert one.state[0] == LOST and one.counts["lost"] == 1
    sent = one.step(told(), wish(), free())
    assert sent["speed"] == 0.0 and sent["steering"] == 0.0
    one.restart()  # somebody helps
    drive(one, 6, speed=1.0)
    assert one.state[0] == DRIVING


def test_who_is_blocked_both_ways_tries_for_long_and_both_sides():
    one, n, steps = made(n=50), 50, 0
    sides: list[set[float]] = [set() for _ in range(n)]
    while not (one.state == LOST).all() and steps < 400:
        sent, steps = one.step(told(n=n), wish(n=n), free(n)), steps + 1
        for k in np.flatnonzero(one.frees & (one._attempts > 4) & (sent["speed"][:, 0] != 0.0)):
            sides[k].add(float(np.sign(sent["steering"][k, 0] * sent["speed"][k, 0])))
    assert 200 < steps < 300 and one.counts["stuck"] == 9 * n  # 20 to 30 s
    assert np.mean([found == {-1.0, 1.0} for found in sides]) > 0.9  # eight draws


def test_a_drive_train_that_answers_late_may_back_out():
    one, speed, asked, ways = made(changed(slow=0.4, back=-0.8, forth=0.8)), 0.0, [0.0] * 3, []
    for _ in range(25):
        sent = one.step(told(speed=speed), wish(), free())
        asked.append(min(0.0, float(sent["speed"][0, 0])))  # a wall ahead
        speed += 0.2 * (asked[-4] - speed)  # 0.3 s late, and slow
        ways.append(float(sent["speed"][0, 0]))
    assert ways[14:24] == [np.float32(-0.8)] * 10
    with pytest.raises(ValueError, match="blocked_s must be below recover_s 1, got 1"):
        changed(blocked_s=1.0)


def test_who_drives_as_slowly_as_it_is_told_is_not_stuck():
    for asked, speed, state, stands_s in (
        *((0.3, 0.3, DRIVING, 1.5), (-0.3, 0.3, DRIVING, 1.5), (0.15, 0.15, DRIVING, 0.0)),
        *((2.0, 0.3, STUCK, 0.0), (0.3, 0.15, STUCK, 0.0), (0.15, 0.15, STUCK, 1.5)),
    ):
        one = made(changed(slow=0.4, stands_s=stands_s))
        for _ in range(15):
            one.step(told(speed=speed), wish(speed=asked), free())
        assert one.state[0] == state


@pytest.mark.parametrize(("speed", "soonest", "latest"), [(1.0, 10, 10), (0.3, 45, 50)])  # 1 s; about 5 s
def test_who_creeps_as_it_is_told_is_free_later(speed, soonest, latest):
    one, steps = made(changed(slow=0.4)), 0
    drive(one, 15)
    drive(one, 9, speed=1.0)
    while not one.counts["freed"] and steps < 100:
        one.step(told(speed=speed), wish(speed=speed), free())
        steps += 1
    assert soonest <= steps <= latest


@pytest.mark.parametrize("robot", ["car_1_10", "car_1_18"])
def test_a_listed_car_stands_for_as_long_as_its_policy_says(robot):
    car = load("robot", robot, LISTED)
    one = Recovery(Rules.from_table(car.recovery), RATE, car.commands)
    for _ in range(100):
        sent = one.step({"wheel_speed": np.full((1, 1), 0.1)}, wish(speed=0.0), free())
        assert sent["speed"] == 0.0 and one.state[0] == DRIVING


def test_whose_policy_wanted_to_stand_never_goes_ahead():
    one, ways, sides = made(changed(stands_s=3.0)), set(), []
    for _ in range(500):
        sent = one.step(told(), wish(speed=0.0, steering=0.4), free())
        ways.add(float(sent["speed"][0, 0]))
        sides.append(float(np.sign(sent["steering"][0, 0])))
    assert ways == {0.0, -0.5} and one.state[0] == LOST
    assert sides[29:47] == [-1.0] * 8 + [1.0] * 10  # where it is blocked it backs out to the other side


def test_one_bad_sample_keeps_what_was_counted_and_adds_nothing():
    one, bad = made(), np.ones(1, bool)
    states = []
    for k in range(18):
        one.step(told(), wish(), free(), bad & (k % 5 == 4))
        states.append(int(one.state[0]))
    assert states == [DRIVING] * 17 + [STUCK]  # 15 good ones
    for _ in range(9):
        one.step(told(), wish(), free(), bad)
    assert one.state[0] == RECOVERING and one._attempts[0] == 1 and not one.ahead[0]


def test_who_is_hit_hard_has_crashed():
    one = made()
    sent, state = drive(one, 1, speed=3.0, hit=30.0)[0]
    assert state == CRASHED and sent["speed"] == -0.5 and one.counts["crashed"] == 1
    down = told(speed=3.0)
    down["acceleration"][0, 2] = 99.0  # a bump, which is upward
    one = made()
    one.step(down, wish(), free())
    assert one.state[0] == DRIVING


def test_wheels_that_spin_get_nowhere():
    one = made(Rules(**{**vars(RULES), "sees": "lidar"}))
    rng = np.random.default_rng(0)
    for _ in range(15):
        seen = told(speed=4.0)
        seen["lidar"] += rng.normal(0.0, 0.01, (1, 8)).astype(np.float32)
        one.step(seen, wish(), free())
    assert one.state[0] == STUCK
    one = made(Rules(**{**vars(RULES), "sees": "lidar"}))
    for k in range(100):
        one.step(told(speed=4.0, scan=1.0 + 0.02 * k), wish(), free())
    assert one.state[0] == DRIVING


def test_whoever_takes_over_is_not_judged():
    one = made()
    drive(one, 20)
    one.restart()
    assert one.state[0] == TELEOPERATED
    assert [state for _, state in drive(one, 6)] == [TELEOPERATED] * 4 + [DRIVING] * 2
    assert one.counts["stuck"] == 1


def test_each_drive_is_counted_from_nothing():
    one = made()
    drive(one, 20)
    assert one.counts["stuck"] == 1
    one.reset(1)
    assert not any(one.counts.values())
    drive(one, 15)
    assert one.counts == {"stuck": 1, "crashed": 0, "freed": 0, "lost": 0}


class Integral:
    """A PI controller of the speed (m/s), as a policy: what it remembers is the sum of the errors, per robot."""

    def __init__(self, n=1):
        self.sum, self.begun = np.zeros(n), []

    def step(self, signals):
        error = 2.0 - signals["speed"][:, 0]
        self.sum += error / RATE
        return wish(n=len(error)) | {"speed": (error + 3.0 * self.sum)[:, None].astype(np.float32)}

    def restart(self, robots):
        self.begun.append(np.flatnonzero(robots).tolist())
        self.sum[robots] = 0.0


def test_who_gets_a_robot_back_has_no_integral_of_what_was_not_its_own():
    """Backing out at -0.5 m/s it wants more and more; then it drives as at the first moment."""
    one, policy, sent = made(), Integral(), []
    first = float(Integral().step(told())["speed"][0, 0])
    for _ in range(60):
        seen = told(speed=-0.5 if one.state[0] == RECOVERING else 0.0)
        wanted = policy.step(seen)
        state = one.state[0]
        sent.append((state, int(one.step(seen, wanted, free())["speed"][0, 0] < 0.0), float(wanted["speed"][0, 0])))
        one.hand_back(policy)
        if state == RECOVERING and one.state[0] == DRIVING:
            assert sent[-1][2] == pytest.approx(first + 1.3 * 0.5)  # it still sees -0.5 m/s
    assert len(policy.begun) == 2 and max(wanted for *_, wanted in sent) > 3.0 * first


def test_only_whom_it_gets_back_is_forgotten():
    one, policy = made(n=3), Integral(3)
    for k in range(30):
        seen = told(n=3)
        seen["speed"][:2, 0] = -0.5 if one.state[0] == RECOVERING else 0.0, 1.0  # it backs out; never stuck
        seen["acceleration"][2] = 40.0 if k == 3 else 0.0
        one.step(seen, policy.step(seen), free(3))
        one.hand_back(policy)
    assert policy.begun == [[2], [0]] and policy.sum[1] == pytest.approx(3.0)


def test_a_policy_that_cannot_begin_anew_goes_on():
    one, policy = made(), object()
    drive(one, 25)
    one.hand_back(policy)
    one.hand_back(None)


def test_robots_are_judged_one_by_one():
    one = made(n=3)
    for _ in range(15):
        seen = told(n=3)
        seen["speed"][1] = 1.0
        sent = one.step(seen, wish(n=3), np.array([False, False, True]))
    assert one.state.tolist() == [STUCK, DRIVING, DRIVING]
    assert sent["speed"][:, 0].tolist() == [-0.5, 2.0, 2.0]


@given(seed=st.integers(0, 2**32 - 1), steps=st.integers(1, 80))
def test_what_it_commands_is_within_limits_and_the_same_again(seed, steps):
    def play():
        one, rng, sent = made(seed=seed, n=4), np.random.default_rng(seed), []
        for _ in range(steps):
            signals = told(n=4)
            signals["speed"][:] = rng.choice([0.0, 2.0], (4, 1), p=[0.9, 0.1])
            signals["acceleration"][:] = rng.choice([0.0, 40.0], (4, 1), p=[0.97, 0.03])
            sent.append(one.step(signals, wish(n=4), free(4)))
            if rng.random() < 0.02:
                one.restart()
        return one, sent

    one, sent = play()
    for row in sent:
        for signal in COMMANDS:
            assert (row[signal.name] >= signal.low).all() and (row[signal.name] <= signal.high).all()
    again = play()[1]
    assert all((a[k] == b[k]).all() for a, b in zip(sent, again, strict=True) for k in a)
    assert one.counts["freed"] + one.counts["lost"] <= one.counts["stuck"] + one.counts["crashed"]


AGE = dict.fromkeys((s.name for s in INPUTS), 0.0)


def guarded(**settings):
    return Guard(INPUTS, COMMANDS, recovery=Recovery(RULES, RATE, COMMANDS), **settings)


def pass_on(guard, steps, speed=0.0, override=None, **command):
    sent = []
    for _ in range(steps):
        guard.screen(told(speed=speed), AGE)
        sent.append(guard.filter(wish(**command), override))
    return sent


def test_the_guard_lets_it_and_another_guard_decides_alike():
    guard = guarded()
    sent = pass_on(guard, 30)
    assert guard.verdict[0] == PASS and any(row["speed"] == -0.5 for row in sent)
    again = Guard.from_json(json.loads(json.dumps(guard.to_json())))
    for one, other in zip(sent, pass_on(again, 30), strict=True):
        assert all((one[name] == other[name]).all() for name in one)
    assert Guard.from_json({k: v for k, v in guard.to_json().items() if k != "recovery"}).recovery is None


def test_what_a_policy_says_that_is_not_finite_stops_the_robot_as_it_gets_free():
    def verdicts(guard):
        pass_on(guard, 17)
        found = []
        for _ in range(8):
            guard.screen(told(), AGE)
            sent = guard.filter(wish(speed=np.nan))
            found.append(int(guard.verdict[0]))
        assert sent["speed"] == 0.0 and guard.interventions().keys() == {"non-finite command"}
        return found

    guard = guarded()
    found = verdicts(guard)
    assert found == verdicts(Guard(INPUTS, COMMANDS)) and found[-1] == SAFE and guard.counts.any()


def test_a_bad_sample_now_and_then_does_not_hide_that_a_robot_is_stuck():
    guard, worst = guarded(), told()
    worst["speed"][:] = np.nan
    for k in range(40):
        guard.screen(worst if k % 10 == 9 else told(), AGE)
        guard.filter(wish())
    assert guard.recovery.counts["stuck"] >= 1 and not guard.latched.any()


def test_a_second_flight_of_one_guard_is_as_the_first_and_as_its_replay():
    guard = guarded()
    flights = []
    for _ in range(2):
        guard.reset(1)
        flights.append(pass_on(guard, 200, steering=0.0))
    again = Guard.from_json(json.loads(json.dumps(guard.to_json())))
    again.reset(1)
    for one, two, three in zip(*flights, pass_on(again, 200, steering=0.0), strict=True):
        assert all(one[name] == two[name] == three[name] for name in one)


def test_a_log_of_another_algorithm_is_refused():
    described = guarded().to_json()
    older = {k: v for k, v in described["recovery"].items() if k != "algorithm"}
    for recovery, number in ((older, 1), ({**older, "algorithm": 2}, 2)):
        with pytest.raises(ValueError, match=f"its recovery is algorithm {number}, this program has 3"):
            Guard.from_json({**described, "recovery": recovery})


def test_a_policy_that_may_only_go_ahead_is_backed_out_as_far_as_the_robot_goes():
    ahead = (Signal("speed", (1,), "m/s", "", 0.0, 3.0), COMMANDS[1])
    guard = Guard(INPUTS, ahead, reach=COMMANDS, recovery=Recovery(RULES, RATE, COMMANDS))
    sent = pass_on(guard, 18, speed=0.0)
    assert sent[0]["speed"] == 2.0 and sent[-1]["speed"] == -0.5
    pass_on(guard, 20, speed=1.0)
    assert pass_on(guard, 1, speed=1.0)[0]["speed"] == 2.0


def test_the_guard_has_the_last_word():
    guard = guarded()
    pass_on(guard, 16)
    assert guard.recovery.state[0] == RECOVERING
    guard.stop()
    assert pass_on(guard, 1)[0]["speed"] == 0.0 and guard.verdict[0] == SAFE
    counts = dict(guard.recovery.counts)
    pass_on(guard, 100)
    assert guard.recovery.counts == counts  # who is stopped is not stuck


def test_a_person_goes_before_it():
    guard = guarded()
    pass_on(guard, 16)
    sent = pass_on(guard, 5, override=wish(speed=1.0, steering=0.3))
    assert all(row["speed"] == 1.0 for row in sent) and guard.recovery.state[0] == TELEOPERATED


def test_bad_rules_are_named():
    for settings, message in (
        ({"back": 0.5}, "needs back < 0 < forth"),
        ({"slow": 0.0}, "slow must be positive"),
        ({"stuck_s": float("nan")}, "stuck_s must be positive"),
    ):
        with pytest.raises(ValueError, match=message):
            Rules(**{**vars(RULES), **settings})
    table = {"drives": "speed", "steers": "steering", "back": -0.5, "forth": 0.5}
    assert Rules.from_table(table) == Rules(**table)
    for other, message in (
        ({"speeds": 1.0}, "unknown speeds"),
        ({"attempts": 2.5}, "attempts is a int"),
        ({"back": "fast"}, "back is a float"),
        ({"hard": True}, "hard is a float"),
        ({"wheels": 1}, "wheels is a bool"),
        ({"stands_s": -1.0}, "stands_s must be 0 or positive"),
    ):
        with pytest.raises(ValueError, match=message):
            Rules.from_table({**table, **other})
    with pytest.raises(ValueError, match="drives"):
        Rules.from_table({"back": -1.0})


def test_rules_have_to_fit_the_robot():
    with pytest.raises(ValueError, match="recovery needs the command 'throttle'"):
        Recovery(Rules(**{**vars(RULES), "drives": "throttle"}), RATE, COMMANDS)
    with pytest.raises(ValueError, match="beyond speed -1"):
        Recovery(Rules(**{**vars(RULES), "back": -2.0}), RATE, COMMANDS)
    with pytest.raises(ValueError, match="steers at random"):
        Recovery(RULES, RATE, (COMMANDS[0], Signal("steering", (1,), "rad", "")))
    with pytest.raises(ValueError, match="recovery by acceleration needs the signal 'acceleration'"):
        Guard(INPUTS[:2], COMMANDS, recovery=Recovery(RULES, RATE, COMMANDS))


LIMITS = """
[recovery]
drives = "drive"
steers = "turn"
moves = "velocity"
back = -1.0
forth = 1.0
"""


def blind(tmp_path):
    """A player who only ever drives ahead."""
    task = make("soccer_1v1", opponent="still", start="anywhere")
    weight, bias = np.zeros((size(task.commands), size(task.policy))), np.zeros(size(task.commands))
    bias[0] = 5.0
    return task, export(FeaturePolicy.from_task(task, Mlp([(weight, bias)])), tmp_path / "blind.onnx")


def test_a_robot_against_a_board_frees_itself_and_its_log_tells_and_computes_it_again(tmp_path, capsys):
    _, policy = blind(tmp_path)
    (tmp_path / "mine.toml").write_text(LIMITS)
    log = tmp_path / "f.mcap"
    asked = [f"limits={tmp_path / 'mine.toml'}", "recovery=true", f"log={log}", "seconds=15", "seed=3"]
    run.main([f"policy={policy.path}", "driver=simulated", *asked])
    said = capsys.readouterr().out
    assert "stuck for 1.5 s: it frees itself, 8 times at most" in said and "recovery: stuck" in said
    flight = flight_log.read(str(log))
    states = [event.text.split(": ")[1] for event in flight.events if event.kind == "recovery"]
    assert states[:3] == ["stuck", "recovering", "driving"]
    replay.main([f"log={log}"])
    said = capsys.readouterr().out
    assert said.count("equal, every bit") == 6  # wanted and sent: drive, turn, kick


def test_a_policy_with_a_memory_gets_its_robot_back_as_an_episode_begins(tmp_path, capsys):
    """And the log's replay knows."""
    task, rng = make("soccer_1v1", opponent="still", start="anywhere"), np.random.default_rng(0)
    network = random_gru(rng, size(task.policy), size(task.commands))
    network.output[1][0] = 5.0  # ahead, whatever it remembers
    path = export(FeaturePolicy.from_task(task, network), tmp_path / "gru.onnx").path
    (tmp_path / "mine.toml").write_text(LIMITS)
    policy, driver = PolicyFile.load(path), Simulated(task, 1, seed=3)
    guard = guard_of(
        policy, driver, limits_of(task.robot.name, str(tmp_path / "mine.toml")), policy.envelope, recovery=True
    )
    remembers, step, states = [], policy.step, []

    def spied(signals):
        remembers.append(any(value.any() for value in policy.states().values()))
        states.append(int(guard.recovery.state[0]))  # after the step before
        return step(signals)

    policy.step = spied
    fly(policy, driver, guard, 300)
    back = [k for k in range(1, len(states)) if states[k - 1] == RECOVERING and states[k] == DRIVING]
    assert back and not any(remembers[k - 1] for k in back) and all(remembers[k] for k in back)
    assert not remembers[0] and sum(not r for r in remembers) <= 1 + 2 * len(back)
    log = tmp_path / "f.mcap"
    asked = [f"limits={tmp_path / 'mine.toml'}", "recovery=true", f"log={log}", "seconds=15", "seed=3"]
    run.main([f"policy={path}", "driver=simulated", *asked])
    replay.main([f"log={log}"])
    assert capsys.readouterr().out.count("equal, every bit") == 6


class Forgetful:
    """It cannot begin anew."""

    path, robot, rate_hz, inputs, outputs = "forgetful", "bench", RATE, INPUTS, COMMANDS

    def __init__(self):
        self.asked, self.vectors = 0, SimpleNamespace(inputs=told())

    def reset(self, n=1):
        pass

    def step(self, signals):
        return wish()

    def restart(self, robots):
        self.asked += 1
        raise IndexError("too many robots")


class Still:
    """A robot that stays where it is."""

    robot, rate_hz, num, steps, done, falls, lands = "bench", RATE, 1, 60, False, False, False
    signals, commands = INPUTS, COMMANDS

    def __init__(self, real_time):
        self.real_time = real_time

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def read(self):
        return Reading(told(), AGE)

    def write(self, commands):
        pass


def test_a_policy_that_fails_to_begin_anew_does_not_end_a_flight_in_real_time():
    """As when its step fails: it has no command at that control step."""
    policy, clock = Forgetful(), Clock()
    record = fly(policy, Still(real_time=True), guarded(), clock=clock, sleep=clock.sleep)
    assert policy.asked >= 1 and record.steps == Still.steps
    assert record.trouble == "IndexError: too many robots" and record.interventions["policy failed"] == policy.asked
    with pytest.raises(IndexError):
        fly(policy, Still(real_time=False), guarded())


def test_who_frees_itself_gets_further(tmp_path):
    task, policy = blind(tmp_path)
    (tmp_path / "mine.toml").write_text(LIMITS)
    limits = limits_of(task.robot.name, str(tmp_path / "mine.toml"))

    def stood(recovery):
        """The share of the time in which robots do not move."""
        driver = Simulated(task, 20, seed=1)
        fly(policy, driver, guard_of(policy, driver, limits, policy.envelope, recovery=recovery), 300)
        return (np.linalg.norm(driver.flight()["velocity"], axis=2)[100:] < 0.1).mean()

    assert stood(True) < 0.6 * stood(False)


def test_limits_say_how_and_a_robot_of_which_nobody_does_is_refused(tmp_path):
    task, policy = blind(tmp_path)
    path, driver = tmp_path / "mine.toml", Simulated(task, 1)

    def guard(text):
        path.write_text(text)
        return guard_of(policy, driver, limits_of(task.robot.name, str(path)), policy.envelope, recovery=True)

    assert guard(LIMITS).recovery.rules.back == -1.0
    for text, message in (
        ("", r"nobody says how a soccer_differential that is stuck frees itself: name it in \[recovery\]"),
        ("recovery = 3", "mine.toml: recovery is a table, got 3"),
        (LIMITS.replace("back = -1.0", "back = -9.0"), "recovery drives with -9 and 1, beyond drive -2 .. 2"),
        (LIMITS.replace("velocity", "odometry"), "recovery by odometry needs the signal 'odometry'"),
        (LIMITS + "slip = 1", "mine.toml: recovery: unknown slip"),
    ):
        with pytest.raises(LimitError, match=message):
            guard(text)
