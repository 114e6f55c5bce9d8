"""README and docs are kept true: tables are generated, worked examples are trained, commands are parsed, links lead on.

`python tests/test_readme.py` writes the tables anew.
"""

import importlib
import json
import re
import shlex
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCS = ROOT / "docs"
OUTSIDER = ROOT / "tests" / "outsider"
PAGES = [README, *sorted(DOCS.glob("*.md"))]
BEGIN, END = "<!-- table: python tests/test_readme.py -->", "<!-- end of table -->"
LINES = 150


def tasks() -> str:
    """Each with the engines that it can be carried out in; those that are the same but for something share a row."""
    from sim.engines import ENGINES
    from sim.tasks import FAMILIES, TASKS, OwnWorld, make

    lines, rows = ["| task | what it is | engines |", "|---|---|---|"], {}
    for name in TASKS:
        task = make(name)
        module = type(task).__module__
        engines = task.engines if isinstance(task, OwnWorld) else ENGINES
        folder = module.rpartition(".")[0]
        near = [row for row in rows if folder in (row, row.rpartition(".")[0])]
        beside = [row for row in rows if row == module] or near
        if beside and type(task).__doc__.startswith("The same"):
            names, described, _ = rows[beside[0]]
            names.append(name)
            described.append(type(task).__doc__.split("\n")[0].rstrip(".").removeprefix("The same").lstrip(", "))
            continue
        what = (type(task) if module in rows else sys.modules[module]).__doc__.split("\n")[0].rstrip(".")
        rows[name if module in rows else module] = [name], [what], engines
    for names, (what, *others), engines in rows.values():
        also = f" (also {', or '.join(others)})" if others else ""
        lines.append(f"| {', '.join(f'`{name}`' for name in names)} | {what}{also} | {', '.join(engines)} |")
    for name, place in FAMILIES.items():
        said = importlib.import_module(place.partition(":")[0]).__doc__
        what = said.partition(" (")[0] + ", unmodified" * ("unmodified" in said)
        lines.append(f"| `task={name}/NAME` | {what} | its own |")
    return "\n".join(lines)


def algorithms() -> str:
    """As its module (or, where two share one, its class) says what it is, and what it needs of a task."""
    from policies.algorithms import ALGORITHMS, algorithm_class
    from sim.tasks import EngineTask, HasExpert, HasTeacher
    from sim.tasks.abilities import Differentiable, HasSensedReward, HasWords

    trains = {(): "every task", (EngineTask,): "quadrotors", (HasExpert,): "every task with an expert"}
    trains[HasTeacher,] = "tasks with a teacher"
    trains[HasWords,] = "tasks that are told in words"
    trains[Differentiable,] = "quadrotors, their swarms and races, and `car_race`"
    trains[HasSensedReward,] = "tasks that are judged by what the robot senses"
    lines, described = ["| algorithm | what it is | trains |", "|---|---|---|"], set()
    for name in ALGORITHMS:
        cls = algorithm_class(name)
        what = cls.__doc__ if cls.__module__ in described else sys.modules[cls.__module__].__doc__
        described.add(cls.__module__)
        what = re.split(r" \(|\.$", " ".join(what.split("\n\n")[0].split()), maxsplit=1)[0]
        several = ", also of several agents" if "agents" in cls.takes else ""
        lines.append(f"| `{name}` | {what} | {trains[cls.needs]}{several} |")
    return "\n".join(lines)


def tables() -> str:
    """What the tables of contents say."""
    return "\n\n".join((tasks(), algorithms()))


def text() -> str:
    """README and docs."""
    return "\n".join(page.read_text() for page in PAGES)


def example(name: str, page: Path) -> str:
    """A worked example's code."""
    return next(b for b in re.findall(r"```python\n(.*?)```", page.read_text(), re.S) if f"class {name}" in b)


def commands() -> list[str]:
    """Every command in a block of code: `python -m ...`, without prompt and comment."""
    blocks = re.findall(r"```(?:bash|console)\n(.*?)```", text(), re.S)
    lines = [line.removeprefix("$ ").partition("  #")[0].strip() for block in blocks for line in block.splitlines()]
    inline = re.findall(r"`(python -m [^`]+)`", text())
    return sorted({line.partition(" # ")[0] for line in [*lines, *inline] if line.startswith("python -m ")})


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= LINES


