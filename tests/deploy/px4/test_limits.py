"""target=px4: whose limits hold, and what is refused."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from deploy import cli, export
from deploy.policy_file import PolicyFile
from deploy.px4 import module
from deploy.trust.content import content_of
from sim.spec import Signal
from tests.deploy.px4.bench import OTHER, Bench, built, changed, exported
from tests.deploy.sample_policy import resealed

LAX = {"max_tilt": 170.0, "max_speed": 1e9, "max_body_rate": 300.0}
STRICT = {"max_tilt": 30.0, "max_speed": 2.0, "max_body_rate": 8.0}


def ruled(folder: Path, **rules: object) -> PolicyFile:
    """quad_any as ruled.onnx, with these rules."""
    shipped = folder / "shipped.onnx"
    shipped.write_bytes(content_of("quad_any"))
    return PolicyFile.load(resealed(PolicyFile.load(shipped), folder / "ruled.onnx", envelope=rules))


def limit(text: str, name: str) -> float:
    return float(re.search(rf"#define LIMIT_{name} (-?[\d.e]+)[fu]", text)[1])


def test_a_file_narrows_the_limits_and_never_widens_them(tmp_path):
    usual = module.limits(PolicyFile.load("quad_any"))
    wanted = {"FENCE": 10.0, "TILT": 60.0, "UPRIGHT": 0.5, "SPEED": 5.0, "RATE": 15.0, "RATES_US": 20000.0}
    for text in (usual, module.limits(ruled(tmp_path, **LAX))):
        assert {name: limit(text, name) for name in wanted} == pytest.approx(wanted)
        assert "WORLD" not in text
    strict = module.limits(ruled(tmp_path, **STRICT))
    assert [limit(strict, name) for name in ("TILT", "SPEED", "RATE")] == [30.0, 2.0, 8.0]
    assert limit(strict, "UPRIGHT") == pytest.approx(math.cos(math.radians(30.0)))
    policy = PolicyFile.load("quad_any")
    policy.inputs = tuple(replace(s, max_age=0.01) if s.name == "position" else s for s in policy.inputs)
    young = module.limits(policy)
    assert limit(young, "POSITION_US") == 10000.0 and limit(young, "ATTITUDE_US") == 50000.0
    pauses = [module.limits(ruled(tmp_path, longest_pause=seconds)) for seconds in (9.0, 0.02, None)]
    assert [limit(text, "PAUSE_US") for text in pauses] == [50000.0, 20000.0, 50000.0]


def test_the_files_geofence_is_carried_out(tmp_path):
    """In our axes: the nose points east, so x is east, y north, z up."""
    policy = ruled(tmp_path, fence_low=[-1.0, -1.0, 1.0], fence_high=[3.0, 1e9, 4.0])
    library = built(exported(tmp_path / "fenced", policy.path), tmp_path)
    east = {6: math.sqrt(0.5), 9: math.sqrt(0.5)}
    for k, (place, fine) in enumerate(
        {(4.0, 2.5, -2.0): True, (4.0, 3.5, -2.0): False, (-1.5, 1.0, -2.0): False, (1.0, 1.0, -0.5): False}.items()
    ):
        (tmp_path / str(k)).mkdir()
        bench = Bench(library, tmp_path / str(k))
        bench.enter(changed(east | {0: 1.0, 1: 1.0, 2: -2.0}))
        bench.tick(changed(east | dict(enumerate(place))))
        assert ("handed back: geofence" not in bench.said) == fine == (bench.counts[1] == 0)
        assert bench.c.bench_check() == fine
        bench.mode(OTHER)
        bench.tick(changed(east | dict(enumerate(place))))
        assert bench.c.bench_check() == fine


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"min_voltage": 3.2}, "rule min_voltage, which target=px4 does not carry out: PX4 watches the battery itself"),
        ({"max_change": 0.2}, "rule max_change, which target=px4 does not carry out"),
    ],
)
def test_rules_that_it_cannot_carry_out_are_refused(tmp_path, capsys, rules, said):
    words = [f"policy={ruled(tmp_path, **rules).path}", "target=px4", f"out={tmp_path / 'no'}"]
    assert cli.call(export.main, words) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("rule", "rules"),
    [
        ("max_tilt", {"max_tilt": math.inf}),
        ("max_speed", {"max_speed": math.inf}),
        ("fence_low", {"fence_low": (-math.inf, 0.0, 0.0), "fence_high": (1.0, 1.0, 1.0)}),
        ("fence_high", {"fence_low": (0.0, 0.0, 0.0), "fence_high": (1.0, 1.0, math.inf)}),
    ],
)
def test_infinite_limits_are_refused(rule, rules):
    policy = PolicyFile.load("quad_any")
    policy.envelope = replace(policy.envelope, **rules)
    with pytest.raises(ValueError, match=f"{rule} is infinite; name a number, or leave the rule out"):
        module.PX4.check(policy)


def test_what_it_cannot_fly_is_named():
    policy = PolicyFile.load("quad_any")
    policy.inputs = (*policy.inputs, Signal("neighbours", (6,), "m", "world"))
    with pytest.raises(ValueError, match="target=px4 has no signal 'neighbours'"):
        module.PX4.check(policy)
    policy = PolicyFile.load("quad_any")
    policy.outputs = (Signal("steering", (1,), "rad", low=-1.0, high=1.0),)
    with pytest.raises(ValueError, match="commands 4 rotors .* not steering"):
        module.PX4.check(policy)
    policy = PolicyFile.load("quad_any")
    policy.rate_hz = 1000.0
    with pytest.raises(ValueError, match="1000 Hz; PX4's gyroscope gives 400"):
        module.PX4.check(policy)
