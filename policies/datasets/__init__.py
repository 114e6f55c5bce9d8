"""Demonstrations in LeRobot's dataset format v3, written and read without LeRobot.

`Writer` adds episodes and survives being killed, a full disk, a second writer; `Dataset` reads what it or LeRobot
wrote, and names what is damaged. `python -m policies.datasets folder=DIR` shows a dataset, `policies.datasets.minari`
imports one of Minari.
"""

from deploy.system import extras

try:
    from policies.datasets.features import DatasetError, Feature
    from policies.datasets.reader import Dataset, Episode
    from policies.datasets.writer import Writer
except ModuleNotFoundError as error:
    extras.leave_if_command(error, "policies.datasets")
    raise

__all__ = ["Dataset", "DatasetError", "Episode", "Feature", "Writer"]