def test_table_is_what_the_tables_of_contents_say() -> None:
    written = README.read_text().split(BEGIN)[1].split(END)[0].strip()
    assert written == tables(), "run: python tests/test_readme.py"


def test_everything_in_the_tables_is_named() -> None:
    from policies.algorithms import ALGORITHMS
    from sim.robots import ROBOTS
    from sim.tasks import FAMILIES, TASKS

    text = README.read_text()
    assert [name for name in (*ROBOTS, *TASKS, *ALGORITHMS) if f"`{name}`" not in text] == []
    assert [name for name in FAMILIES if f"task={name}/" not in text] == []


def test_the_pages_name_everything_too() -> None:
    from deploy.drivers import DRIVERS
    from policies.algorithms import ALGORITHMS
    from sim.engines import BENCHES, ENGINES
    from sim.robots import LISTED
    from sim.tasks import FAMILIES, TASKS, OwnWorld, make

    own = [name for name in TASKS if isinstance(make(name), OwnWorld)]
    vehicles = [name for name in TASKS if name not in own]
    steppers = ("advised_sac", "apg", "distill", "online_sac", "ppo", "sac", "streaming", "student")
    games = [name for name in own if name.startswith("soccer")]
    races = [name for name in own if name.startswith("car")]
    roads = [name for name in own if name.startswith("traffic")]
    gates = [name for name in own if "gate" in name]
    swarms = [name for name in own if name.startswith("quad_swarm")]
    arms = [name for name in own if name not in (*games, *races, *roads, *gates, *swarms)]
    learners = [name for name in ALGORITHMS if name not in steppers]
    train, manipulation, deploy = ((DOCS / f"{page}.md").read_text() for page in ("train", "manipulation", "deploy"))
    assert [name for name in (*LISTED, *vehicles, *steppers, *ENGINES) if f"`{name}`" not in train] == []
    assert [name for name in (*arms, *learners) if f"`{name}`" not in manipulation] == []
    assert [name for name in games if f"`{name}`" not in (DOCS / "soccer.md").read_text()] == []
    assert [name for name in races if f"`{name}`" not in (DOCS / "driving.md").read_text()] == []
    assert [name for name in gates if f"`{name}`" not in (DOCS / "gates.md").read_text()] == []
    assert [name for name in swarms if f"`{name}`" not in (DOCS / "swarm.md").read_text()] == []
    assert [name for name in roads if f"task={name}" not in (DOCS / "traffic.md").read_text()] == []
    assert [name for name in FAMILIES if f"task={name}/" not in manipulation] == []
    assert [name for name in DRIVERS if f"`{name}`" not in deploy] == []
    assert [name for name in BENCHES if name not in train + manipulation] == []


def test_every_extra_is_in_the_installation() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    written = set(re.findall(r"^\| `\[(\w+)\]` \|", (DOCS / "install.md").read_text(), re.M))
    assert written == set(extras)


def test_every_module_that_a_command_names_exists() -> None:
    modules = set(re.findall(r"python -m ([\w.]+)", text())) - {"pytest"}
    assert {"policies.train", "policies.evaluate", "deploy.inspect", "deploy.run"} <= modules
    places = {m: ROOT / m.replace(".", "/") for m in modules}
    assert [m for m, p in places.items() if not (p.with_suffix(".py").is_file() or (p / "__main__.py").is_file())] == []


def test_every_script_that_a_command_names_exists() -> None:
    scripts = set(re.findall(r"python (tests/[\w./]+\.py)", text()))
    assert scripts and [script for script in scripts if not (ROOT / script).is_file()] == []


