"""python -m policies.train task=quad_hover [key=value ...]: train a controller and write its policy file.

Each run has a folder: config.yaml, metrics.jsonl and TensorBoard's events, checkpoint.npz, policy.onnx, timing.json and
the report. Ctrl-C leaves a checkpoint; `resume=FOLDER` continues exactly.
"""

from __future__ import annotations

import errno
import json
import math
import os
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from deploy.system import extras
from policies.algorithms import (
    Algorithm,
    HasProvenance,
    HasStages,
    LearningError,
    LostBaseError,
    LostLearnerError,
    algorithm_for,
)
from policies.reports.final import PARTS, plain, warn
from policies.reports.final import written as _report
from policies.runner import checkpoint, cli, config, live, loggers
from policies.runner.config import RunError, Settings
from policies.runner.folder import CHECKPOINT, POLICY, opened, resuming
from policies.runner.log import Log, Progress, counted, thousands
from policies.runner.mistakes import SettingsError
from policies.runner.profiling import profiled
from policies.runner.provenance import Background, lasting, made_at, randomisation, versions
from policies.runner.stop import Stop
from sim.cluster import ClusterError, entered
from sim.env import NoExpertError, WorldError, with_engine
from sim.tasks import Task, recorded, task_class

if TYPE_CHECKING:
    from deploy.policy_file import PolicyFile

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
PLACES = ("out", "resume", "cluster", "learners", "logger", "view")  # where it is made: they stay out of the file


def train(settings: Settings, started: float | None = None) -> Path:
    """Train, write and check the policy file, fly it for the report; returns the file's path.

    `started`: the `time.perf_counter()` from which the start is timed. Raises RunError with one sentence when the run
    cannot begin or go on, SettingsError when it needs what is not installed, SystemExit(128 + signal) after a signal.
    """
    clock = Clock(time.perf_counter() if started is None else started)
    folder: Path | None = None
    with Stop() as stop:
        try:
            config.check_cluster(settings)
            config.check_learners(settings)
            with entered(settings.options.cluster), _together(settings):
                task, algorithm = built(settings)
                folder, lock = opened(settings)
                with lock, Background() as background:
                    _run(folder, settings, task, algorithm, background, clock, stop)
        except KeyboardInterrupt:
            _leave(stop, settings, folder, clock)
        except (WorldError, ClusterError, LostLearnerError) as error:
            raise RunError(str(error)) from error
    print(f"policy: {folder / POLICY}", flush=True)
    return folder / POLICY


def _run(
    folder: Path,
    settings: Settings,
    task: Task,
    algorithm: Algorithm,
    background: Background,
    clock: Clock,
    stop: Stop,
) -> None:
    """Learn, export, report in a folder that is ours. KeyboardInterrupt when a signal ended it."""
    saved = _restore(folder, settings, algorithm)
    algorithm.dump_to(folder / "diverged")
    title = f"{settings.task} {settings.algorithm}"
    print(f"{title} seed {settings.options.seed} -> {folder}", flush=True)
    if saved:
        stage = f": {algorithm.stage()}" if isinstance(algorithm, HasStages) else ""
        print(f"continuing after {thousands(saved['step'])} environment steps{stage}", flush=True)
    metrics: dict[str, float] = {"env_steps": saved.get("step", 0)}
    clock.lap("start")
    background.start()
    stop.wait()
    profile = profiled(folder) if settings.options.profile else nullcontext()
    look = live.beside(settings, task)
    try:
        logger = loggers.begun(settings.options.logger, folder, config.as_dict(settings))
    except loggers.LoggerError as error:
        raise RunError(str(error)) from error
    with look, Log(folder, logger=logger, **saved) as log, Progress(title, background.bar_ready) as progress, profile:
        saver = Saver(folder, settings, algorithm, log)
        try:
            for metrics in algorithm.learn():
                log.write(metrics)
                progress.update(metrics)
                clock.progress = metrics.get("progress", 0.0)
                _check_finite(metrics, saver)
                if stop.signal is not None:
                    break
                saver.save_if_due(metrics)
                look.tell(algorithm)
            if stop.signal is not None:
                saver.save(metrics)
        except (LostBaseError, LostLearnerError) as error:
            raise RunError(f"{error}; {saver.fallback()}") from error
        except (LearningError, NoExpertError) as error:
            raise RunError(str(error)) from error
    if stop.signal is not None:
        raise KeyboardInterrupt
    stop.hurry()
    clock.lap("training")
    policy = _write_policy(folder, settings, task, algorithm, background, clock, metrics, saver)
    try:
        _say_times(clock, folder, metrics)
        if settings.options.report:
            steps = int(metrics.get("env_steps", 0))
            _report(policy, folder, settings, task, algorithm, steps, clock.lap)
            _say_report_times(clock, folder)
    except OSError as error:
        warn(f"the report is not whole: {error.filename or folder}: {error.strerror or error}")


