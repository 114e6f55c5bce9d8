"""Settings of a run: hydra's `key=value` grammar at the door, plain dataclasses inside; its command line is `cli`.

Settings come from, in rising precedence: the defaults in the dataclasses, the recipes that `quality` and `robust` stand
for, and what the command line says. Only the chosen task and algorithm are imported.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.system import extras
from deploy.system.files import write_atomic
from policies.algorithms import algorithm_class, cut_by, goes_by
from policies.algorithms import recipes_of as recipes_of_algorithm
from policies.runner.loggers import LOGGERS
from policies.runner.mistakes import SettingsError, UnknownSettingError, explained, learnable, unknown
from sim.cluster import place_of
from sim.engines import known
from sim.registry import StrangerError, names_from, plugins
from sim.tasks import recipes_of as recipes_of_task
from sim.tasks import task_class

DEFAULTS = {"task": "quad_hover", "algorithm": "apg"}
CLASSES: dict[str, Callable[[str], Any]] = {"task": task_class, "algorithm": algorithm_class}
PRESETS = Path(__file__).parent / "presets"
# What a table does not hold: module:Attribute, or a robot's file.
MODULE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*|.+\.(xml|mjcf|urdf)", re.IGNORECASE)
RESUMABLE = (
    "resume",
    "view",
    "report",
    "evaluation_episodes",
    "checkpoint_s",
    "profile",
    "cluster",
    "learners",
)  # what may be said when continuing a run


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
    view: str = ""  # look at what it has learned so far: true, terminal, web, window, or a file (.rrd)
    report: bool = True  # fly the policy file afterwards: table, plots, video
    evaluation_episodes: int = 200  # of the report
    checkpoint_s: float = 10.0  # s between checkpoints
    logger: str = "tensorboard"  # wandb, trackio: metrics there, too
    profile: bool = False  # write where the training's time went
    learners: int = 1  # processes that share one update, of an algorithm that `takes` them
    cluster: str = ""  # ray, ray:2, ray:HOST:PORT: with -m whole runs go there, else the worlds of algorithm.workers

    def __post_init__(self) -> None:
        if not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise SettingsError(f"device {self.device!r} is not one of cpu, cuda, cuda:0, cuda:1, ...")
        if self.seed < 0:
            raise SettingsError(f"seed must not be negative, got {self.seed}")
        if self.learners < 1:
            raise SettingsError(f"learners must be at least 1, got {self.learners}")
        if self.cluster:
            place_of(self.cluster)
        if self.logger not in LOGGERS:
            raise SettingsError(unknown("logger", self.logger, LOGGERS))
        if LOGGERS[self.logger] is not None and importlib.util.find_spec(self.logger) is None:
            raise SettingsError(extras.missing(ModuleNotFoundError(name=self.logger)))
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
    named: dict[str, str] = field(default_factory=dict, compare=False)  # resumed: modules that the command line names


def compose(overrides: list[str]) -> Settings:
    """The settings that these `key=value` strings stand for. SettingsError when they make no sense."""
    overrides = with_preset(overrides)
    resumed = _resumed(overrides)
    if not resumed:
        overrides = with_algorithm(overrides)
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
    register(overrides, () if resumed else tuple(DEFAULTS))
    from hydra import compose as hydra_compose
    from hydra import initialize

    try:
        with initialize(version_base="1.3", config_path=None):
            composed = hydra_compose("train", overrides=overrides, return_hydra_config=True)
    except Exception as error:
        raise explained(error) from error
    if resumed:
        return _continued(composed, overrides, modules)
    return built(composed, composed.hydra.runtime.choices, overrides)


def with_preset(overrides: list[str]) -> list[str]:
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


def with_algorithm(overrides: list[str]) -> list[str]:
    """The one that the task is trained by, where the command line names none."""
    if any(_pair(override)[0] == "algorithm" for override in overrides):
        return overrides
    usual = {_class("task", name).algorithm for name in _chosen(overrides, "task")} - {DEFAULTS["algorithm"]}
    if len(usual) > 1:
        raise SettingsError(f"these tasks are trained by {', '.join(sorted(usual))}: name one with algorithm=")
    return [*overrides, *(f"algorithm={name}" for name in usual)]


def combinations(overrides: Sequence[str]) -> tuple[dict[str, str], list[list[str]]]:
    """Of a sweep: the settings with one value, and the words of each run. SettingsError when they make no sense."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser

    try:
        parsed = OverridesParser.create().parse_overrides([*overrides])
        fixed = {p.key_or_group: str(p.value()) for p in parsed if not p.is_sweep_override()}
        ((*runs,),) = BasicSweeper.split_arguments(parsed, max_batch_size=None)
    except Exception as error:
        raise explained(error) from error
    typed = list(zip(overrides, parsed, strict=True))  # hydra would write them in its own way
    said = [
        [*(o if not p.is_sweep_override() else w for (o, p), w in zip(typed, words, strict=True))] for words in runs
    ]
    return fixed, said


