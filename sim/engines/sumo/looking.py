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
FLEET = EQUIPPED, LONG, MOVEMENT, STANDING, ROW = 0, 1, 2, 3, 4  # columns of what is known of all of the demand
MEASURED = SPEED, LANE, PLACE, EMISSION = 0, 1, 2, 3  # columns of what SUMO says of everybody
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
    "present",  # 1 where there is somebody
)
# Of all vehicles on the road, in the last step: the same in every row.
TOTALS = (
    "vehicles",
    "speed",  # m/s, their sum
    "emission",  # g/s of CO2
    "stops",  # that began
    "arrived",
    "faults",  # who ran into another on a lane, or stood for so long (300 s) that SUMO moved him
)
_FOLLOWERS, _WORTH, _PRESENT = map(COLUMNS.index, ("followers", "worth", "present"))
_SPEEDS, _EMISSIONS, _STOPS = (len(COLUMNS) + TOTALS.index(name) for name in ("speed", "emission", "stops"))


@kernel
def look(said, numbers, fleet, lanes, states, left, arrived, faults, table):
    """Fill `table` (r, COLUMNS and TOTALS), whose last row is nobody's.

    Of those on the road, in the order of their numbers: what is `said` (n x MEASURED), and their `numbers` (n,) in the
    demand. Of all of the demand `fleet` (m, FLEET): whether it is equipped, its length (m), its movement, whether it
    was standing, which is changed, and which row of the table is its own, or the last. `lanes` (l, 4). `states`
    (movements, 3) of the phase, which ends in `left` s. How many `arrived`, and `faults`.
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
    for at in range(n):
        k = order[at]
        road, who = int(measured[k, LANE]), fleet[numbers[k]]
        equipped = who[EQUIPPED] > 0.0
        speed, place, emission = measured[k, SPEED], measured[k, PLACE], MILLI * measured[k, EMISSION]
        limit = lanes[road, LIMIT]
        if road != lane or equipped:
            told[_FOLLOWERS], told[_WORTH] = followers, worth / (followers + 1.0)
            led, told, followers, worth = False, table[-1], 0.0, 0.0
        if equipped:
            led, told, followers = True, table[int(who[ROW])], -1.0
            told[0], told[1], told[8], told[9], told[10] = numbers[k], speed, limit, lanes[road, GRADE], emission
            told[2], told[3], told[4], told[5] = RANGE, 1.0, FAR, FAR
            distance = lanes[road, LENGTH] - place
            if lanes[road, LEADS] > 0.0 and distance < RANGE:
                green, after, lasts = states[int(who[MOVEMENT])]
                told[2], told[3], told[4], told[5] = distance, green, min(left + after, FAR), min(lasts, FAR)
            told[6], told[7] = RANGE, limit
            if road == lane and end - place < RANGE:
                told[6], told[7] = max(end - place, 0.0), quick
            told[_PRESENT] = 1.0
        if led:
            slow = STOP_PENALTY * (STOP_SPEED - speed) if speed < STOP_SPEED else 0.0
            followers += 1.0
            worth += speed - limit - slow - EMISSION_PENALTY * emission
        lane, end, quick = road, place - who[LONG], speed
    told[_FOLLOWERS], told[_WORTH] = followers, worth / (followers + 1.0)
