"""What equipped vehicles are told, and what they are worth: all vehicles of a step at once, in a compiled loop.

Numbers are in SI units but for emissions, which are mg/s as SUMO says them. A lane is its row in `lanes`.
"""

from __future__ import annotations

import numpy as np

from sim.engines.sumo.demand import QUICKEST
from sim.engines.sumo.told import (
    COLUMNS,
    EMISSION,
    EQUIPPED,
    FAR,
    GRADE,
    HEADWAY,
    LANE,
    LEADS,
    LENGTH,
    LIMIT,
    LONG,
    LONGER,
    LORRY,
    MEASURED,
    MILLI,
    MOST,
    MOVEMENT,
    PLACE,
    RANGE,
    ROW,
    SPEED,
    STANDING,
    STARTS,
    STOP_SPEED,
    STOPPED,
    TOTALS,
    YELLOW,
)
from sim.engines.vector.blocks import inlined, kernel

_EMISSION, _FOLLOWERS, _WORTH, _PRESENT = map(COLUMNS.index, ("emission", "followers", "worth", "present"))
_AHEAD, _CLEAR = COLUMNS.index("ahead"), COLUMNS.index("clear")
_SPEEDS, _EMISSIONS, _STOPS = (len(COLUMNS) + TOTALS.index(name) for name in ("speed", "emission", "stops"))


@inlined
def crosses(speed, distance, limit, quickest, clear, green, change, lasts):
    """s until somebody passes the stop line at the soonest: not before it is his turn (`clear`), nor while it is red.

    From now on as fast as anybody speeds up, to the limit.
    """
    speeding = max(limit - speed, 0.0) / quickest
    turn = max(speeding + max(distance - 0.5 * speeding * (speed + limit), 0.0) / limit, clear)
    if green > 0.0:
        return turn if turn <= change + YELLOW else max(turn, change + lasts + STARTS)
    return max(turn, change + STARTS)


@kernel
def look(said, numbers, fleet, lanes, states, left, arrived, faults, penalties, table):
    """Fill `table` (r, COLUMNS and TOTALS), whose last row is nobody's.

    Of those on the road, in the order of their numbers: what is `said` (n x MEASURED), and their `numbers` (n,) in the
    demand. Of all of the demand `fleet` (m, FLEET): whether it is equipped, its length (m), its movement, whether it
    was standing, which is changed, and which row of the table is its own, or the last. `lanes` (l, 4). `states`
    (movements, 3) of the phase, which ends in `left` s. How many `arrived`, and `faults`. The `penalties`
    (2,) for standing and for emissions.
    """
    n = len(numbers)
    measured = said.reshape(n, len(MEASURED))
    order = np.empty(n, np.int64)
    speeds, emissions, stops = 0.0, 0.0, 0
    for k in range(n):  # a lane after the other, on each the first first
        lane, place, at = measured[k, LANE], measured[k, PLACE], k
        while at > 0:
            other = order[at - 1]
            if measured[other, LANE] < lane or (measured[other, LANE] == lane and measured[other, PLACE] >= place):
                break
            order[at] = other
            at -= 1
        order[at] = k
        speeds += measured[k, SPEED]
        emissions += measured[k, EMISSION]
        stands = measured[k, SPEED] < STOPPED
        stops += stands and fleet[numbers[k], STANDING] == 0.0
        fleet[numbers[k], STANDING] = stands
    for row in range(len(table)):
        table[row, : len(COLUMNS)] = 0.0
        table[row, len(COLUMNS)], table[row, _SPEEDS], table[row, _EMISSIONS] = n, speeds, MILLI * emissions
        table[row, _STOPS], table[row, _STOPS + 1], table[row, _STOPS + 2] = stops, arrived, faults
    told, led, followers, worth = table[-1], False, 0.0, 0.0
    lane, end, quick = -2, 0.0, 0.0  # of the last one: its lane, and where and how fast it drives
    ahead, clear = 0, 0.0
    for at in range(n):
        k = order[at]
        road, who = int(measured[k, LANE]), fleet[numbers[k]]
        equipped = who[EQUIPPED] > 0.0
        speed, place, emission = measured[k, SPEED], measured[k, PLACE], MILLI * measured[k, EMISSION]
        limit = lanes[road, LIMIT]
        if road != lane:
            ahead, clear = 0, 0.0
        if road != lane or equipped:
            told[_FOLLOWERS], told[_WORTH] = followers, worth / (followers + 1.0)
            led, told, followers, worth = False, table[-1], 0.0, 0.0
        distance, leads = lanes[road, LENGTH] - place, lanes[road, LEADS] > 0.0
        green, after, lasts = states[int(who[MOVEMENT])]
        change = min(left + after, FAR)
        if equipped:
            led, told, followers = True, table[int(who[ROW])], -1.0
            told[0], told[1], told[8], told[9] = numbers[k], speed, limit, lanes[road, GRADE]
            told[2], told[3], told[4], told[5] = RANGE, 1.0, FAR, FAR
            if leads and distance < RANGE:
                told[2], told[3], told[4], told[5] = distance, green, change, min(lasts, FAR)
                told[_AHEAD], told[_CLEAR] = min(ahead, MOST), min(clear, FAR)
            told[6], told[7] = RANGE, limit
            if road == lane and end - place < RANGE:
                told[6], told[7] = max(end - place, 0.0), quick
            told[_EMISSION], told[_PRESENT] = emission, 1.0
        if leads:
            ahead += 1
            clear = crosses(speed, distance, limit, QUICKEST, clear, green, change, lasts) + HEADWAY
            clear += LORRY if who[LONG] > LONGER else 0.0
        if led:
            slow = penalties[0] * (STOP_SPEED - speed) if speed < STOP_SPEED else 0.0
            followers += 1.0
            worth += speed - limit - slow - penalties[1] * emission
        lane, end, quick = road, place - who[LONG], speed
    told[_FOLLOWERS], told[_WORTH] = followers, worth / (followers + 1.0)
