"""Text of a policy file on its way into C: it stays in comments and strings, or the file is refused."""

import copy
import re
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import helper

from deploy import cli
from deploy import run as run_command
from deploy.codegen import toolchain
from deploy.codegen.elementwise import number
from deploy.codegen.names import KEYWORDS, member
from deploy.codegen.onnx_graph import GraphError
from deploy.codegen.source import FIRMWARE, Source
from deploy.policy_file import PolicyFile, PolicyFileError
from deploy.runtimes import controller
from deploy.trust.text import c_string
from tests.deploy.codegen.graph_policy import one_node, policy_of
from tests.deploy.sample_policy import exported, linear_hover, resealed, small

CONSTRUCTOR = "__attribute__((constructor)) static void evil(void)"
TEXTS = st.text(st.characters(exclude_categories=("Cs",)) | st.sampled_from('*/\\?"\n\r\x1b%{}#'), max_size=30)
MACROS = re.compile(r"^\s*#\s*define\s+([A-Za-z_]\w*)", re.M)


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    return exported(tmp_path_factory.mktemp("sample") / "p.onnx", small())


def described(policy, unit="1", frame="world", **text):
    """The policy as if its file said this. Loading refuses the worst of it; C must not depend on that."""
    made = copy.copy(policy)
    for part in ("inputs", "outputs"):
        setattr(made, part, tuple(replace(s, unit=unit, frame=frame) for s in getattr(policy, part)))
    for key, value in text.items():
        setattr(made, key, value)
    return made


def sources(policy):
    return Source(policy, policy.content()).files()


def code(text):
    """C without what is in comments, and with empty strings: what a compiler acts on. Trigraphs are read first."""
    text = text.replace("??/", "\\").replace("\\\n", "")
    token = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)
    return token.sub(lambda found: '""' if found.group()[0] == '"' else " ", text)


def plain(policy):
    """What is left of the generated C when no text of the file counts."""
    return {name: re.sub(r"\s+", " ", code(text)) for name, text in sources(policy).items()}


