"""python -m policies.sweep out=DIR trials=16 algorithm.gamma=choice(0.95,0.99) [key=value ...]: search settings.

Everything that is not a setting of the search is one of `policies.train`. Those that are searched are written
choice(a,b), interval(low,high), tag(log,interval(low,high)) or int(interval(low,high)). They are tuned on some seeds
and told on others, beside the settings as they were. The same line goes on with a search that was ended.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from deploy import cli
from deploy.system.files import write_atomic
from policies.cluster.job import JUDGED
from policies.cluster.jobs import Here, Job, Jobs, There, Where
from policies.cluster.multirun import cpus_of, job_of
from policies.cluster.search import Dimension, Plan, Search, seeds
from policies.cluster.space import space_of
from policies.runner.config import RunError, Settings, compose
from policies.runner.lock import Lock
from sim.cluster import entered
from sim.engines import cores
from sim.tasks import task_class

RESULT, STUDY = "search.json", "study.log"


@dataclass(kw_only=True)
class Config:
    """Settings of the search."""

    out: str = field(metadata={"help": "folder of the search, new or to be continued"})
    trials: int = field(default=16, metadata={"help": "settings that are tried"})
    tuning_seeds: str = field(default="0,1,2", metadata={"help": "each trial is trained with each of them"})
    test_seeds: str = field(
        default="100,101,102,103,104", metadata={"help": "what was found is trained with these, and told"}
    )
    metric: str = field(default="success", metadata={"help": "what is sought: success, or a score of the task"})
    maximise: bool = field(default=True, metadata={"help": "false: the smallest is the best"})
    episodes: int = field(default=200, metadata={"help": "in which each policy is judged"})
    parallel: int = field(default=0, metadata={"help": "trials that are proposed at a time (0: by the CPUs)"})
    search_seed: int = field(default=0, metadata={"help": "of the proposals"})
    cluster: str = field(default="", metadata={"help": "where it trains: ray, ray:2, ray:HOST:PORT (default: here)"})


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Arguments of the search, and those of each training."""
    own = {f.name for f in dataclasses.fields(Config)}
    mine = [word for word in arguments if word.partition("=")[0] in own]
    return mine, [word for word in arguments if word not in mine]


def settings_of(fixed: Sequence[str], space: Sequence[Dimension]) -> Settings:
    """Of a run with the first of what is searched; SettingsError when they make no sense."""
    first = {d.key: d.choices[0] if d.choices else d.low for d in space}
    return compose([*fixed, *(f"{key}={value}" for key, value in first.items())])


def search(config: Config, words: Sequence[str]) -> Search:
    """Do it; ValueError when it makes no sense, RunError when it cannot be done."""
    fixed, space = space_of(words)
    out = Path(config.out)
    tuning, test = seeds(config.tuning_seeds, "tuning_seeds"), seeds(config.test_seeds, "test_seeds")

    def make(words: Sequence[str], folder: Path, judged_by: Sequence[str]) -> Job:
        return job_of(words, folder, judged_by)

    first = settings_of(fixed, space)
    known = dict.fromkeys(("success", *task_class(first.task).scores))  # wrong ones are refused now
    if config.metric not in known:
        raise ValueError(f"metric={config.metric}: the task's are {', '.join(known)}")
    from policies.cluster.study import Study  # before anything is begun: whether Optuna is installed

    with ExitStack() as stack:
        out.mkdir(parents=True, exist_ok=True)
        stack.enter_context(Lock(out))
        nodes = stack.enter_context(entered(config.cluster))
        cpus = cores() if nodes is None else nodes.cpus
        where: Where = Here(cpus) if nodes is None else There(nodes)
        together = max(1, cpus // cpus_of(first))
        plan = Plan(
            (*fixed, "report=false"), config.trials, tuning, test, config.metric, config.maximise,
            config.episodes, config.parallel or max(1, -(-together // len(tuning))),
        )  # fmt: skip
        asked = json.dumps([*words, *tuning, config.metric, config.maximise, config.episodes, config.search_seed])
        study = Study(out / STUDY, space, config.maximise, config.search_seed, asked)

        def run(jobs: Sequence[Job]) -> Mapping[Path, str]:
            return Jobs(where, together, lambda text: print(text, flush=True)).run(jobs)

        made = Search(plan, study, out, make, run)
        made.tune()
        found = made.test()
        write_atomic(out / RESULT, (json.dumps(made.told(found), indent=2) + "\n").encode())
        print(f"\n{made.text(found)}\n\n{out / RESULT}; the best: {shlex.join(_words(made))}")
    return made


def _words(made: Search) -> list[str]:
    best = made.best().settings
    fixed = [word for word in made.plan.words if word != "report=false"]
    return ["python", "-m", "policies.train", *fixed, *(f"{key}={value}" for key, value in best.items())]


def main(argv: Sequence[str]) -> None:
    """Search, and say what was found."""
    if cli.wants_help(argv):
        print(
            f"{__doc__}\n\n{cli.usage(Config)}\n\nIn each run's folder {JUDGED} is what policies.evaluate says of it."
        )
        return
    mine, words = split(argv)
    (config,) = cli.parse(mine, Config)
    try:
        search(config, words)
    except RunError as error:
        raise ValueError(str(error)) from error


if __name__ == "__main__":
    sys.exit(cli.call(main, needs="train,cluster"))
