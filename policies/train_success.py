"""python -m policies.train_success task=NAME data=DIR out=FILE.onnx [key=value ...]: a classifier of success.

It learns from the labelled frames of a dataset (`policies.datasets.labels`) to say from the robot's own signals whether
the task is done. The threshold is chosen, and everything that is reported was measured, on episodes held out by
cross-validation: an episode counts as false when success is said before it is there. The file is one that
`algorithm.success=FILE` takes as the reward.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from deploy import cli
from policies.models.networks import Array
from policies.runner.report import wilson
from sim.spec import Group
from sim.tasks import Task, make

if TYPE_CHECKING:
    from deploy.policy_file import PolicyFile
    from policies.datasets.labels import Labelled, Labels

VECTORS = 16  # frames in the file's test vectors


class NoThresholdError(ValueError):
    """No threshold recognises a success without being wrong more often than is allowed."""


@dataclass
class Config:
    """Settings of the command."""

    task: str = field(metadata={"help": "manipulation task"})
    data: str = field(metadata={"help": "folder of a dataset of it"})
    out: str = field(metadata={"help": "the file (.onnx)"})
    column: str = field(default="next.success", metadata={"help": "of the dataset, that says what is success"})
    labels: str = field(default="", metadata={"help": "file that says it instead: lines such as 3,40-55,1"})
    signals: str = field(default="", metadata={"help": "what it sees: NAME,NAME (the policy's signals)"})
    cameras: str = field(default="", metadata={"help": "of the task that has them: NAME,NAME"})
    episodes: int = field(default=0, metadata={"help": "the first so many (0: all)"})
    frames: int = field(default=3, metadata={"help": "in a row that must look like success"})
    false_share: float = field(default=0.01, metadata={"help": "of held-out episodes that may be called so wrongly"})
    folds: int = field(default=5, metadata={"help": "parts that are held out one after the other"})
    updates: int = field(default=600, metadata={"help": "of the networks"})
    seed: int = field(default=0, metadata={"help": "of the learning"})

    def __post_init__(self) -> None:
        if min(self.episodes, self.seed) < 0 or min(self.frames, self.updates) < 1 or self.folds < 2:
            raise ValueError("needs episodes >= 0, frames >= 1, folds >= 2, updates >= 1 and seed >= 0")
        if not 0.0 <= self.false_share < 1.0:
            raise ValueError(f"false_share lies between 0 and 1, got {self.false_share}")
        if not self.out.endswith(".onnx"):
            raise ValueError(f"out={self.out}: the name of the file ends in .onnx")


@dataclass
class Peaks:
    """Of one episode: the highest values that were believed `frames` times in a row."""

    early: float  # without success, or before it
    late: float  # in success

    @classmethod
    def of(cls, believed: Array, label: Labels, frames: int) -> Peaks:
        """-inf where there is no such frame."""
        held = np.full(len(believed), -np.inf)
        if len(believed) >= frames:
            held[frames - 1 :] = np.lib.stride_tricks.sliding_window_view(believed, frames).min(axis=1)
        succeeds = label == 1
        first = int(succeeds.argmax()) if succeeds.any() else len(label)
        before = held[:first][label[:first] == 0]
        return cls(float(before.max(initial=-np.inf)), float(held[succeeds].max(initial=-np.inf)))


def standing_out(peaks: Sequence[Peaks], false_share: float) -> tuple[float, list[float]]:
    """What a threshold must be above for at most so many false ones, and the successes that are above it, too."""
    early = np.sort([p.early for p in peaks])[::-1]
    least = float(early[int(false_share * len(early))])
    return least, [p.late for p in peaks if p.late > max(least, p.early)]


def threshold(peaks: Sequence[Peaks], false_share: float, share: float = 1.0) -> float:
    """With at most so many false ones: in the middle between the highest of the others and what is to be recognised.

    That is this share of the successes that can be, those that stand out most. NoThresholdError.
    """
    least, late = standing_out(peaks, false_share)
    if not late:
        raise NoThresholdError(
            f"no success is recognised unless more than {100 * false_share:g} % of the {len(peaks)} episodes are "
            "called so wrongly: label more frames in a row, of more episodes, or raise false_share"
        )
    lowest = float(np.quantile(late, 1.0 - share))
    return lowest - 1.0 if np.isneginf(least) else 0.5 * (least + lowest)


@dataclass
class Figures:
    """How good it is on held-out episodes. Rates are None where there is nothing to take them of."""

    episodes: int
    successes: int  # episodes with success
    recognised: int  # of them: said, and not before it was there
    false: int  # episodes in which it was said before it was there, or without
    frames: dict[str, int]  # labelled, by label
    frame_auroc: float
    frame_false_rate: float  # of frames without success, above the threshold

    @property
    def precision(self) -> float | None:
        """Share of the verdicts that are true."""
        said = self.recognised + self.false
        return self.recognised / said if said else None

    @property
    def recall(self) -> float:
        """Share of the successes that are recognised."""
        return self.recognised / self.successes

    def json(self) -> dict[str, Any]:
        """For the file."""
        rates = {"precision": self.precision, "recall": self.recall, "false_rate": self.false / self.episodes}
        return {**asdict(self), **rates, "held_out": "by episode, cross-validated"}

    def text(self) -> str:
        """For people."""
        recognised = ("recognised", self.recognised, self.successes, "successes")
        rows = (recognised, ("false", self.false, self.episodes, "episodes"))
        lines = []
        for name, count, n, what in rows:
            low, high = wilson(count, n)
            rate = f"{100 * count / n:5.1f} %  ({100 * low:.0f} .. {100 * high:.0f})"
            lines.append(f"  {name:11} {count:4} of {n:4} {what:10} {rate}")
        precision = "-" if self.precision is None else f"{100 * self.precision:.1f} %"
        lines.append(f"  precision   {precision}; frames: AUROC {self.frame_auroc:.4f}, ")
        return "\n".join(lines) + f"false-positive rate {100 * self.frame_false_rate:.2f} %"


def auroc(believed: Array, label: Labels) -> float:
    """The chance that a frame of success is believed more than one without: ranks, halves for equal ones."""
    order = np.sort(believed[label == 0])
    mine = believed[label == 1]
    below = np.searchsorted(order, mine, "left") + np.searchsorted(order, mine, "right")
    return float(below.mean() / (2.0 * len(order)))


def calibrate(believed: Array, label: Labels) -> tuple[float, float]:
    """Scale and shift that make a logit of what is believed (n,) (Platt 1999: Newton's method, smoothed labels)."""
    x = np.stack([believed.astype(np.float64), np.ones(len(believed))], axis=1)
    positive, negative = int((label == 1).sum()), int((label == 0).sum())
    wanted = np.where(label == 1, (positive + 1.0) / (positive + 2.0), 1.0 / (negative + 2.0))
    w = np.array([1.0, 0.0])
    for _ in range(50):
        p = 1.0 / (1.0 + np.exp(-np.clip(x @ w, -30.0, 30.0)))
        hessian = (x * (p * (1.0 - p))[:, None]).T @ x + 1e-6 * np.eye(2)
        step = np.linalg.solve(hessian, x.T @ (p - wanted))
        w -= step / max(1.0, float(np.abs(step).max()))
    return float(w[0]), float(w[1])


def parts(succeeds: Sequence[bool], folds: int, seed: int) -> list[list[int]]:
    """Indices of the episodes of each part, with and without success spread evenly. ValueError when one succeeds."""
    rng = np.random.default_rng(seed)
    sides = [[k for k, succeeded in enumerate(succeeds) if succeeded is side] for side in (True, False)]
    count = min(folds, len(sides[0]))
    if count < 2:
        raise ValueError("1 episode shows success: it takes 2, one to learn from and one that is held out")
    order = [int(k) for side in sides for k in rng.permutation(side)]
    return [order[k::count] for k in range(count)]


def recognise(task: Task, episodes: Sequence[Labelled], inputs: Group, config: Config) -> tuple[Any, Figures]:
    """The classifier and what it is worth. ValueError when the episodes are too few, NoThresholdError."""
    from policies.datasets.labels import UNKNOWN
    from policies.learning.success import Frames, Recognition, Recognizer
    from policies.models.success import SuccessClassifier

    def learned(some: Sequence[Labelled], seed: int) -> Recognizer:
        recognizer = Recognizer(inputs, Recognition(updates=config.updates), seed)
        recognizer.fit(Frames(some, inputs))
        return recognizer

    split = parts([e.succeeds for e in episodes], config.folds, config.seed)
    believed: dict[int, Array] = {}
    for fold, held in enumerate(split):
        recognizer = learned([e for k, e in enumerate(episodes) if k not in held], config.seed + 1 + fold)
        believed |= {k: recognizer.believed(Frames([episodes[k]], inputs)) for k in held}
    peaks = [Peaks.of(believed[k], episode.label, config.frames) for k, episode in enumerate(episodes)]
    bar = threshold(peaks, config.false_share)
    values = np.concatenate([believed[k] for k in range(len(episodes))])
    label = np.concatenate([e.label for e in episodes])
    values, label = values[label != UNKNOWN], label[label != UNKNOWN]
    eye, judges = learned(episodes, config.seed).exported()
    made = SuccessClassifier(
        name=f"{task.name.replace('/', '_')}_success",
        task=task.name,
        robot=task.robot.name,
        rate_hz=task.rate_hz,
        inputs=inputs,
        eye=eye,
        judges=judges,
        calibration=calibrate(values, label),
        bar=bar,
        frames=config.frames,
    )
    return made, judged(peaks, split, values, label, bar, lambda others: threshold(others, config.false_share))


def judged(
    peaks: Sequence[Peaks],
    split: Sequence[Sequence[int]],
    values: Array,
    label: Labels,
    bar: float,
    threshold_of: Callable[[Sequence[Peaks]], float],
) -> Figures:
    """Each part under the threshold of the other ones, so that none is judged by a threshold that it chose."""
    recognised = false = 0
    for held in split:
        try:
            own = threshold_of([p for k, p in enumerate(peaks) if k not in held])
        except NoThresholdError:
            own = np.inf
        wrong = [peaks[k].early >= own for k in held]
        false += sum(wrong)
        recognised += sum(peaks[k].late >= own and not early for k, early in zip(held, wrong, strict=True))
    successes = sum(p.late > -np.inf for p in peaks)
    frames = {"success": int((label == 1).sum()), "none": int((label == 0).sum())}
    rate = float((values[label == 0] >= bar).mean())
    return Figures(len(peaks), successes, recognised, false, frames, auroc(values, label), rate)


def chosen(task: Task, names: str) -> Group:
    """The signals of that name, of those that the robot measures; ValueError lists them."""
    if not names:
        return task.policy
    wanted = names.split(",")
    unknown = [name for name in wanted if name not in {s.name for s in task.policy}]
    if unknown:
        known = ", ".join(s.name for s in task.policy)
        raise ValueError(f"signals: the robot does not measure {unknown[0]!r} in {task.name}; it has: {known}")
    return tuple(s for s in task.policy if s.name in wanted)


def train(config: Config) -> tuple[PolicyFile, Figures]:
    """Learn, measure, write the file. ValueError or DatasetError says what is wrong with the data."""
    from policies.datasets.labels import labelled
    from policies.models.export import export
    from policies.runner.provenance import versions

    cameras = [name for name in config.cameras.split(",") if name]
    task: Any = make(config.task, **({"cameras": cameras} if cameras else {}))
    inputs = chosen(task, config.signals)
    episodes = labelled(task, config.data, config.column, config.labels, config.episodes)
    classifier, figures = recognise(task, episodes, inputs, config)
    shown = next(e for e in episodes if e.succeeds and len(e.label) >= VECTORS)
    training = {"seed": config.seed, "versions": versions(), "frames": config.frames, "false_share": config.false_share}
    scale, shift = classifier.calibration
    file = export(
        classifier,
        config.out,
        vectors_from={s.name: shown.signals[s.name][-VECTORS:] for s in inputs},
        training=training | {"threshold": float(1.0 / (1.0 + np.exp(-(scale * classifier.bar + shift))))},
        evaluation=figures.json(),
    )
    return file, figures


def main(argv: Sequence[str]) -> None:
    """Train, and say what came of it."""
    if cli.wants_help(argv):
        print(f"{__doc__}\n\n{cli.usage(Config)}")
        return
    (config,) = cli.parse(argv, Config)
    file, figures = train(config)
    frames = figures.frames
    print(
        f"{config.data}: {figures.episodes} episodes, {frames['success']} frames of success and {frames['none']} others"
    )
    print(f"on held-out episodes, {config.frames} frames in a row (95 % interval):\n{figures.text()}")
    print(f"threshold {file.metadata['training']['threshold']:.3f}, sees {', '.join(s.name for s in file.inputs)}")
    print(f"classifier: {config.out}")


if __name__ == "__main__":
    sys.exit(cli.call(main, needs="rl,datasets"))
