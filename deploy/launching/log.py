"""What a launch prints, named and formatted as `ros2 launch` does, and the folder where its files are."""

from __future__ import annotations

import os
import socket
import sys
import time
from functools import cached_property
from pathlib import Path

_COLOURS = {"WARNING": "33", "ERROR": "31"}  # as ROS 2's nodes colour their levels


class Log:
    """Lines to the screen, those of the runner itself also to `launch.log` in a folder of this launch."""

    @cached_property
    def folder(self) -> Path:
        """The folder, below ROS_LOG_DIR, ROS_HOME/log or ~/.ros/log. Created on first use."""
        home = Path(os.environ.get("ROS_HOME") or Path.home() / ".ros")
        above = Path(os.environ.get("ROS_LOG_DIR") or home / "log").expanduser()
        now = f"{time.strftime('%Y-%m-%d-%H-%M-%S')}-{time.time_ns() % 10**9:09}"
        folder = above / f"{now}-{socket.gethostname()}-{os.getpid()}"
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise ValueError(f"cannot write logs below {above}: {error.strerror}; set ROS_LOG_DIR") from None
        return folder

    def output(self, line: str) -> None:
        """A line that a process wrote."""
        print(line, flush=True)

    def say(self, level: str, name: str | None, message: str) -> None:
        """A line of the runner itself."""
        line = f"[{level}] [{name}]: {message}"
        colour = _COLOURS.get(level) if sys.stdout.isatty() else None
        self.output(f"\033[{colour}m{line}\033[0m" if colour else line)
        with (self.folder / "launch.log").open("a", encoding="utf-8") as file:
            print(f"{time.time():.7f} {line}", file=file)
