"""python -m policies.train_detector out=FILE.onnx [key=value ...]: a detector of what is in players' pictures.

It learns from pictures of matches of scripted players whose cameras turn in all ways; the match says what is in them.
Its errors are measured on games that it never saw, by distance and by how fast the camera turns, and told as those of
`task.perception=detector` (`sim.tasks.soccer.detection.Errors`). `python -m policies.join` puts it before a policy
that was trained on such.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from deploy import cli
from sim.tasks import make

if TYPE_CHECKING:
    from deploy.policy_file import PolicyFile
    from sim.tasks.soccer.detection import Errors

TASKS = ("soccer_vision_1v1", "soccer_vision_2v2")


@dataclass
class Config:
    """Settings of the command. Those of the camera are the task's; light, lens and place differ from game to game."""

    out: str = field(metadata={"help": "the file (.onnx)"})
    task: str = field(default=TASKS[0], metadata={"help": f"whose pictures: {', '.join(TASKS)}"})
    width: int = field(default=40, metadata={"help": "of the picture, pixels"})
    height: int = field(default=30, metadata={"help": "of the picture, pixels"})
    view: float = field(default=120.0, metadata={"help": "degrees, across"})
    lens: str = field(default="fisheye", metadata={"help": "pinhole | fisheye"})
    distortion: float = field(default=0.0, metadata={"help": "of it, radial"})
    shutter: float = field(default=0.02, metadata={"help": "s for which pictures are exposed, at most"})
    auto_exposure: bool = field(default=True, metadata={"help": "the camera adapts to the light"})
    flicker: float = field(
        default=0.1, metadata={"help": "by what share light differs from picture to picture, at most"}
    )
    panorama: str = field(default="", metadata={"help": "picture of all directions around the pitch (default: ours)"})
    total_steps: int = field(default=400_000, metadata={"help": "pictures to learn from"})
    games: int = field(default=100, metadata={"help": "unseen ones that judge it"})
    threads: int = field(default=1, metadata={"help": "of torch"})
    seed: int = field(default=0, metadata={"help": "of games and weights"})

    def __post_init__(self) -> None:
        if self.total_steps < 1000 or self.games < 4 or self.threads < 1 or self.seed < 0:
            raise ValueError("needs total_steps >= 1000, games >= 4, threads >= 1 and seed >= 0")
        if self.task not in TASKS:
            raise ValueError(f"task {self.task!r} has no such pictures: {', '.join(TASKS)}")
        if not self.out.endswith(".onnx"):
            raise ValueError(f"out={self.out}: the name of the file ends in .onnx")

    def camera(self) -> dict[str, Any]:
        """The settings of the task that are its camera's."""
        names = ("width", "height", "view", "lens", "distortion", "shutter", "auto_exposure", "flicker", "panorama")
        return {name: getattr(self, name) for name in names}


def train(config: Config) -> tuple[PolicyFile, Errors, str]:
    """Learn, measure, write the file: it, its errors, and tables of them for people."""
    from policies.learning.detection.errors import tables, text
    from policies.learning.detection.learner import DetectorLearner
    from policies.models.export import STEPS, export
    from policies.runner.provenance import git_commit, made_at, versions
    from sim.tasks.recorded import recorded
    from sim.tasks.soccer.detection import things

    task = make(config.task, **config.camera())
    learner = DetectorLearner(task, config.total_steps, config.games, config.seed, config.threads)
    began = time.process_time()
    for metrics in learner.learn():
        print(f"{100 * metrics['progress']:3.0f} %  loss {metrics['loss']:.3f}", flush=True)
    spent = time.process_time() - began
    unseen, answers = learner.judge()
    errors, network, kinds = learner.errors, learner.network, things(task.players)
    assert errors is not None
    names = [name if count == 1 else f"{name} {k + 1}" for name, count in kinds.items() for k in range(count)]
    found = tables(answers, names)
    detector = network.exported(f"{task.name}_detector")
    detector.settings = recorded(task)
    training: dict[str, Any] = {"seed": config.seed, "total_steps": learner.done, "cpu_seconds": round(spent, 1)}
    training |= {"commit": git_commit(), "made": made_at(), "versions": versions()}
    training |= {"detection": asdict(network.config)}
    judged = {"games": config.games, "pictures": len(unseen.game), "errors": asdict(errors), "tables": found}
    shown = {task_picture.name: unseen.pictures[:STEPS] for task_picture in network.inputs}
    file = export(detector, config.out, vectors_from=shown, training=training, evaluation=judged)
    return file, errors, text(found)


def main(argv: Sequence[str]) -> None:
    """Train, and say what came of it."""
    if cli.wants_help(argv):
        print(f"{__doc__}\n\n{cli.usage(Config)}")
        return
    (config,) = cli.parse(argv, Config)
    file, errors, found = train(config)
    print(f"on {config.games} unseen games, standard deviations (as if normal):\n{found}")
    print("as errors of task.perception=detector:")
    print("  " + ", ".join(f"{name}={value:.3g}" for name, value in asdict(errors).items()))
    print(f"detector: {config.out} ({file.size} bytes)")


if __name__ == "__main__":
    sys.exit(cli.call(main, needs="rl"))
