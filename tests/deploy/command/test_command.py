"""`sim2metal COMMAND`: every `python -m` command by one name, from any folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import command
from deploy.command.table import COMMANDS, GROUPS, ROOT, source, summary
from deploy.trust.interpreter import python

STARTED_BY_US = {
    *("deploy.recording.writer", "deploy.remote.online", "deploy.command"),
    "sim.engines.isaacgym.worker",  # under another interpreter
    "policies.cluster.follower",  # with learners=N
}


def called(monkeypatch, *words):
    """The exit status of `sim2metal WORDS`."""
    monkeypatch.setattr(sys, "argv", ["sim2metal", *words])
    for module in COMMANDS.values():  # other tests may have imported it
        monkeypatch.delitem(sys.modules, module, raising=False)
    try:
        return command.main()
    except SystemExit as left:
        return left.code


def installed(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The console script, as pip writes it, started in `folder`."""
    program = folder.parent / "bin" / "sim2metal"
    program.parent.mkdir(exist_ok=True)
    program.write_text("import sys\nfrom deploy.command import main\nsys.exit(main())\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, program, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_every_module_that_is_a_command_has_a_name():
    paths = [path for layer in ("sim", "deploy", "policies") for path in (ROOT / layer).rglob("*.py")]
    commands = {
        path.relative_to(ROOT).with_suffix("").as_posix().removesuffix("/__main__").replace("/", ".")
        for path in paths
        if '\nif __name__ == "__main__":' in path.read_text()
    }
    assert commands - STARTED_BY_US == set(COMMANDS.values()), "deploy/command/table.py lists them"
    assert len(COMMANDS) == sum(map(len, GROUPS.values()))


@pytest.mark.parametrize("module", COMMANDS.values())
def test_every_command_says_what_it_does_where_help_looks(module):
    assert source(module).read_text().startswith(f'"""python -m {module} ')
    assert len(summary(module).split()) > 1


@pytest.mark.parametrize("words", [[], ["help"], ["-h"], ["--help"]])
def test_help_lists_everything(monkeypatch, capsys, words):
    assert called(monkeypatch, *words) == 0
    said = capsys.readouterr().out
    assert [name for name in COMMANDS if not re.search(rf"^  {name} ", said, re.M)] == []


@pytest.mark.parametrize("words", [["key", "--help"], ["help", "key"]])
def test_a_commands_help_is_its_own(monkeypatch, capsys, words):
    assert called(monkeypatch, *words) == 0
    assert capsys.readouterr().out.startswith("python -m deploy.ros2.key out=FILE")


def test_arguments_arrive(monkeypatch, capsys, tmp_path):
    assert called(monkeypatch, "key", f"out={tmp_path / 'key'}") == 0
    assert (tmp_path / "key").is_file()
    assert called(monkeypatch, "key", f"out={tmp_path / 'key'}", "in=3") == 2
    assert "unknown key 'in'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "hint"), [("evalute", "did you mean 'evaluate'?"), ("crazyflie-simu", "did you mean 'crazyflie_sim'?")]
)
def test_an_unknown_command_names_the_nearest(monkeypatch, capsys, name, hint):
    assert called(monkeypatch, name, "policy=quad_any") == 2
    assert hint in capsys.readouterr().err


def test_what_cannot_be_imported_says_what_it_lacks(monkeypatch, capsys):
    def lacks(*_, **__):
        raise ModuleNotFoundError(name="pyarrow.parquet")

    monkeypatch.setattr(command.runpy, "run_module", lacks)
    assert called(monkeypatch, "datasets", "folder=x") == 2
    assert capsys.readouterr().err.endswith("pip install 'sim2metal[datasets]' brings it\n")
    assert called(monkeypatch, "datasets", "--help") == 0
    assert "look at a dataset" in capsys.readouterr().out


def test_a_folder_of_the_users_hides_none_of_ours(tmp_path):
    folder = tmp_path / "work"
    for name in ("sim", "policies", "deploy"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("raise SystemExit('the wrong one')\n")
    done = installed(folder, "inspect", "policy=quad_any")
    assert done.returncode == 0, done.stderr
    assert "consistent" in done.stdout


@pytest.mark.parametrize(("module", "hidden"), [("deploy.inspect", "sim"), ("policies.evaluate", "deploy")])
def test_python_m_says_what_hides_ours(tmp_path, module, hidden):
    (tmp_path / hidden).mkdir()
    (tmp_path / hidden / "__init__.py").touch()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", module, "policy=quad_any"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    said = f"{hidden}/__init__.py hides the package '{hidden}' of sim2metal: use the command sim2metal"
    assert line.startswith("error: ") and said in line
    package = module.partition(".")[0]
    told = subprocess.run(
        [sys.executable, "-c", f"import {package}"], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert told.returncode == 1 and told.stderr.splitlines()[-1].startswith("ImportError: ") and said in told.stderr


@pytest.mark.parametrize("package", ["deploy", "policies"])
@pytest.mark.parametrize("bare", [False, True], ids=["hidden", "without numpy"])
def test_a_stranger_s_command_may_do_without_us(tmp_path, package, bare):
    if not bare:
        (tmp_path / "sim").mkdir()
        (tmp_path / "sim/__init__.py").touch()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/__init__.py").write_text(
        f"try:\n    import {package}\nexcept ImportError as error:\n    print('ImportError', error)\n"
    )
    (tmp_path / "theirs/__main__.py").write_text("print('theirs')\n")
    done = subprocess.run(
        [sys.executable, *(["-S"] if bare else []), "-m", "theirs", "-m", f"{package}.run"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    *told, last = done.stdout.splitlines()
    assert last == "theirs" and ["hides the package 'sim'" in line for line in told] == ([] if bare else [True])


def test_a_task_that_the_command_line_names_is_found_in_the_working_directory(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "mine.py").write_text("raise SystemExit('found')\n")
    assert installed(folder, "evaluate", "policy=quad_any", "task=mine:Task").stderr == "found\n"


def test_whoever_was_started_elsewhere_starts_others_without_the_working_directory(monkeypatch):
    monkeypatch.setattr(sys, "path", ["/usr/local/bin", *sys.path])
    assert python() == [sys.executable, "-P"]
    monkeypatch.setattr(sys, "path", [os.getcwd()])
    assert python() == [sys.executable, *["-P"] * sys.flags.safe_path]


def test_help_loads_nothing_heavy():
    code = "import sys, deploy.command\nsys.argv = ['sim2metal']\ndeploy.command.main()\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"numpy", "onnxruntime", "torch", "mujoco", "numba"} & set(done.stdout.splitlines()[-1].split())
