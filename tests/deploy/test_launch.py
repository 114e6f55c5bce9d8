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
PATIENCE = 30.0  # s; the machine may be busy
IMPORTS = """
import os, sys
from launch import LaunchContext, LaunchDescription, LaunchService, Substitution
from launch.actions import *
from launch.conditions import *
from launch.event_handlers import *
from launch.events.process import ShutdownProcess, SignalProcess
from launch.events import matches_action
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import *
from launch_ros.actions import Node, PushROSNamespace, PushRosNamespace, SetParameter, SetRemap
from launch_ros.descriptions import ParameterFile, ParameterValue
from launch_ros.substitutions import FindPackageShare
PY = sys.executable
def run(code, **settings):
    return ExecuteProcess(cmd=[PY, "-uc", code], output="screen", name="p", **settings)
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


@pytest.mark.parametrize(
    ("output", "screen", "log"),
    [("screen", "oe", ""), ("log", "e", "oe"), ("both", "oe", "oe"), ({"stdout": "screen", "stderr": "log"}, "o", "e")],
)
def test_output_goes_where_it_should(launch, launch_file, tmp_path, output, screen, log):
    code = "import sys; print('o'); print('e', file=sys.stderr)"
    path = launch_file(f"ExecuteProcess(cmd=[PY, '-c', \"{code}\"], output={output!r}, name='p'),")
    _, out, _ = launch(path)
    assert sorted(lines_of(out, "p-1")) == sorted(screen)
    (file,) = (tmp_path / "log").rglob("launch.log")
    written = [line.partition(" ")[2].removeprefix("[p-1] ") for line in file.read_text().splitlines()]
    assert sorted(line for line in written if len(line) == 1) == sorted(log)


ARGUMENTS = """
        DeclareLaunchArgument("mode", default_value="a", choices=["a", "b"], description="Which one."),
        DeclareLaunchArgument("x", description="It is needed"),
        DeclareLaunchArgument("y", default_value=[LaunchConfiguration("x"), EnvironmentVariable("HOME")]),
        GroupAction([DeclareLaunchArgument("z", default_value="")], condition=IfCondition("false")),
        LogInfo(msg=["x is ", LaunchConfiguration("x")]),
"""


def test_shows_arguments_as_ros2_launch_does(launch, launch_file):
    status, out, err = launch(launch_file(ARGUMENTS), "--show-args")
    assert (status, err) == (0, "")
    assert out == (
        "Arguments (pass arguments as '<name>:=<value>'):\n"
        "\n    'mode':\n        Which one. Valid choices are: ['a', 'b']\n        (default: 'a')\n"
        "\n    'x':\n        It is needed\n"
        "\n    'y':\n        no description given\n        (default: LaunchConfig('x') + EnvVar('HOME'))\n"
        "\n    'z':*\n        no description given\n        (default: '')\n"
        "\n* argument(s) which are only used if specific conditions occur\n"
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "launch argument x:=... is missing: It is needed"),
        (["x:=1", "mod:=b"], "unknown launch argument 'mod' (did you mean 'mode'?); arguments: mode, x, y, z"),
        (["x:=1", "mode:=c"], "mode:=c is not one of: a, b"),
        (["x=1"], "'x=1' is not of the form name:=value"),
    ],
)
def test_refuses_wrong_arguments_in_one_line(refused, launch_file, arguments, says):
    assert refused(launch_file(ARGUMENTS), *arguments) == f"error: {says}\n"


def test_takes_arguments(launch, launch_file):
    status, out, _ = launch(launch_file(ARGUMENTS), "x:=1", "x:=a:=b")
    assert status == 0
    assert "[INFO] [launch.user]: x is a:=b" in out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import launch.frontend", "launch.frontend needs ROS 2's own launch, which is not installed"),
        ("from launch.actions import OpaqueCoroutine", "launch.actions.OpaqueCoroutine needs ROS 2's own launch"),
        ("import launch_ros.utilities", "launch_ros.utilities needs ROS 2's own launch"),
        ("import nonsense_nobody_has", "line 1: ModuleNotFoundError: No module named 'nonsense_nobody_has'"),
        ("x = 1\ny = x +", "line 2: SyntaxError"),
        ("", "has no function generate_launch_description()"),
        ("def generate_launch_description(): return 3", "generate_launch_description() returned 3"),
        (IMPORTS + "Node(executable='x', colour='red')])", "unexpected keyword argument 'colour'"),
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
        ("ExecuteProcess(cmd=['/no/such/program']),", "cannot start program-2: '/no/such/program': No such file"),
        ("LogInfo(msg=LaunchConfiguration('nobody')),", "launch configuration 'nobody' does not exist"),
        ("LogInfo(msg=PythonExpression(['1 +'])),", "PythonExpression '1 +': invalid syntax"),
        ("LogInfo(msg=FindExecutable('no-such-program')),", "executable 'no-such-program' not found on the PATH"),
        ("Node(executable=PY, namespace='1a'),", "namespace '/1a': needs letters"),
        ("Node(executable=PY, name='a-b'),", "node name 'a-b': needs letters"),
        ("Node(executable=PY, parameters=[{'a': [1, 'x']}]),", "parameter a: [1, 'x'] is not a list of one type"),
        ("Node(executable=PY, parameters=['/no.yaml']),", "there is no parameter file '/no.yaml'"),
        ("Node(executable='x', package='nobody_has_it'),", "package 'nobody_has_it' not found"),
        ("GroupAction([LogInfo(msg='')], condition=IfCondition('maybe')),", "condition 'maybe' is not one of"),
        ("ExecuteProcess(cmd=['ls'], output='scren'),", "output='scren' is not one of: screen, log"),
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
        run("import time; time.sleep(0.2); raise SystemExit({code})", on_exit=[Shutdown(reason="over")]),
"""


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (3, 1)])
def test_the_end_of_a_required_process_ends_all(launch, launch_file, code, expected):
    status, out, _ = launch(launch_file(REQUIRED.format(code=code)))
    assert status == expected
    assert "[INFO] [launch]: process[p-2] was required: shutting down launched system" in out
    assert "[INFO] [p-1]: sending signal 'SIGINT' to process[p-1]" in out
    if code:
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
            sigterm_timeout="{patience[0]}", sigkill_timeout=LaunchConfiguration("nobody", default={patience[1]})),
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


