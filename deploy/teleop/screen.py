"""A live picture of a scene for who steers it or looks on: in the terminal, which works over ssh, or in Rerun's viewer.

What is served listens on this machine's loopback only.
"""

from __future__ import annotations

import importlib.util
import shutil
import socket
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Protocol, TextIO

import numpy as np
from numpy.typing import NDArray

TERMINAL, WEB, WINDOW, NONE = VIEWS = ("terminal", "web", "window", "none")
LIVE = f"look at it live: true (the best that there is here), {', '.join(VIEWS)}, or a file (.rrd)"
RATE = 8.0  # Hz, of pictures at most
SHARE = 0.3  # of the time that drawing may take: software draws slowly
SIDE = (32, 96)  # pixels of a picture in the terminal
PIXELS = 240  # of one in the viewer

Picture = NDArray[np.uint8]
Draw = Callable[[int], Picture]  # a square picture with so many pixels per side


class Screen(Protocol):
    """Where pictures and a line about them go."""

    def show(self, draw: Draw, line: str) -> None:
        """Show both, or nothing when it is too early for it."""

    def close(self) -> None:
        """Leave it as it was found."""


def wanted(view: str) -> bool:
    """Whether anything is to be shown."""
    return view.lower() not in ("", NONE, "false")


def asked(view: str) -> str:
    """The name of a view: "true" is the best one here, "false" none. ValueError where there is none to be had."""
    if not wanted(view):
        return NONE
    if view.lower() != "true":
        return view
    from deploy import watch

    if importlib.util.find_spec("rerun"):
        return WINDOW if watch.has_display() else WEB
    if sys.stderr.isatty():
        return TERMINAL
    raise ValueError(
        "view=true: there is no terminal here, and a page or a window needs: pip install 'sim2metal[watch]'"
    )


def screen(view: str, help: str) -> Screen:
    """The one of that name, or a file (.rrd); "auto" is the terminal, if there is one. ValueError lists the choices."""
    if view == "auto":
        view = TERMINAL if sys.stderr.isatty() else NONE
    view = asked(view)
    if view.endswith(".rrd"):
        return Viewer(False, help, out=view)
    if view not in VIEWS:
        raise ValueError(f"view {view!r} is not one of auto, {', '.join(VIEWS)}, and no file for Rerun (.rrd)")
    if view in (WEB, WINDOW):
        return Viewer(view == WEB, help)
    return Terminal(help, drawing=view == TERMINAL)


def blocks(picture: Picture) -> list[str]:
    """Lines of text that show a picture (height, width, 3) in 24-bit colours, two pixels on top of each other each."""
    upper, lower = picture[::2], picture[1::2]
    return [
        "".join(f"\x1b[38;2;{a[0]};{a[1]};{a[2]};48;2;{b[0]};{b[1]};{b[2]}m\u2580" for a, b in zip(*pair, strict=True))
        + "\x1b[0m"
        for pair in zip(upper[: len(lower)].tolist(), lower.tolist(), strict=True)
    ]


class Pace:
    """When it is time for the next picture."""

    def __init__(self) -> None:
        self._next = 0.0

    def ready(self) -> bool:
        """Whether it is."""
        return time.monotonic() >= self._next

    def drawn(self, began: float) -> None:
        """One was drawn, beginning at `began` (s, monotonic)."""
        now = time.monotonic()
        self._next = max(began + 1.0 / RATE, now + (1.0 / SHARE - 1.0) * (now - began))


class Terminal:
    """Pictures at the terminal's top, in coloured blocks; help and the line below. Without `drawing` the line alone."""

    def __init__(self, help: str, drawing: bool, out: TextIO | None = None) -> None:
        self.help, self.drawing, self._out, self._pace = help, drawing, out or sys.stderr, Pace()
        if drawing:
            self._out.write("\x1b[?25l\x1b[2J")  # no cursor, an empty screen
        elif self._out.isatty():
            self._out.write(f"{help}\n")

    def show(self, draw: Draw, line: str) -> None:
        if not self._pace.ready():
            return
        began = time.monotonic()
        if self.drawing:
            columns, rows = shutil.get_terminal_size()
            told = [*textwrap.wrap(self.help, columns - 1), line[: columns - 1]]
            side = int(np.clip(min(columns, 2 * (rows - len(told) - 2)), *SIDE)) // 2 * 2
            try:
                text = blocks(draw(side))
            except RuntimeError as error:  # no OpenGL
                self.drawing, text = False, [f"no picture: {error}"]
            self._out.write("\x1b[H" + "".join(f"{row}\x1b[K\n" for row in [*text, *told]))
        elif self._out.isatty():
            self._out.write(f"\r{line}\x1b[K")
        self._out.flush()
        self._pace.drawn(began)

    def close(self) -> None:
        if self._out.isatty():
            self._out.write("\x1b[?25h\n")
            self._out.flush()


class Viewer:
    """Rerun's viewer, in a window or served to a browser on this machine; or a file for it (`out`)."""

    def __init__(self, web: bool, help: str, port: int = 0, out: str | None = None) -> None:
        from deploy import watch

        if not web and out is None and not watch.has_display():
            raise ValueError("there is no display here: view=web shows it in a browser, view=terminal in the terminal")
        try:
            import rerun as rr
        except ModuleNotFoundError as error:
            if error.name != "rerun":
                raise
            raise ValueError("Rerun shows it: pip install 'sim2metal[watch]', or view=terminal") from None
        self._rerun: Any = rr
        self._recording = rr.RecordingStream("sim2metal")
        config = watch.Config(log="", web=web, port=port or _port(watch.PORT), out=out)
        self._open = ExitStack()
        if web:
            page = self._open.enter_context(watch.served_page(config, self._recording))
            told = watch.how_to_look(config, page)
        else:
            told = watch.open_viewer(config, self._recording)
        print(told, help, sep="\n", file=sys.stderr)
        self._pace = Pace()

    def show(self, draw: Draw, line: str) -> None:
        if not self._pace.ready():
            return
        began = time.monotonic()
        self._recording.log("scene", self._rerun.Image(draw(PIXELS)))
        self._recording.log("status", self._rerun.TextDocument(line))
        self._pace.drawn(began)

    def close(self) -> None:
        self._recording.disconnect()
        self._open.close()


def _port(usual: int) -> int:
    """That port of the loopback, or, where it is taken, another one."""
    from deploy.recording.page import LOOPBACK, free_port

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, usual))
        except OSError:
            return free_port()
    return usual


def paced(shown: Screen, rate_hz: float, waits: bool = True) -> Callable[[Draw, str, int], None]:
    """What a simulation calls at each control step, whose number begins with 0 again: shown as fast as it would be.

    Without `waits` somebody else keeps the time.
    """
    begins = 0.0

    def step(draw: Draw, line: str, number: int) -> None:
        nonlocal begins
        begins = time.monotonic() if number == 0 else begins
        shown.show(draw, line)
        if waits:
            time.sleep(max(0.0, begins + (number + 1) / rate_hz - time.monotonic()))

    return step
