"""The README is kept true: its table is generated, its worked example is trained, its commands are parsed.

`python tests/test_readme.py` writes the table anew.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
MANIPULATION = README.parent / "docs" / "manipulation.md"
BEGIN, END = "<!-- table: python tests/test_readme.py -->", "<!-- end of table -->"


def table() -> str:
    """Tasks x engines, with the algorithms that can learn there."""
    from policies.algorithms import ALGORITHMS
    from policies.algorithms.apg.fused import DYNAMICS
    from sim.engines import ENGINES
    from sim.tasks import TASKS, task_class

    lines = ["| task | what it is | " + " | ".join(ENGINES) + " |", "|---" * (2 + len(ENGINES)) + "|"]
    for name in TASKS:
        module = sys.modules[task_class(name).__module__]
        what = module.__doc__.split("\n")[0].rstrip(".")
        cells = [", ".join(a for a in ALGORITHMS if a != "apg" or e in DYNAMICS) for e in ENGINES]
        lines.append(f"| `{name}` | {what} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def example() -> str:
    """The worked example's code."""
    return next(b for b in re.findall(r"```python\n(.*?)```", README.read_text(), re.S) if "class Elevator" in b)


def test_table_is_what_the_tables_of_contents_say() -> None:
    written = README.read_text().split(BEGIN)[1].split(END)[0].strip()
    assert written == table(), "run: python tests/test_readme.py"


def test_everything_in_the_tables_is_named() -> None:
    from policies.algorithms import MANIPULATION
    from sim.robots import ROBOTS
    from sim.tasks import FAMILIES
    from sim.tasks import MANIPULATION as TASKS

    text = README.read_text()
    assert [name for name in (*ROBOTS, *TASKS, *MANIPULATION) if f"`{name}`" not in text] == []
    assert [name for name in FAMILIES if f"task={name}/" not in text] == []


def test_every_module_that_a_command_names_exists() -> None:
    modules = set(re.findall(r"python -m ([\w.]+)", README.read_text() + MANIPULATION.read_text()))
    assert {"policies.train", "policies.evaluate", "deploy.inspect", "deploy.run"} <= modules
    root = README.parent
    places = {m: root / m.replace(".", "/") for m in modules}
    assert [m for m, p in places.items() if not (p.with_suffix(".py").is_file() or (p / "__main__.py").is_file())] == []


@pytest.mark.slow
def test_worked_example_trains_and_flies(tmp_path: Path) -> None:
    (tmp_path / "elevator.py").write_text(example())
    train = ["policies.train", "task=elevator:Elevator", "algorithm.updates=800", "out=run", "report=false"]
    fly = ["policies.evaluate", "policy=run/policy.onnx", "task=elevator:Elevator", "episodes=200", "json=report.json"]
    for arguments in (train, fly):
        done = subprocess.run(
            [sys.executable, "-m", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "report.json").read_text())["success"] > 0.9


if __name__ == "__main__":
    before, rest = README.read_text().split(BEGIN)
    README.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}")
