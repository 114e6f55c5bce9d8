import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy import cli
from deploy.drivers.tasks import task_for
from policies import evaluate as command
from policies.evaluate import evaluate, grid
from policies.models.export import export
from policies.runner import report as reports
from policies.runner.report import Report, Score, bootstrap, wilson
from sim.conditions import Conditions
from sim.render import offscreen
from sim.tasks import make
from tests.deploy.sample_policy import CALM, exported, linear_hover


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return exported(tmp_path_factory.mktemp("evaluate") / "p.onnx", linear_hover(make("quad_hover", **CALM)))


# Agresti and Coull 1998, and the closed form by hand: 0 of 10 and 81 of 263.
@pytest.mark.parametrize(
    ("successes", "n", "low", "high"), [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (81, 263, 0.2553, 0.3662)]
)
def test_wilson_is_the_published_interval(successes, n, low, high):
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_contains_the_share(case):
    low, high = wilson(*case)
    assert 0.0 <= low <= case[0] / case[1] <= high <= 1.0


def test_bootstrap_covers_the_mean_and_repeats_itself():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(100):
        low, high = bootstrap(rng.exponential(size=80))
        hits += low <= 1.0 <= high
    assert 0.86 <= hits / 100 <= 0.99
    values = rng.normal(size=50)
    assert bootstrap(values) == bootstrap(values)


def test_a_diverged_episode_leaves_no_mean():
    score = Score.of(np.array([1.0] * 18 + [np.inf] * 2), "m")
    assert (score.mean, score.ci, score.median, score.p95) == (None, None, 1.0, None)
    calm = Score.of(np.arange(101.0), "m")
    assert (calm.mean, calm.median, calm.p95, calm.unit) == (50.0, 50.0, 95.0, "m")


def test_an_evaluation_scores_the_file(policy):
    report = evaluate(policy, episodes=200)
    assert report.success > 0.9
    assert report.success_ci[0] < report.success < report.success_ci[1]
    assert set(report.score) == {"position_error", "settling_time", "control_effort"}
    error = report.score["position_error"]
    assert error.unit == "m"
    assert error.ci[0] < error.mean < error.ci[1]
    assert error.median < error.p95
    assert report.flight["position"].shape == (500, 200, 3)
    assert report.interventions == {}
    content = json.loads(json.dumps(report.json(), allow_nan=False))
    assert content["episodes"] == 200
    assert content["score"]["position_error"].keys() == {"mean", "ci", "median", "p95", "unit"}
    assert "flight" not in content


