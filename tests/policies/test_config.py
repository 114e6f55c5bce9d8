"""The command line: precedence of settings, sweeps, and short errors that list the choices."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from policies.runner import config
from policies.runner.cli import main
from policies.runner.config import Options, RunError, Settings, compose
from policies.runner.mistakes import SettingsError
from sim.tasks import TASKS
from sim.tasks.quad_hover import QuadHover

TOY = "algorithm=toy_algorithm:Toy"
ROOT = Path(__file__).resolve().parents[2]


class RicherHover(QuadHover):
    recipes = {"toy_algorithm:Toy": {"high": {"algorithm.updates": 77}, "high_robust": {"algorithm.updates": 99}}}


@dataclass
class OddConfig:
    width: int = 1


class Odd:
    """A task without the setting `robust`."""

    Config = OddConfig
    name = "odd"


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def test_defaults():
    settings = compose([TOY])
    assert (settings.task, settings.algorithm) == ("quad_hover", "toy_algorithm:Toy")
    assert settings.options == Options()
    assert settings.task_config == QuadHover.Config()
    assert settings.algorithm_config.updates == 20


def test_settings_of_each_part():
    said = [
        "task=quad_track",
        "task.path=random",
        "algorithm.learning_rate=0.3",
        "seed=3",
        "device=cuda:1",
        "report=false",
    ]
    settings = compose([TOY, *said, "out=a folder/x"])
    assert settings.task_config.path == "random"
    assert settings.algorithm_config.learning_rate == 0.3
    options = settings.options
    assert (options.seed, options.device, options.report, options.out) == (3, "cuda:1", False, "a folder/x")


def test_recipes_change_what_was_not_said():
    assert compose([TOY, "quality=high"]).algorithm_config.updates == 40
    assert compose([TOY, "quality=high"]).task_config.noise == 0.5
    assert compose([TOY, "quality=high", "algorithm.updates=3"]).algorithm_config.updates == 3
    robust = compose([TOY, "robust=true", "quality=high"])
    toy = robust.algorithm_config
    assert (robust.task_config.robust, toy.learning_rate, toy.updates) == (True, 0.2, 40)
    assert not compose([TOY, "robust=true", "task.robust=false"]).task_config.robust


def test_recipes_of_the_task_win_over_those_of_the_algorithm(monkeypatch):
    monkeypatch.setitem(TASKS, "richer", f"{__name__}:RicherHover")
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    assert compose([TOY, "task=richer", "quality=high"]).algorithm_config.updates == 77
    assert compose([TOY, "task=richer", "quality=high", "robust=true"]).algorithm_config.updates == 99


def test_goals_are_relabelled_where_a_task_tells_them():
    for task, copies in (("gymnasium/FetchPush-v4", 4), ("gymnasium/AdroitHandDoor-v1", 0), ("arm_pick_place", 4)):
        assert compose([f"task={task}", "preset=dsrl"]).algorithm_config.hindsight == copies


def test_written_settings_come_back(tmp_path):
    settings = compose(
        [TOY, "task=quad_track", "task.path=random", "algorithm.learning_rate=1e-5", "quality=high", "out=a: b"]
    )
    config.write(settings, tmp_path / "config.yaml")
    assert config.read(tmp_path / "config.yaml", {"algorithm": settings.algorithm}) == settings


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "config.yaml"),
        ("task: quad_hover\n", "task_config"),
        ("task: [", "config.yaml"),
        ("task: quad_hovr\nalgorithm: toy_algorithm:Toy\n", "quad_hovr"),
    ],
)
def test_unreadable_settings_are_refused(tmp_path, content, said):
    (tmp_path / "config.yaml").write_text(content)
    with pytest.raises(SettingsError, match=said):
        config.read(tmp_path / "config.yaml")


def test_a_task_may_have_engines_of_its_own():
    assert config.compose(["task=car_race", "engine=car_cuda"]).options.engine == "car_cuda"
    with pytest.raises(SettingsError, match=r"unknown engine 'car_cud' \(did you mean 'car_cuda'"):
        config.compose(["task=car_race", "engine=car_cud"])


BAD = {
    "task=quad_hovr": ("unknown task 'quad_hovr'", "quad_hover", "quad_track"),
    "task=nowhere.at_all:Task": ("no module 'nowhere.at_all'",),
    "task=sim.tasks.quad_hover:Nothing": ("has no 'Nothing'",),
    "task=": ("task= needs a name",),
    "algorithm=pppo": ("unknown algorithm 'pppo'", "did you mean 'ppo'", "apg", "sac"),
    "algorithm=policies.runner.log:Log": ("no dataclass `Config`",),
    "engine=flght": ("unknown engine 'flght'", "did you mean 'flight'", "mujoco", "bullet"),
    "device=gpu": ("device 'gpu'", "cpu", "cuda"),
    "quality=best": ("unknown quality 'best'", "default, high"),
    "algorithm.updatess=3": (
        "unknown setting 'algorithm.updatess'",
        "did you mean algorithm.updates",
        "algorithm.learning_rate",
    ),
    "tsk=quad_hover": ("unknown setting 'tsk'", "did you mean task", "seed"),
    "algorithm.updates=many": ("algorithm.updates", "'many'", "Integer"),
    "seed=first": ("seed", "'first'", "Integer"),
    "seed=-1": ("seed must not be negative",),
    "evaluation_episodes=0": ("must be positive",),
    "report=perhaps": ("report", "'perhaps'", "bool"),
    "algorithm.updates=0": ("algorithm=toy_algorithm:Toy", "updates must be positive, got 0"),
    "task.tilt=900": ("task=quad_hover", "tilt must be in 0..180 degrees, got 900"),
    "task.tilt.x=1": ("task.tilt",),
    "hover": ("cannot read 'hover'", "key=value"),
    "seed=[1": ("cannot read 'seed=[1'", "key=value"),
    "+extra=1": ("cannot read '+extra=1'",),
    "~task": ("cannot read '~task'",),
    "--seed=3": ("unknown flag '--seed=3'", "key=value"),
    "resume=nowhere": ("there is no run to continue in 'nowhere'",),
}


@pytest.mark.thinned
@pytest.mark.parametrize("flags", [[], ["-m"]], ids=["single", "sweep"])
@pytest.mark.parametrize("bad", BAD)
def test_bad_words_give_a_short_error(monkeypatch, capsys, tmp_path, bad, flags):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train", *flags, TOY, bad])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    with pytest.raises(SystemExit) as left:
        main(lambda settings: None)
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert all(line.startswith("error: ") for line in error.splitlines())
    assert len(error.splitlines()) <= 2
    expected = ("a sweep takes one folder as out=DIR, and no resume=DIR",) if flags and "resume" in bad else BAD[bad]
    for part in expected:
        assert part in error


@pytest.mark.parametrize("value", ["-1", "0.0", "nan", "inf"])
@pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        ("apg", "learning_rate"),
        ("sac", "learning_rate"),
        ("rlpd", "base.eyes.learning_rate"),
        ("student", "practice_rate"),
    ],
)
def test_a_learning_rate_by_which_nothing_is_learned(algorithm, name, value):
    said = f"algorithm={algorithm}: algorithm.{name} must be positive and finite, got"
    if name == "practice_rate":  # of its own check
        said = "practice_rate > 0, finite, and"
    with pytest.raises(SettingsError, match=said):
        compose([f"algorithm={algorithm}", f"algorithm.{name}={value}"])


@pytest.mark.parametrize("value", ["-1", "nan", "inf"])
@pytest.mark.parametrize(
    ("algorithm", "name"), [("apg", "final_learning_rate"), ("sac", "final_learning_rate"), ("ppo", "alone_rate")]
)
def test_a_final_learning_rate_that_is_none(algorithm, name, value):
    said = f"algorithm={algorithm}: algorithm.{name} must not be negative, and finite, got"
    with pytest.raises(SettingsError, match=said):
        compose([f"algorithm={algorithm}", f"algorithm.{name}={value}"])


def test_a_cosine_ends_well_at_zero_and_an_exponential_does_not():
    assert compose(["algorithm=sac", "algorithm.final_learning_rate=0"]).algorithm_config.final_learning_rate == 0.0
    with pytest.raises(SettingsError, match="algorithm=apg: algorithm.final_learning_rate is reached exponentially"):
        compose(["algorithm=apg", "algorithm.final_learning_rate=0"])


def test_a_module_that_is_half_written_is_named(monkeypatch, tmp_path):
    (tmp_path / "half_written.py").write_text("import math\n\ndef f(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingsError, match=r"task 'half_written:Task': .*half_written\.py, line 3: invalid syntax"):
        compose(["task=half_written:Task"])


def test_task_without_variation_is_told(monkeypatch):
    monkeypatch.setitem(TASKS, "odd", f"{__name__}:Odd")
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    with pytest.raises(SettingsError, match="robust=true: the task 'odd' has no setting 'robust'"):
        compose([TOY, "task=odd", "robust=true"])


def test_missing_package_is_named(monkeypatch, tmp_path):
    (tmp_path / "needs_more.py").write_text("import a_library_that_is_not_here\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SettingsError, match="'a_library_that_is_not_here' is not installed$"):  # no extra of ours
        compose(["algorithm=needs_more:Learner"])
    monkeypatch.setitem(sys.modules, "pybullet", None)
    (tmp_path / "needs_ours.py").write_text("import pybullet\n")
    with pytest.raises(
        SettingsError, match=r"'pybullet' is not installed; pip install 'sim2metal\[bullet\]' brings it"
    ):
        compose(["algorithm=needs_ours:Learner"])


def test_without_hydra_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "hydra", None)
    monkeypatch.setitem(sys.modules, "hydra.core.config_store", None)
    monkeypatch.setattr(sys, "argv", ["train", TOY])
    with pytest.raises(SystemExit) as left:
        main(lambda settings: None)
    assert left.value.code == 2
    assert "'hydra' is not installed; pip install 'sim2metal[train]'" in capsys.readouterr().err


def sweep(monkeypatch, run, *words: str) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    monkeypatch.setattr(sys, "argv", ["train", "-m", TOY, *words])
    main(run)


def test_sweep_runs_every_combination(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    seen: list[Settings] = []
    sweep(monkeypatch, seen.append, "seed=0,1", "quality=default,high", "algorithm.learning_rate=0.5")
    assert [(s.options.seed, s.algorithm_config.updates) for s in seen] == [(0, 20), (0, 40), (1, 20), (1, 40)]
    assert all(s.algorithm_config.learning_rate == 0.5 for s in seen)
    folders = [Path(s.options.out) for s in seen]
    assert [f.name for f in folders][:2] == ["quality=default,seed=0", "quality=high,seed=0"]
    assert folders[0].parent.parent == tmp_path / "runs" / "sweep"


def test_sweep_over_tasks_into_a_folder(monkeypatch, tmp_path):
    seen: list[Settings] = []
    sweep(monkeypatch, seen.append, "task=quad_hover,quad_track", f"out={tmp_path}/all of it")
    assert [type(s.task_config).__name__ for s in seen] == ["HoverConfig", "TrackConfig"]
    assert [s.options.out for s in seen] == [f"{tmp_path}/all of it/task={s.task}" for s in seen]


def test_failed_run_does_not_stop_a_sweep(monkeypatch, capsys, tmp_path):
    seen = []

    def run(settings: Settings) -> None:
        seen.append(settings.options.seed)
        if settings.options.seed == 0:
            raise RunError("the loss is nan")

    with pytest.raises(SystemExit) as left:
        sweep(monkeypatch, run, "seed=0,1", f"out={tmp_path}")
    assert left.value.code == 1
    assert seen == [0, 1]
    assert capsys.readouterr().err.splitlines()[-2:] == ["error: the loss is nan", "error: 1 of the runs failed"]


def test_mistakes_in_code_keep_their_traceback(monkeypatch, tmp_path):
    def run(settings: Settings) -> None:
        raise ZeroDivisionError("a mistake")

    for flags in ([], ["-m"]):
        monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
        monkeypatch.setattr(sys, "argv", ["train", *flags, TOY, f"out={tmp_path}"])
        with pytest.raises(ZeroDivisionError, match="a mistake"):
            main(run)


def test_help_lists_everything(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train", "--help", TOY, "task=quad_track"])
    main(lambda settings: pytest.fail("help trains nothing"))
    text = capsys.readouterr().out
    for part in (
        "quad_hover, quad_track",
        "apg, distill, ppo, sac",
        "flight, mujoco, bullet",
        "preview_points: 3",
        "learning_rate: 0.1",
    ):
        assert part in text


def test_error_leaves_a_real_process_with_code_2():
    command = [sys.executable, "-m", "policies.train", "task=quad_hovr"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: unknown task 'quad_hovr'")
