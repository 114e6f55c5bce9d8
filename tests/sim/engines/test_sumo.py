"""SUMO: networks from contexts, strangers' files, and what a simulation says."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sim.engines.sumo import COLUMNS, FAR, RANGE, TOTALS, Simulation
from sim.engines.sumo.context import Arm, Context, ContextError
from sim.engines.sumo.demand import called, drawn, flows_of, write
from sim.engines.sumo.network import NetworkError, made, read
from sim.engines.sumo.told import HEADWAY, LORRY, STARTS
from sim.tasks.traffic.families import FAMILIES, draw

ARM = Arm(2, 200.0, 13.9, 0.02, 500.0, (0.1, 0.8, 0.1))
CROSSING = Context((ARM,) * 4, (20.0, 30.0))
FLEET = {"penetration": 0.5, "diesel": 0.3, "electric": 0.1, "trucks": 0.1}


def test_a_context_becomes_a_network(tmp_path: Path):
    network = made(CROSSING, tmp_path)
    assert network.approaches == ("A2TL", "B2TL", "C2TL", "D2TL") and len(network.movements) == 12
    np.testing.assert_array_equal(network.durations, [20.0, 3.0, 2.0, 30.0, 3.0, 2.0])
    length, limit, grade, leads = network.lanes["A2TL_0"]
    assert 170.0 < length < 200.0 and limit == 13.9 and leads and grade == pytest.approx(0.02, abs=0.002)
    assert network.lanes["TL2A_0"][2] == pytest.approx(-0.02, abs=0.002) and not network.lanes["TL2A_0"][3]
    (left,) = (m for m in network.movements if (m.origin, m.target) == ("A2TL", "TL2B"))
    assert left.turn == "l" and [state[left.link] for state in network.states] == [*"gyrrrr"]  # it gives way
    before = (tmp_path / Path(network.path).name).stat().st_mtime_ns
    assert made(CROSSING, tmp_path).path == network.path and Path(network.path).stat().st_mtime_ns == before


def test_left_may_have_a_phase_of_its_own(tmp_path: Path):
    network = made(replace(CROSSING, greens=(20.0, 8.0, 30.0, 8.0)), tmp_path)
    lefts = [m.link for m in network.movements if m.turn == "l"]
    for k in range(0, 12, 3):
        assert any(network.states[k][link] == "G" for link in lefts) == (k in (3, 9))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_makes_networks(family: str, tmp_path: Path):
    for seed in range(3):
        context = draw(family, np.random.default_rng(seed), 0.3)
        assert Context.from_json(context.json()) == context
        network = made(context, tmp_path)
        assert sum(flow.rate for flow in flows_of(network, context)) == pytest.approx(
            sum(arm.inflow for arm in context.arms)
        )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lanes": 0}, "arm A: lanes must be between 1 and 6, got 0"),
        ({"lanes": 1.5}, "arm A: lanes must be whole"),
        ({"limit": 0.0}, "arm A: limit must be between 1 and 40, got 0"),
        ({"length": -5.0}, "arm A: length must be"),
        ({"grade": 0.5}, "arm A: grade must be"),
        ({"inflow": -1.0}, "arm A: inflow must be between 0 and 3600, got -1"),
        ({"inflow": float("nan")}, "arm A: inflow must be"),
        ({"turns": (0.1, 0.2, 0.1)}, r"arm A: turns must add up to 1, got 0\.4"),
        ({"turns": (-0.1, 1.0, 0.1)}, "arm A: turns, left must be"),
    ],
)
def test_an_impossible_road_is_refused_by_name(change, said):
    with pytest.raises(ContextError, match=said):
        Context((replace(ARM, **change), ARM, ARM, ARM))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"arms": (ARM,) * 2}, "arms: an intersection has three or four"),
        ({"arms": (ARM,) * 3}, "arm A: turns, right leads to no arm"),
        ({"greens": (30.0,)}, "greens: there are two or four phases"),
        ({"greens": (30.0, 0.0)}, "greens, phase 2 must be"),
        ({"arms": (replace(ARM, lanes=1),) * 4, "greens": (20.0,) * 4}, "arm A: lanes must be at least 2 where left"),
        ({"penetration": 1.5}, "penetration must be between 0 and 1"),
        ({"diesel": 0.8, "electric": 0.5}, "diesel and electric are shares of cars"),
        ({"temperature": 400.0}, "temperature must be"),
    ],
)
def test_an_impossible_intersection_is_refused_by_name(change, said):
    with pytest.raises(ContextError, match=said):
        replace(CROSSING, **change)


def test_a_malformed_context_says_what_it_lacks():
    with pytest.raises(ContextError, match="a context lacks 'arms'"):
        Context.from_json({})
    with pytest.raises(ContextError, match="a context is malformed: .*'wings'"):
        Context.from_json({**CROSSING.json(), "wings": 2})


BROKEN = {
    "is no XML": "<net><edge",
    "is no network of SUMO: it begins with <routes>": "<routes/>",
    "has no traffic light": "<net><edge id='a'/></net>",
    "the phases of the traffic light 't' must last": "<net><edge id='a'><lane id='a_0' length='9' speed='1'"
    " shape='0,0 1,1'/></edge><tlLogic id='t'/><connection from='a' to='a' tl='t' linkIndex='0'/></net>",
    "is malformed: KeyError": "<net><tlLogic/></net>",
    "which it does not have": "<net><tlLogic id='t'><phase duration='5' state='G'/></tlLogic>"
    "<connection from='a' to='b' tl='t' linkIndex='0'/></net>",
    "is no XML: undefined entity": "<!DOCTYPE n [<!ENTITY e SYSTEM 'file:///etc/passwd'>]><net>&e;</net>",
}


@pytest.mark.parametrize("said", BROKEN)
def test_a_broken_file_is_refused_by_its_name(said: str, tmp_path: Path):
    file = tmp_path / "theirs.net.xml"
    file.write_text(BROKEN[said])
    with pytest.raises(NetworkError, match=f"theirs.net.xml.*{said}"):
        read(file, tmp_path)
    with pytest.raises(NetworkError, match="absent.net.xml cannot be read"):
        read(tmp_path / "absent.net.xml", tmp_path)


def test_a_strangers_network_brings_nothing_but_roads(tmp_path: Path):
    theirs, there = tmp_path / "theirs.net.xml", tmp_path / "written.xml"
    text = Path(made(CROSSING, tmp_path).path).read_text()
    for_sumo = f'<param key="file" value="{there}"/>'
    text = text.replace('type="static"', 'type="actuated"').replace("<phase", f"{for_sumo}<phase", 1)
    theirs.write_text(text.replace("</net>", f'<include href="{there}"/></net>'))
    (tmp_path / "own").mkdir()
    network = read(theirs, tmp_path / "own")
    written = Path(network.path).read_text()
    assert 'type="static"' in written and not any(word in written for word in ("include", "param", "actuated"))
    assert network.approaches == ("A2TL", "B2TL", "C2TL", "D2TL")
    with pytest.raises(NetworkError, match="theirs.net.xml has no traffic light 'X'; it has TL"):
        read(theirs, tmp_path / "own", "X")


@pytest.fixture
def simulation():
    one = Simulation(100)
    yield one
    one.close()


def agents(simulation: Simulation) -> list[dict[str, float]]:
    """What is known of the equipped vehicles on the road."""
    rows = [simulation.table[row].tolist() for row in simulation.taken.values()]
    return [dict(zip((*COLUMNS, *(f"all_{name}" for name in TOTALS)), row, strict=True)) for row in rows]


def totals(simulation: Simulation) -> dict[str, float]:
    """Of all vehicles; the same in every row."""
    return dict(zip(TOTALS, simulation.table[0, len(COLUMNS) :].tolist(), strict=True))


def test_what_it_says_is_what_sumo_says(simulation: Simulation, tmp_path: Path):
    network = made(CROSSING, tmp_path)
    demand, routes = drawn(flows_of(network, CROSSING), network, FLEET, "hbefa4", 60.0, [3])
    write(routes, tmp_path / "a.rou.xml")
    simulation.begin(network, demand, tmp_path / "a.rou.xml", 5)
    sumo, green = simulation._sumo, []
    for _ in range(120):
        simulation.step()
        who = sumo.vehicle.getIDList()
        found = totals(simulation)
        assert found["vehicles"] == len(who) and (simulation.table[:, len(COLUMNS)] == len(who)).all()
        assert found["speed"] == pytest.approx(sum(map(sumo.vehicle.getSpeed, who)))
        assert 1000.0 * found["emission"] == pytest.approx(sum(map(sumo.vehicle.getCO2Emission, who)))
        assert {*map(called, simulation.taken)} == {name for name in who if demand.equipped[int(name)]}
        for seen in agents(simulation):
            name = called(int(seen["number"]))
            assert demand.equipped[int(name)] and seen["speed"] == pytest.approx(sumo.vehicle.getSpeed(name))
            if not (ahead := sumo.vehicle.getNextTLS(name)) or sumo.vehicle.getRoadID(name)[0] == ":":
                assert (seen["distance"], seen["green"], seen["change"]) == (RANGE, 1.0, FAR)
                continue
            _, _, distance, state = ahead[0]
            assert seen["distance"] == pytest.approx(distance, abs=0.01)
            left = sumo.trafficlight.getNextSwitch("TL") - sumo.simulation.getTime()
            if left <= 0.0:  # it switches before anybody moves
                continue
            assert seen["green"] == (state in "Gg")
            if seen["green"] != (sumo.trafficlight.getPhase("TL") in (0, 3)):
                continue
            green.append(seen["green"])
            assert seen["change"] == pytest.approx(left) or not seen["green"]
            leader = sumo.vehicle.getLeader(name, 100.0)
            if leader and leader[0] and sumo.vehicle.getLaneID(leader[0]) == sumo.vehicle.getLaneID(name):
                assert seen["gap"] == pytest.approx(leader[1] + 2.0, abs=0.01)  # SUMO's is without its smallest gap
                assert seen["leader_speed"] == pytest.approx(sumo.vehicle.getSpeed(leader[0]))
    assert sum(green) > 30


def test_others_behind_count_up_to_the_next_one(simulation: Simulation, tmp_path: Path):
    network = made(CROSSING, tmp_path)
    demand, routes = drawn([], network, FLEET, "hbefa4", 10.0, [0])
    demand.equipped, demand.movement = np.array([True, False, True]), np.zeros(3, int)
    demand.length = np.full(3, 5.0)
    write(routes, tmp_path / "a.rou.xml")
    simulation.begin(network, demand, tmp_path / "a.rou.xml", 5)
    speed, lane, place, co2 = simulation._wanted
    drives = {
        called(k): {speed: v, lane: "A2TL_0", place: x, co2: g}
        for k, v, x, g in ((0, 10.0, 90.0, 2000.0), (1, 0.5, 70.0, 1000.0), (2, 5.0, 40.0, 0.0))
    }
    simulation._look(drives, [*drives], 0, 0)
    first, last = agents(simulation)
    assert (first["followers"], last["followers"]) == (1.0, 0.0)
    alone = 10.0 - 13.9 - 3.0 * 2.0, 0.5 - 13.9 - 35.0 * 0.5 - 3.0 * 1.0
    assert first["worth"] == pytest.approx(sum(alone) / 2.0) and last["worth"] == pytest.approx(5.0 - 13.9)
    assert (last["gap"], last["leader_speed"]) == (25.0, 0.5) and first["gap"] == RANGE
    assert totals(simulation)["stops"] == 0 and totals(simulation)["speed"] == 15.5


def test_a_queue_passes_one_after_the_other(simulation: Simulation, tmp_path: Path):
    """At a red light: from green to the first, from him to the next, and more behind a lorry."""
    network = made(CROSSING, tmp_path)
    demand, routes = drawn([], network, FLEET, "hbefa4", 10.0, [0])
    demand.equipped, demand.movement = np.ones(3, bool), np.zeros(3, int)
    demand.length = np.array([4.5, 12.0, 4.5])
    write(routes, tmp_path / "a.rou.xml")
    simulation.begin(network, demand, tmp_path / "a.rou.xml", 5)
    way = next(k for k, m in enumerate(network.movements) if m.origin == "B2TL" and m.turn == "s")
    simulation._fleet[:, 2] = way  # its light is red at first
    values = {name: 0.0 for name in simulation._wanted}
    lane, place = simulation._wanted[1], simulation._wanted[2]
    end = network.lanes["B2TL_0"][0]
    seen = {called(k): {**values, lane: "B2TL_0", place: end - 1.0 - 15.0 * k} for k in range(3)}
    simulation._look(seen, [*seen], 0, 0)
    rows = agents(simulation)
    assert [row["ahead"] for row in rows] == [0.0, 1.0, 2.0] and rows[0]["green"] == 0.0
    opens = rows[0]["change"] + STARTS
    assert [row["clear"] for row in rows] == pytest.approx([0.0, opens + HEADWAY, opens + 2.0 * HEADWAY + LORRY])


def test_the_reward_weighs_standing_and_emissions_as_it_is_told(tmp_path: Path):
    network = made(CROSSING, tmp_path)
    demand, routes = drawn([], network, FLEET, "hbefa4", 10.0, [0])
    demand.equipped, demand.movement, demand.length = np.ones(1, bool), np.zeros(1, int), np.full(1, 5.0)
    write(routes, tmp_path / "a.rou.xml")
    simulation = Simulation(1, (0.0, 10.0))
    try:
        simulation.begin(network, demand, tmp_path / "a.rou.xml", 5)
        speed, lane, place, co2 = simulation._wanted
        simulation._look({called(0): {speed: 0.0, lane: "A2TL_0", place: 9.0, co2: 500.0}}, [called(0)], 0, 0)
        assert agents(simulation)[0]["worth"] == pytest.approx(-13.9 - 10.0 * 0.5)
    finally:
        simulation.close()
