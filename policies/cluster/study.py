"""Optuna proposes (TPE, Bergstra et al. 2011); what was tried is in one file, from which a search goes on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState

from policies.cluster.search import Dimension, Trial, Value

NAME = "search"
ASKED = "asked"  # attribute: what the search is of


class Study:
    """See `policies.cluster.search.Proposals`. The same seed gives the same search, however often it was ended."""

    def __init__(self, path: Path, space: Sequence[Dimension], maximise: bool, seed: int, asked: str) -> None:
        """`asked` tells what is searched for: ValueError when the file is of something else."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space, self._seed = space, seed
        storage = JournalStorage(JournalFileBackend(str(path), lock_obj=JournalFileOpenLock(str(path))))
        direction = "maximize" if maximise else "minimize"
        self._study = optuna.create_study(
            storage=storage, study_name=NAME, direction=direction, load_if_exists=True, sampler=self._sampler(0)
        )
        before = self._study.user_attrs.get(ASKED)
        if before is None:
            self._study.set_user_attr(ASKED, asked)
        elif before != asked:
            raise ValueError(f"{path.parent} holds another search ({before}); choose another out=DIR")

    def _sampler(self, number: int) -> optuna.samplers.BaseSampler:
        """Anew for each trial: what it proposes depends on what was told, not on when we began."""
        own = int(np.random.SeedSequence([self._seed, number]).generate_state(1)[0])
        return optuna.samplers.TPESampler(seed=own, constant_liar=True)

    def open(self) -> list[Trial]:
        found = []
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if len(trial.params) == len(self._space):
                found.append(_trial(trial))
            else:  # ended while it was being asked for
                self._study.tell(trial.number, state=TrialState.FAIL)
        return found

    def ask(self) -> Trial:
        self._study.sampler = self._sampler(len(self._study.get_trials(deepcopy=False)))
        trial = self._study.ask()
        settings = {dimension.key: _suggested(trial, dimension) for dimension in self._space}
        return Trial(trial.number, settings, None)

    def tell(self, trial: Trial) -> None:
        if trial.value is None:
            self._study.tell(trial.number, state=TrialState.FAIL)
        else:
            self._study.tell(trial.number, trial.value)

    def told(self) -> list[Trial]:
        over = (TrialState.COMPLETE, TrialState.FAIL)
        trials = self._study.get_trials(deepcopy=False, states=over)
        return [_trial(trial) for trial in trials if len(trial.params) == len(self._space)]


def _trial(trial: FrozenTrial) -> Trial:
    return Trial(trial.number, dict(trial.params), trial.value if trial.state == TrialState.COMPLETE else None)


def _suggested(trial: optuna.Trial, dimension: Dimension) -> Value:
    if dimension.choices:
        chosen: Value = trial.suggest_categorical(dimension.key, dimension.choices)
        return chosen
    if dimension.whole:
        return int(trial.suggest_int(dimension.key, int(dimension.low), int(dimension.high), log=dimension.log))
    return float(trial.suggest_float(dimension.key, dimension.low, dimension.high, log=dimension.log))
