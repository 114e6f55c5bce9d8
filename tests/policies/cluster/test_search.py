"""The search: tuned on some seeds, told on others; goes on where it was ended; settings in hydra's grammar."""

import json
import re
from pathlib import Path

import pytest

from policies import sweep
from policies.cluster.job import JUDGED
from policies.cluster.jobs import Job, Trouble
from policies.cluster.search import Dimension, Plan, Search, Trial, seeds, value_of
from policies.cluster.space import space_of
from policies.runner.mistakes import SettingsError

HERE = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))


class Memory:
    """Proposes 0.0, 0.1, ... for `x`."""

    def __init__(self, *before: Trial) -> None:
        self.trials = {trial.number: trial for trial in before}
        self.waiting: dict[int, Trial] = {}

    def open(self):
        return [*self.waiting.values()]

    def ask(self):
        number = len(self.trials) + len(self.waiting)
        self.waiting[number] = Trial(number, {"x": number / 10}, None)
        return self.waiting[number]

    def tell(self, trial):
        self.trials[trial.number] = trial
        self.waiting.pop(trial.number, None)

    def told(self):
        return [self.trials[k] for k in sorted(self.trials)]


class Machine:
    """Judges at once: the success is highest at x = 0.3, and worse by 0.1 on seeds from 100 on."""

    def __init__(self, bad: str = "never") -> None:
        self.ran: list[Path] = []
        self.bad = bad

    def __call__(self, jobs):
        for job in jobs:
            self.ran.append(job.folder)
            told = dict(word.split("=") for word in job.words)
            x, seed = float(told.get("x", 0.0)), int(told["seed"])
            job.folder.mkdir(parents=True, exist_ok=True)
            success = 0.9 - abs(x - 0.3) - 0.1 * (seed >= 100) - 0.01 * (seed % 10)
            report = {"success": success, "score": {"error": {"mean": 1.0 - success}}}
            (job.folder / JUDGED).write_text(json.dumps(report))
        return {job.folder: "the loss is nan" for job in jobs if self.bad in job.words}


def searched(out: Path, machine: Machine, memory: Memory, **changes):
    how = {"metric": "success", "maximise": True, "episodes": 5, "together": 2, "trials": 5, **changes}
    plan = Plan(("a=1",), tuning=(0, 1), test=(100, 101, 102), **how)
    return Search(plan, memory, out, lambda words, folder, judged: Job(tuple(words), folder, tuple(judged)), machine)


@pytest.mark.parametrize(("metric", "maximise"), [("success", True), ("error", False)])
def test_tuned_on_some_seeds_and_told_on_others(tmp_path: Path, metric: str, maximise: bool):
    machine = Machine()
    made = searched(tmp_path, machine, Memory(), metric=metric, maximise=maximise)
    made.tune()
    assert len(machine.ran) == 10 and {folder.name for folder in machine.ran} == {"seed=0", "seed=1"}
    found = made.test()
    assert made.best().settings == {"x": 0.3}
    seen = [folder.relative_to(tmp_path).as_posix() for folder in machine.ran[10:]]
    assert seen == [f"test/{name}/seed={k}" for name in ("trial_0003", "as_they_were") for k in (100, 101, 102)]
    told = made.told(found)
    assert told["tuning_seeds"] == [0, 1] and told["test_seeds"] == [100, 101, 102]
    right = 0.79 if maximise else 0.21
    assert told["test"]["best"]["mean"] == pytest.approx(right) and told["best"]["number"] == 3
    assert [*told["test"]["best"]["seeds"]] == ["100", "101", "102"]
    assert made.best().value == pytest.approx(0.895 if maximise else 0.105)  # flattered
    lines = made.text(found).splitlines()
    assert re.split(r" {2,}", lines[0]) == ["trial", "x", f"{metric}, 2 tuning seeds"]
    assert lines[2].split() == ["3", "0.3", f"{made.best().value:.4g}"]
    assert lines[-2].split()[:2] == ["best", f"{right:.4g}"] and lines[-1].startswith("as they were")


def test_a_search_goes_on_with_what_was_open(tmp_path: Path):
    memory, machine = Memory(*(Trial(k, {"x": k / 10}, 0.5) for k in range(2))), Machine()
    memory.waiting[2] = Trial(2, {"x": 0.7}, None)
    made = searched(tmp_path, machine, memory)
    made.tune()
    assert [folder.parent.name for folder in machine.ran[:4]] == ["trial_0002"] * 2 + ["trial_0003"] * 2
    assert memory.trials[2].settings == {"x": 0.7} and len(memory.trials) == 5
    made.tune()
    assert len(machine.ran) == 6  # nothing is missing


def test_a_trial_that_fails_is_none_and_all_of_them_are_an_error(tmp_path: Path):
    made = searched(tmp_path, Machine("x=0.3"), Memory())
    made.tune()
    assert made.proposals.told()[3].value is None and made.failed == {3: "the loss is nan"}
    assert made.best().settings == {"x": 0.2} and "failed" in made.text({"best": {100: 1.0}})
    bad = searched(tmp_path / "bad", Machine("a=1"), Memory())
    bad.tune()
    with pytest.raises(ValueError, match="all 5 trials have failed: the loss is nan"):
        bad.test()


