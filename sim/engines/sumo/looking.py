"""What equipped vehicles are told, and what they are worth: all vehicles of a step at once, in a compiled loop.

Numbers are in SI units but for emissions, which are mg/s as SUMO says them. A lane is its row in `lanes`.
"""

from __future__ import annotations

import numpy as np

from sim.engines.vector.blocks import kernel

STOPPED = 0.1  # m/s: who is slower stands
FAR = 200.0  # s: what changes later than that
RANGE = 300.0  # m: what lies further ahead nobody is told
MILLI = 1e-3
STOP_PENALTY, STOP_SPEED, EMISSION_PENALTY = 35.0, 1.0, 3.0  # IntersectionZoo's
LENGTH, LIMIT, GRADE, LEADS = range(4)  # columns of lanes
MEASURED = SPEED, PLACE, EMISSION, LANE = range(4)  # rows of what SUMO says of everybody
# What is known of an equipped vehicle, in this order.
COLUMNS = (
    "number",  # in the demand
    "speed",  # m/s
    "distance",  # m to the stop line; RANGE when beyond it
    "green",  # 1 or 0
    "change",  # s until that changes
    "lasts",  # s for which it lasts then
    "gap",  # m to who drives ahead on its lane
    "leader_speed",  # m/s of that; the lane's limit where there is nobody
    "limit",  # m/s
    "grade",  # rise over run, ahead
    "emission",  # g/s of CO2
    "followers",  # how many drive behind on its lane, up to the next equipped one
    "worth",  # the mean over itself and these
)
_FOLLOWERS, _WORTH = len(COLUMNS) - 2, len(COLUMNS) - 1


@kernel
def look(measured, numbers, equipped, length, movement, lanes, states, left, standing, rows, table, totals):
    """Fill `table` and `totals`; see COLUMNS.

    Of those on the road, in the order of their numbers: `measured` (4, n) and `numbers` (n,) in the demand. Of all of
    the demand: `equipped`, `length` (m), `movement`, whether it was `standing`, which is changed, and `rows`, which of
    the table's is its own, or -1. `lanes` (l, 4); `states` (movements, 3) of the phase, which ends in `left` s.
    `totals` (4,): sums of speeds and emissions (g/s), stops that began, and how many rows were filled.
    """
    n = len(numbers)
    order = np.empty(n, np.int64)
    table[:] = 0.0
    speeds, emissions, stops, filled = 0.0, 0.0, 0, 0
    for k in range(n):  # a lane after the other, on each the first first
        lane, place, at = measured[LANE, k], measured[PLACE, k], k
        while at > 0:
            other = order[at - 1]
            if measured[LANE, other] < lane or (measured[LANE, other] == lane and measured[PLACE, other] >= place):
                break
            order[at] = other
            at -= 1
        order[at] = k
        speeds += measured[SPEED, k]
        emissions += measured[EMISSION, k]
        stands = measured[SPEED, k] < STOPPED
        stops += stands and not standing[numbers[k]]
        standing[numbers[k]] = stands
    row, led, followers, worth = -1, False, 0.0, 0.0
    lane, end, quick = -2, 0.0, 0.0  # of the last one: its lane, and where and how fast it drives
    for at in range(n + 1):
        k = order[at] if at < n else -1
        road = int(measured[LANE, k]) if at < n else -2
        who = numbers[k] if at < n else -1
        if led and (at == n or road != lane or equipped[who]):
            if row >= 0:
                table[row, _FOLLOWERS], table[row, _WORTH] = followers, worth / (followers + 1.0)
            led = False
        if at == n:
            break
        speed, place, limit = measured[SPEED, k], measured[PLACE, k], lanes[road, LIMIT]
        if equipped[who]:
            row, led, followers, worth = rows[who], True, -1.0, 0.0
            if row >= 0:
                filled += 1
                told, distance = table[row], lanes[road, LENGTH] - place
                told[0], told[1], told[8], told[9] = who, speed, limit, lanes[road, GRADE]
                if lanes[road, LEADS] > 0.0 and distance < RANGE:
                    state = states[movement[who]]
                    told[2], told[3], told[4], told[5] = distance, state[0], min(left + state[1], FAR), min(state[2], FAR)
                else:
                    told[2], told[3], told[4], told[5] = RANGE, 1.0, FAR, FAR
                told[6], told[7] = RANGE, limit
                if road == lane and end - place < RANGE:
                    told[6], told[7] = max(end - place, 0.0), quick
                told[10] = MILLI * measured[EMISSION, k]
        if led:
            slow = STOP_PENALTY * (STOP_SPEED - speed) if speed < STOP_SPEED else 0.0
            followers += 1.0
            worth += speed - limit - slow - EMISSION_PENALTY * MILLI * measured[EMISSION, k]
        lane, end, quick = road, place - length[who], speed
    totals[0], totals[1], totals[2], totals[3] = speeds, MILLI * emissions, stops, filled
