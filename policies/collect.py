"""python -m policies.collect task=metaworld/pick-place-v3 out=DIR [key=value ...]: collect episodes into a dataset.

By the task's scripted expert, by a policy file, or by hand (policy=teleop). A corrupted expert misjudges where things
are, by an offset per episode, and its hand trembles: `corruption` = 1 is what the task declares as mediocre. What is in
the folder already is continued. The dataset is in LeRobot's format v3.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deploy import cli
from deploy.drivers.simulated import Simulated
from deploy.loop import handshake
from deploy.policy_file import PolicyFile
from policies.models.controller import normalised
from sim import spec
from sim.env import Array, expert_of, make_env, stream, with_engine
from sim.language import instructions_of, spoken
from sim.language.wordpiece import InstructionError, WordPiece
from sim.rollout import Act, Episode, rollout
from sim.spec import Group
from sim.tasks import Task, history_of, initial_action, make, sensed
from sim.tasks.abilities import check_expert, words_of
from sim.terms import HISTORY

if TYPE_CHECKING:
    from policies.datasets import Feature
    from policies.teleop.session import Settings as Hands

DEMONSTRATIONS = int.from_bytes(b"demonstrations")  # mixed into the seed: other episodes than training's, evaluation's
SAID = int.from_bytes(b"words")  # the same, of what is said
SCENES = 8  # flown together
STATE, ACTION, PICTURES = "observation.state", "action", "observation.images."  # LeRobot's names
PRIVILEGED = "privileged"  # not LeRobot's observation.environment_state, which its policies would take for an input
REWARD, SUCCESS = "next.reward", "next.success"
TELEOP = "teleop"


@dataclass
class Config:
    """Settings of the command."""

    task: str = field(metadata={"help": "task"})
    out: str = field(metadata={"help": "folder of the dataset, new or to be continued"})
    policy: str = field(default="expert", metadata={"help": "expert, teleop (a human), or a policy file"})
    episodes: int = field(default=80, metadata={"help": "in the dataset, in the end"})
    corruption: float = field(default=0.0, metadata={"help": "of the expert: 0 none, 1 mediocre"})
    steps: int = field(default=0, metadata={"help": "of an episode at most (0: the task's)"})
    cameras: str = field(default="", metadata={"help": "pictures of these, of a task that has cameras: NAME,NAME"})
    film: bool = field(default=False, metadata={"help": "pictures as films, a tenth of the size and not exact"})
    linger: int = field(
        default=0, metadata={"help": "steps after success: frames that show it (policies.train_success)"}
    )
    words: bool = field(default=False, metadata={"help": "a sentence per episode in place of the task's name"})
    seed: int = field(default=0, metadata={"help": "of the episodes"})
    engine: str = field(default="", metadata={"help": "physics engine (default: the task's own)"})
    robot: str = field(default="", metadata={"help": "robot (default: the task's), or its MJCF or URDF file"})

    def __post_init__(self) -> None:
        if self.episodes < 1 or min(self.seed, self.steps, self.linger) < 0 or self.corruption < 0.0:
            raise ValueError("needs episodes >= 1, seed >= 0, steps >= 0, linger >= 0 and corruption >= 0")
        if self.linger and self.policy == TELEOP:
            raise ValueError("linger goes without policy=teleop: who steers says when an episode is over")


class NoisyExpert:
    """The task's expert with `corruption` times the declared offsets and noise; the episode's number decides both."""

    def __init__(self, task: Task, corruption: float, seed: int, num: int) -> None:
        self.task, self.corruption, self.seed, self.shows = task, corruption, seed, expert_of(task)
        self._rng = [np.random.default_rng() for _ in range(num)]
        self._judged = spec.numbers((*task.policy, *task.privileged))
        self._offsets = {s.name: np.zeros((num, *s.shape), np.float32) for s in self._judged}

    def __call__(self, signals: Mapping[str, Array], numbers: Array, begun: Array) -> dict[str, Array]:
        for row in np.flatnonzero(begun):
            self._rng[row] = np.random.default_rng([self.seed, 1, int(numbers[row])])
            for signal in self._judged:
                std = self.corruption * self.shows.corruption.get(signal.name, 0.0)
                self._offsets[signal.name][row] = std * self._rng[row].standard_normal(signal.shape)
        commands = self.shows.expert({s.name: signals[s.name] + self._offsets[s.name] for s in self._judged})
        for signal in self.task.commands:
            std = self.corruption * self.shows.corruption.get(signal.name, 0.0)
            trembling = np.stack([rng.standard_normal(signal.shape) for rng in self._rng])
            noisy = commands[signal.name] + np.float32(std) * trembling.astype(np.float32)
            commands[signal.name] = np.clip(noisy, signal.low, signal.high)
        return commands


class PolicyActor:
    """A policy file at work in `num` scenes, whose state begins anew with each episode."""

    def __init__(self, policy: PolicyFile, num: int) -> None:
        self.policy = policy
        policy.reset(num)

    def __call__(self, signals: Mapping[str, Array], numbers: Array, begun: Array) -> dict[str, Array]:
        if begun.any():
            self.policy.restart(begun)
        return self.policy.step({s.name: signals[s.name] for s in self.policy.inputs})


def episodes(
    task: Task, act: Act, count: int, seed: int, num: int = SCENES, first: int = 0, linger: int = 0
) -> Iterator[Episode]:
    """Episodes `first` to `count` - 1 of the stream `seed`, as they end; see `sim.rollout`."""
    with closing(make_env(task, min(num, count - first), seed)) as env:
        yield from rollout(task, env, act, range(first, count), linger)


def demonstrate(
    task: Task, count: int, seed: int, corruption: float = 0.0, first: int = 0, linger: int = 0
) -> Iterator[Episode]:
    """Episodes `first` to `count` - 1 by the task's expert, corrupted. NoExpertError where it can show nothing."""
    check_expert(task)
    own = stream(seed, DEMONSTRATIONS)
    act = NoisyExpert(task, corruption, own, min(SCENES, count - first))
    return episodes(task, act, count, own, first=first, linger=linger)


