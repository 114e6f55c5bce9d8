"""python -m policies.train_world task=NAME data=DIR[,DIR] out=FILE.npz [key=value ...]: learn a world from episodes.

It learns from recorded episodes, failures among them, what commands change and what success looks like. What is
reported was measured on episodes that were held out. Then any algorithm learns inside, without a simulator:

    python -m policies.train task=learned/metaworld/door-open-v3 task.world=world.npz preset=dsrl ...
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from deploy import cli
from deploy.system.files import write_atomic
from policies.collect import stored
from policies.train_success import NoThresholdError, Peaks, judged, parts, standing_out, threshold
from sim import spec
from sim.engines.learned import LearnedWorld, Pairs, believed, differences, seen
from sim.tasks import Task, make

if TYPE_CHECKING:
    from policies.learning.world import Moments

Array = NDArray[np.float32]

CHUNKS = (1, 5, 20)  # after which the open-loop error is told
CHUNK = 4  # control steps
PRECISE = 0.95  # of verdicts that are true: whoever learns under worse ones learns what is wrongly called success
MOST_WRONG = 0.3  # of held-out episodes: beyond it there is no threshold of success
BEYOND = 0.1  # of the recorded range, beyond it: no state is predicted further out


@dataclass
class Config:
    """Settings of the command."""

    task: str = field(metadata={"help": "task whose signals are numbers"})
    data: str = field(metadata={"help": "folders of datasets of it (policies.collect): DIR,DIR"})
    out: str = field(metadata={"help": "the file (.npz)"})
    episodes: int = field(default=0, metadata={"help": "the first so many of each folder (0: all)"})
    held_out: float = field(default=0.15, metadata={"help": "share of episodes that judge what changes"})
    folds: int = field(default=5, metadata={"help": "parts that judge success, held out one after the other"})
    frames: int = field(default=3, metadata={"help": "in a row that must look like success"})
    false_share: float = field(
        default=0.0, metadata={"help": "of episodes that may be called so wrongly; more where it must"}
    )
    recognised: float = field(default=0.5, metadata={"help": "share of successes that must stand out from all others"})
    trusted: float = field(default=2.0, metadata={"help": "disagreement, in the largest of held-out episodes, that is"})
    members: int = field(default=5, metadata={"help": "of an ensemble"})
    hidden: int = field(default=192, metadata={"help": "units in each of two layers"})
    updates: int = field(default=2500, metadata={"help": "of what changes"})
    success_updates: int = field(default=600, metadata={"help": "of success"})
    seed: int = field(default=0, metadata={"help": "of the learning"})

    def __post_init__(self) -> None:
        if min(self.episodes, self.seed) < 0 or min(self.frames, self.updates, self.success_updates) < 1:
            raise ValueError("needs episodes >= 0, frames >= 1, updates >= 1, success_updates >= 1 and seed >= 0")
        if not (0.0 < self.held_out < 1.0 and 0.0 <= self.false_share < 1.0 and self.trusted > 0.0):
            raise ValueError("needs 0 < held_out < 1, 0 <= false_share < 1 and trusted > 0")
        if not 0.0 < self.recognised <= 1.0:
            raise ValueError(f"recognised lies between 0 and 1, got {self.recognised}")
        if self.folds < 2:
            raise ValueError(f"folds must be at least 2, got {self.folds}")
        if not self.out.endswith(".npz"):
            raise ValueError(f"out={self.out}: the name of the file ends in .npz")


def open_loop(world: LearnedWorld, episodes: Sequence[Moments], places: list[slice]) -> dict[str, Any]:
    """How far positions are off, in m, after so many chunks of recorded commands, from every fifth chunk on.

    Beside it how far they have moved: who predicts that nothing moves is as far off as that.
    """
    told: dict[str, Any] = {}
    for chunks in CHUNKS:
        steps, off, moved = chunks * CHUNK, [], []
        for episode in episodes:
            starts = np.arange(0, len(episode.state) - steps, 5 * CHUNK)
            if not len(starts):
                continue
            state, last = episode.state[starts], episode.last[starts]
            member = np.arange(len(starts)) % len(world.moves.weights[0])
            for k in range(steps):
                moved_to, _ = world.after(state, last, episode.action[starts + k], member)
                state, last = moved_to, moved_to - state
            true = episode.state[starts + steps]
            for axes in places:
                off.append(np.linalg.norm(state[:, axes] - true[:, axes], axis=1))
                moved.append(np.linalg.norm(episode.state[starts][:, axes] - true[:, axes], axis=1))
        if off:
            told[str(chunks)] = {"off": float(np.concatenate(off).mean()), "moved": float(np.concatenate(moved).mean())}
    return told


def train(config: Config) -> LearnedWorld:
    """Learn, measure, write the file. ValueError or DatasetError says what is wrong with the data."""
    import torch

    from policies.learning.demonstrations import folders
    from policies.learning.world import Fitting, learn_moves, moves
    from policies.runner.log import Progress
    from sim.tasks.external.learned import told_of

    task: Any = make(config.task)
    told = told_of(task)
    torch.set_num_threads(1)
    recordings = recorded(task, folders(config.data), config.episodes or sys.maxsize)
    count = max(1, round(config.held_out * len(recordings)))
    if len(recordings) < 4:
        raise ValueError(f"{config.data}: {len(recordings)} episodes of two steps or more; it takes 4")
    order = np.random.default_rng(config.seed).permutation(len(recordings))
    judges, learned = ([recordings[k] for k in some] for some in (order[:count], order[count:]))
    pairs = differences(told)
    fitting = Fitting(members=config.members, hidden=config.hidden, updates=config.updates)
    learner, change = moves(learned, pairs, fitting, config.seed)
    ready = threading.Event()
    ready.set()
    with Progress("world", ready) as bar:
        for metrics in learn_moves(learner):
            bar.update(metrics)
    fitting = Fitting(members=config.members, hidden=config.hidden // 2, updates=config.success_updates)
    success, bar_at, report = _success(recordings, pairs, fitting, config)
    states = np.concatenate([r.state for r in recordings])
    room = np.float32(BEYOND) * np.ptp(states, axis=0)
    starts = np.cumsum([0, *(len(r.state) for r in recordings[:-1])])
    kept = np.flatnonzero(~np.concatenate([r.success for r in recordings]))
    starts = starts[np.isin(starts, kept)]
    if not len(starts):
        raise ValueError(f"{config.data}: every episode begins with success, so there is nothing to learn")
    world = LearnedWorld(
        task=config.task,
        names=tuple(s.name for s in told),
        moves=learner.exported(),
        change=change,
        success=success,
        bar=bar_at,
        frames=config.frames,
        cut=np.inf,
        moments=states[kept],
        changes=np.concatenate([r.last for r in recordings])[kept],
        first=np.searchsorted(kept, starts),
        low=states.min(axis=0) - room,
        high=states.max(axis=0) + room,
        pairs=pairs,
        report={},
    )
    apart = np.concatenate([_disagreement(world, episode) for episode in judges])
    places = [spec.slices(told)[s.name] for s in spec.places(told)]
    report |= {
        "episodes": len(recordings),
        "steps": sum(len(r.state) for r in recordings),
        "held_out": count,
        "open_loop_m": open_loop(world, judges, places),
        "seed": config.seed,
    }
    world = replace(world, cut=config.trusted * float(apart.max()), report=report)
    write_atomic(config.out, world.content())
    return world


def recorded(task: Task, folders: Sequence[str], count: int = sys.maxsize) -> list[Moments]:
    """The first so many episodes of each folder, but for those of a single step."""
    from policies.learning.world import Moments
    from sim.tasks.external.learned import told_of

    some = [episode for folder in folders for episode in stored(task, folder, count)]
    return [Moments.of(episode, told_of(task), task) for episode in some if len(episode.success) > 1]


def verdicts(world: LearnedWorld, episodes: Sequence[Moments]) -> dict[str, Any]:
    """What a world calls success in episodes that it did not learn from: how often it is right, and wrong."""
    peaks = [Peaks.of(world.believed(e.state), e.success.astype(np.int8), world.frames) for e in episodes]
    false = sum(p.early > world.bar for p in peaks)
    right = sum(p.late > world.bar >= p.early for p in peaks)
    return {"recognised": right, "false": false, "precision": right / (right + false) if right + false else None}


def _disagreement(world: LearnedWorld, episode: Moments) -> Array:
    """Of the members, at every recorded moment (n,)."""
    return world.after(episode.state, episode.last, episode.action, np.zeros(len(episode.state), np.int64))[1]


def _success(recordings: list[Moments], pairs: Pairs, fitting: Any, config: Config) -> Any:
    """Who knows success, above which value, and how well: of held-out parts."""
    from policies.learning.world import learn_success

    split = parts([bool(r.success.any()) for r in recordings], config.folds, config.seed)
    values: dict[int, Array] = {}
    for fold, held in enumerate(split):
        rest = [r for k, r in enumerate(recordings) if k not in held]
        judge = learn_success(rest, pairs, fitting, config.seed + 1 + fold)
        values |= {k: believed(judge, seen(pairs, recordings[k].state)) for k in held}
    labels = [r.success.astype(np.int8) for r in recordings]
    peaks = [Peaks.of(values[k], label, config.frames) for k, label in enumerate(labels)]
    everything = np.concatenate([values[k] for k in range(len(recordings))])
    label = np.concatenate(labels)
    bar, share = bar_of(peaks, config.false_share, config.recognised)
    figures = judged(
        peaks, split, everything, label, bar, lambda others: bar_of(others, config.false_share, config.recognised)[0]
    )
    judge = learn_success(recordings, pairs, fitting, config.seed)
    chosen = {"false_share": share, "standing_out": len(standing_out(peaks, share)[1])}
    return judge, bar, {"success": figures.json() | chosen}


def bar_of(peaks: Sequence[Peaks], false_share: float, recognised: float) -> tuple[float, float]:
    """The threshold of success, and the least share of wrong episodes, from that one on, under which there is one."""
    while True:
        try:
            return threshold(peaks, false_share, recognised), false_share
        except NoThresholdError:
            if false_share >= MOST_WRONG:
                raise
            false_share += 1.0 / len(peaks)


def text(world: LearnedWorld) -> str:
    """For people."""
    report, success = world.report, world.report["success"]
    lines = [f"{report['episodes']} episodes, {report['steps']} moments; {report['held_out']} episodes held out"]
    for chunks, one in report["open_loop_m"].items():
        after = f"after {int(chunks) * CHUNK} commands"
        lines.append(f"  positions {after:19} {100 * one['off']:6.2f} cm off; they moved {100 * one['moved']:.2f} cm")
    precision = "-" if success["precision"] is None else f"{100 * success['precision']:.1f} %"
    told = f"{success['recognised']} of {success['successes']} recognised, {success['false']} false"
    lines.append(f"  success: precision {precision}, {told}; AUROC {success['frame_auroc']:.4f}")
    if "standing_out" in success:  # files of before had no such thing
        allowed = f"{100 * success['false_share']:.1f} % of the episodes may be called so wrongly"
        lines.append(f"  threshold: {success['standing_out']} successes stand out from all others; {allowed}")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> None:
    """Train, and say what came of it."""
    if cli.wants_help(argv):
        print(f"{__doc__}\n\n{cli.usage(Config)}")
        return
    (config,) = cli.parse(argv, Config)
    world = train(config)
    print(text(world))
    if (precision := world.report["success"]["precision"]) is None or precision < PRECISE:
        print("warning: what it calls success is too often none: record more episodes, above all ones that succeed")
    if world.report["success"]["recall"] < config.recognised:
        print(
            f"warning: it recognises less than recognised={config.recognised:g} of the successes: record more of them"
        )
    print(f"world: {config.out}")


if __name__ == "__main__":
    sys.exit(cli.call(main, needs="rl,datasets"))
