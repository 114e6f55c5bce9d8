"""python -m deploy.ros2.key out=FILE: make a key that signs arming. Robot, policy and supervisor need a copy each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from deploy import cli
from deploy.ros2.arming.signed import write_key


@dataclass
class Config:
    """Settings."""

    out: str = field(metadata={"help": "the file to be made, readable by its owner only"})


def main(argv: Sequence[str]) -> None:
    """Make the file."""
    if cli.wants_help(argv):
        print(f"{__doc__}\n\n{cli.usage(Config)}")
        return
    (config,) = cli.parse(argv, Config)
    write_key(config.out)
    print(f"key: {config.out}; start robot, policy and supervisor with key:={config.out}")


if __name__ == "__main__":
    sys.exit(cli.call(main))
