"""What is known of vehicles in a step of SUMO, in which order. SI units, but for emissions as SUMO says them: mg/s."""

from __future__ import annotations

STOPPED = 0.1  # m/s: who is slower stands
FAR = 200.0  # s: what changes later than that
RANGE = 300.0  # m: what lies further ahead nobody is told
MOST = 100  # vehicles that are counted ahead
MILLI = 1e-3
STOP_SPEED = 1.0  # m/s: below it the penalty for standing grows
STOP_PENALTY, EMISSION_PENALTY = 35.0, 3.0  # IntersectionZoo's: per m/s below that, and per g/s
# A queue as predicted: from one who passes the line to the next (HEADWAY, and LORRY more behind a long one), from green
# to the first (STARTS), and from yellow to the last (YELLOW); s. Best of some tries on 10 intersections (seed 1000).
HEADWAY, LORRY, STARTS, YELLOW = 1.7, 1.0, 2.0, 2.0
LONGER = 6.0  # m: who is longer is a lorry
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
    "ahead",  # how many drive ahead on its lane, up to the stop line
    "clear",  # s until it is its turn to pass that after them, as predicted; 0: nobody is ahead
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
