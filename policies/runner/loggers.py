"""Where a run's metrics go beside its folder: logger=wandb, logger=trackio. TensorBoard's file is always written.

Both libraries are told by their own environment variables whether and where to send anything (WANDB_MODE=offline,
TRACKIO_SPACE_ID); their names are theirs.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

PROJECT = "sim2metal"
IDENTITY = "run_id"  # file in the run's folder: a run that is continued goes on there, too


class Logger(Protocol):
    """Takes the metrics of a run."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """One row at so many environment steps."""

    def close(self) -> None:
        """Everything is handed over."""


class Recorded:
    """What both libraries have: a run that takes rows."""

    _run: Any

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


class Wandb(Recorded):
    """Weights & Biases. Its files are in the run's folder."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        import wandb

        told = {"project": os.environ.get("WANDB_PROJECT", PROJECT), "name": folder.name}
        self._run = wandb.init(
            **told, dir=str(folder), config=dict(settings), id=identity(folder), resume="allow", reinit="create_new"
        )


class Trackio(Recorded):
    """Trackio: a database on this machine, `trackio show` to look at it."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        import trackio

        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT),
            name=f"{folder.name}-{identity(folder)}",
            config=dict(settings),
            resume="allow",
            embed=False,
        )


# What a newcomer without an account needs to know.
HINTS = {"wandb": "WANDB_MODE=offline needs no account and sends nothing"}
LOGGERS: dict[str, type[Wandb] | type[Trackio] | None] = {"tensorboard": None, "wandb": Wandb, "trackio": Trackio}


class LoggerError(Exception):
    """The library did not begin; one sentence."""


class Careful:
    """A logger whose failure ends the recording there with one line on stderr, not the training."""

    def __init__(self, name: str, logger: Logger) -> None:
        self._name, self._logger = name, logger
        self._lost = False

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        if not self._lost:
            self._guard(lambda: self._logger.write(step, metrics))

    def close(self) -> None:
        self._guard(self._logger.close)

    def _guard(self, act: Any) -> None:
        try:
            act()
        except Exception as error:  # whatever the library raises
            self._lost = True
            sys.stderr.write(f"warning: {self._name} no longer gets the metrics: {_said(error)}\n")


def begun(name: str, folder: Path, settings: Mapping[str, Any]) -> Logger | None:
    """The logger `name` for the run in `folder`, None for TensorBoard alone.

    LoggerError when it does not begin, ModuleNotFoundError when it is not installed.
    """
    kind = LOGGERS[name]
    if kind is None:
        return None
    try:
        return Careful(name, kind(folder, settings))
    except ModuleNotFoundError as error:
        if error.name == name:
            raise
        raise LoggerError(f"logger={name}: {_said(error)}") from error
    except Exception as error:  # whatever the library raises: no login, no network, a full disk
        hint = f" ({HINTS[name]})" if name in HINTS else ""
        raise LoggerError(f"logger={name}: {_said(error)}{hint}") from error


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def identity(folder: Path) -> str:
    """Of the run in the folder, the same when it is continued."""
    file = folder / IDENTITY
    if not file.is_file():
        file.write_text(secrets.token_hex(8))
    return file.read_text().strip()
