"""A flight as Rerun shows it: what is drawn of it, under which names, and where on the screen.

    world/NAME              pose of the robot NAME, with its body and the thrust of its rotors
    world/path/NAME         one line per step; the view shows those up to the time looked at
    world/target/NAME       its target, where it has one
    NAME/signals/SIGNAL     lines; an image as an image; anything with more than LINES elements as bars
    NAME/ages               s, one line per signal
    NAME/commands/COMMAND/wanted, NAME/commands/COMMAND/sent
    NAME/attitude           roll, pitch and yaw in degrees
    NAME/tracking_error     m between the robot and its target
    NAME/guard/verdict, NAME/guard/reason, NAME/guard/log, where they change
    flight/state, flight/log    what happened: armed, an emergency stop, the end and why
    late                    s by which the deadline before a step was missed

Times: "time" since the first step, "stamp" since 1970.
"""

from __future__ import annotations

import colorsys
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
import rerun as rr
import rerun.blueprint as rrb
from numpy.typing import NDArray

from deploy.guard import VERDICTS
from deploy.recording.flight_log import Event, Flight, names
from deploy.recording.numbers import Numbers, tracking_error
from deploy.trust.text import printable
from sim.rotations import roll_pitch_yaw
from sim.spec import Signal

AnyArray = NDArray[Any]

# Of the verdicts: green, yellow, red, blue, and for robots on the ladder orange and purple.
COLOURS = np.array([0x43A047FF, 0xFDD835FF, 0xE53935FF, 0x1E88E5FF, 0xFB8C00FF, 0x8E24AAFF], np.uint32)
LEVELS = ("INFO", "WARN", "ERROR", "WARN", "WARN", "WARN")  # of the verdicts, in the text log
SERIOUS = {
    "emergency_stop": "ERROR",
    "rung": "WARN",
    "recovery": "WARN",
    "battery": "WARN",
    "override": "WARN",
    "diagnostic": "WARN",
}
STATES = ("armed", "disarmed", "emergency_stop", "release", "override", "rung", "recovery", "end")  # events that last
LINES = 36  # elements of a signal that are drawn as lines
DRAWN_HZ = 25.0  # of paths, images and bars
ARM = 0.1  # m from the middle of a drawn quadrotor to its rotors: twice a Crazyflie's, which would hardly be seen
ROTORS = ARM * np.array([[1, -1, 0], [-1, -1, 0], [-1, 1, 0], [1, 1, 0]]) / np.sqrt(2.0)  # in the commands' order
CHANNELS: Mapping[int, Literal["L", "RGB", "RGBA"]] = {1: "L", 3: "RGB", 4: "RGBA"}  # of images
VIEWS: Mapping[str, Any] = {"lines": rrb.TimeSeriesView, "image": rrb.Spatial2DView, "bars": rrb.BarChartView}
WINDOWED = 8  # robots that get plots of their own; the entities of the others are there to be chosen


def _colours(count: int) -> list[tuple[float, float, float]]:
    """Hues all around: red, green and blue for x, y and z."""
    return [colorsys.hsv_to_rgb(k / count, 0.75, 0.9) for k in range(count)]


def _lines_of(signal: Signal, part: str = "", width: float = 1.5) -> rr.SeriesLines:
    """Names and colours of a signal's lines: x, y, z where it has axes, indices where not."""
    if signal.shape == (3,) and signal.frame:
        elements = ["x", "y", "z"]
    else:
        elements = [",".join(map(str, index)) for index in np.ndindex(*signal.shape)]
    titles = [f"{part} {element}".strip() for element in elements]
    return rr.SeriesLines(names=titles, colors=_colours(signal.size), widths=[width] * signal.size)


def _kind(signal: Signal, types: Mapping[str, str]) -> str:
    """How a signal is drawn: as "lines", "image" (height, width, channels; bytes) or "bars"."""
    if signal.size <= LINES:
        return "lines"
    image = types.get(signal.name) == "u1" and len(signal.shape) == 3 and signal.shape[2] in CHANNELS
    return "image" if image else "bars"


