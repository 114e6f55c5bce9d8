"""python -m policies.train_in_world task=NAME demonstrations=DIR out=DIR [key=value ...]: learned worlds, in rounds.

Each round records the newest policy, failures and all, learns the task's world from everything that was recorded
(`policies.train_world`), and improves the best policy inside it, without a simulator: by its own successes there
(`policies.learning.world.self_imitation`), or as `preset` says. Whoever is recorded is measured by that; the best is
kept. An interrupted command goes on where it was, with the same settings. After World-Env (Xiao et al. 2025, arXiv
2509.24948).
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from deploy import cli
from deploy.system.files import write_atomic
from policies.collect import stored
from policies.runner.folder import CHECKPOINT, POLICY, continued, quoted
from policies.runner.report import wilson
from policies.train_world import recorded, verdicts
from sim import spec
from sim.engines.learned import LearnedWorld
from sim.tasks import make

OWN = "policies.learning.world.self_imitation:SelfImitation"


@dataclass
class Config:
    """Settings of the command."""

    task: str = field(metadata={"help": "task whose signals are numbers"})
    demonstrations: str = field(metadata={"help": "folder of a dataset of it (policies.collect)"})
    out: str = field(metadata={"help": "folder, new or to be continued"})
    base: str = field(default="", metadata={"help": "policy file that is improved (default: cloned by diffusion)"})
    rounds: int = field(default=3, metadata={"help": "how often a world is learned"})
    episodes: int = field(default=60, metadata={"help": "of each policy that are recorded"})
    successes: int = field(default=10, metadata={"help": "the base is recorded on until it has so many"})
    most: int = field(default=240, metadata={"help": "episodes of the base, whatever succeeded"})
    steps: int = field(default=0, metadata={"help": "of an episode at most (0: the task's)"})
    linger: int = field(default=10, metadata={"help": "steps after success that are recorded, too"})
    preset: str = field(default="", metadata={"help": "of `policies.train`, to learn inside by it (dsrl)"})
    total_steps: int = field(default=25_000, metadata={"help": "inside, per round, of a preset"})
    cloning: str = field(default="", metadata={"help": "further settings of cloning: 'key=value key=value'"})
    world: str = field(default="", metadata={"help": "further settings of policies.train_world"})
    inside: str = field(default="", metadata={"help": "further settings of learning inside"})
    seed: int = field(default=0, metadata={"help": "of everything"})

    def __post_init__(self) -> None:
        if "," in f"{self.demonstrations}{self.out}":
            raise ValueError("a comma parts folders of data: neither demonstrations nor out may have one in its name")
        if min(self.rounds, self.episodes, self.total_steps) < 1 or min(self.steps, self.linger, self.seed) < 0:
            raise ValueError(
                "needs rounds >= 1, episodes >= 1, total_steps >= 1, steps >= 0, linger >= 0 and seed >= 0"
            )
        if self.successes < 0 or self.most < self.episodes:
            raise ValueError(f"needs successes >= 0 and most >= episodes, got {self.successes} and {self.most}")


@dataclass(frozen=True)
class Measured:
    """A policy, and how many of its recorded episodes, in the real task, succeeded."""

    policy: str
    recorded: str  # folder of the dataset
    successes: int
    episodes: int

    @property
    def share(self) -> float:
        """Of the episodes."""
        return self.successes / self.episodes

    def interval(self) -> tuple[float, float]:
        """Of 95 %."""
        return wilson(self.successes, self.episodes)


class StepError(ValueError):
    """A command that this one runs has failed, and said why; here is which, and its exit status."""

    def __init__(self, command: Sequence[str], status: int) -> None:
        super().__init__(f"{' '.join(command)}: exit status {status}; the same command goes on from there")


def step(module: str, *words: str) -> None:
    """Run one of the project's commands; StepError when it fails. Whoever interrupts us has it save what it has."""
    command = ["-m", module, *(word for word in words if word)]
    with subprocess.Popen([sys.executable, *command]) as process:
        before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        try:
            while process.poll() is None:
                try:
                    process.wait()
                except KeyboardInterrupt:  # it is told by the terminal, too
                    continue
        finally:
            signal.signal(signal.SIGTERM, before)
    if process.returncode in (130, 143, -signal.SIGINT, -signal.SIGTERM):
        raise KeyboardInterrupt
    if process.returncode:
        raise StepError(["python", *command], process.returncode)


def improve(config: Config) -> list[dict[str, Any]]:
    """The rounds; a row for each, also in OUT/rounds.json. The best policy is OUT/policy.onnx."""
    out = Path(config.out)
    out.mkdir(parents=True, exist_ok=True)
    _check(config, out / "settings.json")
    base = config.base or _cloned(config, out / "base")
    policies, rows = [_measured(config, base, 0)], list[dict[str, Any]]()
    best = policies[0]
    for k in range(1, config.rounds + 1):
        data = [config.demonstrations, *(one.recorded for one in policies)]
        file = out / f"round_{k}" / "world.npz"
        world = _world(config, data, file)
        made = _improved(config, best.policy, data, file, out / f"round_{k}" / "inside")
        policies.append(_measured(config, made, k))
        rows.append(_row(config, k, policies, world))
        write_atomic(out / "rounds.json", json.dumps(rows, indent=1).encode())
        best = max(policies, key=lambda one: one.share)
        write_atomic(out / POLICY, Path(best.policy).read_bytes())
        print(text(rows), flush=True)
    return rows


