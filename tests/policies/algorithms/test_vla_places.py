"""Clones that choose a thing and are told where objects are, as localised in pictures; on a toy."""

import copy

import numpy as np
import pytest
import torch

from policies.algorithms import LearningError
from policies.algorithms.vla import Vla, VlaConfig
from policies.algorithms.vla.glimpses import LOOKS, glimpses
from policies.algorithms.vla_rl import VlaRl
from policies.learning.vla.flow import FlowConfig
from policies.learning.vla.grounding import Referents
from policies.learning.vla.looking import TinyConfig
from policies.learning.vla.tiny import TinyVla
from policies.models.export import export
from policies.models.tokens.bins import BinTokens
from policies.models.vision import EncoderConfig
from tests.policies.algorithms.test_vla_localiser import CLOSE, OPEN, looked
from tests.policies.algorithms.test_vla_rl import cloned, few
from tests.policies.toy_words import PIXELS, ToyObjects, ToyWords

NETWORK = {
    **{"width": 16, "layers": 1, "heads": 2, "keypoints": 4, "parallel": True, "choice": True, "places": True},
    "sight": EncoderConfig(channels=[4, 4], strides=[2, 2]),
    "localiser": EncoderConfig(channels=[4, 4], strides=[1, 1], shift=0),
}


class Places(ToyObjects):
    """The same, whose words mean no positions, and which knows from where its pictures are taken."""

    target_positions = ()

    def in_pictures(self, positions):
        return {"camera": positions[..., :2].astype(np.float64)}


def placing(looks=False, places=True, **settings):
    network = TinyConfig(**NETWORK | {"places": places}, looks=looks)
    quick = {"grounding": 100, "localisation": 150, "episodes": 8, "learning_rate": 0.02, "network": network}
    return cloned(**quick | {"glimpses": 20} | settings)


@pytest.fixture(scope="module")
def task():
    return Places()


@pytest.fixture(scope="module", params=["tokens", "flow"])
def learned(request, task):
    """A clone, and its rows."""
    flow = FlowConfig(readouts=2, hidden=[32, 32], steps=4, noise="none")
    made = Vla(task, placing(head=request.param, updates=150, flow=flow), 0)
    return made, [*made.learn()]


def test_it_goes_where_what_it_chose_is_localised(task, learned, tmp_path):
    made, rows = learned
    assert rows[-1]["localisation_error"] < 0.3 and made.policy.looked == ()
    seen = looked(task)
    places = {"camera": torch.from_numpy(seen["camera"])}
    found = made.average.choices.positions(torch.zeros(200, 2), places)
    off = (found - torch.from_numpy(seen["square_position"])).norm(dim=-1)
    assert off.median() < 0.2
    policy = made.controller()
    for thing, sentence in enumerate((OPEN, CLOSE)):
        signals = {s.name: seen[s.name] for s in task.policy} | {"instruction": task.words.encode([sentence] * 200)[0]}
        acted, _ = policy.act(signals, policy.initial_state(200))
        towards = seen["square_position"][:, thing, :2] - seen["position"]
        right = (acted["velocity"] * towards).sum(1) / np.linalg.norm(acted["velocity"], axis=1)
        assert np.mean(right > 0.9 * np.linalg.norm(towards, axis=1)) > 0.8


# The flow's file is exported by `make test-all`: the exporter takes ten seconds for each.
@pytest.mark.parametrize("learned", ["tokens", pytest.param("flow", marks=pytest.mark.long)], indirect=True)
def test_its_file_does_the_same(task, learned, tmp_path):
    made, _ = learned
    policy = made.controller()
    file, state = export(policy, tmp_path / "policy.onnx"), policy.initial_state(2)
    file.reset(2)
    seen = {name: value[:2] for name, value in looked(task).items()}
    told = {s.name: seen[s.name] for s in task.policy} | {"instruction": task.words.encode([OPEN, CLOSE])[0]}
    for shown in (told, told | {"camera": told["camera"][:, ::-1].copy()}):
        wanted, state = policy.act(shown, state)
        assert np.allclose(file.step(shown)["velocity"], wanted["velocity"], atol=1e-5)


