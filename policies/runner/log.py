"""What a run reports: metrics.jsonl and a TensorBoard event file in its folder, and a progress bar on the terminal.

The event file is written here, byte by byte: the format is small and stable, while importing TensorBoard's writer costs
0.4 s, an appreciable part of a short training run.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import struct
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from policies.runner.loggers import Logger

FLUSH_S = 1.0
LINE_S = 5.0  # between lines where there is no terminal
PATIENCE_S = 3.0  # without a first update, after which the user is told why
START = 1  # SessionLog.START: what the file says of later steps before it is void


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)  # CRC-32C (Castagnoli), reflected
        table.append(byte)
    return table


CRC_TABLE = _table()


def _masked_crc(data: bytes) -> int:
    """The masked CRC-32C of the TFRecord format."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _message(number: int, content: bytes) -> bytes:
    """A protocol-buffer field of bytes."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _event(step: int, content: bytes) -> bytes:
    """A TFRecord with one Event: wall_time (field 1), step (2) and the given field."""
    event = b"\x09" + struct.pack("<d", time.time()) + b"\x10" + _varint(step) + content
    length = struct.pack("<Q", len(event))
    return length + struct.pack("<I", _masked_crc(length)) + event + struct.pack("<I", _masked_crc(event))


def scalars(step: int, values: Mapping[str, float]) -> bytes:
    """The record of named numbers at a step, as TensorBoard's event files hold it."""
    summary = b"".join(
        _message(1, _message(1, tag.encode()) + b"\x15" + struct.pack("<f", value)) for tag, value in values.items()
    )
    return _event(step, _message(5, summary))