def _together(settings: Settings) -> AbstractContextManager[None]:
    """The other learners, if there are to be some."""
    if settings.options.learners == 1:
        return nullcontext()
    from policies.cluster.learners import together

    return together(settings)


def built(settings: Settings) -> tuple[Task, Algorithm]:
    """The task and what learns it. RefusedError when there is no such run."""
    options = settings.options
    try:
        made_at()  # a SOURCE_DATE_EPOCH that is none is refused before anything is trained
        task: Task = task_class(settings.task)(settings.task_config)
        task = with_engine(task, options.engine)
        kind = algorithm_for(settings.algorithm, task)
        made = kind(task, settings.algorithm_config, options.seed, device=options.device)
    except LostLearnerError:
        raise
    except (ValueError, KeyError, LearningError) as error:
        raise RefusedError(plain(error)) from error
    except ModuleNotFoundError as error:
        raise SettingsError(extras.missing(error, "" if options.device == "cpu" else "rl,cuda")) from error
    except (AssertionError, RuntimeError) as error:
        from policies.learning.networks import lacking

        if said := lacking(options.device):
            raise RefusedError(f"device={options.device} cannot be used: {said}; use device=cpu") from error
        raise
    return task, made


def _restore(folder: Path, settings: Settings, algorithm: Algorithm) -> dict[str, Any]:
    """Load the checkpoint into the algorithm; what `Log` continues from."""
    if not settings.options.resume:
        return {}
    path = folder / CHECKPOINT
    if not path.exists():
        raise RunError(f"{folder} has no {CHECKPOINT}: that run was ended before the first one; start it anew")
    try:
        saved = checkpoint.load(path)
        log = counted(saved["log"])
        algorithm.load_state_dict(saved["algorithm"])
    except (checkpoint.CheckpointError, LearningError) as error:
        raise RunError(str(error)) from error
    except (KeyError, ValueError, TypeError, RuntimeError) as error:  # the last: torch's, of other weights
        raise RunError(f"{path} does not fit this version of {settings.algorithm}: {plain(error)}") from error
    return log


class Saver:
    """Writes the run's checkpoint, every `checkpoint_s` seconds and when told to."""

    def __init__(self, folder: Path, settings: Settings, algorithm: Algorithm, log: Log) -> None:
        self.path = folder / CHECKPOINT
        self._settings = settings
        self._algorithm = algorithm
        self._log = log
        self._last = time.perf_counter()
        self._warned = False

    def save(self, metrics: Mapping[str, float]) -> None:
        """Write it now. RunError when that fails, LostLearnerError: the checkpoint before it is then still there."""
        self._log.flush()
        times = {"seconds": self._log.seconds, "cpu_seconds": self._log.cpu_seconds}
        log = {"rows": self._log.rows, "step": int(metrics.get("env_steps", 0)), **times}
        try:
            checkpoint.save(self.path, {"algorithm": self._algorithm.state_dict(), "log": log})
        except OSError as error:
            raise RunError(f"cannot write {self.path}: {error.strerror}; {self.fallback()}") from error
        self._last = time.perf_counter()

    def save_if_due(self, metrics: Mapping[str, float]) -> None:
        """Write it when it is time to; a full disk costs a warning, and the next time tries again."""
        if time.perf_counter() - self._last >= self._settings.options.checkpoint_s:
            self.save_or_warn(metrics)

    def save_or_warn(self, metrics: Mapping[str, float]) -> None:
        """Write it now, or say on stderr (once) why it could not be written."""
        try:
            self.save(metrics)
        except RunError as error:
            self._last = time.perf_counter()
            if not self._warned:
                warn(str(error))
            self._warned = True

    def fallback(self) -> str:
        """What is left when a run ends without a new checkpoint."""
        if not self.path.exists():
            return "there is no earlier checkpoint"
        age = time.time() - self.path.stat().st_mtime
        return f"the checkpoint of {age:.0f} s ago is whole, continue with {resuming(self._settings, self.path.parent)}"

    def way_on(self, error: OSError) -> str:
        """What to do after the policy file could not be written."""
        room = "make room, then " if error.errno in FULL else ""
        if not self.path.exists():
            return f"no checkpoint could be written either: {room}train again"
        return f"{room}continue with {resuming(self._settings, self.path.parent)}"


class RefusedError(RunError, SettingsError):
    """The settings are understood, and there is no such run."""


class Clock:
    """How long each part of the run took, in seconds."""

    def __init__(self, started: float) -> None:
        self.laps: dict[str, float] = {}
        self.progress = 0.0  # of the training, 0 to 1
        self.started = started
        self._last = started

    def lap(self, name: str) -> None:
        """End the part `name`."""
        now = time.perf_counter()
        self.laps[name] = now - self._last
        self._last = now

    @property
    def total(self) -> float:
        """From the start to the end of the last part."""
        return self._last - self.started