def _check(config: Config, file: Path) -> None:
    """ValueError for a folder that was begun with other settings: what lies there is of those."""
    told = {name: value for name, value in asdict(config).items() if name not in ("rounds", "out")}
    told |= {name: str(Path(told[name]).resolve()) for name in ("demonstrations", "base") if told[name]}
    if file.exists():
        begun = json.loads(file.read_text())
        if other := [name for name in told if begun.get(name) != told[name]]:
            name = other[0]
            raise ValueError(f"{file.parent} was begun with {name}={begun.get(name)}: take another out, or that {name}")
    write_atomic(file, json.dumps(told, indent=1).encode())


def _cloned(config: Config, folder: Path) -> str:
    """A clone of the demonstrations."""
    words = [f"task={config.task}", "algorithm=diffusion", f"seed={config.seed}", *config.cloning.split()]
    words += [f"algorithm.demonstrations={quoted(config.demonstrations)}"]
    return _train(folder, *words, f"task.steps={config.steps}" if config.steps else "")


def _improved(config: Config, base: str, data: Sequence[str], world: Path, folder: Path) -> str:
    """What learning inside that world made of the base, with what was recorded outside."""
    steps = f"task.steps={config.steps}" if config.steps else ""
    words = [
        f"task=learned/{config.task}",
        f"task.world={quoted(world)}",
        steps,
        f"algorithm.base.policy={quoted(base)}",
    ]
    words += [f"algorithm.base.demonstrations={quoted(','.join(data))}", f"algorithm.base.episodes={sys.maxsize}"]
    how = [f"preset={config.preset}", f"algorithm.total_steps={config.total_steps}"]
    words += how if config.preset else [f"algorithm={OWN}"]
    return _train(folder, *words, f"seed={config.seed}", *config.inside.split())


def _train(folder: Path, *words: str) -> str:
    """The file of `policies.train` into a folder, from where it was, if it was interrupted.

    What ended before its first checkpoint is left as it is; another folder is begun.
    """
    for k in itertools.count(1):
        tried = folder if k == 1 else folder.with_name(f"{folder.name}_{k}")
        if (tried / POLICY).exists():
            break
        if (tried / CHECKPOINT).exists():
            step("policies.train", *continued(tried, words), "report=false")
            break
        if not tried.exists():
            step("policies.train", *words, "report=false", f"out={quoted(tried)}")
            break
    return str(tried / POLICY)


def _measured(config: Config, policy: str, number: int) -> Measured:
    """Record its episodes, none of which another round has seen."""
    folder = Path(config.out) / f"round_{number}" / "recorded"
    steps = f"steps={config.steps}" if config.steps else ""
    words = [f"task={config.task}", f"policy={policy}", f"out={folder}", steps, f"linger={config.linger}"]
    count, task = config.episodes, make(config.task)
    while True:
        step("policies.collect", *words, f"episodes={count}", f"seed={1000 * (config.seed + 1) + number}")
        episodes = stored(task, str(folder), count)  # more, if it was interrupted as it recorded on
        successes = sum(e.succeeded for e in episodes)
        if number or successes >= config.successes or count >= config.most:
            return Measured(policy, str(folder), successes, len(episodes))
        print(
            f"{len(episodes)} episodes, {successes} succeeded: {config.successes} are wanted, recording on", flush=True
        )
        count = min(config.most, count + config.episodes)


def _world(config: Config, data: Sequence[str], file: Path) -> LearnedWorld:
    """Learn the world of that data."""
    from sim.tasks.external.learned import told_of

    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        words = [f"task={config.task}", f"data={','.join(data)}", f"out={file}", f"seed={config.seed}"]
        step("policies.train_world", *words, *config.world.split())
    task = make(config.task)
    return LearnedWorld.load(file, told_of(task), spec.size(task.commands))


def _row(config: Config, k: int, policies: Sequence[Measured], world: LearnedWorld) -> dict[str, Any]:
    base, after, report = policies[0], policies[k], world.report
    seen = recorded(make(config.task), [after.recorded])
    return {
        "round": k,
        "recorded": sum(one.episodes for one in policies[:k]),  # by policies, beside the demonstrations
        "successes": report["success"]["successes"],  # among them and the demonstrations
        "precision": report["success"]["precision"],
        "auroc": report["success"]["frame_auroc"],
        "outside": verdicts(world, seen),  # of this world, on what the policy then did, which it never saw
        "off_m": {chunks: one["off"] for chunks, one in report["open_loop_m"].items()},
        "base": base.share,
        "after": after.share,
        "after_interval": after.interval(),
        "policy": os.path.relpath(after.policy),
    }


def text(rows: Sequence[dict[str, Any]]) -> str:
    """For people: success is that of recorded episodes of the real task, of the base and of what this round made."""
    names = ("round", "recorded", "succeeded", "precision", "then", "AUROC", "base", "after")
    lines = ["".join(f"{name:>11}" for name in names) + "  95 % interval"]
    for row in rows:
        shares = [row["precision"], row["outside"]["precision"], row["base"], row["after"]]
        precision, then, base, after = ("-" if share is None else f"{100 * share:.0f} %" for share in shares)
        low, high = (100 * end for end in row["after_interval"])
        told = (row["round"], row["recorded"], row["successes"], precision, then, f"{row['auroc']:.3f}", base, after)
        lines.append("".join(f"{one:>11}" for one in told) + f"  {low:.0f} .. {high:.0f}")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> None:
    """Improve, and say what came of it."""
    if cli.wants_help(argv):
        print(f"{__doc__}\n\n{cli.usage(Config)}")
        return
    (config,) = cli.parse(argv, Config)
    improve(config)
    file = Path(config.out) / POLICY
    print(f"policy: {file}\nThe best of several is worse than it looks: python -m policies.evaluate policy={file}")


if __name__ == "__main__":
    sys.exit(cli.call(main, needs="rl,datasets"))
