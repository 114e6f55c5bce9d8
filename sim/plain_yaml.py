"""YAML files that may be a stranger's: plain values only, and no more memory than the file has bytes for.

Lists and fields that an alias repeats are one object, as PyYAML makes them; whoever copies them checks their sizes.
"""

from __future__ import annotations

import os
import stat
from typing import Any

import yaml

MERGE = "tag:yaml.org,2002:merge"
DEEPEST = 100  # brackets within brackets: at every token PyYAML looks at all that are open
LONGEST_SEXAGESIMAL = 40  # characters of 1:30:00, whose value PyYAML computes digit by digit


class PlainLoader(yaml.SafeLoader):  # type: ignore[misc]
    """PyYAML's safe loader without merge keys (`<<`), whose nests fill memory; a field is given once."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Instead of merging: YAMLError for a merge key, and for a field that is given twice."""
        given = set[str]()
        for key, _ in node.value:
            if key.tag == MERGE:
                raise yaml.MarkedYAMLError(problem="merge keys (<<) are not read", problem_mark=key.start_mark)
            if isinstance(key, yaml.ScalarNode):
                if key.value in given:  # PyYAML keeps the last one and says nothing
                    raise yaml.MarkedYAMLError(problem=f"{key.value!r} is given twice", problem_mark=key.start_mark)
                given.add(key.value)
        super().flatten_mapping(node)

    def fetch_flow_collection_start(self, token: Any) -> None:
        """YAMLError for what would take long: brackets that are too deep."""
        if self.flow_level >= DEEPEST:
            raise yaml.MarkedYAMLError(problem=f"more than {DEEPEST} brackets are open", problem_mark=self.get_mark())
        super().fetch_flow_collection_start(token)

    def construct_scalar(self, node: Any) -> Any:
        """YAMLError for what would take long: a long number with colons."""
        number = str(node.tag).endswith((":int", ":float"))
        if number and ":" in str(node.value) and len(node.value) > LONGEST_SEXAGESIMAL:
            raise yaml.MarkedYAMLError(problem="a number is too long", problem_mark=node.start_mark)
        return super().construct_scalar(node)


def load(content: bytes) -> Any:
    """What the bytes of a YAML file hold. ValueError says in a line why they are none."""
    try:
        return yaml.load(content.decode(), PlainLoader)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:  # ValueError: a 99th month
        raise ValueError(f"is not YAML: {' '.join(str(error).split())[:200]}") from None


def read(path: str | os.PathLike[str], most: int) -> Any:
    """What a regular file of at most `most` bytes holds; OSError, or ValueError, which does not name the file."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO must not make us wait
    except ValueError as error:  # a NUL byte in its name
        raise OSError(0, str(error)) from None
    with open(file, "rb", closefd=True) as stream:
        mode = os.fstat(file).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(0, "Is a directory")
        if not stat.S_ISREG(mode):
            raise OSError(0, "it is no regular file")
        content = stream.read(most + 1)
    if len(content) > most:
        raise ValueError(f"has at most {most} bytes")
    return load(content)
