"""A residual that learns beside a policy: C against Python, the chip against this machine, what it must not do."""

import ctypes
import json
from types import SimpleNamespace

import numpy as np
import pytest

from deploy import cli, export, hil
from deploy.codegen import toolchain
from deploy.codegen.source import Source
from deploy.codegen.structs import packed
from deploy.drivers.simulated import Simulated
from deploy.drivers.tasks import task_for
from deploy.guard import Guard
from deploy.loop import run
from deploy.mcu.boards import STM32F405
from deploy.mcu.cost import places
from deploy.mcu.emulator import Chip
from deploy.mcu.learning import Flown, Trial, halved
from deploy.mcu.policy import REPORT, STATUS, Statistics
from deploy.mcu.residual import Residual
from policies.algorithms.streaming.stream_ac import Rules, StreamAC
from sim.conditions import Conditions
from sim.tasks import make
from tests.deploy.mcu.beside import Beside
from tests.deploy.sample_policy import CALM, exported, linear_hover, small

STATE, SIGNALS, COMMANDS = places(STM32F405)
AT_ONCE = Residual(settle_s=0.0, critic_alone=0, period_s=0.01)  # a decision per step, all of it learned from


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return exported(tmp_path_factory.mktemp("residual") / "p.onnx", linear_hover(make("quad_hover", **CALM)))


@pytest.fixture(scope="module")
def at_once(policy, tmp_path_factory):
    return Beside(policy, tmp_path_factory.mktemp("at_once"), AT_ONCE, steps=10**6)


@pytest.fixture(scope="module")
def beside(policy, tmp_path_factory):
    return Beside(policy, tmp_path_factory.mktemp("beside"), steps=4000)


def signals_of(policy, rng, away=0.05):
    """What is seen near the target, as batches of one."""
    signals = {name: value[:1] for name, value in policy.vectors.inputs.items()}
    place = signals["target_position"] + away * rng.uniform(-1.0, 1.0, 3)
    return signals | {"position": place, "linear_velocity": 0.1 * rng.normal(size=(1, 3))}


def alone(beside, signals):
    """What the policy says without residual."""
    flags = np.zeros(4, np.float32)
    beside.library.policy_reset(beside._state)
    beside.library.policy_step(beside._state, packed(beside.policy, signals), flags.ctypes.data_as(ctypes.c_void_p))
    return flags


def test_the_c_learns_what_python_learns(at_once, policy):
    """One action, features of three and three; the C draws its start and its noise, which Python is told."""
    rng, settings = np.random.default_rng(0), Residual()
    at_once.seed = 3
    at_once.reset()
    rules = Rules(gamma=settings.gamma, bounded=True)
    twin = StreamAC(6, 1, [settings.hidden], rng, rules)
    count = 16 * 6 + 16 + 2 * 16 + 2
    memory = at_once.learner()

    def networks():
        """The actor's and the critic's weights, and the traces, in the order of the C."""
        size = 2 * count + 6 + 2 * 16 + 1
        return [memory[at : at + 2 * count].reshape(2, count) for at in (0, size)]

    def pieces(flat, outputs):
        first, bias, last, ending = np.split(flat, [96, 112, 144])
        return [first.reshape(16, 6), bias, last.reshape(2, 16)[:outputs], ending[:outputs]]

    for network, flat, outputs in zip((twin.actor, twin.critic), networks(), (2, 1), strict=True):
        for ours, theirs in zip(network.weights, pieces(flat[0], outputs), strict=True):
            ours[:] = theirs
    seen = action = None
    for _ in range(150):
        signals = signals_of(policy, rng)
        x = np.concatenate([signals["position"] - signals["target_position"], signals["linear_velocity"]], axis=1)[0]
        at_once.step(signals)
        then = twin.see(x.astype(np.float32).astype(float))
        if seen is not None:
            twin.learn(seen, action, -float(np.linalg.norm(x[:3])), then, False, False)
        seen, action = then, np.array([at_once.library.probe_action()])
    for network, flat, outputs in zip((twin.actor, twin.critic), networks(), (2, 1), strict=True):
        for ours, theirs in zip(network.weights, pieces(flat[0], outputs), strict=True):
            np.testing.assert_allclose(theirs, ours, atol=2e-4)
        for ours, theirs in zip(network.traces, pieces(flat[1], outputs), strict=True):
            np.testing.assert_allclose(theirs, ours, atol=2e-3)
    assert np.abs(twin.actor.weights[2]).max() > 0.01  # which began at zero


