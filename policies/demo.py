"""python -m policies.demo [key=value ...]: throw racing quadrotors; the shipped policy catches them; a picture of it.

The policy file `quad_any` was trained on random quadrotors not on this one. It flies in MuJoCo.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deploy import cli
from deploy.trust.text import printable

POLICY, ROBOT, ENGINE = "quad_any", "racer", "mujoco"  # the engine that compiles the least


@dataclass
class Config:
    """Settings of the command."""

    out: str = field(default="demo", metadata={"help": "where the pictures go: OUT.png, OUT.mp4"})
    episodes: int = field(default=24, metadata={"help": "quadrotors that are thrown"})
    seed: int = field(default=0, metadata={"help": "of how they are thrown"})
    video: bool = field(default=True, metadata={"help": "a film, too, which takes longer than the flights"})

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise ValueError(f"needs episodes >= 1, got {self.episodes}")
        if not (Path(self.out).name and Path(self.out).parent.is_dir()):
            raise ValueError(f"out={self.out}: needs a name in a folder that is there")


def main(argv: Sequence[str]) -> None:
    """Fly, draw, say where the pictures are and what may come next."""
    if cli.wants_help(argv):
        print(f"{__doc__}\n\n{cli.usage(Config)}")
        return
    (config,) = cli.parse(argv, Config)
    began = time.perf_counter()
    from deploy.drivers.tasks import task_for
    from deploy.policy_file import PolicyFile
    from policies.evaluate import evaluate
    from policies.runner import report as reports
    from sim.env import with_engine

    policy = PolicyFile.load(POLICY)
    task = with_engine(task_for(policy, None, ROBOT), ENGINE)  # says now what is not installed
    print(f"{config.episodes} quadrotors ({ROBOT}) are thrown; {POLICY}, which never saw one, flies them", flush=True)
    made = evaluate(policy, task=task, episodes=config.episodes, seed=config.seed)
    error = 1e2 * (made.score["position_error"].median or 0.0)
    caught = round(made.success * made.episodes)
    print(f"{caught} of {made.episodes} were caught; median distance to the goal at the end: {error:.1f} cm")
    print(f"picture: {printable(reports.plot(made, f'{config.out}.png'))}", flush=True)
    if config.video:
        reports.video(made, f"{config.out}.mp4")
        print(f"film: {printable(config.out)}.mp4")
    print(f"{time.perf_counter() - began:.1f} s. Next: sim2metal train task=quad_hover, or sim2metal help")


if __name__ == "__main__":
    sys.exit(cli.call(main, needs="train"))
