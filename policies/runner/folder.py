"""A run's folder: made or reopened, locked against other processes, with config.yaml in it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from policies.runner import config
from policies.runner.config import RunError, Settings
from policies.runner.lock import BusyError, Lock
from sim.tasks import task_class

CHECKPOINT = "checkpoint.npz"
POLICY = "policy.onnx"
CONFIG = "config.yaml"
WRITES = (  # a run, besides those above
    *("metrics.jsonl", "events.out.tfevents.*", "timing.json", "report.json", "report.png", "gaze.png", "video.mp4"),
    *("league.json", "league.png", "baselines", "diverged", "profile.pstats", "profile.txt"),
)
OUT, HARD, ANOTHER = "a link out of it", "a hard link", "choose another out=DIR"
OURS = (CONFIG, CHECKPOINT, POLICY, *WRITES)


def opened(settings: Settings) -> tuple[Path, Lock]:
    """The folder that the settings ask for, and the lock on it, which the caller releases.

    Raises RunError when another process has it, when it holds another run, or when it cannot be made.
    """
    options = settings.options
    folder = Path(options.resume or options.out) if options.resume or options.out else None
    try:
        folder = folder or new_folder(Path("runs") / task_class(settings.task).name)
        if not options.resume:
            folder.mkdir(parents=True, exist_ok=True)
        lock = Lock(folder)
    except BusyError as error:
        raise RunError(f"{error}: wait for its end, or stop it (kill PID saves a checkpoint){_or(settings)}") from error
    except OSError as error:
        raise RunError(_cannot(folder, settings, error)) from error
    try:
        _check_links(folder, resumes=bool(options.resume))
        if not options.resume:
            _begin(folder, settings)
    except BaseException:
        lock.release()
        raise
    return folder, lock


def _check_links(folder: Path, resumes: bool) -> None:
    """RunError for what a run would write through: links out of a downloaded folder, hard ones too, and pipes.

    In a folder that already holds other things, only what has a name of a run's is looked at. Weights & Biases link
    their own logs to a cache, and begin a folder of their own each time: what theirs hold is not looked at.
    """
    home = os.path.realpath(folder)
    for top, folders, files in os.walk(folder):
        theirs = Path(top) == folder / "wandb"
        for path in (Path(top) / name for name in (*folders, *files)):
            if not resumes and not _is_ours(path):
                continue
            if theirs and not path.match("*run*"):
                continue
            if what := _leads_away(path, home):
                copy = f"copy the folder first: cp -rL {shlex.quote(str(folder))} NEW" if resumes else ANOTHER
                way = copy if what in (OUT, HARD) else "remove it"
                raise RunError(
                    f"{folder}: {path.relative_to(folder)} in it is {what}, and a run would write there; {way}"
                )
        if not resumes:
            break
        if theirs:
            folders.clear()


def _leads_away(path: Path, home: str) -> str:
    """What is wrong with something in the folder `home`, which has no links in its name; "" for nothing."""
    end = os.path.realpath(path)  # Path.resolve raises for a link to itself
    if path.is_symlink() and not Path(end).is_relative_to(home):
        return OUT
    if os.path.islink(end):
        return "a link to itself"
    if path.exists() and not (path.is_file() or path.is_dir()):
        return "no file"
    return HARD if path.is_file() and path.stat().st_nlink > 1 and _is_ours(path) else ""


def _is_ours(path: Path) -> bool:
    """Whether it has a name of what a run writes."""
    return any(path.match(name) for name in OURS)


def _begin(folder: Path, settings: Settings) -> None:
    """Write the settings into a folder without a run. The caller holds the lock: nobody comes in between."""
    if any((folder / name).exists() for name in (CONFIG, CHECKPOINT, POLICY)):
        saved = (folder / CHECKPOINT).exists()
        holds = f"a run; continue it with resume={folder}, or" if saved else "a run without a checkpoint;"
        raise RunError(f"{folder} already holds {holds} choose another out=DIR")
    try:
        left = sorted(path.name for name in WRITES for path in folder.glob(name))
        runs = sorted(path.parent for deep in ("*", "*/*") for path in folder.glob(f"{deep}/metrics.jsonl"))
        others = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise RunError(f"cannot see what {folder} holds: {error.strerror or error}; choose another out=DIR") from error
    if left:
        raise RunError(f"{folder} already holds {left[0]}, which a run writes: choose another out=DIR")
    if runs:
        raise RunError(f"{folder} holds other runs, as {runs[0]}: choose a folder of its own, as out={folder / 'new'}")
    if others:
        named = ", ".join([*others[:3], *(["..."] if len(others) > 3 else [])])
        sys.stdout.write(f"{folder} already holds {named}: the run's files come beside them\n")
    try:
        config.write(settings, folder / CONFIG)
    except OSError as error:
        (folder / CONFIG).unlink(missing_ok=True)  # half of it: nobody's run
        raise RunError(_cannot(folder, settings, error)) from error


def resuming(settings: Settings, folder: Path) -> str:
    """The words that continue a run: its folder, and the modules that only a person may name."""
    modules = [f"{key}={shlex.quote(value)}" for key, value in modules_of(settings).items()]
    return " ".join([f"resume={shlex.quote(str(folder))}", *modules])


def quoted(path: str | Path) -> str:
    """For the grammar of the command line: any characters."""
    return "'" + str(path).replace("\\", "\\\\").replace("'", "\\'") + "'"


def continued(folder: Path, words: Sequence[str]) -> list[str]:
    """What `policies.train` is told to go on in a folder that it began by these words: modules are named again."""
    return [f"resume={quoted(folder)}", *(word for word in words if config.MODULE.fullmatch(word.partition("=")[2]))]


def modules_of(settings: Settings) -> dict[str, str]:
    """Setting -> what it names, of those that no table holds."""
    named = {"task": settings.task, "algorithm": settings.algorithm, "engine": settings.options.engine}
    for group, chosen in (("task", settings.task_config), ("algorithm", settings.algorithm_config)):
        named |= {f"{group}.{key}": value for key, value in vars(chosen).items() if isinstance(value, str)}
    return {key: value for key, value in named.items() if config.MODULE.fullmatch(value)}


def _or(settings: Settings) -> str:
    return "" if settings.options.resume else ", or choose another out=DIR"


def _cannot(folder: Path | None, settings: Settings, error: OSError) -> str:
    what = "cannot continue in" if settings.options.resume else "cannot make"
    return f"{what} the run's folder {folder or error.filename}: {error.strerror}"


def new_folder(parent: Path) -> Path:
    """parent/DATE_TIME, or with a number when two runs start within a second."""
    name = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    for number in range(1, 1000):
        folder = parent / (name if number == 1 else f"{name}_{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise RunError(f"{parent} holds a thousand runs of this second")
