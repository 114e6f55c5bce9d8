"""What vehicles emit, learned from SUMO's own program: the file against SUMO, and what is refused."""

import subprocess
import sys

import numpy as np
import pytest

from deploy.policy_file import PolicyFile
from policies import train_emissions
from policies.learning.emissions import RANGES, anywhere, moments
from policies.learning.emissions.network import Emission
from policies.train_emissions import Config, asked, judged
from sim.engines.sumo import emissions
from sim.engines.sumo.context import Arm, Context
from sim.engines.sumo.emissions import QUANTITIES, EmissionClassError, emitted, trips
from sim.engines.sumo.installed import tool
from sim.engines.sumo.surrogate import FEATURES, Surrogate, features

PETROL = "HBEFA4/PC_petrol_Euro-6ab"
CO2 = QUANTITIES.index("CO2")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A file of fewer moments and updates than usual, and its errors."""
    out = str(tmp_path_factory.mktemp("emissions") / "petrol.onnx")
    few = {"moments": 20_000, "updates": 2000, "unseen": 2000, "seconds": 60.0}
    return train_emissions.train(Config(out=out, numbers=out.replace(".onnx", ".npz"), **few))


def test_moments_are_what_sumos_map_says(tmp_path):
    """Another of SUMO's programs, which writes a grid."""
    program, environment = tool("emissionsMap")
    bounds = {"v": (0.0, 20.0, 10.0), "a": (-1.0, 1.0, 1.0), "s": (-2.0, 2.0, 2.0)}
    words = [
        word
        for k, b in bounds.items()
        for n, x in zip(("min", "max", "step"), b, strict=True)
        for word in (f"--{k}-{n}", f"{x}")
    ]
    out = tmp_path / "map.csv"
    subprocess.run([program, "-e", PETROL, *words, "-o", str(out)], env=environment, check=True, capture_output=True)
    rows = [line.split(";") for line in out.read_text().split() if ";CO2;" in line]
    v, a, slope, _, wanted = np.array([[*row[:3], "0", row[4]] for row in rows], float).T
    assert len(rows) == 27 and (wanted > 0.0).sum() > 10
    found = emitted(PETROL, v, a, np.tan(np.radians(slope)))[:, CO2]
    np.testing.assert_allclose(1000.0 * found, wanted, rtol=1e-4)


def test_trips_are_what_the_program_says_of_their_moments():
    arm = Arm(1, 200.0, 13.9, 0.03, 500.0, (0.1, 0.8, 0.1))
    found = trips(Context((arm,) * 4, (20.0, 30.0)), PETROL, 60.0, 3)
    assert len(np.unique(found.vehicle)) > 10 and np.abs(found.grade).max() == pytest.approx(0.03, abs=0.005)
    again = emitted(PETROL, found.speed, found.acceleration, found.grade)
    np.testing.assert_allclose(found.emitted, again, rtol=1e-5, atol=1e-9)  # six digits
    assert (found.emitted[:, CO2] > 0.0).mean() > 0.3


def test_the_file_says_what_sumo_says(made):
    file, errors = made
    assert [s.name for s in file.inputs] == ["speed", "acceleration", "grade"]
    assert [(s.name, s.unit) for s in file.outputs] == [("CO2", "g/s"), ("fuel", "g/s")]
    where = anywhere(3000, np.random.default_rng(9))
    true = emitted(PETROL, *where.T)[:, CO2]
    said = asked(PolicyFile.load(file.path), where)[:, 0]
    assert np.abs(said - true).mean() < 0.06 * true.mean()
    assert ((said == 0.0) == (true == 0.0)).mean() > 0.95  # who is dragged along burns nothing at all
    for error in errors.values():
        assert error.moments < 0.06 and error.vehicles < 0.15 and abs(error.total) < 0.15, error
    told = file.metadata["evaluation"]
    assert told["errors"]["CO2"]["total"] == errors["CO2"].total and told["vehicles"] > 5


def test_as_numbers_it_says_the_same(made):
    file, _ = made
    numbers = Surrogate.load(file.path.replace(".onnx", ".npz"))
    where = anywhere(500, np.random.default_rng(8))
    assert numbers.emission_class == PETROL and numbers.quantities == ("CO2", "fuel")
    np.testing.assert_allclose(numbers.co2(where), asked(file, where)[:, 0], atol=1e-4)


def test_what_lies_beyond_is_taken_for_the_edge(made):
    low, high = RANGES.T
    edges, beyond = asked(made[0], np.stack([low, high])), asked(made[0], np.stack([low - 1.0, high + 1.0]))
    np.testing.assert_allclose(beyond, edges, atol=1e-6)
    assert edges[1, 0] > 5.0


def test_the_graph_is_the_network():
    rng = np.random.default_rng(0)
    layers = [(rng.normal(size=(8, 4)), np.zeros(8)), (rng.normal(size=(2, 8)), np.zeros(2))]
    low, high = features(RANGES.T).astype(np.float32)
    network = Emission(layers, low, high)
    assert (network.inputs, network.outputs) == (len(FEATURES), 1)
    share, _ = network.forward(features(moments(500, rng)).astype(np.float32), {})
    assert share.min() == -1.0 and share.max() <= 1.0 and 0.05 < (share > -1.0).mean() < 0.95


def test_errors_are_shares_of_the_mean():
    true, said = np.array([0.0, 2.0, 4.0]), np.array([0.0, 2.0, 4.6])
    error = judged(said, true, np.array([1.0, 1.0, 2.0]), np.array([1.0, 1.0, 3.0]), np.array([7, 7, 9]))
    assert error.moments == pytest.approx(0.1) and error.total == pytest.approx(-0.2)
    assert error.vehicles == pytest.approx((0.0 + 1.0) / 2.0 / 2.5)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"quantities": "CO2,smoke"}, "'smoke' is not one of CO, CO2, HC"),
        ({"quantities": "CO2,CO2"}, "each given once"),
        ({"moments": 10}, "needs moments >= 1000"),
        ({"out": "file.txt"}, "ends in .onnx"),
        ({"emission_class": "HBEFA4/nobody"}, "HBEFA4/nobody.*SUMO says: .*nobody"),
        ({"emission_class": "HBEFA4/PC_BEV"}, "HBEFA4/PC_BEV emits no CO2"),
    ],
)
def test_what_cannot_be_is_refused(wrong, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        train_emissions.train(Config(**{"out": str(tmp_path / "e.onnx"), "moments": 1000, "updates": 1, **wrong}))
    assert not any(tmp_path.iterdir())


def test_a_class_without_data_is_refused_in_sumos_words():
    with pytest.raises(EmissionClassError, match="PHEMlight5/PC_EU6_G.*not found"):
        emitted("PHEMlight5/PC_EU6_G", *np.zeros((3, 1)))
    assert emissions.emitted("PHEMlight5/PC_EU4_G", *np.zeros((3, 1)))[0, CO2] > 0.5


def test_the_command_says_what_came_of_it(tmp_path):
    out = tmp_path / "diesel.onnx"
    words = [f"out={out}", "emission_class=HBEFA4/PC_diesel_Euro-6ab", "quantities=CO2", "moments=2000", "updates=20"]
    command = [sys.executable, "-m", "policies.train_emissions", *words, "seconds=20", "unseen=200"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"emissions: {out}" in done.stdout and "vehicles' ways" in done.stdout
    assert PolicyFile.load(str(out)).robot == "HBEFA4/PC_diesel_Euro-6ab"
