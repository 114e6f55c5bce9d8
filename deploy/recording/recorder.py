"""Writes the log of a flight while it is flown.

The control loop only fills a buffer and hands it to another process (deploy/recording/writer.py), which makes the file:
neither compression nor a slow disk delays a command, and the file is whole even when the controller was killed.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.drivers import Driver, Reading
from deploy.guard import REASONS, SAFE, Guard
from deploy.policy_file import PolicyFile, PolicyFileError
from deploy.recording import line
from deploy.recording.flight_log import EVENTS, VERSION, FlightLogError, Layout
from deploy.system import streams
from deploy.trust.interpreter import python
from sim.spec import to_json

AnyArray = NDArray[Any]

BACKLOG = 64 << 20  # bytes that may wait for a writer that does not keep up
START = 5.0  # s in which the writer must have opened the file
PATIENCE = 2.0  # s in which it must have finished; in simulation, where seconds are nobody's, ten times that
LATEST = ((1 << 31) - 1) * 1_000_000_000  # ns since 1970: later than that a stamp of ROS 2 cannot be
LONGEST = 1000  # characters of what an event says


class FileTakenError(FlightLogError):
    """The file exists; a log is not overwritten."""


def free_path(folder: str | Path, name: str) -> Path:
    """A name in a folder that no file has: what file names may hold of `name`, and "-2" and so on where it is taken.

    Somebody else may take it meanwhile: `open_or_warn` tries again.
    """
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[:100] or "flight"
    path, count = Path(folder) / f"{plain}.mcap", 1
    while path.exists():
        count += 1
        path = path.with_name(f"{plain}-{count}.mcap")
    return path


class NoRecorder:
    """In the place of one that could not start: takes everything, keeps nothing."""

    path = ""

    def step(self, *_: Any) -> None:
        """Nothing."""

    def event(self, kind: str, text: str, who: str = "") -> None:
        """Nothing."""

    def close(self, reason: str = "", who: str = "", patience: float = PATIENCE) -> str:
        """Nothing went wrong."""
        return ""


class Recorder:
    """Writes the log of one flight. `step` and `event` neither wait nor raise: what goes wrong is told on stderr."""

    def __init__(
        self,
        path: str,
        policy: PolicyFile,
        driver: Driver,
        guard: Guard,
        controller: str,
        start: float = START,
    ) -> None:
        """Start the writer, within `start` s. Raises FlightLogError when the file exists or cannot be written."""
        self.path = path
        layout = Layout(
            guard.watched, {s.name: np.dtype(policy.types[s.name]).str[1:] for s in policy.inputs}, guard.outputs
        )
        self._record = np.zeros(driver.num, layout.dtype)
        self._fields = {name: self._record[name] for name, _, _ in layout.fields}
        self._names = [s.name for s in guard.watched]
        self._blocks: deque[tuple[int, bytes]] = deque()  # in the order in which they came, from any thread
        self._sending = threading.Lock()  # whoever has it sends; nobody waits for it
        self._waiting = bytearray()
        self._numbered = 0
        self._steps = 0
        now = time.time_ns()
        self._offset = 0 if 0 <= now < LATEST else -now  # the clock is impossible: stamps count from 1970
        self._began = now + self._offset
        self._period = None if driver.real_time else 1e9 / policy.rate_hz  # ns of simulated time per step
        self._trouble = ""
        self._ended = self._closed = False
        self._unfit: set[str] = set()  # what did not fit into the record, each told once
        about = {
            "version": VERSION,
            "policy": policy.path,
            "sha256": policy.sha256,
            "task": policy.task,
            "robot": driver.robot,
            "driver": type(driver).__name__,
            "controller": controller,
            "rate_hz": policy.rate_hz,
            "real_time": driver.real_time,
            "robots": driver.num,
            "watched": to_json(guard.watched),
            "types": dict(layout.types),
            "commands": to_json(guard.outputs),
            "guard": guard.to_json(),
            "reasons": REASONS,
            "ends": True,  # its last event says how the flight ended
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._began // 1_000_000_000)),
        }
        try:
            content = policy.content()
        except PolicyFileError as error:
            raise FlightLogError(str(error)) from None
        self._start(json.dumps({"path": os.path.abspath(path), "about": about}).encode(), content, start)
        if self._offset:
            self.event("diagnostic", f"the clock says {now / 1e9:.0f} s since 1970: stamps count from 0", "recorder")

    @classmethod
    def open_or_warn(
        cls,
        folder: str | Path,
        name: str,
        policy: PolicyFile,
        driver: Driver,
        guard: Guard,
        controller: str,
        warn: Callable[[str], object],
    ) -> Recorder | NoRecorder:
        """A log under a free name in the folder. When there can be none, `warn` is told, and nothing is recorded."""
        try:
            for _ in range(100):
                with contextlib.suppress(FileTakenError):
                    return cls(str(free_path(folder, name)), policy, driver, guard, controller)
            raise FlightLogError(f"{folder}: others take every name")
        except (OSError, ValueError) as error:
            warn(f"this flight is not recorded: {error}")
            return NoRecorder()

    def _start(self, header: bytes, policy: bytes, seconds: float) -> None:
        self._line, theirs = socket.socketpair()
        try:
            self._writer = subprocess.Popen(
                [*python(), "-m", "deploy.recording.writer", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in the terminal ends the flight, not its log
            )
        except OSError as error:
            self._line.close()
            raise FlightLogError(f"{self.path}: the process that writes it does not start: {error.strerror}") from None
        finally:
            theirs.close()
        until = time.monotonic() + seconds
        self._answers = ""
        try:
            self._line.settimeout(seconds)
            for kind, data in ((line.HEADER, header), (line.POLICY, policy)):
                self._line.sendall(line.block(kind, 0, data))
            answer = self._answer(until)
            if answer == line.OPENED:
                with contextlib.suppress(TimeoutError):  # it has the file: what it still imports may take its time
                    answer = self._answer(until)
        except TimeoutError:
            answer = f"the process that writes it has not opened it within {seconds:g} s"
        except OSError as error:
            answer = str(error)
        if answer not in (line.OPENED, line.RUNNING):
            self._end_writer(0.1)
            kind_of = FileTakenError if answer == line.TAKEN else FlightLogError
            raise kind_of(f"{self.path}: {answer or 'the process that writes it died'}")
        self._line.setblocking(False)

    def _answer(self, until: float) -> str:
        """The next line of the writer's, without its end; empty when it is gone."""
        while "\n" not in self._answers:
            self._line.settimeout(max(0.001, until - time.monotonic()))
            more = self._line.recv(4096).decode(errors="replace")
            if not more:
                return ""
            self._answers += more
        answer, _, self._answers = self._answers.partition("\n")
        return answer

    def step(
        self,
        clock: float,
        missed: float,
        reading: Reading,
        wanted: Mapping[str, AnyArray],
        sent: Mapping[str, AnyArray],
        guard: Guard,
    ) -> None:
        """Note one control step of all robots. What does not fit is noted as missing."""
        fields, n = self._fields, len(self._record)
        try:
            fields["stamp.sec"][:], fields["stamp.nanosec"][:] = divmod(self._now(), 1_000_000_000)
            self._steps += 1
            fields["clock"][:], fields["missed"][:] = clock, missed
            with np.errstate(all="ignore"):  # what is beyond a float32 is infinite there
                for name in self._names:
                    known = name in reading.signals and name in reading.age
                    fields[f"signals.{name}"][:] = np.asarray(reading.signals[name]).reshape(n, -1) if known else 0
                    fields[f"ages.{name}"][:] = reading.age[name] if known else np.inf
                for name in sent:
                    fields[f"wanted.{name}"][:] = np.asarray(wanted[name]).reshape(n, -1)
                    fields[f"sent.{name}"][:] = sent[name].reshape(n, -1)
            fields["verdict"][:] = guard.verdict
            fields["reason"][:] = guard.reasons
        except Exception:  # a log is never a reason to end a flight
            self._fill(clock, missed, reading, wanted, sent, guard)
        self._put(line.STEP, self._record.tobytes())

    def _fill(
        self, clock: Any, missed: Any, reading: Any, wanted: Mapping[str, Any], sent: Mapping[str, Any], guard: Any
    ) -> None:
        """The same, field by field: each holds what it can, and nothing where it cannot."""
        n = len(self._record)
        for name, field in self._fields.items():
            if name.startswith("stamp."):
                continue
            part, _, key = name.partition(".")
            try:
                value: Any
                if part == "signals":
                    known = key in reading.signals and key in reading.age
                    value = np.asarray(reading.signals[key]).reshape(n, -1) if known else 0
                elif part == "ages":
                    value = reading.age[key] if key in reading.signals and key in reading.age else math.inf
                elif part in ("wanted", "sent"):
                    value = np.asarray((wanted if part == "wanted" else sent)[key]).reshape(n, -1)
                else:
                    value = {"clock": clock, "missed": missed}.get(part)
                    value = (
                        value if part in ("clock", "missed") else getattr(guard, {"reason": "reasons"}.get(part, part))
                    )
                with np.errstate(all="ignore"):
                    field[:] = value
            except Exception as error:
                field[:] = np.inf if part == "ages" else np.nan if field.dtype.kind == "f" else 0
                if name not in self._unfit and len(self._unfit) < 100:
                    self._unfit.add(name)
                    self.event("diagnostic", f"{name} cannot be recorded: {type(error).__name__}: {error}", "recorder")

    def event(self, kind: str, text: str, who: str = "") -> None:
        """Note that something happened, of a kind in EVENTS, and who did it. From any thread."""
        try:
            if kind not in EVENTS:
                kind, text = "diagnostic", f"{kind}: {text}"
            self._ended |= kind == "end"
            told = {"stamp": self._now(), "kind": kind, "text": str(text)[:LONGEST], "who": str(who)[:LONGEST]}
            self._put(line.EVENT, json.dumps(told).encode())
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")

    def _now(self) -> int:
        """ns since 1970, as far as a stamp can say it."""
        now = time.time_ns() + self._offset if self._period is None else self._began + round(self._steps * self._period)
        return min(max(now, 0), LATEST)

    def _put(self, kind: int, data: bytes) -> None:
        """Give a block to whoever sends: this thread, or the one that does just now."""
        if self._trouble or self._closed:
            return
        self._blocks.append((kind, data))
        if self._sending.acquire(blocking=False):
            try:
                self._send()
            finally:
                self._sending.release()

    def _gather(self) -> None:
        while self._blocks:
            kind, data = self._blocks.popleft()
            self._waiting += line.block(kind, self._numbered, data)
            self._numbered += 1

    def _send(self) -> None:
        """As much as the writer takes now."""
        self._gather()
        try:
            del self._waiting[: self._line.send(self._waiting)]
        except BlockingIOError:
            if len(self._waiting) > BACKLOG:
                self._fail("the disk does not keep up")
        except OSError as error:
            self._fail(self._last_words() or str(error))

    def _last_words(self) -> str:
        """What the writer said before it died."""
        with contextlib.suppress(OSError):
            while more := self._line.recv(4096).decode(errors="replace"):
                self._answers += more
        words = [text for text in self._answers.splitlines() if text not in (line.OPENED, line.RUNNING)]
        return words[-1] if words else "the process that writes it died"

    def _fail(self, trouble: str) -> None:
        """Say it at once, if that can be done without waiting; `close` says it again."""
        if self._trouble:
            return
        self._trouble = trouble
        self._blocks.clear()
        self._waiting.clear()
        streams.say(
            f"warning: {self.path}: nothing is recorded from step {self._steps} on: {trouble}; the flight goes on"
        )

    def _ending(self) -> tuple[str, str]:
        """Why the flight ended, and who ended it, as far as that can be seen from here."""
        error = sys.exc_info()[1]
        if error is not None:
            return f"{type(error).__name__}: {error}", "the controller"
        codes = self._fields["reason"][self._fields["verdict"] == SAFE]
        if len(codes) == len(self._record):
            return REASONS[int(codes[0])] if codes[0] < len(REASONS) else "stopped", "guard"
        return "the flight was over", "the controller"

    def close(self, reason: str = "", who: str = "", patience: float = PATIENCE) -> str:
        """Note the end of the flight, unless an event has, and finish the file. Returns what went wrong, or nothing.

        Takes at most `patience` s (in simulation ten times that); a writer that has not finished then is killed.
        """
        if self._closed:
            return self._trouble
        if not self._ended:
            self.event("end", *((reason, who) if reason else self._ending()))
        seconds = patience if self._period is None else 10.0 * patience
        until = time.monotonic() + seconds
        self._closed = True
        self._sending.acquire(timeout=patience)  # a thread that sends does not wait either
        try:
            self._gather()
            self._line.settimeout(seconds)
            if not self._trouble:
                self._line.sendall(self._waiting)
            self._line.shutdown(socket.SHUT_WR)
            while (answer := self._answer(until)) == line.RUNNING:
                pass
            trouble = "" if answer == line.DONE else answer or "the process that writes it died"
        except TimeoutError:
            trouble = f"the process that writes it did not finish within {seconds:g} s, and was killed"
        except OSError:
            trouble = self._last_words()
        self._end_writer(0.0 if trouble else 1.0)
        self._trouble = self._trouble or trouble
        return self._trouble

    def _end_writer(self, grace: float) -> None:
        """It has finished, or it is time: nobody waits for a process that its disk does not let go."""
        self._line.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._writer.wait(grace)
        if self._writer.poll() is None:
            self._writer.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._writer.wait(0.5)
