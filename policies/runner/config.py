"""The command line: hydra's `key=value` grammar at the door, plain dataclasses inside. The one home of hydra.

Settings come from, in rising precedence: the defaults in the dataclasses, the recipes that `quality` and `robust` stand
for, and what the command line says. Only the chosen task and algorithm are imported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.cli import explained as in_words
from deploy.system import extras, streams
from deploy.trust.text import printable
from policies.algorithms import ALGORITHMS, algorithm_class
from policies.runner.mistakes import SettingsError, UnknownSettingError, explained, unknown
from sim.engines import BENCHES, ENGINES
from sim.registry import StrangerError, names_from
from sim.tasks import FAMILIES, TASKS, task_class

DEFAULTS = {"task": "quad_hover", "algorithm": "apg"}
CLASSES: dict[str, Callable[[str], Any]] = {"task": task_class, "algorithm": algorithm_class}
PRESETS = Path(__file__).parent / "presets"
SWEEP_FLAGS = ("-m", "--multirun")
HELP_FLAGS = ("-h", "--help")
# What a table does not hold: module:Attribute, or a robot's file.
MODULE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*|.+\.(xml|mjcf|urdf)", re.IGNORECASE)
LONGEST = 2000  # characters of an error
RESUMABLE = ("resume", "report", "evaluation_episodes", "checkpoint_s")  # what may be said when continuing a run


class RunError(Exception):
    """A run ended early for a reason that one sentence explains."""


@dataclass
class Options:
    """Settings of a run that belong to neither its task nor its algorithm."""

    engine: str = ""  # physics (default: the task's own)
    seed: int = 0
    device: str = "cpu"  # or "cuda", "cuda:1"
    preset: str = ""  # a file of policies/runner/presets: settings that go together
    quality: str = "default"  # a recipe of the algorithm or the task: more budget, better result
    robust: bool = False  # train for a wide variation of the robot
    out: str = ""  # folder of the run; empty: runs/TASK/TIME
    resume: str = ""  # folder of a run to continue
    report: bool = True  # fly the policy file afterwards: table, plots, video
    evaluation_episodes: int = 200  # of the report
    checkpoint_s: float = 10.0  # s between checkpoints

    def __post_init__(self) -> None:
        engines = ENGINES | BENCHES
        if self.engine and self.engine not in engines and ":" not in self.engine:
            raise SettingsError(unknown("engine", self.engine, engines) + ", or module:Class")
        if not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise SettingsError(f"device {self.device!r} is not one of cpu, cuda, cuda:0, cuda:1, ...")
        if self.seed < 0:
            raise SettingsError(f"seed must not be negative, got {self.seed}")
        if self.evaluation_episodes < 1 or not self.checkpoint_s > 0:
            raise SettingsError(
                "evaluation_episodes and checkpoint_s must be positive, "
                f"got {self.evaluation_episodes} and {self.checkpoint_s}"
            )


@dataclass
class Settings:
    """Everything that determines a run: names of task and algorithm, their `Config` objects, and the options."""

    task: str
    task_config: Any
    algorithm: str
    algorithm_config: Any
    options: Options = field(default_factory=Options)
    named: dict[str, str] = field(
        default_factory=dict, compare=False
    )  # resumed: modules that the command line names too


def _named(settings: Settings) -> AbstractContextManager[None]:
    """A resumed run is perhaps another's: those modules are imported that the command line names too."""
    if not settings.options.resume:
        return nullcontext()
    return names_from(settings.options.resume, *settings.named.values())


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


def _say(error: Exception, code: int) -> int:
    if str(error):
        with contextlib.suppress(OSError):  # a full disk, which may be what the error is about
            sys.stdout.flush()
        sys.stderr.write(f"error: {printable(error, LONGEST)}\n")
    return code


def compose(overrides: list[str]) -> Settings:
    """The settings that these `key=value` strings stand for. SettingsError when they make no sense."""
    overrides = _with_preset(overrides)
    resumed = _resumed(overrides)
    if not resumed:
        overrides = _with_algorithm(overrides)
    modules = (
        dict(_pair(o) for o in overrides if _pair(o)[0] not in RESUMABLE and MODULE.fullmatch(_pair(o)[1]))
        if resumed
        else {}
    )
    overrides = [o for o in overrides if _pair(o)[0] not in modules]
    other = [key for key in (o.partition("=")[0] for o in overrides) if key not in RESUMABLE]
    if resumed and other:
        choices = ", ".join(RESUMABLE[1:])
        raise SettingsError(
            f"resume=DIR continues a run with its own settings: only {choices} can be set, not {other[0]}"
        )
    _register(overrides, () if resumed else tuple(DEFAULTS))
    from hydra import compose as hydra_compose
    from hydra import initialize

    try:
        with initialize(version_base="1.3", config_path=None):
            composed = hydra_compose("train", overrides=overrides, return_hydra_config=True)
    except Exception as error:
        raise explained(error) from error
    if resumed:
        return _continued(composed, overrides, modules)
    return _settings(composed, composed.hydra.runtime.choices, overrides)


