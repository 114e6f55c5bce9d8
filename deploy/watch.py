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
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from deploy import cli
from deploy.recording import flight_log
from deploy.recording.page import LOOPBACK, Page, window
from deploy.trust.text import printable

if TYPE_CHECKING:
    import rerun as rr

    from deploy.recording.flight_log import Flight
    from deploy.recording.rerun import Picture

PORT = 9090


@dataclass
class Config:
    """Settings of the command."""

    log: str = field(metadata={"help": "the flight log (.mcap), finished or being written"})
    web: bool = field(default=False, metadata={"help": "in a browser, with the address that is told"})
    host: str = field(
        default=LOOPBACK, metadata={"help": "with web: where the page is served; 0.0.0.0 lets other machines look, too"}
    )
    port: int = field(default=PORT, metadata={"help": "with web: of the page"})
    out: str | None = field(default=None, metadata={"help": "write a file (.rrd) for Rerun's viewer instead"})

    def __post_init__(self) -> None:
        if self.out is not None and not self.out.endswith(".rrd"):
            raise ValueError(f"out={self.out}: the name of a file for Rerun ends in .rrd")
        if self.web and self.out is not None:
            raise ValueError("web=true shows a flight, out=FILE writes it: choose one")
        if not 1 <= self.port <= 65535:
            raise ValueError(f"port={self.port}: needs 1 to 65535")


def has_display() -> bool:
    """Whether a window can be opened."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def open_viewer(config: Config, recording: rr.RecordingStream) -> str:
    """Connect the recording with where it is shown, or written; what to tell the user."""
    if config.out is not None:
        try:
            recording.save(config.out)
        except RuntimeError as error:
            raise ValueError(f"out={config.out}: {error}") from None
        return f"writing {config.out}, to be opened with: rerun {config.out}"
    if not has_display():
        raise ValueError("there is no display here: web=true shows the flight in a browser, out=FILE.rrd writes it")
    recording.connect_grpc(window())
    return "in the window of Rerun"


@contextmanager
def served_page(config: Config, recording: rr.RecordingStream) -> Iterator[Page]:
    """The recording as a page, as long as this lasts."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "flight.rrd"
        recording.save(file)
        page = Page(config.host, config.port, file)
        try:
            yield page
        finally:
            page.close()


def how_to_look(config: Config, page: Page) -> str:
    """The address, and who can use it; where there is a display, it is opened."""
    own = config.host in (LOOPBACK, "localhost")
    address = page.address(LOOPBACK if own or config.host == "0.0.0.0" else config.host)
    if has_display():
        webbrowser.open(address)
    other = "" if own else "\nfrom another machine, with this one's name in it; whoever knows the address can look"
    return f"{address}{other}\nCtrl-C ends it"


def _show(picture: Picture, pieces: Iterable[Flight]) -> str:
    """Draw the log as it grows; what there was."""
    events: list[flight_log.Event] = []
    for index, flight in enumerate(pieces):
        if index == 1:
            print("following the log until the flight ends; Ctrl-C ends only the watching", flush=True)
        picture.add(flight)
        picture.recording.flush()
        events += flight.events
        for line in flight_log.losses(flight):
            print(line)
            picture.note(line)
    if not flight.complete:
        picture.note("here the log was cut short: its end is missing")
    told = flight_log.ending(flight, events)
    if told and told.startswith("the log has no end"):
        picture.note(told)
    end = "" if flight.complete else "; the end of the file is missing"
    return "\n".join([f"{picture.steps} control steps, {len(picture.names)} robot(s){end}", *picture.summary(), told])


def main(argv: Sequence[str]) -> None:
    """Read, draw, follow until the flight ends; a web page stays until Ctrl-C."""
    if cli.wants_help(argv):
        print(f"{__doc__}\n\n{cli.usage(Config)}")
        return
    (config,) = cli.parse(argv, Config)
    try:
        import rerun as rr

        from deploy.recording.rerun import Picture
    except ModuleNotFoundError as error:
        if error.name != "rerun":
            raise
        raise ValueError("looking at a flight needs Rerun: pip install 'sim2metal[watch]'") from None
    pieces = flight_log.follow(config.log)
    first = next(pieces)
    recording = rr.RecordingStream("sim2metal")
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # it too ends the watching before the program
    try:
        with served_page(config, recording) if config.web else nullcontext() as page:
            told = open_viewer(config, recording) if page is None else how_to_look(config, page)
            print(f"{config.log}: {_what(first)}\n{told}", flush=True)
            recording.send_recording_name(Path(config.log).name)
            print(_show(Picture(recording, first), itertools.chain([first], pieces)), flush=True)
            recording.disconnect()
            if page is not None:
                page.finished.set()
                threading.Event().wait()
    except KeyboardInterrupt:
        print("no longer watching")
    finally:
        recording.disconnect()
        signal.signal(signal.SIGTERM, before)


def _what(flight: Flight) -> str:
    policy, driver, robot, started = (printable(flight.about[k]) for k in ("policy", "driver", "robot", "started"))
    return f"{policy} on {driver} ({robot}), {started}"


if __name__ == "__main__":
    sys.exit(cli.call(main))
