"""A learner but the first: it does what that one says, and writes nothing; see `policies.cluster.learners`.

`python -m policies.cluster.follower '{"meeting": ..., "modules": ...}' FOLDER`, with the run's settings in the folder.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path

from policies.algorithms import LostLearnerError
from policies.learning.parallel.group import Meeting, joined
from policies.learning.parallel.learners import DismissedError, waited
from policies.runner import checkpoint, config
from policies.runner.config import RunError
from policies.runner.folder import CHECKPOINT, CONFIG
from policies.runner.mistakes import SettingsError
from policies.train import built
from sim.env import WorldError
from sim.registry import names_from


def follow(told: str, folder: Path) -> None:
    """Learn until the first one says that it is over."""
    words = json.loads(told)
    settings = config.read(folder / CONFIG, words["modules"])
    meeting = Meeting(**words["meeting"])
    settings.options.device = meeting.device
    names = names_from(str(folder), *settings.named.values())
    with joined(meeting, lambda: None) as group, names, suppress(DismissedError):
        _, algorithm = built(settings)
        if (folder / CHECKPOINT).exists():
            algorithm.load_state_dict(checkpoint.load(folder / CHECKPOINT)["algorithm"])
        for _ in algorithm.learn():
            pass
        waited(group)


if __name__ == "__main__":
    try:
        follow(sys.argv[1], Path(sys.argv[2]))
    except (LostLearnerError, SettingsError, RunError, WorldError) as error:
        sys.exit(f"error: {error}")
