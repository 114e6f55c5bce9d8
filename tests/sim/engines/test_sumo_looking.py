"""The compiled loop over vehicles beside the plain one that it replaced."""

import numpy as np
import pytest

from sim.engines.sumo.looking import crosses, look
from sim.engines.sumo.told import COLUMNS, FAR, HEADWAY, RANGE, STARTS, STOPPED, TOTALS, YELLOW

ROOM, LANES, MOVEMENTS = 8, 4, 3
PLAIN = [name for name in COLUMNS if name not in ("ahead", "clear", "present")]


def plainly(measured, numbers, fleet, lanes, states, left, penalties):
    """By the number of who is equipped: PLAIN; with sorting, and dictionaries."""
    rows, row, last = {}, None, (-2, 0.0, 0.0)
    found = sorted(zip(measured[:, 1], -measured[:, 2], numbers, measured[:, 0], measured[:, 3], strict=True))
    for lane, back, who, speed, emission in found:
        length, limit, grade, leads = lanes[int(lane)]
        before, end, quick = last
        row = None if lane != before else row
        if fleet[who, 0]:
            distance, signal = length + back, (RANGE, 1.0, FAR, FAR)
            if leads and distance < RANGE:
                green, after, lasts = states[int(fleet[who, 2])]
                signal = distance, green, min(left + after, FAR), min(lasts, FAR)
            ahead = (RANGE, limit) if lane != before or end + back >= RANGE else (max(end + back, 0.0), quick)
            row = rows[who] = [who, speed, *signal, *ahead, limit, grade, 1e-3 * emission, -1.0, 0.0]
        if row:
            row[-2] += 1.0
            row[-1] += speed - limit - penalties[0] * max(0.0, 1.0 - speed) - penalties[1] * 1e-3 * emission
        last = lane, -back - fleet[who, 1], speed
    for row in rows.values():
        row[-1] /= row[-2] + 1.0
    return rows


@pytest.mark.parametrize("seed", range(20))
def test_it_says_what_the_plain_loop_says(seed: int):
    rng = np.random.default_rng(seed)
    m, n = 30, int(rng.integers(0, 25))
    numbers = np.sort(rng.choice(m, n, replace=False)).astype(np.int64)
    speeds = rng.choice([0.0, 0.05, 0.7, 9.0, 14.0], n)
    measured = np.column_stack([speeds, rng.integers(-1, LANES, n), rng.uniform(0.0, 400.0, n), 3e3 * rng.random(n)])
    fleet = np.zeros((m, 5))
    fleet[:, 0], fleet[:, 1] = rng.random(m) < 0.4, rng.choice([4.5, 12.0], m)
    fleet[:, 2], fleet[:, 3], fleet[:, 4] = rng.integers(0, MOVEMENTS, m), rng.random(m) < 0.5, ROOM
    here = numbers[fleet[numbers, 0] > 0.0]
    fleet[here[:ROOM], 4] = np.arange(len(here[:ROOM]))
    lanes = np.column_stack(
        [rng.uniform(390.0, 420.0, LANES), np.full(LANES, 13.9), 0.1 * rng.random(LANES), [1, 1, 0, 0]]
    )
    lanes = np.concatenate([lanes, [[RANGE, RANGE, 0.0, 0.0]]])
    states, left = np.column_stack([rng.integers(0, 2, 3), rng.uniform(0, 300, 3), rng.uniform(0, 300, 3)]), 3.0
    stood, table = fleet[:, 3].copy(), rng.random((ROOM + 1, len(COLUMNS) + len(TOTALS)))
    look(measured.ravel(), numbers, fleet, lanes, states.astype(float), left, 2, 1, (35.0, 3.0), table)
    rows = plainly(measured, numbers, fleet, lanes, states, left, (35.0, 3.0))
    present = COLUMNS.index("present")
    assert table[:ROOM, present].sum() == min(len(here), ROOM) and not table[len(here) : ROOM, : len(COLUMNS)].any()
    for row, who in enumerate(here[:ROOM]):
        found = [table[row, COLUMNS.index(name)] for name in PLAIN]
        np.testing.assert_allclose(found, rows[who], rtol=1e-12, atol=1e-12)
    stands = speeds < STOPPED
    expected = [n, speeds.sum(), 1e-3 * measured[:, 3].sum(), (stands & (stood[numbers] == 0.0)).sum(), 2, 1]
    np.testing.assert_allclose(table[:ROOM, len(COLUMNS) :], [expected] * ROOM, rtol=1e-12)
    assert (fleet[numbers, 3] == stands).all()


def test_who_crosses_when():
    free = (10.0, 100.0, 10.0, 1.5)  # at its limit: 10 s
    assert crosses(*free, 0.0, 1.0, 8.0 + 1e-9, 30.0) == pytest.approx(10.0) and YELLOW == 2.0
    assert crosses(*free, 0.0, 1.0, 7.9, 30.0) == pytest.approx(7.9 + 30.0 + STARTS)
    assert crosses(*free, 12.0, 1.0, 20.0, 30.0) == pytest.approx(12.0)
    assert crosses(*free, 0.0, 0.0, 4.0, 30.0) == pytest.approx(10.0)
    assert crosses(*free, 0.0, 0.0, 15.0, 30.0) == pytest.approx(15.0 + STARTS)
    assert crosses(0.0, 75.0, 15.0, 1.5, 0.0, 1.0, 99.0, 1.0) == pytest.approx(10.0) and HEADWAY > 0.0
