"""What the tests of scenes share: doing commands in a batch, and comparing what one scene shows."""

import numpy as np


def run(env, commands, row: int) -> list[dict[str, np.ndarray]]:
    """What scene `row` shows before, between and after these commands for a batch."""
    seen = [{name: value[row].copy() for name, value in env.observe().items()}]
    for command in commands:
        outcome = env.step(command)
        after = {name: value[row].copy() for name, value in env.observe().items()}
        seen.append({**after, "reward": outcome.reward[row], "success": outcome.success[row]})
    return seen


def assert_same(a: list[dict[str, np.ndarray]], b: list[dict[str, np.ndarray]]):
    for one, other in zip(a, b, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            np.testing.assert_array_equal(value, other[name], err_msg=name)