def test_respawns_what_dies(launch, launch_file, tmp_path):
    code = "open('count', 'a').write('x'); raise SystemExit(1)"
    path = launch_file(f'run("{code}", respawn=True, respawn_delay=0.05, respawn_max_retries=2, cwd="{tmp_path}"),')
    status, out, _ = launch(path)
    assert status == 0
    assert (tmp_path / "count").read_text() == "xxx"
    assert out.count("process started") == 3


def test_a_shutdown_ends_respawning(launch, launch_file):
    path = launch_file(
        "run('1', respawn=True, respawn_delay=60.0),\nTimerAction(period=0.3, actions=[Shutdown(reason='time')]),"
    )
    began = time.monotonic()
    assert launch(path)[0] == 0
    assert time.monotonic() - began < 20.0


def test_a_terminal_is_emulated(launch, launch_file):
    path = launch_file("run('import sys; print(sys.stdout.isatty(), sys.stderr.isatty())', emulate_tty=True),")
    assert lines_of(launch(path)[1], "p-1") == ["True True"]
    assert lines_of(launch(path, "emulate_tty:=false")[1], "p-1") == ["False False"]


def test_a_shell_runs_the_command(launch, launch_file):
    path = launch_file(
        "ExecuteProcess(cmd=['echo', '$A', '|', 'tr', 'x', 'y'], shell=True, output='screen',"
        "additional_env={'A': 'xx'}),"
    )
    assert lines_of(launch(path)[1], "echo-1") == ["yy"]


NODE = """
        Node(executable=PY, arguments=["-c", "import sys; print(*sys.argv[1:], sep=chr(10))"], output="screen",
             {settings}),
"""


def words_of(launch, launch_file, settings, before=""):
    status, out, err = launch(launch_file(before + NODE.format(settings=settings)))
    assert status == 0, out + err
    (name,) = re.findall(r"\[INFO\] \[(\S+)\]: process started", out)
    return lines_of(out, name)


def test_a_node_gets_its_names_and_remappings(launch, launch_file):
    words = words_of(
        launch, launch_file, "name='n', namespace='ns', remappings=[('a', 'b'), (['c', 'd'], '/e')], exec_name='x'"
    )
    assert words == ["--ros-args", "-r", "__node:=n", "-r", "__ns:=/ns", "-r", "a:=b", "-r", "cd:=/e"]


def test_namespaces_remappings_and_parameters_hold_within_a_group(launch, launch_file):
    inside = NODE.format(settings="namespace='b', exec_name='inside'")
    outside = NODE.format(settings="exec_name='outside'")
    path = launch_file(
        f"GroupAction([PushROSNamespace('a'), SetRemap('x', 'y'), SetParameter('p', 2.5), {inside}]), {outside}"
    )
    _, out, _ = launch(path)
    assert lines_of(out, "inside-1") == ["--ros-args", "-r", "__ns:=/a/b", "-p", "p:=2.5", "-r", "x:=y"]
    assert lines_of(out, "outside-2") == ["--ros-args"]


def test_parameters_keep_their_types(launch, launch_file):
    parameters = (
        "parameters=[{'i': 1, 'f': 1.0, 'b': True, 's': '1', 'l': [1, 2.5], 'n': {'m': 3}, 'c': LaunchConfiguration('x'"
        "), 't': ParameterValue(LaunchConfiguration('x'), value_type=str), 'j': [LaunchConfiguration('x'), '0']}]"
    )
    words = words_of(launch, launch_file, parameters, "DeclareLaunchArgument('x', default_value='7'),")
    text = Path(words[words.index("--params-file") + 1]).read_text()
    expected = {"i": 1, "f": 1.0, "b": True, "s": "1", "l": [1.0, 2.5], "n.m": 3, "c": 7, "t": "7", "j": 70}
    assert text == json.dumps({"/**": {"ros__parameters": expected}})  # as text: 1 is no parameter of type double


