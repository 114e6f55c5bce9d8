"""The tasks that our engines carry out, by name."""

from sim.tasks import TASKS, OwnWorld, make

VEHICLES = sorted(name for name in TASKS if not isinstance(make(name), OwnWorld))
