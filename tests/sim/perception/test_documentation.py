"""The example of docs/perception.md does what it says."""

import re
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "perception.md"


def test_example_of_the_documentation_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    made: dict[str, object] = {}
    exec(compile(code, str(PAGE), "exec"), made)
    said = capsys.readouterr().out
    assert "(2, 120, 160) ball" in said and said.endswith("12\n")
    first, second, found = (made[name] for name in ("first", "second", "found"))
    np.testing.assert_allclose(found.pose, np.linalg.inv(first) @ second, atol=2e-3)
