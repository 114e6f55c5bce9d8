"""A model card says what the file says, and nothing in the file becomes YAML, Markdown or HTML."""

import json
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from deploy import cli, inspect
from deploy.hub.card import card, code, quoted, table
from deploy.policy_file import PolicyFile


@pytest.fixture(scope="module")
def quad_any() -> PolicyFile:
    return PolicyFile.load("quad_any")


def head(text: str) -> dict:
    return yaml.safe_load(text.split("---\n")[1])


def test_it_says_what_the_file_says(quad_any):
    text = card(quad_any, "somebody/quad_any", "mit")
    told = head(text)
    assert told["license"] == "mit" and told["library_name"] == "sim2metal" and "quad_any" in told["tags"]
    (results,) = told["model-index"][0]["results"]
    scores = {m["type"]: m["value"] for m in results["metrics"]}
    assert scores["success"] == 0.995 and scores["position_error"] == pytest.approx(0.0126009)
    assert "| in | `position` | 3 | `m` | `world` |  |" in text
    assert "| out | `motor_command` | 4 | `1` |  | 0 to 1 |" in text
    assert "| `position_error` | 0.0126 | `m` | 0.01149 to 0.0139 |" in text
    assert "| `motor_command` | `Delay` | `low` `0.0`, `high` `0.03` |" in text
    assert quad_any.sha256 in text and "no flight, drive or step on hardware" in text


def test_inspect_writes_one(capsys, tmp_path):
    out = tmp_path / "card.md"
    assert cli.call(inspect.main, ["policy=quad_any", f"card={out}"]) == 0
    assert out.read_text() == card(PolicyFile.load("quad_any"))
    assert f"wrote {out}" in capsys.readouterr().out
    assert cli.call(inspect.main, ["policy=quad_any", f"card={tmp_path}"]) == 2


@given(text=st.text(max_size=60))
def test_a_stranger_s_text_stays_text(text):
    assert yaml.safe_load(f"name: {quoted(text)}") == {"name": json.loads(quoted(text))}
    span = code(text)
    assert span == "" or re.fullmatch(r"`[^`\n|]+`", span)


def test_metadata_of_another_shape_does_not_break_it(quad_any):
    kept = quad_any.metadata
    try:
        for training in (None, 3, [], {"argv": 3, "randomisation": {"vary": {}, "signals": []}}, {"versions": [1]}):
            for evaluation in (None, "x", {"success": "high", "score": [1]}, {"score": {"x": 3, "y": {"mean": True}}}):
                quad_any.metadata = {**kept, "training": training, "evaluation": evaluation}
                text = card(quad_any)
                assert "Nothing is recorded in the file." in text and "model-index" not in head(text)
    finally:
        quad_any.metadata = kept


def test_a_table_has_an_end():
    lines = table(["a", "b"], [[str(k), ""] for k in range(1000)])
    assert len(lines) < 70 and lines[-2] == "| and 940 more | |"
