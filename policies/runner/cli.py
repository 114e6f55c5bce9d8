"""The command line of `policies.train`: one run, a sweep of them with -m, or its help; errors in one line."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from deploy.cli import explained as in_words
from deploy.system import extras, streams
from deploy.trust.text import printable
from policies.algorithms import ALGORITHMS
from policies.runner.config import (
    PRESETS,
    RunError,
    Settings,
    as_dict,
    built,
    compose,
    register,
    with_algorithm,
    with_preset,
)
from policies.runner.mistakes import SettingsError, explained
from sim.engines import BENCHES, ENGINES, LEGS
from sim.registry import names_from
from sim.tasks import FAMILIES, TASKS

SWEEP_FLAGS = ("-m", "--multirun")
HELP_FLAGS = ("-h", "--help")
LONGEST = 2000  # characters of an error


def main(run: Callable[[Settings], None]) -> None:
    """Read the command line and call `run` once, or once per combination with -m. Never returns on an error.

    Exit codes: 2 when the command line is wrong, 1 when a run failed (`RunError`), what `run` says with SystemExit.
    """
    arguments = sys.argv[1:]
    streams.opened()
    try:
        flags = [a for a in arguments if a.startswith("-")]
        unknown = [a for a in flags if a not in SWEEP_FLAGS + HELP_FLAGS]
        if unknown:
            raise SettingsError(f"unknown flag {unknown[0]!r}; settings are written key=value, flags are -m and --help")
        if any(a in HELP_FLAGS for a in flags):
            sys.stdout.write(_help([a for a in arguments if a not in flags]))
        elif flags:
            _sweep(run, [a for a in arguments if a not in flags])
        else:
            settings = compose(arguments)
            with _named(settings):
                run(settings)
        sys.stdout.flush()
    except SettingsError as error:
        sys.exit(_say(error, 2))
    except RunError as error:
        sys.exit(_say(error, 1))
    except OSError as error:
        gone = isinstance(error, BrokenPipeError) and streams.is_gone()
        sys.exit(streams.GONE if gone else _say(SettingsError(in_words(error)), 1))
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in extras.EXTRAS:
            raise
        sys.exit(_say(SettingsError(extras.missing(error)), 2))


def _named(settings: Settings) -> AbstractContextManager[None]:
    """A resumed run is perhaps another's: those modules are imported that the command line names too."""
    if not settings.options.resume:
        return nullcontext()
    return names_from(settings.options.resume, *settings.named.values())


def _say(error: Exception, code: int) -> int:
    if str(error):
        with contextlib.suppress(OSError):  # a full disk, which may be what the error is about
            sys.stdout.flush()
        sys.stderr.write(f"error: {printable(error, LONGEST)}\n")
    return code


def _sweep(run: Callable[[Settings], None], overrides: list[str]) -> None:
    """Every combination, one after the other, in runs/sweep/TIME or out=DIR. One that fails does not stop the rest.

    With cluster=..., they run on its nodes, several at a time.
    """
    if any(override.partition("=")[0] == "cluster" for override in overrides):
        from policies.cluster.multirun import sweep

        return sweep(overrides)
    overrides = with_algorithm(with_preset(overrides))
    register(overrides)
    import hydra
    from hydra.core.hydra_config import HydraConfig

    failed: list[Exception] = []

    @hydra.main(version_base="1.3", config_path=None, config_name="train")
    def job(composed: Any) -> None:
        chosen = HydraConfig.get()
        try:
            settings = built(composed, chosen.runtime.choices, list(chosen.overrides.task))
            settings.options.out = chosen.runtime.output_dir
            run(settings)
        except (SettingsError, RunError) as error:
            _say(error, 1)
            failed.append(error)

    os.environ["HYDRA_FULL_ERROR"] = "1"  # hydra would print its own long text and leave
    sys.argv[1:] = ["-m", *_swept(overrides)]
    try:
        job()
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("hydra", "omegaconf", "antlr4"):
            raise
        raise explained(error) from error
    if failed:
        raise type(failed[0])(f"{len(failed)} of the runs failed")


def _swept(overrides: list[str]) -> list[str]:
    """The overrides of a sweep, with the folders named after the swept keys only."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    try:
        parsed = OverridesParser.create().parse_overrides(overrides)
    except Exception as error:
        raise explained(error) from error
    fixed = [p.key_or_group for p in parsed if not p.is_sweep_override()]
    out = [p for p in parsed if p.key_or_group == "out"]
    if any(p.is_sweep_override() for p in out) or any(p.key_or_group == "resume" for p in parsed):
        raise SettingsError("a sweep takes one folder as out=DIR, and no resume=DIR")
    kept = [text for text, p in zip(overrides, parsed, strict=True) if p.key_or_group != "out"]
    folder = [f"hydra.sweep.dir={out[-1].get_value_element_as_str()}"] if out else []
    return [*kept, *folder, f"hydra.job.config.override_dirname.exclude_keys=[{','.join(fixed)}]"]


def _help(overrides: list[str]) -> str:
    from omegaconf import OmegaConf

    settings = as_dict(compose(overrides))
    values = {**settings["options"], "task": settings["task_config"], "algorithm": settings["algorithm_config"]}
    return (
        "python -m policies.train task=quad_hover [KEY=VALUE ...]     -m seed=0,1,2 runs every combination\n\n"
        f"task       {', '.join([*TASKS, *(f'{f}/NAME' for f in FAMILIES)])}, or module:Class\n"
        f"algorithm  {', '.join(ALGORITHMS)}, or module:Class\n"
        f"preset     {', '.join(sorted(path.stem for path in PRESETS.glob('*.yaml')))}\n"
        f"engine     {', '.join(ENGINES | BENCHES | LEGS)}, or module:Class\n\n"
        f"Settings with task={settings['task']} algorithm={settings['algorithm']} (nested ones as task.NAME=VALUE):\n"
        f"{OmegaConf.to_yaml(OmegaConf.create(values))}"
    )
