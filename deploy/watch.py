"""python -m deploy.watch log=FILE [web=true] [out=FILE.rrd]: look at a flight, also while it is being flown.

The robots in 3-D with their paths and targets, every signal and its age, the commands that the policy wanted and that
were sent, the guard's verdict and reason, missed deadlines: in the viewer of Rerun, in a browser, or in a file for it.
Rerun is a pip package, needs no account, follows a log that grows, and is tested without a screen. Foxglove and
PlotJuggler open the finished log as it is (/tf and /robot/step): for those who have their layouts there.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from deploy import arguments, flight_log

if TYPE_CHECKING:
    import rerun as rr

    from deploy.flight_log import Flight
    from deploy.picture import Picture

PORT = 9090


@dataclass
class Config:
    """Settings of the command."""

    log: str = field(metadata={"help": "the flight log (.mcap), finished or being written"})
    web: bool = field(default=False, metadata={"help": "in a browser, which may run on another machine"})
    port: int = field(default=PORT, metadata={"help": "with web: of the page; the one after it is the data's"})
    out: str | None = field(default=None, metadata={"help": "write a file (.rrd) for Rerun's viewer instead"})

    def __post_init__(self) -> None:
        if self.out is not None and not self.out.endswith(".rrd"):
            raise ValueError(f"out={self.out}: the name of a file for Rerun ends in .rrd")
        if self.web and self.out is not None:
            raise ValueError("web=true shows a flight, out=FILE writes it: choose one")
        if not 1 <= self.port <= 65534:
            raise ValueError(f"port={self.port}: needs 1 to 65534")


def has_display() -> bool:
    """Whether a window can be opened."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _check_free(port: int) -> None:
    """Rerun would only write a line about it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise ValueError(f"port {port}: {error.strerror}; choose two others with port=...") from None


def _serve(port: int, recording: rr.RecordingStream) -> str:
    """Serve the viewer's page and, on the next port, the data; what to open."""
    import rerun as rr

    for each in (port, port + 1):
        _check_free(each)
    # Rerun lets only pages from localhost have the data: here also those that this very server delivered.
    data = recording.serve_grpc(grpc_port=port + 1, cors_allow_origin=[f"http://*:{port}"])
    rr.serve_web_viewer(web_port=port, open_browser=has_display(), connect_to=data)
    page = f"http://localhost:{port}/?url={quote(f'rerun+http://localhost:{port + 1}/proxy', safe='')}"
    return f"{page}\non another machine, this one's name in both places of localhost; Ctrl-C ends it"


def open_viewer(config: Config, recording: rr.RecordingStream) -> str:
    """Connect the recording with where it is shown, or written; what to tell the user."""
    import rerun as rr

    if config.out is not None:
        try:
            recording.save(config.out)
        except RuntimeError as error:
            raise ValueError(f"out={config.out}: {error}") from None
        return f"writing {config.out}, to be opened with: rerun {config.out}"
    if config.web:
        return _serve(config.port, recording)
    if not has_display():
        raise ValueError("there is no display here: web=true shows the flight in a browser, out=FILE.rrd writes it")
    beside = Path(sys.executable).with_name("rerun")  # an environment that is not activated is not searched
    rr.spawn(recording=recording, executable_path=str(beside) if beside.exists() else None)
    return "in the window of Rerun"


def _show(picture: Picture, pieces: Iterable[Flight]) -> str:
    """Draw the log as it grows; what there was."""
    for index, flight in enumerate(pieces):
        if index == 1:
            print("following the log until the flight ends; Ctrl-C ends only the watching", flush=True)
        picture.add(flight)
    if not flight.complete:
        picture.note("here the log was cut short: its end is missing")
    end = "" if flight.complete else "; the end of the file is missing"
    return f"{picture.steps} control steps, {len(picture.names)} robot(s){end}"


def main(argv: Sequence[str]) -> None:
    """Read, draw, follow until the flight ends; a web page stays until Ctrl-C."""
    if arguments.wants_help(argv):
        print(f"{__doc__}\n\n{arguments.usage(Config)}")
        return
    (config,) = arguments.parse(argv, Config)
    try:
        import rerun as rr

        from deploy.picture import Picture
    except ModuleNotFoundError as error:
        if error.name != "rerun":
            raise
        raise ValueError("looking at a flight needs Rerun: pip install 'sim2metal[watch]'") from None
    pieces = flight_log.follow(config.log)
    first = next(pieces)
    about = first.about
    recording = rr.RecordingStream("sim2metal")
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # it too ends the watching before the program
    try:
        told = open_viewer(config, recording)
        what = f"{about['policy']} on {about['driver']} ({about['robot']}), {about['started']}"
        print(f"{config.log}: {what}\n{told}", flush=True)
        recording.send_recording_name(Path(config.log).name)
        print(_show(Picture(recording, first), itertools.chain([first], pieces)), flush=True)
        if config.web:
            threading.Event().wait()
    except KeyboardInterrupt:
        print("no longer watching")
    finally:
        recording.disconnect()
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(arguments.call(main))