def test_the_chip_computes_what_this_machine_computes(at_once, policy, tmp_path):
    for name, text in (Source(policy, policy.content()).files() | AT_ONCE.files(policy)).items():
        (tmp_path / name).write_text(text)
    chip = Chip(toolchain.image(tmp_path))
    at_once.seed = 5
    at_once.reset()
    chip.call("policy_reset", STATE)
    chip.call("residual_begin", 5, 10**6)
    rng = np.random.default_rng(1)
    for _ in range(60):
        signals = signals_of(policy, rng)
        chip.write(SIGNALS, packed(policy, signals))
        assert chip.call("residual_step", STATE, SIGNALS, COMMANDS) & 1
        assert at_once.step(signals)["motor_command"].tobytes() == chip.read(COMMANDS, 16)
    address, size = chip.sizes["learner"]
    assert chip.read(address, size) == at_once.learner().tobytes()


def test_a_seed_decides_everything_and_the_next_flight_begins_anew(at_once, policy):
    def flown(seed):
        at_once.seed = seed
        at_once.reset()
        rng = np.random.default_rng(0)
        return np.concatenate([at_once.step(signals_of(policy, rng))["motor_command"] for _ in range(30)]).tobytes()

    assert flown(1) == flown(1) != flown(2)


def test_what_is_sent_stays_near_the_policys_and_within_its_limits(at_once, policy):
    rng = np.random.default_rng(2)
    at_once.seed = 0
    at_once.reset()
    most = 0.0
    for _ in range(200):
        signals = signals_of(policy, rng)
        sent, said = at_once.step(signals)["motor_command"][0], alone(at_once, signals)
        assert (sent >= 0.0).all() and (sent <= 1.0).all()
        most = max(most, float(np.abs(sent - said).max()))
    assert 0.5 * AT_ONCE.most < most <= AT_ONCE.most + 1e-6


def test_before_it_learns_and_far_away_the_policy_flies_alone(beside, at_once, policy):
    rng = np.random.default_rng(3)
    beside.reset()
    for _ in range(300):
        signals = signals_of(policy, rng)
        assert (beside.step(signals)["motor_command"][0] == alone(beside, signals)).all()
    at_once.reset()
    for _ in range(20):
        at_once.step(signals_of(policy, rng))
    signals = signals_of(policy, rng) | {"position": policy.vectors.inputs["target_position"][:1] + 0.4}
    assert (at_once.step(signals)["motor_command"][0] == alone(at_once, signals)).all()
    near = signals_of(policy, rng)
    assert (at_once.step(near)["motor_command"][0] != alone(at_once, near)).any()


def told(beside):
    memory = (ctypes.c_char * REPORT.size)()
    beside.library.probe_tell(memory)
    return REPORT.unpack(bytes(memory))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", [0.0, 0.3, 0.6, 0.9])
def test_what_is_not_a_number_ends_learning_and_the_policy_flies_on(at_once, policy, value, where):
    rng = np.random.default_rng(4)
    at_once.seed = 0
    at_once.reset()
    for _ in range(10):
        at_once.step(signals_of(policy, rng))
    memory = at_once.learner()
    memory[int(where * len(memory))] = value
    for _ in range(20):
        signals = signals_of(policy, rng)
        assert (at_once.step(signals)["motor_command"][0] == alone(at_once, signals)).all()
    status, _, _, share, mean, deviation = told(at_once)
    assert STATUS[status] == "broken" and share == mean == deviation == 0.0
    at_once.reset()
    at_once.step(signals_of(policy, rng))
    assert STATUS[told(at_once)[0]] == "learning" and np.isfinite(at_once.learner()[:-4]).all()


def test_a_signal_that_is_not_a_number_is_refused_and_nothing_is_learned_across_it(at_once, policy):
    rng = np.random.default_rng(5)
    at_once.reset()
    for _ in range(10):
        at_once.step(signals_of(policy, rng))
    updates = told(at_once)[2]
    assert np.isnan(
        at_once.step(signals_of(policy, rng) | {"position": np.full((1, 3), np.nan)})["motor_command"]
    ).all()
    at_once.step(signals_of(policy, rng))
    assert told(at_once)[2] == updates  # the first decision after it has nothing to learn from
    at_once.step(signals_of(policy, rng))
    assert told(at_once)[2] == updates + 1