def _check_finite(metrics: Mapping[str, float], saver: Saver) -> None:
    for name in ("loss", "reward"):
        if name in metrics and not math.isfinite(metrics[name]):
            steps = int(metrics.get("env_steps", 0))
            raise RunError(
                f"the {name} is {metrics[name]} after {steps} environment steps, so training stopped; "
                f"{saver.fallback()} (a smaller learning rate or another seed may help)"
            )


def _leave(stop: Stop, settings: Settings, folder: Path | None, clock: Clock) -> NoReturn:
    """Say where the signal came and what is left, and end the program."""
    rest = "nothing is saved yet"
    if folder is not None and (folder / CHECKPOINT).exists():
        rest = f"continue with: python -m policies.train {resuming(settings, folder)}"
    stages = {"start": "while starting", "training": f"at {clock.progress:.0%}", "export": "while the file was written"}
    where = next((words for lap, words in stages.items() if lap not in clock.laps), "while reporting")
    if "export" in clock.laps and folder is not None:
        rest = f"{folder / POLICY} is whole"
    print(f"{stop.name} {where}; {rest}", flush=True)
    raise SystemExit(stop.status)


def _write_policy(
    folder: Path,
    settings: Settings,
    task: Task,
    algorithm: Algorithm,
    background: Background,
    clock: Clock,
    metrics: Mapping[str, float],
    saver: Saver,
) -> PolicyFile:
    """Export; whatever comes of it, the last checkpoint is saved before anything is said of it."""
    try:
        try:
            policy = _export(folder, settings, task, algorithm, background, clock, metrics)
            clock.lap("export")
        finally:
            try:
                saver.save_or_warn(metrics)
            except LostLearnerError as error:  # too late to do harm
                warn(f"{error}; {saver.fallback()}")
    except OSError as error:
        raise RunError(f"cannot write {folder / POLICY}: {error.strerror or error}; {saver.way_on(error)}") from error
    return policy


def _export(
    folder: Path,
    settings: Settings,
    task: Task,
    algorithm: Algorithm,
    background: Background,
    clock: Clock,
    metrics: Mapping[str, float],
) -> PolicyFile:
    background.join()
    from policies.models.export import export
    from policies.models.keyframes import whole

    made = {key: value for key, value in config.as_dict(settings).items() if key != "task_config"}
    made["options"] = {key: value for key, value in made["options"].items() if key not in PLACES}
    training = {
        "config": made,
        "seed": settings.options.seed,
        "commit": background.commit,
        "versions": versions(),
        "argv": [word for word in sys.argv[1:] if word.partition("=")[0] not in PLACES + recorded.places_of(task)],
        "date": made_at(),
        "seconds": round(clock.laps["training"], 3),
        "metrics": {key: float(value) for key, value in metrics.items() if math.isfinite(value)},
        "randomisation": randomisation(task),
        **(algorithm.provenance() if isinstance(algorithm, HasProvenance) else {}),
    }
    try:
        return export(whole(algorithm.controller(), task), folder / POLICY, training=lasting(training))
    except ValueError as error:  # a PolicyFileError, or weights that are not finite
        raise RunError(str(error)) from error


def _say_times(clock: Clock, folder: Path, metrics: Mapping[str, float]) -> None:
    laps = clock.laps
    success = f", success {metrics['success']:.1%} while training" if "success" in metrics else ""
    print(
        f"time: {laps['start']:.2f} s start + {laps['training']:.2f} s training + {laps['export']:.2f} s export and "
        f"check = {clock.total:.2f} s to a consistent policy file{success}",
        flush=True,
    )
    timing = {**laps, "total": clock.total}
    (folder / "timing.json").write_text(json.dumps({name: round(value, 4) for name, value in timing.items()}) + "\n")


def _say_report_times(clock: Clock, folder: Path) -> None:
    """What came after the file: it takes longer than a short training."""
    after = {name: clock.laps[name] for name in PARTS if name in clock.laps}
    parts = " + ".join(f"{seconds:.2f} s {name}" for name, seconds in after.items())
    print(f"time: {parts} = {sum(after.values()):.2f} s of report; {clock.total:.2f} s in all", flush=True)
    path = folder / "timing.json"
    timing = json.loads(path.read_text()) | {name: round(seconds, 4) for name, seconds in after.items()}
    path.write_text(json.dumps({**timing, "all": round(clock.total, 4)}) + "\n")


def process_start() -> float:
    """The `time.perf_counter()` at which this process began (to 10 ms), or now where the system does not say."""
    now = time.perf_counter()
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, IndexError, ValueError):
        return now
    return now - max(age, 0.0)


def main() -> None:
    """The command line; see `policies.runner.config` for its grammar."""
    starts = [process_start()]  # for the first run only; the others of a sweep start when they start

    def run(settings: Settings) -> None:
        train(settings, starts.pop() if starts else None)

    with Stop() as stop:
        try:
            cli.main(run)
        except KeyboardInterrupt:
            sys.stderr.write(f"{stop.name} while starting; nothing was done yet\n")
            sys.exit(stop.status)


if __name__ == "__main__":
    main()