# The attack of the findings, and its relatives: each would run a command when the library is loaded.
ATTACKS = {
    "unit": {"unit": f"m **// {CONSTRUCTOR} {{ MARK }} /*"},
    "frame": {"frame": f"***/// {CONSTRUCTOR} {{ MARK }} /*"},
    "a comment of one line": {"unit": f"m\n*\\\n/ {CONSTRUCTOR} {{ MARK }} /*"},
    "name": {"name": f"x */ {CONSTRUCTOR} {{ MARK }} /*"},
    "task": {"task": f't", 0}}; {CONSTRUCTOR} {{ MARK }} /*'},
    "trigraph": {"name": "??/", "task": f", 0}}; {CONSTRUCTOR} {{ MARK }} //"},
    "robot": {"robot": "\\"},
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_code_in_texts_is_compiled_as_text(sample, tmp_path, attack):
    marker = tmp_path / "marker"
    mark = f'extern int system(const char *); system(\\"touch {marker}\\");'.replace('\\"', '"')
    texts = {key: value.replace("MARK", mark) for key, value in ATTACKS[attack].items()}
    policy = described(sample, **texts)
    assert controller(policy, "c").step({s.name: np.zeros((1, *s.shape), np.float32) for s in policy.inputs})
    assert not marker.exists()
    assert plain(policy) == plain(sample)


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_file_with_code_in_its_texts_is_refused_or_harmless(sample, tmp_path, attack):
    marker = tmp_path / "marker"
    texts = {
        k: v.replace("MARK", f'extern int system(const char *); system("touch {marker}");')
        for k, v in ATTACKS[attack].items()
    }
    unit, frame = texts.pop("unit", "1"), texts.pop("frame", "world")
    parts = {
        part: [{**item, "unit": unit, "frame": frame} for item in sample.metadata[part]]
        for part in ("inputs", "outputs")
    }
    path = resealed(sample, tmp_path / "p.onnx", **parts, **texts)
    try:
        controller(PolicyFile.load(path), "c")
    except PolicyFileError as error:
        assert "\n" not in str(error)
    assert not marker.exists()


@settings(max_examples=40, deadline=None)
@given(unit=TEXTS, frame=TEXTS, name=TEXTS, task=TEXTS, robot=TEXTS)
@example(unit="**//", frame="*/", name="??/", task="\\", robot='"')
@example(unit="*\\\n/", frame="/*", name="%s%n", task="{title}", robot="\x00")
def test_no_text_of_a_file_is_code(sample, unit, frame, name, task, robot):
    policy = described(sample, unit, frame, name=name, task=task, robot=robot)
    made = sources(policy)
    assert {key: re.sub(r"\s+", " ", code(text)) for key, text in made.items()} == plain(sample)
    assert all(text.isascii() for text in made.values())
    for text in (name, task, robot):
        assert c_string(text) in made["policy.c"]


@settings(max_examples=6, deadline=None)
@given(unit=TEXTS, frame=TEXTS, name=TEXTS)
@example(unit="**//", frame="*\\\n/", name="??/")
def test_any_text_compiles(sample, tmp_path_factory, unit, frame, name):
    folder = tmp_path_factory.mktemp("text")
    policy = described(sample, unit, frame, name=name, task=name)
    for file, text in sources(policy).items():
        (folder / file).write_text(text)
    _, compiler = toolchain.choose("auto", "cc")
    command = [*compiler, *toolchain.FLAGS, "-trigraphs", "-fsyntax-only", str(folder / "policy.c")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# The second attack of the findings: a state whose name is code.
BAD_STATES = [
    "h[1]; int evil",
    f"h[1]; }} policy_state; {CONSTRUCTOR} {{ system(0); }} typedef struct {{ float h",
    "h h",
    "",
    "1h",
    "größe",
    "int",
    "h\n",
    "h*/",
]


@pytest.mark.parametrize("name", BAD_STATES)
def test_a_state_whose_name_is_code_is_refused(tmp_path, name):
    nodes = [
        helper.make_node("Add", ["x", f"state.{name}"], ["y"]),
        helper.make_node("Neg", ["y"], [f"next_state.{name}"]),
    ]
    try:
        path = policy_of(tmp_path / "p.onnx", nodes, {"x": (2,)}, {"y": (2,)}, state={name: [0.0, 0.0]})
        policy = PolicyFile.load(path)
    except Exception as error:  # onnxruntime's own classes share no base with a public name
        assert isinstance(error, PolicyFileError) or "onnxruntime" in type(error).__module__
        return
    with pytest.raises(GraphError, match="cannot be the name of a member in C"):
        Source(policy, policy.content())


@pytest.mark.parametrize(
    "name", [*sorted(KEYWORDS), "_x", "__x", "X", "INT_MAX", "POLICY_H", "uint8_t", "policy_exp", "a" * 64]
)
def test_names_that_are_not_free_in_c_are_refused(name):
    with pytest.raises(GraphError, match="cannot be the name of a member"):
        member(name)


def test_every_macro_of_our_headers_is_refused_as_a_name():
    names = {name for path in FIRMWARE.rglob("*.[ch]") for name in MACROS.findall(path.read_text())}
    assert {"POLICY_H", "POLICY_MATH_H", "POLICY_RATE_HZ", "POLICY_SIGNALS"} <= names | set(
        MACROS.findall((FIRMWARE.parent / "deploy" / "codegen" / "source.py").read_text())
    )
    for name in names:
        with pytest.raises(GraphError):
            member(name)


@given(st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True))
def test_names_of_signals_as_people_write_them_are_taken(name):
    taken = name not in KEYWORDS and not re.fullmatch(r"(u?int|size|ssize|ptrdiff|max_align)\w*_t|policy_.*", name)
    if taken:
        assert member(name) == name


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e39, np.float32("inf")])
@pytest.mark.filterwarnings("ignore:overflow")
def test_no_number_of_c_is_not_finite(value):
    with pytest.raises(GraphError):
        number(value)


def test_attributes_that_are_text_do_not_become_code(tmp_path):
    """A stride is written into a loop as it is, so it must be a number."""
    from deploy.codegen.onnx_graph import Node
    from deploy.codegen.windows import window

    node = Node("MaxPool", "n", ("x",), ("y",), {"strides": [b"1; evil();", b"1"]}, None)
    with pytest.raises(ValueError, match="invalid literal"):
        window(node, (1, 1, 4, 4), (1, 1, 2, 2), (2, 2))


def test_an_operator_of_impossible_attributes_is_a_graph_error(tmp_path, monkeypatch):
    path = policy_of(tmp_path / "p.onnx", **one_node("LeakyRelu", alpha=0.5))
    policy = PolicyFile.load(path)

    def broken(*_):
        raise KeyError("alpha")

    monkeypatch.setattr("deploy.codegen.source.read", broken)
    with pytest.raises(GraphError, match="not well-formed: KeyError"):
        Source(policy, policy.content())


def test_a_file_that_does_not_fit_is_refused_before_anything_is_compiled(tmp_path, capsys, monkeypatch):
    def compiled(*_, **__):
        raise AssertionError("a compiler was started")

    monkeypatch.setattr(toolchain, "run", compiled)
    path = exported(tmp_path / "p.onnx", linear_hover()).path
    words = [f"policy={path}", "controller=c", "robot=racer", "transfer=false", "seconds=0.1"]
    assert cli.call(run_command.main, words) == 2
    slow = resealed(PolicyFile.load(path), tmp_path / "slow.onnx", rate_hz=50.0)
    assert cli.call(run_command.main, [f"policy={slow}", "controller=c", "seconds=0.1"]) == 2
    assert "does not fit the driver: the policy runs at 50 Hz" in capsys.readouterr().err
    with pytest.raises(AssertionError, match="a compiler was started"):
        cli.call(run_command.main, [f"policy={path}", "controller=c", "seconds=0.1"])