@pytest.mark.slow
def test_half_of_what_more_mass_does_is_learned_away_under_the_guard(beside, policy):
    beside.seed = 0
    driver = Simulated(task_for(policy), 1, "", 0, Conditions(mass=1.1))
    record = run(beside, driver, Guard(policy.inputs, policy.outputs, policy.envelope), 4500)
    flight = driver.flight()
    away = np.linalg.norm(flight["position"] - flight["target_position"], axis=-1)[:, 0]
    assert away[-300:].mean() < 0.5 * away[200:300].mean()
    assert STATUS[told(beside)[0]] == "kept" and not record.interventions


def test_when_half_is_gone():
    errors = np.repeat([4.0, 1.0, 3.0, 1.0, 1.0], 10)
    assert [halved(errors, level, 10) for level in (5.0, 2.0, 0.5)] == [0, 30, None]


def test_policies_that_it_cannot_be_learned_for_are_refused(tmp_path):
    other = exported(tmp_path / "p.onnx", small())
    with pytest.raises(ValueError, match="needs a policy that sees position, target_position and linear_velocity"):
        Residual().files(other)
    with pytest.raises(ValueError, match="at most half"):
        Residual(most=0.6)
    with pytest.raises(ValueError, match="positive"):
        Residual(gamma=0.0)


def test_nothing_to_learn_is_said(policy):
    with pytest.raises(cli.ArgumentError, match=r"such as mass=1\.3"):
        hil.main([f"policy={policy.path}", "learn=true", "noise=1"])


@pytest.mark.parametrize(
    ("lost", "faults", "status"), [(1, {}, 0), (2, {}, 1), (10, {}, 1), (0, {"it restarted": 3}, 1)]
)
def test_a_chip_that_did_not_fly_to_the_end_fails_the_command(policy, monkeypatch, capsys, lost, faults, status):
    """As without `learn`."""
    seen = Statistics([0.001] * (10 - lost), [100] * (10 - lost), 0, lost, faults)
    chip = SimpleNamespace(path=policy.path, rate_hz=100.0, statistics=seen, close=lambda: None)
    monkeypatch.setattr(hil, "connect", lambda *_: (chip, None))
    monkeypatch.setattr(Trial, "flown", lambda *_: Flown(0, 0.01, 0.05, 0.01, 0.01, 5.0, 0.1, "kept", 9))
    ended = 0
    try:
        hil.main([f"policy={policy.path}", "learn=true", "mass=1.3", "episodes=1"])
    except SystemExit as end:
        ended = end.code
    said = capsys.readouterr().out
    assert ended == status
    assert f"steps lost {lost};" in said and ("steps REFUSED by the chip 3: it restarted" in said) == bool(faults)


def test_only_the_chips_image_can_learn(policy, tmp_path):
    with pytest.raises(cli.ArgumentError, match="learn=true is for target=stm32f405; target=c learns nothing"):
        export.main([f"policy={policy.path}", "target=c", "learn=true", f"out={tmp_path}"])


@pytest.mark.long
def test_an_image_that_learns_is_exported(policy, tmp_path, capsys):
    export.main([f"policy={policy.path}", "target=stm32f405", "learn=true", f"out={tmp_path}"])
    names = {"residual.c", "residual.h", "residual_policy.h", "streaming.h", "policy.elf"}
    assert names <= {path.name for path in tmp_path.iterdir()}
    assert "residual_begin" in Chip(tmp_path / "policy.elf").symbols
    assert "the control period at 100 Hz" in capsys.readouterr().out


@pytest.mark.long
def test_the_command_learns_on_the_emulated_chip(policy, tmp_path, capsys):
    report = tmp_path / "report.json"
    hil.main([f"policy={policy.path}", "learn=true", "mass=1.1", "episodes=1", "seconds=40", f"json={report}"])
    made = json.loads(report.read_text())
    assert made["flights"][0]["gone"] > 0.5 and made["flights"][0]["status"] == "kept"
    assert made["memory"] < 100_000 and 0.0 < made["load"] < 0.25 and made["interventions"] == {}
    assert "the guard let every command pass" in capsys.readouterr().out