def cpu_time() -> float:
    """CPU time of this process and of those that it started; of living ones where /proc tells (Linux)."""
    ended = os.times()
    seconds = time.process_time() + ended.children_user + ended.children_system
    for listed in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread, or the process, has ended meanwhile
            for child in listed.read_text().split():
                told = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                seconds += (int(told[11]) + int(told[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


def counted(saved: Any) -> dict[str, Any]:
    """What a `Log` continues from, as anybody's checkpoint has it; ValueError or KeyError when it is something else."""
    found = {name: saved[name] for name in ("rows", "step", "seconds", "cpu_seconds")}
    for name, value in found.items():
        kinds = int if name in ("rows", "step") else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not 0 <= value < 1e18:
            raise ValueError(f"its log's {name} is {value!r:.40}")
    return found


class Log:
    """The metrics of a run, one row per call of `write`. On continuing, rows after the checkpoint are dropped.

    A full disk ends the recording with one line on stderr, not the training.
    """

    def __init__(
        self,
        folder: Path,
        rows: int = 0,
        step: int = 0,
        seconds: float = 0.0,
        cpu_seconds: float = 0.0,
        logger: Logger | None = None,
    ) -> None:
        """Append after the first `rows` rows; `step` and the times are where the run continues.

        `logger` gets the rows, too, and is closed with the log.
        """
        self.rows = rows
        self._step = step
        self._logger = logger
        self._started = time.perf_counter() - seconds
        self._worked = cpu_time() - cpu_seconds
        self._ended = self._rested = 0.0
        self._flushed = 0.0
        self._files: tuple[IO[bytes], ...] = ()
        try:
            self._files = self._opened(folder, rows, step)
        except OSError as error:
            self._give_up(error)

    def _opened(self, folder: Path, rows: int, step: int) -> tuple[IO[bytes], ...]:
        metrics = folder / "metrics.jsonl"
        if rows:
            with open(metrics, "rb") as file:
                kept = sum(len(line) for line in itertools.islice(file, rows))
            os.truncate(metrics, kept)  # nothing is written anew: a full disk or a kill costs no row
        events = open(folder / f"events.out.tfevents.{time.time_ns()}.sim2metal.{os.getpid()}", "wb")  # noqa: SIM115
        events.write(_event(0, _message(3, b"brain.Event:2")))
        if rows:
            events.write(_event(step or rows + 1, _message(7, b"\x08" + _varint(START))))
        try:
            return open(metrics, "ab" if rows else "wb"), events
        except OSError:
            events.close()
            raise

    @property
    def seconds(self) -> float:
        """The time spent training, interruptions left out."""
        return (self._ended or time.perf_counter()) - self._started

    @property
    def cpu_seconds(self) -> float:
        """The CPU time spent training, of all threads and of the processes that it started."""
        return (self._rested or cpu_time()) - self._worked

    def write(self, metrics: Mapping[str, float]) -> None:
        """Add one row; "env_steps" is the horizontal axis in TensorBoard, or the rows while nobody has stepped."""
        self.rows += 1
        values = {key: float(value) for key, value in metrics.items()}
        step = self._step = max(int(values.get("env_steps", 0.0)) or self.rows, self._step)  # none before another
        if self._logger is not None:
            self._logger.write(step, values)
        if not self._files:
            return
        row = {key: value if math.isfinite(value) else None for key, value in values.items()}
        try:
            times = {"seconds": round(self.seconds, 4), "cpu_seconds": round(self.cpu_seconds, 4)}
            text = json.dumps({**times, **row})
            self._files[0].write(text.encode() + b"\n")
            self._files[1].write(scalars(step, values))
        except OSError as error:
            self._give_up(error)
        if self.seconds - self._flushed > FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Let other processes see what has been written; a checkpoint counts on the rows before it."""
        self._flushed = self.seconds
        try:
            for file in self._files:
                file.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        sys.stderr.write(f"warning: metrics are no longer recorded: {error.strerror}\n")
        self._close_files()

    def close(self) -> None:
        """Write out, close, and stop the clock."""
        self._ended, self._rested = time.perf_counter(), cpu_time()
        if self._logger is not None:
            self._logger.close()
        error = self._close_files()
        if error is not None:
            sys.stderr.write(f"warning: the last metrics are not recorded: {error.strerror}\n")

    def _close_files(self) -> OSError | None:
        failure = None
        for file in self._files:
            try:
                file.close()
            except OSError as error:
                failure = error
        self._files = ()
        return failure

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Progress:
    """A bar with success rate and time left on a terminal; elsewhere a line every few seconds.

    Says so when the first update is long in coming: then kernels are being compiled. `ready` is set once rich has been
    imported (0.1 s, off the critical path); until then there is no bar.
    """

    def __init__(self, title: str, ready: Any) -> None:
        self._title = title
        self._ready = ready
        self._waiting = threading.Timer(PATIENCE_S, self._explain)
        self._waiting.daemon = True
        self._success: dict[str, float] = {}  # not every update measures it
        self._bar: Any = None
        self._task: Any = None
        self._first: tuple[float, float] | None = None  # time, progress
        self._shown = 0.0
        self._counted = (0.0, 0.0)  # environment steps when they were shown last, and when that was
        self._speed = ""

    def update(self, metrics: Mapping[str, float]) -> None:
        """Show the newest metrics; cheap when called often."""
        self._waiting.cancel()
        now = time.perf_counter()
        if "success" in metrics:
            self._success = {"success": metrics["success"]}
        metrics = {**metrics, **self._success}
        done = min(1.0, max(0.0, float(metrics.get("progress", 0.0))))
        self._first = self._first or (now, done)
        terminal = sys.stdout.isatty()
        if now - max(self._shown, self._first[0]) < (0.1 if terminal else LINE_S) and done < 1.0:
            return
        if terminal and not self._ready.is_set():
            return
        self._shown = now
        described = f"{_described(metrics)}{self._per_second(float(metrics.get('env_steps', 0.0)), now)}"
        if terminal:
            self._draw(done, described, self._left(now, done))
        elif now - self._first[0] >= LINE_S:
            line = f"{self._title}  {done:4.0%}  {described}  {_minutes(self._left(now, done))} left"
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    def _explain(self) -> None:
        sys.stdout.write(f"{self._title}: getting ready; a first run compiles kernels, later ones find them ...\n")
        sys.stdout.flush()

    def _per_second(self, steps: float, now: float) -> str:
        """Environment steps per second since they were last counted, at least a second ago."""
        before, then = self._counted
        if then == 0.0 or now - then >= 1.0:
            self._counted = (steps, now)
            if then and steps > before:
                self._speed = f"  {thousands((steps - before) / (now - then))} steps/s"
        return self._speed

    def _left(self, now: float, done: float) -> float:
        assert self._first is not None
        gained = done - self._first[1]
        return (now - self._first[0]) * (1.0 - done) / gained if gained > 0.0 else math.inf

    def _draw(self, done: float, described: str, left: float) -> None:
        if self._bar is None:
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            text = "{task.percentage:3.0f}%  {task.fields[described]}  {task.fields[left]} left"
            self._bar = Bar(TextColumn(self._title), BarColumn(), TextColumn(text), auto_refresh=False)
            self._task = self._bar.add_task("", total=1.0, described="", left="")
            self._bar.start()
        self._bar.update(self._task, completed=done, described=described, left=_minutes(left), refresh=True)

    def __enter__(self) -> Progress:
        self._waiting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._waiting.cancel()
        if self._bar is not None:
            self._bar.stop()


def _described(metrics: Mapping[str, float]) -> str:
    shown = []
    if "success" in metrics:
        shown.append(f"success {float(metrics['success']):.0%}")
    shown += [f"{name} {float(metrics[name]):.3g}" for name in ("reward", "loss") if name in metrics][:1]
    if metrics.get("workers_replaced"):
        shown.append(f"workers replaced {metrics['workers_replaced']:.0f}")
    if "advice_answered" in metrics:
        troubles = {"refused": metrics["advice_refused"], "restarts": metrics["adviser_restarts"]}
        told = ", ".join(f"{count:.0f} {name}" for name, count in troubles.items() if count)
        shown.append(f"advised {metrics['advice_answered']:.0f}{f' ({told})' if told else ''}")
    return "  ".join(shown)


def thousands(count: float) -> str:
    """A count in three digits: 950, 1.5 k, 60 M."""
    return f"{count:.0f}" if count < 1e3 else f"{count / 1e3:.3g} k" if count < 1e6 else f"{count / 1e6:.3g} M"


def _minutes(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "?"
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
