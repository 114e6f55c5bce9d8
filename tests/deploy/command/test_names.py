"""What can be named is listed and completed from the source of the tables, which says what the tables say."""

import dataclasses
import importlib
import subprocess
import sys

import pytest

from deploy.command import completion, listing, names
from deploy.command.table import COMMANDS, ROOT
from deploy.drivers import DRIVERS
from deploy.drivers.simulated import Simulated
from deploy.trust.content import PRETRAINED
from policies.algorithms import ALGORITHMS
from policies.teleop.session import Settings as Hands
from sim.engines import BENCHES, ENGINES, LEGS
from sim.robots import LISTED
from sim.tasks import FAMILIES, TASKS
from sim.tasks.race import CarRace
from sim.tasks.soccer import MATCHES
from sim.tasks.traffic import TrafficEco

OWN = [table.items() for table in (ENGINES, BENCHES, LEGS, MATCHES, CarRace.engines, TrafficEco.engines)]
TOLD = {
    "task": {*TASKS.items(), *((f"{family}/NAME", place) for family, place in FAMILIES.items())},
    "robot": {*LISTED.items()},
    "engine": set().union(*OWN),
    "algorithm": {*ALGORITHMS.items()},
    "driver": {*DRIVERS.items()},
}


@pytest.mark.parametrize("kind", names.TABLES)
def test_the_source_says_what_the_tables_say(kind):
    assert {*names.entries(kind)} == TOLD[kind]


def test_the_shipped_files_are_those_that_can_be_loaded_by_name():
    assert names.SHIPPED == PRETRAINED and names.shipped() == sorted(path.stem for path in PRETRAINED.glob("*.onnx"))
    assert dict(names.purposes())["quad_any"] == "for task=quad_any, at 100 Hz"


@pytest.mark.parametrize("kind", listing.KINDS)
def test_everything_has_one_line(kind, capsys):
    listing.main([kind])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(listing.rows(kind)) and all(len(line.split(maxsplit=1)) == 2 for line in lines)


def test_every_robot_is_told_from_the_others():
    said = dict(listing.rows("robots"))
    assert len({*said.values()}) == len(said)
    for car, size in (("car_1_10", "0.58 m, 3.74 kg"), ("car_1_18", "0.27 m, 0.79 kg")):
        module, name = LISTED[car].split(":")
        made = getattr(importlib.import_module(module), name)
        assert size in said[car] and f"{made.length:.2f} m, {made.mass:.2f} kg" == size


def test_all_tables_at_once_have_headings(capsys):
    listing.main([])
    assert {*listing.KINDS} <= {*capsys.readouterr().out.splitlines()}


def test_an_unknown_table_names_the_nearest():
    with pytest.raises(ValueError, match=r"'taks' \(did you mean 'tasks'\?\)"):
        listing.main(["taks"])


@pytest.mark.parametrize(
    ("words", "among", "none"),
    [
        (["ev"], "evaluate", "train"),
        ([""], "completion", "policies.train"),
        (["help", "tr"], "train", "evaluate"),
        (["list", ""], "robots", "quad_any"),
        (["completion", "z"], "zsh", "bash"),
        (["train", "ta"], "task=", "algorithm="),
        (["train", "task=quad_hover", ""], "seed=", "task="),
        (["train", "task=quad"], "task=quad_any", "task=car_race"),
        (["train", "task=meta"], "task=metaworld/", "task=metaworld/NAME"),
        (["evaluate", "policy="], "policy=quad_any", "policy=quad_hover"),
        (["evaluate", "engine=mu"], "engine=mujoco", "engine=flight"),
        (["evaluate", "d"], "delay=", "episodes="),
        (["run", "robot=ra"], "robot=racer", "robot=any"),
        (["crazyflie-sim", "ve"], "vehicles=", "policy="),
    ],
)
def test_words_are_completed(words, among, none):
    found = completion.candidates(words)
    assert among in found and none not in found
    assert all(candidate.startswith(words[-1]) for candidate in found)


@pytest.mark.parametrize("command", ["evaluate", "run", "collect", "crazyflie_sim", "inspect", "demo"])
def test_the_source_says_which_settings_there_are(command):
    configs = [importlib.import_module(COMMANDS[command]).Config]
    configs += [Simulated.Config] if command == "run" else [Hands] if command == "collect" else []
    declared = {field.name for config in configs for field in dataclasses.fields(config)}
    assert declared == {*completion.keys(command)}


def test_what_nobody_knows_is_completed_with_nothing():
    assert completion.candidates(["nothing", "task="]) == completion.candidates(["evaluate", "video="]) == []


def completed(line: str, folder) -> list[str]:
    """What bash offers for a line of which the cursor stands at the end."""
    (folder / "flight.mcap").touch()
    program = f'sim2metal() {{ PYTHONPATH="{ROOT}" "{sys.executable}" -m deploy.command "$@"; }}\n'
    asked = f'COMP_LINE="{line}" COMP_POINT={len(line)}\n_sim2metal\nprintf "%s\\n" "${{COMPREPLY[@]}}"'
    script = program + completion.SCRIPTS["bash"] + asked
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("sim2metal tourn", ["tournament"]),
        ("sim2metal list po", ["policies"]),
        ("sim2metal train task=quad_h", ["quad_hover"]),
        ("sim2metal export  policy=quad_any ta", ["target="]),
        ("sim2metal replay log=fl", ["flight.mcap"]),
    ],
)
def test_bash_replaces_what_follows_its_own_breaks(line, found, tmp_path):
    assert completed(line, tmp_path) == found


@pytest.mark.parametrize("name", ["$(touch marker)", "a;touch marker;", "a b", "~", "`x`", "a\nb", "!!", "-rf", "a|b"])
def test_a_file_of_a_downloaded_folder_puts_no_command_on_the_line(name, tmp_path, monkeypatch):
    (tmp_path / f"{name}.onnx").touch()
    (tmp_path / "höhe_2.5-b.onnx").touch()
    monkeypatch.chdir(tmp_path)
    found = completion.values("policy")
    assert found == [*names.shipped(), "höhe_2.5-b.onnx"]


def test_a_script_is_printed_for_each_shell(capsys):
    for shell in completion.SCRIPTS:
        completion.main([shell])
        assert "sim2metal completion of" in capsys.readouterr().out
    with pytest.raises(ValueError, match="bash, zsh, fish"):
        completion.main(["tcsh"])


def test_completing_loads_nothing_heavy():
    code = "import sys; from deploy.command import completion as c; c.candidates(['run', 'task=']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"numpy", "onnxruntime", "torch", "mujoco", "numba", "sim.tasks"} & set(done.stdout.split())
