"""Learners that are continued from the state of another, which meanwhile goes on."""

import copy
from collections.abc import Mapping, Sequence

import numpy as np


class Others(Sequence):
    """Fresh learners, of `anew()`, with these states; each is made when it is first asked for: that takes a while."""

    def __init__(self, anew, states):
        self.anew, self.states, self.made = anew, states, {}

    def __len__(self):
        return len(self.states)

    def __getitem__(self, k):
        if isinstance(k, slice):
            return [self[i] for i in range(len(self))[k]]
        k = range(len(self))[k]
        if k not in self.made:
            self.made[k] = self.anew()
            self.made[k].load_state_dict(self.states[k])
        return self.made[k]


def learned(whole, anew):
    """Its rows of metrics; and after each of them a fresh learner, of `anew()`, with the state that it then had."""
    rows, states = [], []
    for row in whole.learn():
        rows.append(row)
        states.append(copy.deepcopy(whole.state_dict()))
    return rows, Others(anew, states)


def same(one, other, where="state"):
    """Fails unless two states hold the same, whatever they are made of."""
    if isinstance(one, Mapping):
        assert one.keys() == other.keys(), where
        for name in one:
            same(one[name], other[name], f"{where}.{name}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for k, pair in enumerate(zip(one, other, strict=True)):
            same(*pair, f"{where}[{k}]")
    else:
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other), err_msg=where)