def test_glimpses_are_of_other_scenes_and_the_same_for_the_same_seed(task):
    seen, again, other = (glimpses(task, 20, seed, 2) for seed in (0, 0, 1))
    assert len(seen.truth) == len(seen.scene) == len(seen.pictures["camera"]) == 20 * LOOKS
    assert torch.equal(seen.truth, again.truth) and not torch.equal(seen.truth, other.truth)
    assert torch.equal(seen.pictures["camera"], again.pictures["camera"])
    assert {*seen.scene.tolist()} == {0, 1} and seen.pixels["camera"].shape == (20 * LOOKS, 2, 2)
    first = seen.truth[0, 0, :2]
    column, line = ((first + 1.0) / 2.0 * PIXELS).int().tolist()
    assert seen.pictures["camera"][0, line, column, 0] == 255
    assert glimpses(task, 4, 0, 1).scene.tolist() == [0] * 4 * LOOKS


def test_the_localiser_learns_from_demonstrations_and_glimpses(task):
    many, none = (Vla(task, placing(glimpses=count), 0)._shown()[0] for count in (20, 0))
    assert len(many.sights.truth) == len(none.sights.truth) + 20 * LOOKS and len(none.sights.truth) == len(none.wanted)
    assert torch.equal(none.sights.scene, none.asked) and torch.equal(none.truth, none.asked)


def test_it_practises_and_its_localiser_learns_on(task):
    learner = VlaRl(task, few(clone=placing(updates=20), iterations=2, localisation=5), 0)
    rows = [row for row in learner.learn() if "success" in row]
    assert all(row["localisation_error"] > 0.0 for row in rows) and rows[-1]["disagreement"] < 1e-4


def test_demonstrations_that_do_not_tell_it_are_named(task, monkeypatch):
    made = Vla(task, placing(), 0)
    episodes, shown = made._demonstrations()
    del episodes[2].signals["square_position"]
    monkeypatch.setattr(made, "_demonstrations", lambda: (episodes, shown))
    with pytest.raises(LearningError, match="demonstration 2 does not tell square_position.*network.places=false"):
        made._shown()


def test_without_it_there_is_no_localiser(task):
    made = Vla(task, placing(places=False), 0)
    assert made.choices.localiser is None and made.policy.looked and len(made.stages) == 1
    assert Vla(task, placing(looks=True), 0).policy.looked


def test_what_is_measured_is_not_localised(task):
    cameras = tuple(s for s in task.policy if s.is_picture)
    for first, localised in ((0, False), (None, True)):
        referents, config = Referents(2, 0, first, 2), TinyConfig(**NETWORK)
        made = TinyVla(BinTokens(2, 2, 16), 6, cameras, 8, config, seed=0, referents=referents)
        assert (made.choices.localiser is not None) == localised and made.choices.size == 6 * localised


def test_bad_settings_are_named():
    with pytest.raises(ValueError, match="glimpses must not be negative, got -1"):
        VlaConfig(glimpses=-1)
    with pytest.raises(ValueError, match="network.places=true is of a task that tells where objects are"):
        Vla(ToyWords(), placing(), 0)
    narrow = TinyConfig(**NETWORK | {"localiser": EncoderConfig(channels=[1], strides=[1], shift=0)})
    with pytest.raises(ValueError, match="localiser.channels end with 1, fewer than the 2 objects"):
        Vla(Places(), placing(network=narrow), 0)


def test_it_goes_on_exactly_between_its_localiser_and_the_clone(task):
    settings = placing(grounding=20, localisation=40, updates=5)
    whole, kept = Vla(task, settings, 0), {}
    for _ in whole.learn():
        if all(stage.over for stage in whole.stages) and not kept:
            kept = copy.deepcopy(whole.state_dict())
    assert kept["done"] == 0
    resumed = Vla(task, settings, 0)
    resumed.load_state_dict(kept)
    assert [*resumed.learn()]
    for one, other in zip(whole.average.state_dict().values(), resumed.average.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_places_that_are_no_numbers_are_named(task, monkeypatch):
    made = Vla(task, placing(), 0)
    episodes, shown = made._demonstrations()
    episodes[1].signals["square_position"][3, 0] = np.nan
    monkeypatch.setattr(made, "_demonstrations", lambda: (episodes, shown))
    with pytest.raises(LearningError, match="demonstration 1: square_position are not all finite numbers"):
        made._shown()


def test_objects_that_are_measured_in_part_or_apart_are_refused(task):
    class Apart(Places):
        object_positions = ("square_position", "position")

    with pytest.raises(ValueError, match="square_position, position are measured next to each other, or all in pict"):
        Referents.of(Apart(), 2)
    assert Referents.of(task, 2).first is None