def _with_preset(overrides: list[str]) -> list[str]:
    """The preset's settings first, but for those that the command line says otherwise."""
    said = {key: value for key, _, value in (o.partition("=") for o in overrides)}
    if not (name := said.get("preset", "")):
        return overrides
    from omegaconf import OmegaConf

    files = {path.stem: path for path in PRESETS.glob("*.yaml")}
    if name not in files:
        raise SettingsError(unknown("preset", name, files))
    found: Any = OmegaConf.load(files[name])
    return [*(f"{key}={value}" for key, value in found.items() if key not in said), *overrides]


def _with_algorithm(overrides: list[str]) -> list[str]:
    """The one that the task is trained by, where the command line names none."""
    if any(_pair(override)[0] == "algorithm" for override in overrides):
        return overrides
    usual = {_class("task", name).algorithm for name in _chosen(overrides, "task")} - {DEFAULTS["algorithm"]}
    if len(usual) > 1:
        raise SettingsError(f"these tasks are trained by {', '.join(sorted(usual))}: name one with algorithm=")
    return [*overrides, *(f"algorithm={name}" for name in usual)]


def write(settings: Settings, path: Path) -> None:
    """Write the settings as YAML, for people and for `read`."""
    from omegaconf import OmegaConf

    path.write_text(OmegaConf.to_yaml(OmegaConf.create(as_dict(settings))))


def _pair(override: str) -> tuple[str, str]:
    key, _, value = override.partition("=")
    return key, value


def read(path: Path, modules: Mapping[str, str] | None = None) -> Settings:
    """The settings that `write` wrote. `modules`: setting -> "module:Attribute", as a person names them again.

    SettingsError when there are none, when they fit this version no more, or name a module that nobody else does.
    """
    from omegaconf import OmegaConf

    if not path.is_file():
        raise SettingsError(f"there is no run to continue in {str(path.parent)!r}: it has no {path.name}")
    named = dict(modules or {})
    try:
        stored: Any = OmegaConf.load(path)
        _agree(path, stored, named)
        objects: dict[str, Any] = {}
        for group in DEFAULTS:
            with names_from(str(path), *named.values()):
                schema = OmegaConf.structured(_class(group, stored[group]).Config)
            objects[f"{group}_config"] = OmegaConf.to_object(OmegaConf.merge(schema, stored[f"{group}_config"]))
        options: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Options), stored.options))
    except StrangerError as error:
        raise SettingsError(str(error)) from None
    except Exception as error:
        found = explained(error)
        other = " is of another version and cannot be continued" if isinstance(found, UnknownSettingError) else ""
        raise SettingsError(f"{path}{other}: {found}") from error
    return Settings(task=stored.task, algorithm=stored.algorithm, options=options, named=named, **objects)


def _agree(path: Path, stored: Any, named: Mapping[str, str]) -> None:
    """SettingsError when a person names a module for a setting in which the run has something else."""
    from omegaconf import OmegaConf

    for key, value in named.items():
        group, _, member = key.partition(".")
        place = f"{group}_config.{member}" if member else group if group in DEFAULTS else f"options.{group}"
        found = OmegaConf.select(stored, place)
        if found != value:
            raise SettingsError(f"resume=DIR continues a run with its own settings: {key} is {found}, not {value}")


def as_dict(settings: Settings) -> dict[str, Any]:
    """Plain dicts, lists, strings and numbers."""
    made = dataclasses.asdict(settings)
    del made["named"]
    return made


def _class(group: str, name: str) -> Any:
    """The chosen class; SettingsError when it does not exist, or needs a package that is not installed."""
    try:
        found = CLASSES[group](name)
    except ModuleNotFoundError as error:
        raise SettingsError(f"{group}={name}: {extras.missing(error)}") from error
    except StrangerError:
        raise
    except ValueError as error:
        raise SettingsError(str(error)) from None
    if not dataclasses.is_dataclass(getattr(found, "Config", None)):
        raise SettingsError(f"{group}={name}: {getattr(found, '__name__', found)!r} has no dataclass `Config`")
    return found


def _chosen(arguments: Iterable[str], group: str) -> list[str]:
    """The names that the command line gives to `task` or `algorithm`: several in a sweep."""
    values = [a.partition("=")[2] for a in arguments if a.partition("=")[0] == group]
    text = values[-1] if values else DEFAULTS[group]
    names = [name for name in re.split(r"[,\s'\"]+", re.sub(r"^choice\((.*)\)$", r"\1", text)) if name]
    if not names:
        raise SettingsError(f"{group}= needs a name")
    return names


def _register(arguments: list[str], groups: tuple[str, ...] = tuple(DEFAULTS)) -> None:
    """Put the dataclasses of the chosen task(s) and algorithm(s) into hydra's store; nothing else is imported."""
    for argument in arguments:
        if argument.startswith(("+", "~")):
            raise SettingsError(f"cannot read {argument!r}: settings can be set, not added or removed; write key=value")
    chosen = {group: [(name, _class(group, name)) for name in _chosen(arguments, group)] for group in groups}
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    store.store(name="train", node=_root(groups))
    for group, entries in chosen.items():
        for name, found in entries:
            family, _, member = name.rpartition("/")  # of tasks: the store's folders
            store.store(group=f"{group}/{family}" if family else group, name=member, node=found.Config, package=group)