def test_an_evaluation_repeats_itself_and_seeds_differ(policy):
    first, again, other = (evaluate(policy, episodes=20, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(first.flight["position"], again.flight["position"])
    assert first.score == again.score
    assert not np.array_equal(first.flight["position"], other.flight["position"])


def test_conditions_change_the_flight_but_not_the_start(policy):
    nominal = evaluate(policy, episodes=20)
    heavy = evaluate(policy, episodes=20, conditions=Conditions(mass=1.15))
    np.testing.assert_array_equal(nominal.flight["position"][0], heavy.flight["position"][0])
    assert heavy.conditions == {"mass": 1.15}
    sag = (heavy.flight["position"] - nominal.flight["position"])[-1, :, 2]
    assert np.median(sag) < -0.01


def test_a_lost_robot_is_no_error(policy):
    task = make("quad_hover", tilt=180.0)
    report = evaluate(policy, task=task, episodes=20, conditions=Conditions(thrust=0.01))
    assert report.success == 0.0
    json.dumps(report.json(), allow_nan=False)
    assert "0.0" in reports.text(report)


class Diverging:
    """An engine whose state is no longer a number after half a second."""

    def __init__(self, robot, num, dt, device="cpu"):
        self.num, self.steps = num, 0

    def reset(self, mask, state):
        self.state = {name: value.copy() for name, value in state.items()}
        self.state["rotation"] = np.tile(np.eye(3, dtype=np.float32).reshape(9), (self.num, 1))

    def step(self, command):
        assert np.isfinite(command).all()
        self.steps += 1
        if self.steps == 50:
            self.state["position"][0] = np.nan

    def read(self, name):
        return self.state[name].copy() if name in self.state else np.zeros((self.num, 1), np.float32)

    def set_parameters(self, mask, parameters):
        pass


def test_a_diverged_engine_costs_one_episode_only(policy, monkeypatch, tmp_path):
    monkeypatch.setattr("sim.simulation.make_engine", lambda name, *rest: Diverging(*rest))
    report = evaluate(policy, episodes=4)
    assert report.interventions == {"non-finite signal": 450}
    assert report.score["position_error"].mean is None
    assert report.score["position_error"].median is not None
    json.dumps(report.json(), allow_nan=False)
    assert "diverged" in reports.text(report)
    reports.plot(report, str(tmp_path / "p.png"))


def test_the_grid_flies_every_cell_from_the_same_starts(policy):
    cells = grid(policy, episodes=8)
    assert len(cells) == 2 * 3 * 4 * 5
    assert len({(c["delay"], c["rotor_lag"], c["mass"], c["thrust"], c["disturbed"]) for c in cells}) == len(cells)
    nominal = {"delay": 0.0, "rotor_lag": 1.0, "mass": 1.0, "thrust": 1.0, "disturbed": False}
    cell = next(c for c in cells if nominal.items() <= c.items())
    assert cell["success"] == evaluate(policy, episodes=8).success
    heavy = next(c for c in cells if {**nominal, "mass": 1.15, "thrust": 0.85}.items() <= c.items())
    conditions = Conditions(delay=0.0, mass=1.15, thrust=0.85)
    assert heavy["success"] == evaluate(policy, episodes=8, conditions=conditions).success


def image_of(path):
    import matplotlib.image

    return matplotlib.image.imread(path)


@pytest.mark.parametrize("moving", [False, True])
def test_the_plot_shows_the_flights(policy, tmp_path, moving):
    report = evaluate(policy, episodes=30)
    if moving:
        report.flight["target_position"] += np.linspace(0.0, 1.0, 500, dtype=np.float32)[:, None, None]
    path = str(tmp_path / "plot.png")
    assert reports.plot(report, path) == path
    image = image_of(path)
    assert image.shape[1] > 1000
    levels = np.round(image[..., :3] * 255).astype(np.int64) @ np.array([1, 256, 65536])
    assert len(np.unique(levels)) > 200  # lines coloured by time, bands, text


def test_the_video_films_the_flights_that_stayed_finite(policy, monkeypatch):
    report = evaluate(policy, episodes=12)
    report.flight["position"][300, 2] = np.nan
    filmed = {}

    def render_flight(path, **shown):
        filmed.update(shown)
        return "raster"

    monkeypatch.setattr(offscreen, "render_flight", render_flight)
    assert reports.video(report, "film.mp4") == "film.mp4"
    assert filmed["position"].shape == (500, 6, 3) and filmed["motors"].shape == (500, 6, 4)
    assert not filmed["together"]
    assert "quad_hover: crazyflie on flight, nominal" in filmed["caption"].title
    assert f"success {100 * report.success:.1f} %" in filmed["caption"].told
    assert np.isfinite(filmed["position"]).all()
    np.testing.assert_array_equal(filmed["position"][:, 2], report.flight["position"][:, 3])
    np.testing.assert_array_equal(filmed["quaternion"][:, 2], report.flight["quaternion"][:, 3])
    assert filmed["robot"].name == "crazyflie"
    assert filmed["rate_hz"] == 100.0


def test_a_task_without_positions_has_no_plot(policy):
    report = evaluate(policy, episodes=2)
    del report.flight["position"]
    with pytest.raises(ValueError, match="'quad_hover' has no position and target_position to show"):
        reports.plot(report, "nowhere.png")


def test_a_recording_makes_test_vectors(policy, tmp_path):
    controller = linear_hover(make("quad_hover", **CALM))
    recording = evaluate(policy, episodes=3).recording(1)
    again = export(controller, tmp_path / "q.onnx", vectors_from=recording)
    np.testing.assert_array_equal(again.vectors.inputs["position"].astype(np.float32), recording["position"][:16])


@pytest.mark.parametrize("engine", ["mujoco", "bullet"])
def test_the_same_file_hovers_in_independent_simulators(policy, engine):
    report = evaluate(policy, engine=engine, episodes=20)
    own = evaluate(policy, episodes=20)
    assert report.success >= 0.9
    assert report.engine == engine
    np.testing.assert_array_equal(report.flight["position"][0], own.flight["position"][0])


def test_the_command_prints_and_writes(policy, tmp_path, capsys):
    files = {kind: tmp_path / name for kind, name in (("json", "r.json"), ("plot", "r.png"))}
    argv = [f"policy={policy.path}", "episodes=40", "seed=5", "noise=1", *(f"{k}={v}" for k, v in files.items())]
    assert cli.call(command.main, argv) == 0
    shown = capsys.readouterr().out
    assert "quad_hover, crazyflie on flight, 40 episodes, noise=1.0" in shown
    assert "95 % interval" in shown
    content = json.loads(files["json"].read_text())
    assert (content["engine"], content["episodes"], content["seed"]) == ("flight", 40, 5)
    assert 0.0 <= content["success"] <= 1.0
    assert files["plot"].stat().st_size > 10_000


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["engine=mujocco"], "unknown engine 'mujocco' (did you mean 'mujoco'?); choices: bullet, flight, mujoco"),
        (["episode=3"], "unknown key 'episode' (did you mean 'episodes'?)"),
        (["task=quad_track"], "is for the task 'quad_hover', not 'quad_track'"),
        (["robot=crazyflie_decks"], "is for the robot 'crazyflie', not 'crazyflie_decks'"),
        (["grid=true", "delay=0.01", "plot=x.png"], "grid=true goes without delay, plot"),
        (["episodes=0"], "needs episodes >= 1"),
        (["task.episode_s=true"], "task.episode_s=true is not of the type of that setting"),
        (["task.episodes=3"], "its settings are: "),
        (["task.episode_s=2", "grid=true", "record=true"], "record=true is for the file's own task"),
        (["mass=-1"], "mass is a factor and must be positive"),
        (["wind=-3"], "wind must be zero or positive"),
        (["gust=-1"], "gust must be zero or positive"),
        (["gust_time=0"], "gust_time must be positive"),
        (["require=95"], "require and record go with grid=true"),
        (["grid=true", "require=101"], "require is a success in %, 0 to 100, got 101"),
        (["grid=true", "record=true", "robot=crazyflie"], "record=true is for the file's own task and robot"),
    ],
)
def test_mistakes_get_one_short_line(policy, capsys, argv, message):
    assert cli.call(command.main, [f"policy={policy.path}", *argv]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_settings_of_the_task_go_before_those_of_training(policy, capsys):
    assert cli.call(command.main, [f"policy={policy.path}", "episodes=5", "task.episode_s=2.0"]) == 0
    assert "5 episodes, task.episode_s=2.0\n" in capsys.readouterr().out
    made = task_for(policy, settings={"episode_s": 2.0})
    assert made.episode_steps == round(2.0 * made.rate_hz) != task_for(policy).episode_steps


def test_the_folders_of_what_is_written_are_made(policy, monkeypatch, tmp_path):
    film = tmp_path / "new" / "films" / "f.mp4"
    monkeypatch.setattr(reports, "video", lambda made, path: film.write_text(made.policy) and path)
    argv = [f"policy={policy.path}", "episodes=1", f"video={film}", f"json={tmp_path}/numbers/n.json"]
    assert cli.call(command.main, argv) == 0
    assert film.is_file() and (tmp_path / "numbers/n.json").is_file()


def test_transfer_flies_another_robot(policy, capsys):
    argv = [f"policy={policy.path}", "robot=crazyflie_decks", "transfer=true", "episodes=3"]
    assert cli.call(command.main, argv) == 0
    assert "quad_hover, crazyflie_decks on flight" in capsys.readouterr().out


def test_evaluating_needs_no_torch(policy):
    code = (
        "import sys\nfrom deploy import PolicyFile\nfrom policies.evaluate import evaluate\n"
        "evaluate(PolicyFile.load(sys.argv[1]), episodes=2)\n"
        "print(*(m for m in ('torch', 'matplotlib', 'hydra', 'onnx') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code, policy.path], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_a_report_is_complete(policy):
    report = evaluate(policy, episodes=2)
    assert isinstance(report, Report)
    assert (report.task, report.robot, report.rate_hz) == ("quad_hover", "crazyflie", 100.0)
    assert report.seconds > 0.0