def elements(group: Group) -> tuple[str, ...]:
    """The name of each number of these signals."""
    return tuple(f"{s.name}.{k}" for s in group for k in range(s.size))


def _features(task: Task, film: bool = False, told: bool = True) -> dict[str, Feature]:
    """What a dataset of the task holds; `told`: with what is privileged."""
    from policies.datasets import Feature

    numbers, kind = spec.numbers(sensed(task)), "video" if film else "image"
    hidden = task.privileged if told else ()
    return {
        STATE: Feature("float32", (spec.size(numbers),), elements(numbers)),
        **{PICTURES + s.name: Feature(kind, s.shape) for s in spec.pictures(task.policy)},
        **({PRIVILEGED: Feature("float32", (spec.size(hidden),), elements(hidden))} if hidden else {}),
        ACTION: Feature("float32", (spec.size(task.commands),), elements(task.commands)),
        REWARD: Feature("float32", (1,)),
        SUCCESS: Feature("bool", (1,)),
    }


def stored(task: Task, folder: str, count: int) -> list[Episode]:
    """The first `count` episodes of a dataset; DatasetError when it is damaged or of other signals or another rate.

    What a task is told in words is each episode's text: DatasetError where there is none, or it cannot be told.
    """
    from policies.datasets import Dataset, DatasetError

    dataset, features = Dataset(folder), _features(task)  # past actions are not stored: the commands are
    optional = {REWARD, SUCCESS} | {PRIVILEGED} - {*dataset.features}
    needed = {name: f.shape for name, f in features.items() if name not in optional}
    try:
        dataset.require(needed, fps=task.rate_hz)
    except DatasetError as error:
        raise DatasetError(f"{error}: policies.collect task={task.name} records what {task.name} needs") from None
    for name in (n for n in (STATE, ACTION, PRIVILEGED) if n in needed):
        if (names := dataset.features[name].names) not in (None, features[name].names):
            wanted = ", ".join(features[name].names or ())
            raise DatasetError(f"{folder}: {name!r} holds {', '.join(names or ())}, not {wanted}")
    words, episodes = words_of(task), []
    for k in range(min(count, len(dataset))):
        found = dataset.episode(k)
        said = {} if words is None else _heard(task, words, found.task, f"{folder}: episode {k}")
        episodes.append(_read(task, found, k, said))
    return episodes


def _heard(task: Task, words: WordPiece, text: str, where: str) -> dict[str, Array]:
    """The tokens (k,) of what was said, by the name of the signal that tells them; `where` begins an error."""
    from policies.datasets import DatasetError

    (told,) = spec.tokens(task.policy)
    again = f"record it again with policies.collect task={task.name}, or correct its text"
    if not text.strip():
        raise DatasetError(f"{where} has no text that says what was asked for: {again}")
    if text == task.name or text in spoken():
        raise DatasetError(f"{where} tells the name of a task, {text}, and no sentence: {again}")
    try:
        return {told.name: words.encode([text], told.shape[0])[0][0]}
    except InstructionError as error:
        raise DatasetError(f"{where}: {error}: {again}") from None


