from dataclasses import dataclass, field

import pytest

from deploy import arguments
from deploy.arguments import ArgumentError, parse


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


def test_call_prints_one_line_for_bad_input(capsys, monkeypatch):
    def bad(argv):
        raise ValueError("no such thing")

    assert arguments.call(bad, []) == 2
    assert capsys.readouterr().err == "error: no such thing\n"
    monkeypatch.setenv("SIM2METAL_TRACEBACK", "1")
    with pytest.raises(ValueError, match="no such thing"):
        arguments.call(bad, [])


def test_call_lets_mistakes_of_the_program_through():
    with pytest.raises(ZeroDivisionError):
        arguments.call(lambda argv: print(1 / 0), [])


def test_call_ends_quietly_on_ctrl_c(capsys):
    def interrupted(argv):
        raise KeyboardInterrupt

    assert arguments.call(interrupted, []) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_usage_names_every_key_and_default():
    text = arguments.usage(First, Second)
    assert [line.split()[0] for line in text.splitlines()] == ["policy", "count", "delay", "vary", "plot"]
    assert "(required)" in text
    assert "how many" in text