def _root(groups: tuple[str, ...]) -> type:
    hydra = {
        "run": {"dir": "."},  # the run makes its own folder
        "output_subdir": None,
        "sweep": {"dir": "runs/sweep/${now:%Y-%m-%d_%H-%M-%S}", "subdir": "${hydra.job.override_dirname}"},
    }
    defaults = ["_self_", *({group: DEFAULTS[group]} for group in groups), {"override hydra/job_logging": "none"}]
    return dataclasses.make_dataclass(
        "Run",
        [
            ("defaults", list[Any], field(default_factory=lambda: defaults)),
            *((group, Any, "???") for group in groups),
            ("hydra", Any, field(default_factory=lambda: hydra)),
        ],
        bases=(Options,),
    )


def _sweep(run: Callable[[Settings], None], overrides: list[str]) -> None:
    """Every combination, one after the other, in runs/sweep/TIME or out=DIR. One that fails does not stop the rest."""
    overrides = _with_algorithm(_with_preset(overrides))
    _register(overrides)
    import hydra
    from hydra.core.hydra_config import HydraConfig

    failed: list[Exception] = []

    @hydra.main(version_base="1.3", config_path=None, config_name="train")
    def job(composed: Any) -> None:
        chosen = HydraConfig.get()
        try:
            settings = _settings(composed, chosen.runtime.choices, list(chosen.overrides.task))
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


def _settings(composed: Any, choices: Mapping[str, str], overrides: Iterable[str]) -> Settings:
    """Recipes applied and dataclasses built."""
    from omegaconf import OmegaConf

    names = {group: choices[group] for group in DEFAULTS}
    configs: dict[str, Any] = {}
    where = ""
    try:
        _apply_recipes(composed, names, {o.partition("=")[0] for o in overrides})
        options = Options(**{f.name: composed[f.name] for f in dataclasses.fields(Options)})
        for group in DEFAULTS:
            where = f"{group}={names[group]}: "
            configs[f"{group}_config"] = OmegaConf.to_object(composed[group])
    except Exception as error:
        raise SettingsError(f"{where}{explained(error)}") from error
    return Settings(task=names["task"], algorithm=names["algorithm"], options=options, **configs)


def _resumed(overrides: Iterable[str]) -> bool:
    return any(o.startswith("resume=") and o != "resume=" for o in overrides)


def _continued(composed: Any, overrides: Iterable[str], modules: Mapping[str, str]) -> Settings:
    """The settings of the run in the folder `resume`."""
    settings = read(Path(composed.resume) / "config.yaml", modules)
    for key in (o.partition("=")[0] for o in overrides):
        setattr(settings.options, key, composed[key])
    settings.options.out = composed.resume
    return settings


def _apply_recipes(composed: Any, names: Mapping[str, str], said: set[str]) -> None:
    """`quality` and `robust` name settings that the algorithm, or the task for it, declares as `recipes`."""
    from omegaconf import OmegaConf

    general: Mapping[str, Any] = getattr(_class("algorithm", names["algorithm"]), "recipes", {})
    special: Mapping[str, Any] = getattr(_class("task", names["task"]), "recipes", {}).get(names["algorithm"], {})
    known = {"default", *general, *special} - {"robust"}
    if composed.quality not in known:
        where = f" of {names['algorithm']} on {names['task']}"
        raise SettingsError(unknown("quality", composed.quality, known, where))
    wanted = [composed.quality]
    if composed.robust:
        wanted += ["robust", f"{composed.quality}_robust"]
        if "robust" not in composed.task:
            raise SettingsError(f"robust=true: the task {names['task']!r} has no setting 'robust'")
        if "task.robust" not in said:
            composed.task.robust = True
    for name in wanted:
        for key, value in {**general.get(name, {}), **special.get(name, {})}.items():
            if key not in said:
                OmegaConf.update(composed, key, value)


def _help(overrides: list[str]) -> str:
    from omegaconf import OmegaConf

    settings = as_dict(compose(overrides))
    values = {**settings["options"], "task": settings["task_config"], "algorithm": settings["algorithm_config"]}
    return (
        "python -m policies.train task=quad_hover [KEY=VALUE ...]     -m seed=0,1,2 runs every combination\n\n"
        f"task       {', '.join([*TASKS, *(f'{f}/NAME' for f in FAMILIES)])}, or module:Class\n"
        f"algorithm  {', '.join(ALGORITHMS)}, or module:Class\n"
        f"preset     {', '.join(sorted(path.stem for path in PRESETS.glob('*.yaml')))}\n"
        f"engine     {', '.join(ENGINES | BENCHES)}, or module:Class\n\n"
        f"Settings with task={settings['task']} algorithm={settings['algorithm']} (nested ones as task.NAME=VALUE):\n"
        f"{OmegaConf.to_yaml(OmegaConf.create(values))}"
    )