def _read(task: Task, episode: Mapping[str, Array], number: int, said: Mapping[str, Array]) -> Episode:
    steps = len(episode[ACTION])
    reward = episode[REWARD][:, 0] if REWARD in episode else np.zeros(steps, np.float32)
    success = episode[SUCCESS][:, 0] if SUCCESS in episode else np.arange(steps) == steps - 1  # others keep successes
    signals = spec.unpack(spec.numbers(sensed(task)), episode[STATE])
    commands = spec.unpack(task.commands, episode[ACTION])
    if sensed(task) != task.policy:
        action, kept = normalised(task.commands, commands), history_of(task)
        before = np.concatenate([np.full((kept, action.shape[1]), initial_action(task)), action])
        past = [before[k : k + kept][::-1].ravel() for k in range(steps)]
        signals[HISTORY] = np.asarray(past, np.float32)
    if task.privileged and PRIVILEGED in episode:
        signals |= spec.unpack(task.privileged, episode[PRIVILEGED])
    signals |= {s.name: episode[PICTURES + s.name] for s in spec.pictures(task.policy)}
    signals |= {name: np.repeat(tokens[None], steps, axis=0) for name, tokens in said.items()}
    return Episode(number, signals, commands, reward, success.astype(bool), np.zeros(steps, bool))


def collect(task: Task, config: Config, hands: Hands | None = None) -> tuple[int, int]:
    """Add what is missing to the dataset; the number of its episodes and of those that were new and succeeded.

    One that does not tell what is privileged (a robot's, or of an earlier version) is continued without it.
    """
    from policies.datasets import Writer
    from policies.datasets.layout import INFO, read_info

    folder = Path(config.out)
    text = _texts(task, config)
    told = not (folder / INFO).is_file() or PRIVILEGED in read_info(folder)["features"]
    features = _features(task, config.film, told)
    with Writer(config.out, round(task.rate_hz), features, task.robot.name) as writer:
        succeeded = 0
        waiting: dict[int, Episode] = {}
        for episode in _made(task, config, hands, len(writer)):
            waiting[episode.number] = episode
            while (following := waiting.pop(len(writer), None)) is not None:  # in order, so that it can be continued
                frames = _frames(task, following)
                writer.add_episode({name: frames[name] for name in features}, text(following))
                succeeded += following.succeeded
                print(f"\r{len(writer)} episodes, {succeeded} succeeded", end="", file=sys.stderr, flush=True)
        return len(writer), succeeded


def _texts(task: Task, config: Config) -> Callable[[Episode], str]:
    """An episode's text: what its robot was told, else a sentence or the task's name, as the settings say."""
    if (words := words_of(task)) is not None:
        (told,) = spec.tokens(task.policy)
        return lambda episode: words.decode(episode.signals[told.name][0])
    if not config.words:
        return lambda episode: task.name
    says = instructions_of(task.name)
    return lambda episode: says.draw(np.random.default_rng([config.seed, SAID, episode.number]))


def _made(task: Task, config: Config, hands: Hands | None, first: int) -> Iterator[Episode]:
    """Episodes `first` to the last, by whom the settings say."""
    missing = config.episodes - first
    if missing <= 0:
        return iter(())
    if config.policy == "expert":
        return demonstrate(task, config.episodes, config.seed, config.corruption, first, config.linger)
    own = stream(config.seed, DEMONSTRATIONS)
    if config.policy == TELEOP:
        from policies.teleop.session import Settings, teleoperate

        return teleoperate(task, hands or Settings(), config.episodes, own, first)
    policy = PolicyFile.load(config.policy)
    handshake(policy, Simulated(task))
    return episodes(
        task, PolicyActor(policy, min(SCENES, missing)), config.episodes, own, first=first, linger=config.linger
    )


def _frames(task: Task, episode: Episode) -> dict[str, Any]:
    return {
        STATE: spec.pack(spec.numbers(task.policy), episode.signals),
        **{PICTURES + s.name: episode.signals[s.name] for s in spec.pictures(task.policy)},
        **({PRIVILEGED: spec.pack(task.privileged, episode.signals)} if task.privileged else {}),
        ACTION: spec.pack(task.commands, episode.commands),
        REWARD: episode.reward[:, None],
        SUCCESS: episode.success[:, None],
    }


def main(argv: Sequence[str]) -> None:
    """Collect, and say what came of it."""
    from policies.teleop.session import Settings

    if cli.wants_help(argv):
        print(f"{__doc__}\n\n{cli.usage(Config)}\n\npolicy=teleop:\n{cli.usage(Settings)}")
        print("  task.NAME=VALUE: a setting of the task")
        return
    argv, settings = cli.split(argv, "task")
    config, hands = cli.parse(argv, Config, Settings)
    said = {
        "robot": config.robot,
        "steps": config.steps,
        "cameras": [name for name in config.cameras.split(",") if name],
    }
    task: Any = make(config.task, **(settings | {name: value for name, value in said.items() if value}))
    task = with_engine(task, config.engine)
    count, succeeded = collect(task, config, hands)
    print(f"\n{config.out}: {count} episodes of {task.name}; of the new ones {succeeded} succeeded")


if __name__ == "__main__":
    sys.exit(cli.call(main, needs="train,datasets"))
