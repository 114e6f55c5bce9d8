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


def check_decided(task, commands) -> list[dict[str, np.ndarray]]:
    """An episode is decided by seed and number, in any scene; what episode 8 shows with these commands for three."""
    many, one = task.open(3, seed=1), task.open(1, seed=1)
    many.reset(range(3), [6, 7, 8])
    first = run(many, commands, row=2)
    many.reset([0], [8])  # another scene, which has done something else before
    swapped = [{n: np.roll(v, 1, axis=0) for n, v in command.items()} for command in commands]
    assert_same(run(many, swapped, row=0), first)
    one.reset([0], [8])
    assert_same(run(one, [{n: v[2:] for n, v in command.items()} for command in commands], row=0), first)
    one.reset([0], [9])
    assert any((value != first[0][n]).any() for n, value in run(one, [], row=0)[0].items())
    return first
