"""Localisers of several scenes, and heatmaps that are told where objects are."""

import math

import pytest
import torch

from policies.learning.vla.localiser import Localiser, missed
from policies.models.vision import EncoderConfig
from sim.spec import Signal

CAMERA = Signal("camera", (32, 32, 3), "1", "", 0.0, 255.0, dtype="uint8")
EYES = EncoderConfig(channels=[6, 4], strides=[2, 1], shift=0)


def scenes(n, generator):
    """Pictures with a dot of a pixel at positions (n, 1, 3), in scenes (n,) of two brightnesses and two scales."""
    scene = torch.randint(2, (n,), generator=generator)
    pixels = 2 + torch.randint(28, (n, 2), generator=generator)
    pictures = (60 + 60 * scene)[:, None, None, None].expand(n, 32, 32, 3).clone().byte()
    pictures[torch.arange(n), pixels[:, 1], pixels[:, 0], 0] = 255
    where = (pixels + 0.5) / 16.0 - 1.0
    scale = torch.where(scene == 0, 1.0, 0.1)[:, None]
    truth = torch.cat([where * scale, scene[:, None].float()], 1)[:, None]
    return {"camera": pictures}, truth, scene, {"camera": where[:, None]}


def trained(told, updates=150):
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    made = Localiser((CAMERA,), 1, EYES, 16, generator, scenes=2)
    pictures, truth, scene, pixels = scenes(512, generator)
    made.normalise(truth, scene)
    optimizer = torch.optim.Adam(made.parameters(), 1e-2)
    for _ in range(updates):
        some = torch.randint(512, (32,), generator=generator)
        errors, rest = made.errors(
            {"camera": pictures["camera"][some]},
            truth[some],
            scene[some],
            {"camera": pixels["camera"][some]} if told else {},
        )
        optimizer.zero_grad()
        (errors.mean() + rest).backward()
        optimizer.step()
    return made


def test_a_dot_is_found_if_heatmaps_are_told_where_it_is():
    pictures, truth, scene, _ = scenes(200, torch.Generator().manual_seed(1))
    off = []
    for told in (True, False):
        made = trained(told)
        found = made(pictures).detach()
        off.append(float(((found - truth) / made.deviation[scene])[..., :2].norm(dim=-1).median()))
        assert ((found[:, 0, 2] - truth[:, 0, 2]).abs() < 0.3).float().mean() > 0.95  # in which scene
    assert off[0] < 0.25 < 0.6 < off[1]


def test_each_scene_has_its_unit():
    made = trained(True, 0)
    assert made.deviation[0, 0, 0] > 0.4 > 0.1 > made.deviation[1, 0, 0] > 0.04
    assert made.mean[:, 0, 2].tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("where", "rows", "columns", "most"),
    [((0.0, 0.0), (3, 4), (3, 4), 1.39), ((-0.9375, -0.9375), (0,), (0,), 0.01), ((3.0, -3.0), (0,), (7,), 0.1)],
    ids=["between", "first", "beyond"],
)
def test_no_nats_are_missed_where_a_heatmap_says_it(where, rows, columns, most):
    """Of 8 by 8 places in pictures of 16 by 16, where they are the even pixels."""
    at, size = torch.tensor([[where]]), torch.Size([16, 16])
    heat = torch.full((1, 1, 8, 8), -50.0)
    for row in rows:
        heat[0, 0, row, list(columns)] = 0.0
    assert missed(heat, at, size) < most
    assert float(missed(torch.zeros(1, 1, 8, 8), at, size)) == pytest.approx(math.log(64.0), rel=1e-3)
