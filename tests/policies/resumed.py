"""Learners that are continued from the state of another, which meanwhile goes on."""

from collections.abc import Mapping

import numpy as np


def learned(whole, anew):
    """Its rows of metrics; and after each of them a fresh learner, of `anew()`, with the state that it then had."""
    rows, others = [], []
    for row in whole.learn():
        rows.append(row)
        others.append(anew())
        others[-1].load_state_dict(whole.state_dict())
    return rows, others


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