def test_a_trial_that_the_machine_broke_stays_open(tmp_path: Path):
    class Full(Machine):
        def __call__(self, jobs):
            return {folder: Trouble("no room") for folder in super().__call__(jobs)}

    memory = Memory()
    with pytest.raises(ValueError, match=r"trial_0003/seed=0: no room; the same line goes on with it"):
        searched(tmp_path, Full("x=0.3"), memory).tune()
    assert [*memory.waiting] == [3] and sorted(memory.trials) == [0, 1, 2]
    made = searched(tmp_path, Machine(), memory)
    made.tune()
    assert made.best().number == 3 and not made.failed


def test_what_makes_no_sense_is_refused(tmp_path: Path):
    assert seeds("3,1", "test_seeds") == (3, 1)
    for text, why in (("1,x", "needs whole numbers"), ("1,1", "given twice")):
        with pytest.raises(ValueError, match=f"test_seeds={text}: .*{why}"):
            seeds(text, "test_seeds")
    how = {"metric": "success", "maximise": True, "episodes": 5, "together": 2, "trials": 5}
    with pytest.raises(ValueError, match="seed 7 is a tuning seed and a test seed"):
        Plan((), tuning=(0, 7), test=(7, 8), **how)
    with pytest.raises(ValueError, match="none of them negative"):
        Plan((), tuning=(0,), test=(-1,), **how)
    with pytest.raises(ValueError, match="metric=speed: the task's are success, error"):
        value_of({"success": 1.0, "score": {"error": {"mean": 0.0}}}, "speed")


def test_the_space_in_hydras_grammar():
    words = [
        "task=quad_hover", "a=choice(x,y)", "b=1,2", "c=interval(0.5,2)", "d=tag(log,interval(1e-4,1e-2))",
        "e=int(interval(1,9))",
    ]  # fmt: skip
    fixed, space = space_of(words)
    assert fixed == ("task=quad_hover",)
    assert space == (
        Dimension("a", ("x", "y")),
        Dimension("b", (1, 2)),
        Dimension("c", low=0.5, high=2.0),
        Dimension("d", low=1e-4, high=1e-2, log=True),
        Dimension("e", low=1, high=9, whole=True),
    )
    for wrong, why in (
        (["seed=1,2"], "a search has its own seed: tuning_seeds and test_seeds"),
        (["task=quad_hover"], "nothing is searched"),
        (["a=tag(log,interval(0,1))"], "above 0 where it is logarithmic"),
        (["a=range(1,9)"], "a: write choice"),
        (["a=choice([1,2],[3])"], "a: .* cannot be searched"),
    ):
        with pytest.raises(SettingsError, match=why):
            space_of(wrong)


def test_the_command_says_what_is_wrong_before_it_begins(tmp_path, capsys):
    from deploy import cli

    def said(*words: str) -> str:
        assert cli.call(sweep.main, [f"out={tmp_path}/x", *words], needs="train,cluster") == 2
        return capsys.readouterr().err

    learned = ("task=quad_hover", "algorithm.learning_rate=choice(1e-3,2e-3)")
    assert "metric=speed: the task's are success, position_error" in said(*learned, "metric=speed")
    assert "unknown setting 'algorithm.gama'" in said("algorithm=toy_algorithm:Toy", "algorithm.gama=choice(1,2)")
    assert "nothing is searched" in said("algorithm=toy_algorithm:Toy", "trials=3")
    assert "needs whole numbers" in said("algorithm.updates=choice(1,2)", "test_seeds=a")
    assert not (tmp_path / "x").exists()
    assert sweep.split(["out=a", "algorithm.x=1", "trials=2"]) == (["out=a", "trials=2"], ["algorithm.x=1"])


def test_the_same_seed_gives_the_same_search_however_often_it_was_ended(tmp_path: Path):
    pytest.importorskip("optuna")
    from policies.cluster.study import Study

    space = (
        Dimension("x", low=0.1, high=1.0, log=True),
        Dimension("n", low=1, high=9, whole=True),
        Dimension("c", ("a", "b")),
    )

    def study(name: str, asked: str = "this") -> Study:
        return Study(tmp_path / name, space, True, 3, asked)

    def goes_on(made: Study, count: int) -> None:
        for trial in [*made.open(), *(made.ask() for _ in range(count - len(made.open())))]:
            failed = trial.number == 4
            made.tell(Trial(trial.number, trial.settings, None if failed else -abs(float(trial.settings["x"]) - 0.4)))

    whole = study("whole")
    for _ in range(7):
        goes_on(whole, 2)
    for _ in range(7):
        goes_on(study("parts"), 2)
    ended = study("ended")
    for _ in range(3):
        goes_on(ended, 2)
    open_one = ended.ask()  # and it is killed here
    assert [trial.settings for trial in study("ended").open()] == [open_one.settings]
    for _ in range(4):
        goes_on(study("ended"), 2)
    trials = whole.told()
    assert trials == study("parts").told() == study("ended").told() and len(trials) == 14
    assert trials[4].value is None and len({trial.settings["x"] for trial in trials}) > 10
    with pytest.raises(ValueError, match=r"holds another search \(this\); choose another out=DIR"):
        study("whole", "that")
