"""python -m policies.adopt FILE from=LIBRARY [key=value ...]: somebody else's policy as a policy file.

First `draft=adopt.yaml` (with task=NAME task.SETTING=VALUE, where a task of ours fits) writes what the file tells; then
`description=adopt.yaml out=policy.onnx` bakes what it says into one file: terms, their order, history, normalisation,
the action's meaning. With check=true it is tried in the simulator as described, and with joints, history and scales
otherwise; the status is 1 where another reading is clearly better. FILE is a stranger's: nothing in it runs.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy import cli
from deploy.policy_file import PolicyFile
from deploy.system.files import write_atomic
from deploy.trust.text import printable

if TYPE_CHECKING:
    from policies.adoption.adopted import AdoptedPolicy
    from policies.adoption.found import Found
    from policies.adoption.trial import Adopted

SOURCES = ("onnx", "sb3", "rsl_rl", "mjlab", "rl_tools", "cleanrl", "isaaclab", "lerobot")


@dataclass
class Config:
    """Settings of the command."""

    file: str = field(metadata={"help": "FILE: what the other library wrote; of lerobot a folder"})
    source: str = field(metadata={"help": f"from=: which library: {', '.join(SOURCES)}"})
    description: str = field(default="", metadata={"help": "what the network takes and returns (.yaml)"})
    out: str = field(default="", metadata={"help": "the policy file to write (.onnx)"})
    draft: str = field(default="", metadata={"help": "write a description to begin with (.yaml), and nothing else"})
    descriptors: str = field(default="", metadata={"help": "for the draft: IO descriptors of Isaac Lab (.yaml)"})
    task: str = field(default="", metadata={"help": "the task of ours that it is for; needed for the draft"})
    check: bool = field(default=False, metadata={"help": "try it in the simulator, and what else could be meant"})
    episodes: int = field(default=20, metadata={"help": "of every reading that is tried"})
    seed: int = field(default=0, metadata={"help": "of these, and of the test vectors"})

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ValueError(f"from={self.source}: choices: {', '.join(SOURCES)}")
        if bool(self.draft) == bool(self.description or self.out):
            raise ValueError("needs draft=FILE.yaml, or description=FILE.yaml and out=FILE.onnx")
        if not self.draft and not (self.description and self.out):
            raise ValueError("needs both description=FILE.yaml and out=FILE.onnx; draft=FILE.yaml makes the former")
        if self.out and not self.out.endswith(".onnx"):
            raise ValueError(f"out={self.out}: the name of the file ends in .onnx")
        if self.draft and not self.draft.endswith((".yaml", ".yml")):
            raise ValueError(f"draft={self.draft}: the name of the file ends in .yaml")
        if bool(self.descriptors) != (self.source == "isaaclab" and bool(self.draft)):
            raise ValueError("descriptors=FILE.yaml goes with from=isaaclab and draft=FILE.yaml, which needs it")
        if self.episodes < 1 or self.seed < 0:
            raise ValueError(f"needs episodes >= 1 and seed >= 0, got {self.episodes} and {self.seed}")


def read(config: Config, told: Mapping[str, str]) -> Found:
    """The network in the file, and what the file tells beside it."""
    from policies.adoption.formats import cleanrl, isaaclab, mjlab, rl_tools, rsl_rl, sb3
    from policies.adoption.found import Source, from_onnx

    sources: dict[str, Source] = {
        "onnx": from_onnx,
        "sb3": sb3.from_sb3,
        "rsl_rl": rsl_rl.from_rsl_rl,
        "mjlab": mjlab.from_mjlab,
        "rl_tools": rl_tools.from_rl_tools,
        "cleanrl": cleanrl.from_cleanrl,
        "isaaclab": partial(isaaclab.from_isaaclab, descriptors=config.descriptors),
    }
    return sources[config.source](config.file, told)


def write_draft(config: Config, settings: Mapping[str, Any]) -> None:
    """Write the description to begin with."""
    from policies.adoption.contract import of_task
    from policies.adoption.draft import draft
    from sim.tasks import make as make_task

    if settings and not config.task:
        raise ValueError("task.... goes with task=NAME")
    if config.source == "lerobot":
        from policies.adoption import lerobot

        text = lerobot.draft(config.file, make_task(config.task, **settings) if config.task else None, settings)
    else:
        contract = of_task(make_task(config.task, **settings)) if config.task else None
        text = draft(read(config, {}), contract, settings, Path(config.file).name)
    write_atomic(config.draft, text.encode())


def adopt(config: Config, settings: Mapping[str, Any]) -> tuple[PolicyFile, Adopted]:
    """Write the policy file; it loaded, and the controller in numpy."""
    from policies.adoption import lerobot, trial
    from policies.models.export import export

    made = lerobot.adopted if config.source == "lerobot" else adopted
    policy, files = made(config, settings)
    about = {"from": config.source, "file": Path(config.file).name, "sha256": _sha256(files)}
    about |= {"description": Path(config.description).read_text()}
    file = export(policy, config.out, vectors_from=trial.flight(policy, config.seed), training={"adopted": about})
    return file, policy


def _sha256(files: Sequence[Path]) -> str:
    """Of the file; of several that of what `sha256sum FILES` prints, in the order of their names."""
    sums = []
    for path in files:
        with path.open("rb") as stream:
            sums.append(hashlib.file_digest(stream, "sha256").hexdigest())
    if len(files) == 1:
        return sums[0]
    lines = [f"{found}  {path.name}\n" for found, path in zip(sums, files, strict=True)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def adopted(config: Config, settings: Mapping[str, Any]) -> tuple[AdoptedPolicy, list[Path]]:
    """The policy as its description says, and the file that holds its weights."""
    import dataclasses

    from policies.adoption.adopted import AdoptedPolicy
    from policies.adoption.contract import contract_of
    from policies.adoption.description import read as read_description
    from policies.adoption.fields import DescriptionError

    description = read_description(config.description)
    found = read(config, description.network)
    if found.statistics.mean:
        if description.normalisation.mean:
            raise DescriptionError(
                f"{config.description}: normalisation.mean: {config.file} brings its own statistics; leave yours out"
            )
        own = dataclasses.replace(found.statistics, clip=description.normalisation.clip)
        description = dataclasses.replace(description, normalisation=own)
    try:
        policy = AdoptedPolicy(description, contract_of(description, settings, config.task), found.network)
    except DescriptionError as error:
        raise DescriptionError(f"{config.description}: {error}") from None
    return policy, [Path(config.file)]


def main(argv: Sequence[str]) -> None:
    """Write a draft, or the policy file, and try it."""
    if cli.wants_help(argv) or not argv:
        print(f"{__doc__}\n\n{cli.usage(Config)}\n  task.NAME=VALUE: a setting of the task")
        return
    argv, settings = cli.split(argv, "task")
    (config,) = cli.parse(named(argv), Config)
    if config.draft:
        write_draft(config, settings)
        print(f"draft: {printable(config.draft)}; check it, then description={printable(config.draft)} out=policy.onnx")
        return
    made, policy = adopt(config, settings)
    share = made.verify()
    print(
        f"policy: {printable(config.out)}, {made.vectors.steps} test vectors agree, the worst at {share:.2g} tolerances"
    )
    if config.check:
        from policies.adoption import lerobot, trial

        strange = lerobot.remarks(policy, config.episodes, config.seed) if config.source == "lerobot" else []
        for line in strange:
            print(f"not as in its training: {printable(line, cli.LONGEST)}")
        tried = trial.compare(policy, config.episodes, config.seed)
        print(f"\n{trial.text(tried)}\n")
        if better := trial.clearly_better(tried):
            print(f"clearly better than described: {better.name}: {better.advice}")
            raise SystemExit(1)
        print("no other reading is clearly better than what is described")
        if strange:
            raise SystemExit(1)


def named(arguments: Sequence[str]) -> list[str]:
    """The arguments as `cli.parse` takes them: FILE goes without its key, and `from` is no name in Python."""
    found = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        found.append(f"file={argument}" if not equals else f"source={value}" if key == "from" else argument)
    return found


if __name__ == "__main__":
    sys.exit(cli.call(main, needs="train"))