def write(settings: Settings, path: Path) -> None:
    """Write the settings as YAML, for people and for `read`."""
    from omegaconf import OmegaConf

    path.write_text(OmegaConf.to_yaml(OmegaConf.create(as_dict(settings))))


def check_cluster(settings: Settings) -> None:
    """SettingsError when a cluster is asked for, and nothing of this one run could be done there."""
    if settings.options.learners > 1:
        return
    if settings.options.cluster and vars(settings.algorithm_config).get("workers", 1) == 1:
        lacks = "" if "workers" in vars(settings.algorithm_config) else f", which {settings.algorithm} does not have"
        raise SettingsError(
            f"cluster={settings.options.cluster}: of one run, the worlds of algorithm.workers=2 or more go to a "
            f"cluster{lacks}, and the learners of learners=2 or more; whole runs do with -m"
        )


def check_learners(settings: Settings) -> None:
    """Have a run that several learners begin cut into parts. SettingsError when they cannot share its update."""
    count, chosen = settings.options.learners, settings.algorithm_config
    if count == 1:
        return
    kind = algorithm_class(settings.algorithm)
    if "learners" not in getattr(kind, "takes", ()):
        raise SettingsError(
            f"learners={count}: {settings.algorithm} learns in one process; ppo, sac, student, vla and vla_rl share it"
        )
    if ":" in settings.options.device:
        raise SettingsError(f"learners={count} have a GPU each, or all one: device=cuda, not {settings.options.device}")
    name = cut_by(kind)
    if not settings.options.resume and not getattr(chosen, name):
        try:
            settings.algorithm_config = chosen = dataclasses.replace(chosen, **{name: count})
        except ValueError as error:  # of other settings, which do not go with that
            raise SettingsError(f"learners={count}: {error}") from error
    if (parts := getattr(chosen, name) or 1) < count:
        raise SettingsError(f"learners={count} are more than algorithm.{name}={parts} of this run")


def moved(path: Path) -> None:
    """Have a run's settings say that its folder is where they lie: it was somewhere else while it learned."""
    from omegaconf import OmegaConf

    stored: Any = OmegaConf.load(path)
    stored.options.out = str(path.parent)
    write_atomic(path, OmegaConf.to_yaml(stored).encode())


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


def register(arguments: list[str], groups: tuple[str, ...] = tuple(DEFAULTS)) -> None:
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


def built(composed: Any, choices: Mapping[str, str], overrides: Iterable[str]) -> Settings:
    """Recipes applied and dataclasses built."""
    from omegaconf import OmegaConf

    names = {group: choices[group] for group in DEFAULTS}
    configs: dict[str, Any] = {}
    where = ""
    try:
        _apply_recipes(composed, names, {o.partition("=")[0] for o in overrides})
        options = Options(**{f.name: composed[f.name] for f in dataclasses.fields(Options)})
        _check_engine(options.engine, _class("task", names["task"]))
        for group in DEFAULTS:
            where = f"{group}={names[group]}: "
            configs[f"{group}_config"] = learnable(group, OmegaConf.to_object(composed[group]))
    except Exception as error:
        raise SettingsError(f"{where}{explained(error)}") from error
    return Settings(task=names["task"], algorithm=names["algorithm"], options=options, **configs)


def _check_engine(engine: str, task: Any) -> None:
    """SettingsError for a word that is nobody's; what this task lacks is said when it is made."""
    engines = [*known(task), *plugins("engine")]
    if engine and ":" not in engine and engine not in engines:
        raise SettingsError(unknown("engine", engine, engines) + ", or module:Class")


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

    kind, task = _class("algorithm", names["algorithm"]), _class("task", names["task"])
    general = recipes_of_algorithm(kind)
    found = (recipes_of_task(task, name) for name in goes_by(names["algorithm"], kind))
    special = next(filter(None, found), {})
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