@pytest.mark.parametrize("command", commands())
def test_every_setting_of_a_command_is_one(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsed as the command itself does, which checks names, types and the required ones; nothing is run."""
    from deploy import cli
    from deploy.drivers import driver_class

    module, *arguments = shlex.split(command)[2:]
    if module == "policies.train":
        parse_training(arguments, monkeypatch)
    elif module == "deploy.launch":
        sources = (ROOT / arguments[0]).read_text() + (ROOT / "deploy/launching/files.py").read_text()
        declared = re.findall(r"DeclareLaunchArgument\(\s*\"(\w+)\"", sources)
        unknown = {word.partition(":=")[0] for word in arguments[1:]} - set(declared)
        assert unknown == ({"polcy"} if "polcy" in command else set())  # the one whose error is shown
    elif module != "pytest":
        home = f"{module}.__main__" if (ROOT / module.replace(".", "/") / "__main__.py").is_file() else module
        configs = [importlib.import_module(home).Config]
        if module == "deploy.run":
            configs.append(driver_class(cli.value_of(arguments, "driver", "simulated")).Config)
        if module == "policies.collect":
            configs.append(importlib.import_module("policies.teleop.session").Settings)
        if module == "deploy.hil":
            configs.append(importlib.import_module("deploy.drivers.simulated").Changed)
        if module in ("policies.collect", "policies.evaluate"):
            arguments, _ = cli.split(arguments, "task")
        if module == "policies.sweep":  # the others are settings of the training
            sweep = importlib.import_module(module)
            arguments, words = sweep.split(arguments)
            sweep.settings_of(*sweep.space_of(words))
        if module == "policies.adopt":  # python -m policies.adopt FILE from=...
            arguments = importlib.import_module(module).named(cli.split(arguments, "task")[0])
        cli.parse(arguments, *configs)


def parse_training(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose the settings; the modules that they name are the worked examples."""
    from policies.runner.cli import HELP_FLAGS, SWEEP_FLAGS
    from policies.runner.config import compose
    from sim.robots import robot

    if any(argument.startswith("resume=") for argument in arguments):
        return  # there is no such folder
    for argument in arguments:
        key, _, value = argument.partition("=")
        module, _, name = value.partition(":")
        if key == "task" and name:
            if (OUTSIDER / f"{module}.py").is_file():  # to which a page links
                monkeypatch.syspath_prepend(OUTSIDER)
                continue
            monkeypatch.setitem(sys.modules, module, types.ModuleType(module))  # dataclasses look there
            page = next(page for page in PAGES if re.search(rf"class {name}[(:]", page.read_text()))
            exec(example(name, page), sys.modules[module].__dict__)
        if key == "task.robot" and name:
            monkeypatch.setitem(sys.modules, module, types.SimpleNamespace(**{name: robot("racer")}))
    wanted = [argument for argument in arguments if argument not in HELP_FLAGS + SWEEP_FLAGS]
    compose([re.sub(r"=(\d+),[\d,]+$", r"=\1", argument) for argument in wanted])  # of a sweep, the first


def test_every_example_in_python_is_python() -> None:
    for block in re.findall(r"```python\n(.*?)```", text(), re.S):
        compile(block, "example", "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), f"{page.name} links to {link}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}; there are {anchors(target)}"


def test_every_page_is_linked_from_the_readme() -> None:
    linked = set(re.findall(r"\]\(docs/(\w+\.md)", README.read_text()))
    assert linked == {page.name for page in DOCS.glob("*.md")}


def test_the_readmes_numbers_stand_in_the_results() -> None:
    section = README.read_text().split("## Five numbers")[1].split("\n## ")[0]
    numbers = re.findall(r"(?<![\w.-])\d+(?: \d{3})*(?:\.\d+)?(?![\w.-]|-\d)", re.sub(r"\(docs/[^)]*\)", "", section))
    results = (DOCS / "results.md").read_text().split("## The five numbers")[1].split("\n## ")[0]
    assert len(numbers) > 8 and [number for number in numbers if number not in results] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "page"), [("Elevator", "docs/add.md"), pytest.param("Calm", "README.md", marks=pytest.mark.long)]
)
def test_worked_example_trains_and_flies(name: str, page: str, tmp_path: Path) -> None:
    task = f"{name.lower()}:{name}"
    (tmp_path / f"{name.lower()}.py").write_text(example(name, ROOT / page))
    train = ["policies.train", f"task={task}", "algorithm.updates=800", "out=run", "report=false"]
    fly = ["policies.evaluate", "policy=run/policy.onnx", f"task={task}", "episodes=200", "json=report.json"]
    for arguments in (train, fly):
        done = subprocess.run(
            [sys.executable, "-m", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "report.json").read_text())["success"] > 0.9


if __name__ == "__main__":
    before, rest = README.read_text().split(BEGIN)
    README.write_text(f"{before}{BEGIN}\n{tables()}\n{END}{rest.split(END)[1]}")
