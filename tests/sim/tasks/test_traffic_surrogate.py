"""Learned emissions as a part of traffic_eco's reward: of vehicles of their class alone; others are refused."""

import numpy as np
import pytest

from sim.engines.sumo.demand import HBEFA
from sim.engines.sumo.surrogate import Surrogate, SurrogateError
from sim.engines.sumo.told import EMISSION_PENALTY
from sim.env import expert_of
from sim.registry import StrangerError, names_from
from sim.tasks import make
from sim.tasks.abilities import baseline_of
from sim.tasks.traffic.world import NORM
from tests.sim.tasks.test_traffic import SMALL, driven


def written(path, emission_class, amount=0.25, **changes):
    """A file that says 8 g/s times `amount`, whatever a vehicle does."""
    weight, bias = np.zeros((2, 4), np.float32), np.array([amount, 1.0], np.float32)
    edge = np.full(4, 50.0, np.float32)
    settings = {"quantities": ("CO2",), "most": np.array([8.0], np.float32), "layers": [(weight, bias)]}
    made = Surrogate(emission_class, low=-edge, high=edge, **{**settings, **changes})
    path.write_bytes(made.content())
    return str(path)


def test_vehicles_of_that_class_emit_what_it_says_and_are_paid_so(tmp_path):
    settings = {**SMALL, "penetration": 1.0, "places": 20}
    files = written(tmp_path / "petrol.npz", HBEFA["petrol"])
    usual, own = make("traffic_eco", **settings), make("traffic_eco", **settings, emissions=files)
    assert own.fleet == "hbefa4" and [*own.surrogates] == ["petrol"]
    told = [driven(task, steps=25, act=baseline_of(task, "idm")) for task in (usual, own)]
    petrol = others = 0
    for a, b in zip(*told, strict=True):
        there = a["present"][:, 0] > 0.0
        for name in ("speed", "distance", "followers", "world_stops"):  # nobody drives otherwise
            np.testing.assert_array_equal(a[name], b[name])
        says = there & np.isclose(b["emission"][:, 0], 2.0)
        np.testing.assert_array_equal(a["emission"][~says], b["emission"][~says])
        petrol, others = petrol + int(says.sum()), others + int((there & ~says).sum())
    assert petrol > 100 and others > 20
    first, second = ([m["reward"] for m in moments[:-1]] for moments in told)
    for k, (a, b) in enumerate(zip(first, second, strict=True)):
        after, mine = told[0][k + 1], told[1][k + 1]
        alone = (after["present"][:, 0] > 0.0) & (after["followers"][:, 0] == 0.0)
        more = (mine["emission"] - after["emission"])[alone, 0]
        np.testing.assert_allclose((b - a)[alone], -EMISSION_PENALTY * more / NORM, atol=1e-5)


def test_fleets_follow_from_the_classes(tmp_path):
    petrol, diesel = (written(tmp_path / f"{k}.npz", f"PHEMlight5/PC_EU4_{k}") for k in ("G", "D_MW"))
    task = make("traffic_eco", emissions=f"{petrol},{diesel}")
    assert task.fleet == "phemlight5" and {*task.surrogates} == {"petrol", "diesel"}
    assert {c.fleet for c in task.conditions().values()} == {"phemlight5"} and expert_of(task) is not None
    mixed = written(tmp_path / "hbefa.npz", HBEFA["petrol"])
    with pytest.raises(SurrogateError, match="which vehicles of no fleet are"):
        make("traffic_eco", emissions=f"{diesel},{mixed}")


def test_what_does_not_fit_is_refused(tmp_path):
    bus = written(tmp_path / "bus.npz", "HBEFA4/UBus_Std_gt15-18t_Euro-VI_A-C")
    with pytest.raises(SurrogateError, match="is of HBEFA4/UBus.*, which vehicles of no fleet are: hbefa4: HBEFA4/PC"):
        make("traffic_eco", emissions=bus)
    with pytest.raises(SurrogateError, match="nowhere.npz: there is no such file; make it with"):
        make("traffic_eco", emissions=str(tmp_path / "nowhere.npz"))
    (tmp_path / "other.npz").write_bytes(b"PK no")
    with pytest.raises(SurrogateError, match="other.npz: no model of emissions, or damaged"):
        make("traffic_eco", emissions=str(tmp_path / "other.npz"))
    for name, changes in {
        "it tells fuel, not CO2": {"quantities": ("fuel",)},
        "do not fit": {"most": np.ones(2, np.float32)},
        "not finite": {"most": np.array([np.nan], np.float32)},
        "is told 4 numbers": {"layers": [(np.zeros((2, 3), np.float32), np.zeros(2, np.float32))]},
    }.items():
        with pytest.raises(SurrogateError, match=name):
            make("traffic_eco", emissions=written(tmp_path / "bad.npz", HBEFA["petrol"], **changes))
    with names_from("a file"), pytest.raises(StrangerError, match="names the emissions"):
        make("traffic_eco", emissions=bus)