def _changes(values: AnyArray, before: int) -> NDArray[np.int64]:
    """The rows of (steps,) codes that differ from the one before."""
    return np.flatnonzero(np.diff(values.astype(np.int64), prepend=before))


class Picture:
    """Sends a flight to a recording, piece by piece: first what does not change, then the steps, with `add`."""

    def __init__(self, recording: rr.RecordingStream, flight: Flight) -> None:
        """`flight` is the log, or its first piece."""
        self.recording, self.layout = recording, flight.layout
        self.names = names(int(flight.about["robots"]))
        self._reasons = [printable(reason) for reason in flight.about["reasons"]]
        self._every = max(1, round(float(flight.about["rate_hz"]) / DRAWN_HZ))
        signals = {s.name: s.shape for s in self.layout.signals}
        self._posed = signals.get("position") == (3,) and signals.get("rotation") == (9,)
        self._aimed = self._posed and signals.get("target_position") == (3,)
        self._rotors = any(s.name == "motor_command" and s.shape == (4,) for s in self.layout.commands)
        self._began = 0  # ns
        self._stamp = np.zeros(0, np.int64)  # ns, of the steps of this piece
        self.steps = 0  # drawn so far
        self._last: dict[str, AnyArray] = {}  # where the paths end
        self._guard = dict.fromkeys(self.names, (-1, -1))  # the last verdict and reason
        self._numbers = Numbers()
        self._events: list[Event] = []  # from before the first step
        recording.set_log_time_enabled(False)  # when a log is watched is of no interest
        recording.set_log_tick_enabled(False)
        self._introduce()

    def _introduce(self) -> None:
        """What does not change during a flight."""
        static = self.recording.log
        for k, name in enumerate(self.names):
            for signal in self.layout.signals:
                self._introduce_signal(f"{name}/signals/{signal.name}", signal)
            ages = [f"{s.name}, at most {s.max_age:g} s" for s in self.layout.signals]
            static(f"{name}/ages", rr.SeriesLines(names=ages, colors=_colours(len(ages))), static=True)
            for signal in self.layout.commands:
                for part, width in (("wanted", 0.75), ("sent", 1.5)):
                    lines = _lines_of(signal, part, width)
                    static(f"{name}/commands/{signal.name}/{part}", lines, static=True)
            states = rr.StateConfiguration(values=list(VERDICTS), colors=COLOURS)
            static(f"{name}/guard/verdict", states, static=True)
            nothing = rr.StateConfiguration(values=["none"], visible=[False])
            static(f"{name}/guard/reason", nothing, static=True)
            if self._posed:
                angles = rr.SeriesLines(names=["roll", "pitch", "yaw"], colors=_colours(3), widths=[1.5] * 3)
                static(f"{name}/attitude", angles, static=True)
            if self._aimed:
                static(f"{name}/tracking_error", rr.SeriesLines(names=["error"]), static=True)
            if self._posed:
                self._introduce_body(name, colorsys.hsv_to_rgb(0.618 * k % 1.0, 0.75, 0.9))
        static("late", rr.SeriesLines(names=["late"]), static=True)
        static("world", rr.ViewCoordinates.RIGHT_HAND_Z_UP, static=True)
        axes = rr.Arrows3D(vectors=0.5 * np.eye(3), colors=255 * np.eye(3, dtype=np.uint8), labels=["x", "y", "z"])
        static("world/axes", axes, static=True)

    def _introduce_signal(self, path: str, signal: Signal) -> None:
        kind = _kind(signal, self.layout.types)
        if kind == "lines":
            title = "target" if signal.name == "target_position" else ""
            self.recording.log(path, _lines_of(signal, title, 0.75 if title else 1.5), static=True)
        elif kind == "image":
            height, width, channels = signal.shape
            layout = rr.components.ImageFormat(
                width=width, height=height, color_model=CHANNELS[channels], channel_datatype="U8"
            )
            self.recording.log(path, rr.Image.from_fields(format=layout), static=True)

    def _introduce_body(self, name: str, colour: tuple[float, float, float]) -> None:
        """A quadrotor is a cross with four discs, the front ones white; anything else a box with its axes."""
        static = self.recording.log
        if self._rotors:
            turn = [rr.RotationAxisAngle(axis=[0, 0, 1], degrees=angle) for angle in (45.0, -45.0)]
            bar = [[ARM, 0.1 * ARM, 0.05 * ARM]] * 2
            arms = rr.Boxes3D(half_sizes=bar, rotation_axis_angles=turn, colors=colour, fill_mode="solid")
            tones = [(1.0, 1.0, 1.0), colour, colour, (1.0, 1.0, 1.0)]
            sizes = [[0.5 * ARM, 0.5 * ARM, 0.05 * ARM]] * 4
            discs = rr.Ellipsoids3D(centers=ROTORS, half_sizes=sizes, colors=tones, fill_mode="solid")
            static(f"world/{name}/arms", arms, static=True)
            static(f"world/{name}/rotors", discs, static=True)
            thrust = rr.Arrows3D.from_fields(origins=ROTORS, colors=[colour] * 4)
            static(f"world/{name}/thrust", thrust, static=True)
        else:
            body = rr.Boxes3D(half_sizes=[[ARM, 0.5 * ARM, 0.25 * ARM]], colors=colour)
            static(f"world/{name}/body", body, static=True)
        static(f"world/{name}", rr.TransformAxes3D(1.5 * ARM), static=True)
        static(f"world/path/{name}", rr.LineStrips3D.from_fields(colors=[colour], radii=[-1.0]), static=True)
        if self._aimed:
            target = rr.Points3D.from_fields(colors=[colour], radii=[0.3 * ARM])
            static(f"world/target/{name}", target, static=True)

    def add(self, flight: Flight) -> None:
        """Draw the steps of the log's next piece."""
        self._numbers.add(flight)
        self._events += flight.events
        if not len(flight.steps):
            self._happened()
            return
        self._stamp = flight.stamp
        if not self.steps:
            self._began = int(self._stamp[0])
            self.recording.send_blueprint(self._blueprint(self._eye(flight) if self._posed else None))
        for k, name in enumerate(self.names):
            for signal in self.layout.signals:
                self._signal(f"{name}/signals/{signal.name}", signal, flight.values(f"signals.{signal.name}")[:, k])
            ages = np.stack([flight.values(f"ages.{s.name}")[:, k] for s in self.layout.signals], axis=1)
            self._lines(f"{name}/ages", np.where(np.isfinite(ages), ages, np.nan))
            for signal in self.layout.commands:
                for part in ("wanted", "sent"):
                    values = flight.values(f"{part}.{signal.name}")[:, k]
                    self._lines(f"{name}/commands/{signal.name}/{part}", values)
            self._guard[name] = self._states(name, flight.steps["verdict"][:, k], flight.steps["reason"][:, k])
            if self._posed:
                self._lines(f"{name}/attitude", roll_pitch_yaw(flight.values("signals.rotation")[:, k]))
            error = tracking_error(flight) if self._aimed else None
            if error is not None:
                self._lines(f"{name}/tracking_error", error[:, k])
            if self._posed:
                self._pose(name, flight, k)
        self._lines("late", flight.steps["missed"][:, :1])
        self.steps += len(flight.steps)
        self._happened()

    def _happened(self) -> None:
        """The events so far, once it is known when the flight began."""
        if not self.steps:
            return
        for event in self._events:
            self.recording.set_time("time", duration=np.timedelta64(event.stamp - self._began, "ns"))
            self.recording.set_time("stamp", timestamp=np.datetime64(event.stamp, "ns"))
            who = f" ({printable(event.who)})" if event.who else ""
            text = f"{printable(event.kind)}: {printable(event.text)}{who}"
            self.recording.log("flight/log", rr.TextLog(text, level=SERIOUS.get(event.kind, "INFO")))
            if event.kind in STATES:
                self.recording.log("flight/state", rr.StateChange(state=text))
        self._events = []

    def summary(self) -> list[str]:
        """The flight so far in numbers, in lines."""
        return self._numbers.lines()

    def note(self, text: str) -> None:
        """Say something about the log as a whole where it ends now."""
        self._send("note", rr.TextLog.columns(text=[text], level=["WARN"]), slice(-1, None))

    def _send(self, path: str, columns: Iterable[Any], rows: Any = slice(None)) -> None:
        """Columns of values at the steps `rows` of this piece."""
        stamp = self._stamp[rows]
        if len(stamp):
            times = (stamp - self._began).astype("timedelta64[ns]")
            indices = [
                rr.TimeColumn("time", duration=times),
                rr.TimeColumn("stamp", timestamp=stamp.astype("datetime64[ns]")),
            ]
            self.recording.send_columns(path, indices, columns)

    def _lines(self, path: str, values: AnyArray) -> None:
        self._send(path, rr.Scalars.columns(scalars=values.reshape(len(values), -1).astype(np.float64)))

    def _drawn(self) -> NDArray[np.int64]:
        """The rows of this piece that are drawn where not every step is."""
        first = -self.steps % self._every
        return np.arange(first, len(self._stamp), self._every)

    def _signal(self, path: str, signal: Signal, values: AnyArray) -> None:
        kind = _kind(signal, self.layout.types)
        rows = self._drawn()
        if kind == "lines":
            self._lines(path, values)
        elif kind == "image":
            self._send(path, rr.Image.columns(buffer=values[rows].reshape(len(rows), signal.size)), rows)
        else:
            for row in rows:  # Rerun has no columns of bars
                stamp = self._stamp[row]
                self.recording.set_time("time", duration=(stamp - self._began).astype("timedelta64[ns]"))
                self.recording.set_time("stamp", timestamp=stamp.astype("datetime64[ns]"))
                self.recording.log(path, rr.BarChart(values[row].reshape(-1)))

    def _states(self, name: str, verdicts: AnyArray, reasons: AnyArray) -> tuple[int, int]:
        """The guard's states where they change; returns the last ones."""
        before = self._guard[name]
        told = [VERDICTS[code] if code < len(VERDICTS) else f"verdict {code}" for code in verdicts.tolist()]
        known = len(self._reasons)
        why = [self._reasons[code] if code < known else f"reason {code}" for code in reasons.tolist()]
        changed = [_changes(verdicts, before[0]), _changes(reasons, before[1])]
        for kind, texts, rows in zip(("verdict", "reason"), (told, why), changed, strict=True):
            self._send(f"{name}/guard/{kind}", rr.StateChange.columns(state=[texts[r] for r in rows]), rows)
        rows = np.union1d(*changed)
        texts = [told[r] if reasons[r] == 0 else f"{told[r]}: {why[r]}" for r in rows]
        levels = [LEVELS[verdicts[r]] if verdicts[r] < len(LEVELS) else "ERROR" for r in rows]
        self._send(f"{name}/guard/log", rr.TextLog.columns(text=texts, level=levels), rows)
        return int(verdicts[-1]), int(reasons[-1])

    def _pose(self, name: str, flight: Flight, k: int) -> None:
        """Pose, rotors, path and target; a pose that is not finite is not drawn."""
        position = flight.values("signals.position")[:, k]
        rotation = flight.values("signals.rotation")[:, k]
        rows = np.flatnonzero(np.isfinite(position).all(axis=1) & np.isfinite(rotation).all(axis=1))
        pose = rr.Transform3D.columns(translation=position[rows], mat3x3=rotation[rows].reshape(-1, 3, 3))
        self._send(f"world/{name}", pose, rows)
        if self._rotors:
            thrust = np.zeros((len(self._stamp), 4, 3))
            thrust[:, :, 2] = 2.0 * ARM * np.nan_to_num(flight.values("sent.motor_command")[:, k])
            arrows = rr.Arrows3D.columns(vectors=thrust.reshape(-1, 3)).partition([4] * len(thrust))
            self._send(f"world/{name}/thrust", arrows)
        if self._aimed:
            target = flight.values("signals.target_position")[:, k]
            there = np.flatnonzero(np.isfinite(target).all(axis=1))
            self._send(f"world/target/{name}", rr.Points3D.columns(positions=target[there]), there)
        rows = np.intersect1d(rows, self._drawn())
        if len(rows):
            ends = np.concatenate([self._last.get(name, position[rows[:1]]), position[rows]])
            self._last[name] = ends[-1:]
            strips = np.stack([ends[:-1], ends[1:]], axis=1)  # (rows, 2, 3)
            self._send(f"world/path/{name}", rr.LineStrips3D.columns(strips=strips), rows)

    def _eye(self, flight: Flight) -> rrb.EyeControls3D:
        """From above and behind everything that there is at the beginning."""
        seen = ["signals.position", *(["signals.target_position"] if self._aimed else [])]
        places = np.concatenate([flight.values(field)[0].astype(np.float64) for field in seen])  # (k, 3)
        places = np.nan_to_num(places, nan=0.0, posinf=0.0, neginf=0.0)
        middle = places.mean(axis=0)
        away = 1.5 + 2.0 * np.linalg.norm(places - middle, axis=1).max()
        return rrb.EyeControls3D(position=middle + away * np.array([-0.8, -0.5, 0.4]), look_target=middle)

    def _blueprint(self, eye: rrb.EyeControls3D | None) -> rrb.Blueprint:
        """The robots on the left with what the guard said; on the right what can be plotted, one tab per robot."""
        windowed = self.names[:WINDOWED]
        left: list[Any] = [
            rrb.StateTimelineView(name="guard", contents=["/flight/state", *(f"/{n}/guard/**" for n in windowed)]),
            rrb.TextLogView(name="log", contents=["/note", "/flight/log", *(f"/{n}/guard/log" for n in windowed)]),
        ]
        if eye is not None:
            begin, now = rrb.TimeRangeBoundary.infinite(), rrb.TimeRangeBoundary.cursor_relative()
            travelled = [rrb.VisibleTimeRange(line, start=begin, end=now) for line in ("time", "stamp")]
            paths: Any = {f"world/path/{name}": rrb.VisibleTimeRanges(travelled) for name in self.names}
            left.insert(0, rrb.Spatial3DView(name="robots", origin="/world", overrides=paths, eye_controls=eye))
        robots = [rrb.Grid(*self._plots(name), name=name) for name in windowed]
        shares = [3, 1, 1] if eye is not None else [1, 1]
        return rrb.Blueprint(
            rrb.Horizontal(
                rrb.Vertical(*left, row_shares=shares),
                robots[0] if len(robots) == 1 else rrb.Tabs(*robots),
                column_shares=[2, 3],
            ),
            rrb.TimePanel(timeline="time", state="collapsed", play_state="following"),
            rrb.BlueprintPanel(state="collapsed"),
            rrb.SelectionPanel(state="collapsed"),
        )

    def _plots(self, name: str) -> list[Any]:
        views: list[Any] = []
        signals = f"/{name}/signals"
        if self._aimed:
            both = [f"{signals}/position", f"{signals}/target_position"]
            views.append(rrb.TimeSeriesView(name="position and target [m, world]", contents=both))
            views.append(rrb.TimeSeriesView(name="off the target by [m]", origin=f"/{name}/tracking_error"))
        if self._posed:
            views.append(rrb.TimeSeriesView(name="roll, pitch, yaw [degrees]", origin=f"/{name}/attitude"))
        shown = {"position", "target_position"} if self._aimed else set()
        shown |= {"rotation"} if self._posed else set()
        for signal in self.layout.signals:
            if signal.name in shown:
                continue
            frame = f", {printable(signal.frame, 40)}" if signal.frame else ""
            title = f"{signal.name} [{printable(signal.unit, 40)}{frame}]"
            view = VIEWS[_kind(signal, self.layout.types)]
            views.append(view(name=title, origin=f"/{name}/signals/{signal.name}"))
        for signal in self.layout.commands:
            title = f"{signal.name}, wanted and sent [{signal.unit}]"
            views.append(rrb.TimeSeriesView(name=title, origin=f"/{name}/commands/{signal.name}"))
        views.append(rrb.TimeSeriesView(name="age of the signals [s]", origin=f"/{name}/ages"))
        views.append(rrb.TimeSeriesView(name="deadlines missed by [s]", origin="/late"))
        return views