def test_substitutions_in_a_parameter_file(launch, launch_file, tmp_path):
    (tmp_path / "p.yaml").write_text("a: $(var x)\nb: $(env HOME)\n")
    words = words_of(
        launch,
        launch_file,
        f"parameters=[ParameterFile('{tmp_path}/p.yaml', allow_substs=True)]",
        "DeclareLaunchArgument('x', default_value='7'),",
    )
    assert Path(words[2]).read_text() == f"a: 7\nb: {os.environ['HOME']}\n"


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("PythonExpression(['1 + ', LaunchConfiguration('x')])", "8"),
        ("PythonExpression(['floor(', LaunchConfiguration('x'), ' / 2)'])", "3"),
        ("PathJoinSubstitution(['a', [LaunchConfiguration('x'), 'b'], 'c'])", "a/7b/c"),
        ("Command(['echo ', LaunchConfiguration('x')])", "7"),
        ("EqualsSubstitution(LaunchConfiguration('x'), '7.0')", "true"),
        ("NotEqualsSubstitution(LaunchConfiguration('x'), '8')", "true"),
        ("EqualsSubstitution('True', '1')", "true"),
        ("AndSubstitution('true', NotSubstitution('1'))", "false"),
        ("OrSubstitution('0', 'true')", "true"),
        ("IfElseSubstitution('false', 'a', 'b')", "b"),
        ("EnvironmentVariable('NOBODY_SET_IT', default_value=['d', LaunchConfiguration('x')])", "d7"),
        ("LaunchConfiguration('nobody', default=5)", "5"),
        ("ThisLaunchFileDir()", "{folder}"),
        ("FindPackageShare('rclpy')", "{prefix}/share/rclpy"),
    ],
)
def test_substitutions(launch, launch_file, tmp_path, expression, text):
    path = launch_file(f"DeclareLaunchArgument('x', default_value='7'),\nLogInfo(msg=['<', {expression}, '>']),")
    _, out, _ = launch(path)
    value = re.search(r"launch.user\]: <(.*?)\n?>", out)
    assert value, out
    assert value[1] == text.format(folder=tmp_path, prefix=sys.prefix)


def test_included_files_take_arguments(launch, launch_file):
    launch_file(
        "DeclareLaunchArgument('a'), DeclareLaunchArgument('b', default_value='own'),"
        "LogInfo(msg=['a=', LaunchConfiguration('a'), ' b=', LaunchConfiguration('b'), ' in ', ThisLaunchFile()]),",
        "inner.launch.py",
    )
    outer = launch_file(
        "IncludeLaunchDescription(PythonLaunchDescriptionSource([ThisLaunchFileDir(), '/inner.launch.py']),"
        "launch_arguments={'a': '1'}.items()), LogInfo(msg=['back in ', ThisLaunchFile()]),"
    )
    _, out, _ = launch(outer)
    assert f"a=1 b=own in {outer.with_name('inner.launch.py')}" in out
    assert f"back in {outer}" in out


def test_a_missing_argument_of_an_included_file_is_named(launch, launch_file):
    launch_file("DeclareLaunchArgument('a', description='The a.'),", "inner.launch.py")
    path = launch_file("IncludeLaunchDescription([ThisLaunchFileDir(), '/inner.launch.py']),")
    status, out, _ = launch(path)
    assert status == 1
    assert "launch argument a:=... is missing: The a." in out


def test_events_reach_their_handlers(launch, launch_file):
    path = launch_file(
        "first := run('import time; time.sleep(99)'),"
        "RegisterEventHandler(OnProcessStart(target_action=first, on_start=["
        "LogInfo(msg=['pid ', LocalSubstitution('event.pid')]),"
        "EmitEvent(event=SignalProcess(signal_number='SIGTERM', process_matcher=matches_action(first)))])),"
        "RegisterEventHandler(OnProcessExit(target_action=first, on_exit=lambda event, context:"
        " [LogInfo(msg=f'ended with {event.returncode}')])),"
        "RegisterEventHandler(OnShutdown(on_shutdown=lambda event, context: LogInfo(msg='the end: ' + event.reason))),"
    )
    status, out, _ = launch(path)
    assert status == 0
    said = [line.removeprefix("[INFO] [launch.user]: ") for line in out.splitlines() if "launch.user" in line]
    assert re.fullmatch(r"pid \d+", said[0])
    assert said[1:] == ["ended with -15", "the end: idle"]


def test_unsupported_actions_may_stand_where_they_are_not_run(launch, launch_file):
    before = "from launch_ros.actions import LoadComposableNodes\n"
    body = "LoadComposableNodes(target_container='c', composable_node_descriptions=[], condition=IfCondition('{}')),"
    assert launch(launch_file(body.format("false"), before=before))[0] == 0
    status, out, _ = launch(launch_file(body.format("true"), before=before))
    assert status == 1
    assert "launch_ros.actions.LoadComposableNodes needs ROS 2's own launch" in out
