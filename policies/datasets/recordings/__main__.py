"""python -m policies.datasets.recordings out=DIR bag=DIR map=FILE | log=FILE: a dataset of what a robot recorded.

bag=DIR map=FILE  a rosbag2 of any robot (its folder, or one .mcap or .db3 file); the map (YAML) says what becomes what
log=FILE          a flight log of ours (.mcap): signals, and the commands that were sent
append=true adds to a dataset that is there: several recordings, one after the other, become one.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from deploy import cli
from policies.datasets.features import Array, DatasetError, Feature
from policies.datasets.recordings import bag_map, bags, flights
from policies.datasets.writer import Writer


@dataclass
class Config:
    """Settings of the command."""

    out: str = field(metadata={"help": "folder of the dataset, new or to be continued"})
    bag: str | None = field(default=None, metadata={"help": "a rosbag2"})
    map: str | None = field(default=None, metadata={"help": "with bag: the map, in YAML"})
    log: str | None = field(default=None, metadata={"help": "a flight log"})
    task: str = field(default="", metadata={"help": "with log: what was to be done (default: the policy's task)"})
    fps: int = field(default=0, metadata={"help": "with log: control steps per second (default: the policy's rate)"})
    append: bool = field(default=False, metadata={"help": "add to the dataset that is there"})
    film: bool = field(default=False, metadata={"help": "with log: pictures as films, not exact"})

    def __post_init__(self) -> None:
        if (self.bag is None) == (self.log is None):
            raise cli.ArgumentError("needs bag=DIR map=FILE, or log=FILE")
        if (self.bag is None) != (self.map is None):
            raise cli.ArgumentError("bag=DIR and map=FILE go together")
        if self.bag is not None and (self.task or self.fps or self.film):
            raise cli.ArgumentError("task, fps and film go with log=FILE; for a bag the map says them")
        if self.fps < 0:
            raise cli.ArgumentError(f"fps={self.fps}: needs a rate in Hz")


@dataclass(frozen=True)
class Source:
    """A recording: its rate, what is in it, and its episodes, (frames, task), then how many were too short."""

    fps: int
    features: dict[str, Feature]
    robot: str | None
    episodes: Iterator[tuple[dict[str, Array], str] | int]


def of_bag(path: str, map_path: str) -> Source:
    """A rosbag2 through a map."""
    wanted = bag_map.read(map_path)
    found = bags.episodes(path, wanted)
    first = next(found)
    if isinstance(first, int):
        raise DatasetError(f"{path}: no episode of at least {wanted.shortest} frames; {first} shorter ones")
    told = ((each.frames, each.task) if isinstance(each, bags.Recorded) else each for each in found)
    return Source(
        wanted.fps,
        bags.features_of(wanted, first),
        wanted.robot,
        itertools.chain([(first.frames, first.task)], told),
    )


def of_log(config: Config) -> Source:
    """A flight log of ours."""
    flight = flights.read(str(config.log))
    about = flight.about
    task = config.task or str(about.get("task") or about.get("name") or "flight")
    told = (each if isinstance(each, int) else (each, task) for each in flights.episodes(flight))
    robot = str(about.get("robot") or "") or None
    return Source(config.fps or flights.rate(flight), flights.features_of(flight, config.film), robot, told)


def convert(source: Source, out: str, append: bool = False) -> tuple[int, int, int]:
    """Add its episodes to the dataset: (added, too short, all that are there). DatasetError says how far it came."""
    added = short = 0
    with Writer(out, source.fps, source.features, source.robot) as writer:
        if len(writer) and not append:
            raise DatasetError(f"{out} has {len(writer)} episodes: append=true adds to them, or choose another folder")
        try:
            for each in source.episodes:
                if isinstance(each, int):
                    short += each
                    continue
                writer.add_episode(*each)
                added += 1
        except DatasetError as error:
            raise DatasetError(f"{error}; {added} episodes before that are in {out}") from None
        return added, short, len(writer)


def main(argv: Sequence[str]) -> None:
    """Convert and tell."""
    if cli.wants_help(argv):
        print(f"{__doc__}\n\n{cli.usage(Config)}")
        return
    (config,) = cli.parse(argv, Config)
    source = of_log(config) if config.bag is None else of_bag(config.bag, str(config.map))
    added, short, there = convert(source, config.out, config.append)
    left = f", {short} too short and left out" * bool(short)
    print(f"{config.out}: {added} episodes added{left}, {there} there; python -m policies.datasets folder={config.out}")


if __name__ == "__main__":
    sys.exit(cli.call(main))
