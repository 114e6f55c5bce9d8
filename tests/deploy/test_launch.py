"""The runner of launch files where ROS 2's launch is not installed: what it prints, how it ends, what it refuses."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deploy import launch as runner

ROOT = Path(__file__).parents[2]
ELSEWHERE = "needs ROS 2's own `ros2 launch`, which is not installed"
PATIENCE = 30.0  # s; the machine may be busy
IMPORTS = """
import os, sys
from launch import LaunchDescription
from launch.actions import (DeclareLaunchArgument, ExecuteProcess, IncludeLaunchDescription, OpaqueFunction,
    RegisterEventHandler, Shutdown, TimerAction)
from launch.event_handlers import OnProcessExit
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch_ros.actions import Node
from deploy.launching.files import end_after, required
PY = sys.executable
def run(code, **settings):
    return ExecuteProcess(cmd=[PY, "-uc", code], output="screen", name="p", **settings)
def say(name):
    return OpaqueFunction(function=lambda context: print(f"<{name} is {context.launch_configurations[name]}>"))
def generate_launch_description():
    return LaunchDescription([
"""


@pytest.fixture
def launch_file(tmp_path):
    """Writes a launch file whose description has these lines."""

    def write(body, name="some.launch.py", before=""):
        path = tmp_path / name
        path.write_text(before + IMPORTS + body + "\n    ])\n")
        return path

    return write


def environment(folder):
    """Without an installed ROS 2, whose own launch would take over."""
    settings = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SIM2METAL_TRACEBACK")}
    return settings | {"ROS_LOG_DIR": str(folder / "log"), "PYTHONPATH": str(ROOT)}


@pytest.fixture
def start():
    """Starts the command, and ends it after the test."""
    started = []

    def run(path):
        command = [sys.executable, "-m", "deploy.launch", str(path)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, env=environment(path.parent), cwd=path.parent, **pipes))
        return started[-1]

    yield run
    for process in started:
        process.terminate()
        process.communicate(timeout=PATIENCE)


@pytest.fixture
def launch(monkeypatch, tmp_path, capfd):
    """Runs the command in this process, with the stand-ins; (exit status, stdout, stderr)"""
    monkeypatch.setattr(runner, "real_launch", lambda: False)
    monkeypatch.setenv("ROS_LOG_DIR", str(tmp_path / "log"))
    monkeypatch.delenv("SIM2METAL_TRACEBACK", raising=False)
    modules, variables = dict(sys.modules), dict(os.environ)

    def run(*words):
        status = runner.run([str(word) for word in words])
        os.environ.clear()
        os.environ.update(variables)
        return status, *capfd.readouterr()

    yield run
    for name in [name for name in sys.modules if name.partition(".")[0] in ("launch", "launch_ros")]:
        del sys.modules[name]
    sys.modules.update({name: module for name, module in modules.items() if name.startswith("launch")})


@pytest.fixture
def refused(launch):
    """The one line on which it gives up."""

    def run(*words):
        status, out, err = launch(*words)
        assert (status, out) == (2, ""), out + err
        assert len(err.splitlines()) == 1, err
        return err

    return run


def lines_of(out, name):
    return [line.removeprefix(f"[{name}] ") for line in out.splitlines() if line.startswith(f"[{name}] ")]


def test_prints_as_ros2_launch_does(launch, launch_file):
    path = launch_file("run(\"import sys; print('out'); print('err', file=sys.stderr); print('last', end='')\"),")
    status, out, err = launch(path)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("[INFO] [launch]: All log files can be found below ")
    assert re.fullmatch(r"\[INFO\] \[p-1\]: process started with pid \[\d+\]", lines[1])
    assert sorted(lines[2:5]) == ["[p-1] err", "[p-1] last", "[p-1] out"]
    assert re.fullmatch(r"\[INFO\] \[p-1\]: process has finished cleanly \[pid \d+\]", lines[5])
    assert len(lines) == 6


ARGUMENTS = """
        DeclareLaunchArgument("mode", default_value="a", choices=["a", "b"], description="Which one."),
        DeclareLaunchArgument("x", description="It is needed"),
        DeclareLaunchArgument("y", default_value=""),
        say("x"),
"""


def test_shows_arguments_as_ros2_launch_does(launch, launch_file):
    status, out, err = launch(launch_file(ARGUMENTS), "--show-args")
    assert (status, err) == (0, "")
    assert out == (
        "Arguments (pass arguments as '<name>:=<value>'):\n"
        "\n    'mode':\n        Which one. Valid choices are: ['a', 'b']\n        (default: 'a')\n"
        "\n    'x':\n        It is needed\n"
        "\n    'y':\n        no description given\n        (default: '')\n"
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "launch argument x:=... is missing: It is needed"),
        (["x:=1", "mod:=b"], "unknown launch argument 'mod' (did you mean 'mode'?); arguments: mode, x, y"),
        (["x:=1", "mode:=c"], "mode:=c is not one of: a, b"),
        (["x=1"], "'x=1' is not of the form name:=value"),
        (
            ["x:=1", "launch-prefix:=gdb"],
            "launch-prefix:=gdb needs ROS 2's own `ros2 launch`, which is not installed",
        ),
    ],
)
def test_refuses_wrong_arguments_in_one_line(refused, launch_file, arguments, says):
    assert refused(launch_file(ARGUMENTS), *arguments) == f"error: {says}\n"


def test_takes_arguments(launch, launch_file):
    status, out, _ = launch(launch_file(ARGUMENTS), "x:=1", "x:=a:=b")
    assert status == 0
    assert "<x is a:=b>" in out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import launch.frontend", f"launch.frontend {ELSEWHERE}"),
        ("from launch.substitutions import Command", f"launch.substitutions {ELSEWHERE}"),
        ("from launch.actions import GroupAction", f"launch.actions.GroupAction {ELSEWHERE}"),
        ("from launch_ros.actions import SetParameter", f"launch_ros.actions.SetParameter {ELSEWHERE}"),
        ("import nonsense_nobody_has", "line 1: ModuleNotFoundError: No module named 'nonsense_nobody_has'"),
        ("x = 1\ny = x +", "line 2: SyntaxError"),
        ("", "has no function generate_launch_description()"),
        ("def generate_launch_description(): return 3", "generate_launch_description() returned 3"),
        (IMPORTS + "Node(executable='x', respawn=True)])", f"argument 'respawn'; if ROS 2 has it, it {ELSEWHERE}"),
        (IMPORTS + "ExecuteProcess(cmd=['ls'], output='log')])", f"output='log' (here it is 'screen') {ELSEWHERE}"),
        (IMPORTS + "Node(executable=PY, output='screen', namespace='1a')])", "namespace '/1a': needs letters"),
        (IMPORTS + "Node(executable=PY, output='screen', name='a-b')])", "node name 'a-b': needs letters"),
    ],
)
def test_refuses_what_it_cannot_run_by_name(refused, tmp_path, text, says):
    path = tmp_path / "some.launch.py"
    path.write_text(text)
    assert says in refused(path)


def test_refuses_files_that_it_cannot_run(refused, tmp_path):
    (tmp_path / "some.launch.xml").write_text("<launch/>")
    assert "only Python launch files" in refused(tmp_path / "some.launch.xml")
    assert "there is no launch file" in refused(tmp_path / "none.launch.py")
    assert "neither a launch file nor a package 'nobody'" in refused("nobody", "none.launch.py")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("ExecuteProcess(cmd=['/no/x'], output='screen'),", "cannot start x-2: '/no/x': No such file"),
        ("OpaqueFunction(function=lambda context: 1 / 0),", "division by zero"),
        ("'text',", "'text' stands in a launch description, but is no action"),
        ("OpaqueFunction(function=lambda _: [run('1', shell=True)]),", f"'shell'; if ROS 2 has it, it {ELSEWHERE}"),
        (
            "Node(executable=PY, output='screen', parameters=[{'a': [1, 2]}]),",
            f"parameter a: [1, 2], not a bool, int, float or str, {ELSEWHERE}",
        ),
        ("Node(executable=PY, output='screen', parameters=['/no.yaml']),", "there is no parameter file '/no.yaml'"),
        ("Node(executable='x', output='screen', package='nobody_has_it'),", "package 'nobody_has_it' not found"),
        (
            "IncludeLaunchDescription(PythonLaunchDescriptionSource('/no.launch.py')),",
            "there is no launch file '/no.launch.py'",
        ),
    ],
)
def test_an_error_on_the_way_ends_everything(launch, launch_file, body, says):
    """Also what was started before it."""
    status, out, err = launch(launch_file(f"run('import time; time.sleep(99)'),\n{body}"))
    assert (status, err) == (1, "")
    (line,) = (line for line in out.splitlines() if "Caught exception in launch" in line)
    assert says in line


REQUIRED = """
        run("import time; time.sleep(99)"),
        *required(run("import time; time.sleep(0.2); raise SystemExit({code})")),
"""


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (3, 1)])
def test_the_end_of_a_required_process_ends_all(launch, launch_file, code, expected):
    status, out, _ = launch(launch_file(REQUIRED.format(code=code)))
    assert status == expected
    assert "[INFO] [p-1]: sending signal 'SIGINT' to process[p-1]" in out
    if code == 0:
        assert "[INFO] [launch]: process[p-2] was required: shutting down launched system" in out
    else:
        assert "Caught exception in launch: p-2 is required and ended with exit code 3" in out
        assert re.search(r"\[ERROR\] \[p-2\]: process has died \[pid \d+, exit code 3, cmd '.*'\]\.", out)


def test_the_end_of_another_process_ends_nothing(launch, launch_file):
    path = launch_file("run('raise SystemExit(3)'),\nrun('import time; time.sleep(0.5); print(1)'),")
    status, out, _ = launch(path)
    assert status == 0
    assert lines_of(out, "p-2") == ["1"]


def test_an_event_handler_that_raises_makes_it_fail(launch, launch_file):
    path = launch_file(
        "def_ := run('raise SystemExit(3)'),\n"
        "RegisterEventHandler(OnProcessExit(target_action=def_, on_exit=lambda event, context: 1 / 0)),"
    )
    status, out, _ = launch(path)
    assert status == 1
    assert "Caught exception in launch: division by zero" in out


STUBBORN = """
        run("import signal, time; [signal.signal(n, signal.SIG_IGN) for n in {ignored}]; print('up'); time.sleep(99)",
            sigterm_timeout="{patience[0]}", sigkill_timeout={patience[1]}),
"""


@pytest.mark.parametrize(("ignored", "killed_by"), [([], 2), ([2], 15), ([2, 15], 9)])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupts_politely_then_not(start, launch_file, ignored, killed_by, number):
    patience = [0.3 if number in ignored else 60.0 for number in (signal.SIGINT, signal.SIGTERM)]
    process = start(launch_file(STUBBORN.format(ignored=ignored, patience=patience)))
    until(process, "up")
    process.send_signal(number)
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert f"exit code {-killed_by}, cmd" in out
    sent = re.findall(r"sending signal '(\w+)'", out)
    assert sent == ["SIGINT", "SIGTERM", "SIGKILL"][: 1 + [2, 15, 9].index(killed_by)]
    if killed_by == 9:
        assert "failed to terminate '0.3' seconds after receiving 'SIGTERM', escalating to 'SIGKILL'" in out


def until(process, word):
    """Read what it prints until a process of its has printed the word; what came before."""
    seen = []
    for line in process.stdout:
        seen.append(line)
        if line.rstrip().endswith(f"] {word}"):
            return "".join(seen)
    raise AssertionError("".join(seen) + process.stderr.read())


def alive(pid):
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


FAMILY = """
        run("import os, subprocess, sys, time; c = subprocess.Popen(['sleep', '99'], start_new_session={apart});"
            "print('family', os.getpid(), c.pid); print('up'); time.sleep(99)"),
"""


def runner_of(pid):
    """The process that started it."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    ("whom", "number"),
    [
        ("command", signal.SIGINT),
        ("command", signal.SIGTERM),
        ("command", signal.SIGKILL),
        ("runner", signal.SIGKILL),
        ("node", signal.SIGKILL),
    ],
)
def test_nothing_outlives_it(start, launch_file, whom, number, apart):
    """Neither a process nor its child, also one in a session of its own, however the launch ends."""
    process = start(launch_file(FAMILY.format(apart=apart)))
    seen = until(process, "up")
    family = [int(word) for word in re.search(r"family (\d+) (\d+)", seen).groups()]
    assert all(map(alive, family))
    os.kill({"command": process.pid, "runner": runner_of(family[0]), "node": family[0]}[whom], number)
    process.communicate(timeout=PATIENCE)
    expected = {"runner": 137, "node": 0, "command": -9 if number == signal.SIGKILL else 0}[whom]
    assert process.returncode == expected
    end = time.monotonic() + PATIENCE
    while any(map(alive, family)):
        assert time.monotonic() < end
        time.sleep(0.02)


NODE = """
        Node(executable=PY, arguments=["-c", "import sys; print(*sys.argv[1:], sep=chr(10))"], output="screen",
             {settings}),
"""


def words_of(launch, launch_file, settings):
    status, out, err = launch(launch_file(NODE.format(settings=settings)))
    assert status == 0, out + err
    (name,) = re.findall(r"\[INFO\] \[(\S+)\]: process started", out)
    return lines_of(out, name)


def test_a_node_gets_its_names_and_remappings(launch, launch_file):
    words = words_of(
        launch, launch_file, "name='n', namespace='ns', remappings=[('a', 'b'), ('cd', '/e')], exec_name='x'"
    )
    assert words == ["--ros-args", "-r", "__node:=n", "-r", "__ns:=/ns", "-r", "a:=b", "-r", "cd:=/e"]


@pytest.mark.parametrize(
    ("names", "rule"), [("", "/**"), ("name='n',", "/**"), ("name='n', namespace='a/b',", "/a/b/n")]
)
def test_parameters_keep_their_types(launch, launch_file, names, rule):
    words = words_of(launch, launch_file, f"{names} parameters=[{{'i': 1, 'f': 1.0, 'b': True, 's': '1'}}]")
    text = Path(words[words.index("--params-file") + 1]).read_text()
    expected = {"i": 1, "f": 1.0, "b": True, "s": "1"}
    assert text == json.dumps({rule: {"ros__parameters": expected}})  # as text: 1 is no parameter of type double


def test_included_files_take_arguments(launch, launch_file):
    inner = launch_file(
        "DeclareLaunchArgument('a'), DeclareLaunchArgument('b', default_value='own'), say('a'), say('b'),",
        "inner.launch.py",
    )
    include = "IncludeLaunchDescription(PythonLaunchDescriptionSource({!r}), launch_arguments={}.items()),"
    _, out, _ = launch(launch_file(include.format(str(inner), "{'a': '1'}")))
    assert "<a is 1>\n<b is own>" in out
    status, out, _ = launch(launch_file(include.format(str(inner), "{'b': '1'}")))
    assert status == 1
    assert "launch argument a:=... is missing: no description given" in out


def test_its_time_is_over(launch, launch_file):
    began = time.monotonic()
    status, out, _ = launch(launch_file("run('import time; time.sleep(99)'), end_after(0.3),"))
    assert status == 0
    assert time.monotonic() - began < PATIENCE
    assert "[INFO] [p-1]: sending signal 'SIGINT' to process[p-1]" in out
