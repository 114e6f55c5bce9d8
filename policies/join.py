"""python -m policies.join policy=FILE detector=FILE out=FILE.onnx [key=value ...]: pixels in, commands out.

A policy that was trained with `task.perception=detector` and a detector (`policies.train_detector`) become one policy
file that takes the picture: it is evaluated, deployed and turned into C as any other. With `episodes` both play as
many unseen games: the policy told by the errors that it was trained with, the joined one by its detector, on pixels.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deploy import cli
from deploy.policy_file import PolicyFile
from deploy.system.files import write_atomic
from deploy.trust.text import printable

if TYPE_CHECKING:
    from policies.runner.report import Report


@dataclass
class Config:
    """Settings of the command."""

    policy: str = field(metadata={"help": "a policy file, trained with task.perception=detector"})
    detector: str = field(metadata={"help": "the file of a detector"})
    out: str = field(metadata={"help": "the file to write (.onnx)"})
    episodes: int = field(default=0, metadata={"help": "unseen games that both then play (0: none)"})
    seed: int = field(default=0, metadata={"help": "of these games"})
    engine: str = field(default="", metadata={"help": "physics engine of them (default: the task's own)"})

    def __post_init__(self) -> None:
        if self.episodes < 0 or self.seed < 0:
            raise ValueError(f"needs episodes >= 0 and seed >= 0, got {self.episodes} and {self.seed}")
        if not self.out.endswith(".onnx"):
            raise ValueError(f"out={self.out}: the name of the file ends in .onnx")


def join(config: Config) -> PolicyFile:
    """Write the joined file, and return it loaded."""
    from policies.models.joined import joined

    content = joined(PolicyFile.load(config.policy), PolicyFile.load(config.detector), config.out)
    write_atomic(config.out, content)
    return PolicyFile.load(config.out)


def judged(config: Config, file: PolicyFile) -> tuple[Report, Report, float | None]:
    """What the policy reaches by itself, what the joined file does, and which share of the successes is kept.

    That is written into it. Nothing is kept of no success: None.
    """
    from policies.evaluate import evaluate
    from policies.models.export import update_evaluation
    from policies.runner.provenance import lasting

    told, seen = (
        evaluate(one, episodes=config.episodes, seed=config.seed, engine=config.engine)
        for one in (PolicyFile.load(config.policy), file)
    )
    kept = seen.success / told.success if told.success else None
    update_evaluation(file.path, {"told": lasting(told.json()), "pixels": lasting(seen.json()), "kept": kept})
    return told, seen, kept


def main(argv: Sequence[str]) -> None:
    """Join, play, and say what came of it."""
    if cli.wants_help(argv):
        print(f"{__doc__}\n\n{cli.usage(Config)}")
        return
    (config,) = cli.parse(argv, Config)
    file = join(config)
    if config.episodes:
        told, seen, kept = judged(config, file)
        for name, report in (("told, with errors", told), ("on pixels", seen)):
            low, high = report.success_ci
            print(f"{name:18} {100 * report.success:5.1f} %  ({100 * low:.1f} .. {100 * high:.1f})")
        if kept is not None:
            print(f"kept on pixels     {100 * kept:5.1f} %  of the successes")
    print(f"policy: {printable(config.out)}")


if __name__ == "__main__":
    sys.exit(cli.call(main, needs="train"))
