import subprocess
import sys
from dataclasses import dataclass, field

import pytest

from deploy import cli
from deploy.cli import ArgumentError, parse, split
from tests.deploy.sample_policy import exported, linear_hover


@dataclass
class First:
    policy: str = field(metadata={"help": "the file"})
    count: int = field(default=3, metadata={"help": "how many"})


@dataclass
class Second:
    delay: float | None = None
    vary: bool = False
    plot: str | None = None


def test_each_key_finds_its_dataclass():
    first, second = parse(["policy=a=b.onnx", "vary=True", "delay=1e-2", "plot=null"], First, Second)
    assert first == First("a=b.onnx", 3)
    assert second == Second(0.01, True, None)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["policy=x", "cuont=3"],
            r"unknown key 'cuont' \(did you mean 'count'\?\); keys: policy, count, delay, vary, plot",
        ),
        (["policy=x", "zzz=3"], r"unknown key 'zzz'; keys: policy"),
        (["policy=x", "count=2.5"], "count=2.5: '2.5' is not a whole number"),
        (["policy=x", "delay=soon"], "'soon' is not a number"),
        (["policy=x", "delay=nan"], "needs a number, not NaN"),
        (["policy=x", "vary=yes"], "'yes' is not true or false"),
        (["policy=x", "count"], "'count' is not of the form key=value"),
        (["policy=x", "--count=3"], "'--count=3' is not of the form key=value"),
        (["policy=x", "count=1", "count=2"], "count is given twice"),
        (["count=1"], "policy=... is missing: the file"),
    ],
)
def test_mistakes_are_named(argv, message):
    with pytest.raises(ArgumentError, match=message):
        parse(argv, First, Second)


def test_settings_of_something_are_split_off():
    rest, found = split(["policy=x", "task.forward=[0.5,1.0]", "task.robot=op3", "task.vary=0", "seed=1"], "task")
    assert rest == ["policy=x", "seed=1"] and found == {"forward": [0.5, 1.0], "robot": "op3", "vary": 0}
    for wrong, message in (
        (["task.vary"], "not of the form task.key=value"),
        (["task.=1"], "not of the form"),
        (["task.vary=0", "task.vary=1"], "task.vary is given twice"),
    ):
        with pytest.raises(ArgumentError, match=message):
            split(wrong, "task")


def test_call_prints_one_line_for_bad_input(capsys, monkeypatch):
    def bad(argv):
        raise ValueError("no such thing")

    assert cli.call(bad, []) == 2
    assert capsys.readouterr().err == "error: no such thing\n"
    monkeypatch.setenv("SIM2METAL_TRACEBACK", "1")
    with pytest.raises(ValueError, match="no such thing"):
        cli.call(bad, [])


def test_call_lets_mistakes_of_the_program_through():
    with pytest.raises(ZeroDivisionError):
        cli.call(lambda argv: print(1 / 0), [])


def test_call_ends_quietly_on_ctrl_c(capsys):
    def interrupted(argv):
        raise KeyboardInterrupt

    assert cli.call(interrupted, []) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_ctrl_c_in_a_callback_of_a_compiler_is_not_lost():
    program = """
import ctypes, signal, sys, time
from deploy import cli
def main(argv):
    ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGINT))()
    time.sleep(20)
sys.exit(cli.call(main, []))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=15)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_usage_names_every_key_and_default():
    text = cli.usage(First, Second)
    assert [line.split()[0] for line in text.splitlines()] == ["policy", "count", "delay", "vary", "plot"]
    assert "(required)" in text
    assert "how many" in text


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("a\x1b[2Jb\nerror: c\u202e"), r"a\x1b[2Jb\nerror: c\u202e"),
        (OverflowError("int too large"), "int too large"),
        (MemoryError(), "this needs more memory than there is"),
        (RecursionError("maximum recursion depth exceeded"), "nested too deeply"),
        (ModuleNotFoundError("No module named 'numba'", name="numba.core"), "the package 'numba' is not installed"),
        (ImportError("cannot import name 'x'"), "cannot import name 'x'"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "can't decode byte"),
        (ValueError("x" * 10**6), "xxx..."),
        (ValueError(), "ValueError"),
    ],
)
def test_what_bad_input_provokes_is_one_printable_line(capsys, monkeypatch, error, said):
    def main(argv):
        raise error

    monkeypatch.delenv("SIM2METAL_TRACEBACK", raising=False)
    assert cli.call(main, []) == 2
    line = capsys.readouterr().err
    assert line.startswith("error: ") and said in line and len(line) < 2100
    assert line.endswith("\n") and line[:-1].isprintable()
    monkeypatch.setenv("SIM2METAL_TRACEBACK", "1")
    with pytest.raises(type(error)):
        cli.call(main, [])


def test_the_name_of_a_file_reaches_the_terminal_as_text(tmp_path, capsys, monkeypatch):
    from deploy import export, run
    from policies import evaluate

    monkeypatch.chdir(tmp_path)
    (tmp_path / "\x1b[2J").mkdir()
    path = exported(tmp_path / "\x1b[2J" / "p\x1b]0;owned\x07.onnx", linear_hover()).path
    for main, words in (
        (run.main, ["seconds=0.1"]),
        (run.main, ["seconds=0.1", "robot=racer"]),
        (evaluate.main, ["episodes=2"]),
        (export.main, ["target=c", "out=\x1b[31m"]),
        (export.main, ["target=\x1b[31m", "out=x"]),
    ):
        cli.call(main, [f"policy={path}", *words])
        shown = "".join(capsys.readouterr())
        assert shown and shown.replace("\n", "").isprintable()
