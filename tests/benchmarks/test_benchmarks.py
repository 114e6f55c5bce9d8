"""The benchmarks run (with tiny sizes), all of them by one command, and the page is what results.json says."""

import importlib
import json
import re
import shlex
import subprocess
import sys
import types
from pathlib import Path

import pytest

from sim.language.folder import installed

FOLDER = Path(__file__).parent
WITH_ENCODER = pytest.mark.skipif(installed() is None, reason="the extra [vla] is not installed")


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        pytest.param("simulators.py", marks=pytest.mark.long),
        pytest.param("training.py --only apg", marks=pytest.mark.long),
        "pitch.py --only soccer_1v1 camera",
        pytest.param('football.py --only "detector, seed 0"', marks=pytest.mark.long),
        pytest.param('driving.py --only "ppo, seed 0" "online_sac, seed 0"', marks=pytest.mark.long),
        pytest.param('off_policy.py --only "arm_reach, sac" "arm_reach, Stable-Baselines3"', marks=pytest.mark.long),
        pytest.param("transfer.py --only flight", marks=pytest.mark.long),
        pytest.param("tracking.py", marks=pytest.mark.long),
        pytest.param("foundation.py", marks=pytest.mark.long),
        pytest.param("recipes.py", marks=pytest.mark.long),
        "adaptation.py",
        pytest.param("specialists.py --only racer x500", marks=pytest.mark.long),
        pytest.param('edges.py --only nano "figure-eight, 2 m in 3 s"', marks=pytest.mark.long),
        pytest.param('microcontroller.py --only "MLP ours"', marks=pytest.mark.long),
        pytest.param('microcontroller.py --only "GRU ours"', marks=pytest.mark.long),
        pytest.param('ros2.py --only hover "policy hangs"', marks=pytest.mark.long),
        pytest.param("crazyflie.py --only connecting commanding quad_any", marks=pytest.mark.long),
        pytest.param('rehearsal.py --only "flow, quad_any"', marks=pytest.mark.long),
        pytest.param(
            'control_loop.py --only "C, SCHED_FIFO" "onnxruntime, SCHED_FIFO, under load" "C, usual priority"',
            marks=pytest.mark.long,
        ),
        'guards.py --only tilt "NaN in a signal" "link lost"',
        pytest.param('overload.py --only "usual priority"', marks=pytest.mark.long),
        pytest.param("arm.py", marks=pytest.mark.long),
        pytest.param("manipulation.py --only pick-place", marks=pytest.mark.long),
        pytest.param('words.py --only "seed 0"', marks=[pytest.mark.long, WITH_ENCODER]),
        pytest.param("decoding.py", marks=pytest.mark.long),
        pytest.param("steering.py --only reach-v3", marks=pytest.mark.long),
        pytest.param('trained.py --only "arm_reach, ppo"', marks=pytest.mark.long),
        "traffic.py",
        pytest.param("workers.py --only metaworld/reach-v3", marks=pytest.mark.long),
        pytest.param('sampling.py --only arm_pick_place "arm_pick_place, late"', marks=pytest.mark.long),
    ],
)
def test_a_benchmark_runs_and_prints_json_and_a_table(command):
    before = (FOLDER / "results.json").read_bytes()
    script, *arguments = shlex.split(command)
    done = subprocess.run(
        [sys.executable, str(FOLDER / script), "--quick", *arguments], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    rows, end = json.JSONDecoder().raw_decode(done.stdout)
    assert rows and all(row["machine"] and "missing" not in row for row in rows.values())
    assert done.stdout[end:].count("\n| ") >= 3
    assert (FOLDER / "results.json").read_bytes() == before


@pytest.fixture
def report(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("report")


def test_the_page_is_what_was_measured(report):
    results = report.read()
    assert [*results] == [name for name in report.BENCHMARKS if name in results]
    assert (FOLDER / "results.md").read_text() == report.markdown(results)
    assert set(report.BENCHMARKS) - set(results) <= {"football", "overload", "trained"}  # hours; the page says so


def test_what_the_gpu_is_compared_with(report, monkeypatch, tmp_path):
    gpu = importlib.import_module("gpu")
    assert gpu.vehicles_apart("cpu") == 0.0  # the same vehicles, told the same
    contest = gpu.Contest(lambda: None, 3, lambda: None, 2, 0.0, steps=20)
    rated = []
    monkeypatch.setattr(gpu, "CASES", {"toy": lambda many, few: contest})
    monkeypatch.setattr(gpu, "rate", lambda run, rows, seconds, finished: rated.append(rows) or 1.0)
    monkeypatch.setattr(gpu, "TURN", tmp_path / "lock")
    device = types.SimpleNamespace(name="none")
    there = {"is_available": lambda: True, "get_current_device": lambda: device, "synchronize": lambda: None}
    monkeypatch.setattr(gpu, "cuda", types.SimpleNamespace(**there))
    rows = gpu.measure(["toy"], True)
    assert rated == [60, 40] and rows["toy"]["rows"] == 3


def test_every_benchmark_is_in_the_list(report):
    scripts = {file.stem: file.read_text() for file in FOLDER.glob("*.py") if not file.name.startswith("test_")}
    found = {stem: re.findall(r"report\.main\(\s*\"(\w+)\"", text) for stem, text in scripts.items()}
    assert {name: [name] for name in report.BENCHMARKS} == {stem: names for stem, names in found.items() if names}
    explained = (FOLDER / "README.md").read_text()
    assert [
        stem for stem, text in scripts.items() if '__name__ == "__main__"' in text and f"{stem}.py" not in explained
    ] == []


@pytest.fixture
def toy(report, monkeypatch, tmp_path):
    """A benchmark of three cases whose numbers are counted up: what each of its runs measured."""
    calls = []

    def measure(cases, quick):
        if "c" in cases and toy.broken:
            raise RuntimeError("stopped")
        calls.append(cases)
        return {case: {"value": len(calls)} for case in cases}

    def run(*words, apart=True, machine="M"):
        monkeypatch.setattr(sys, "argv", ["toy.py", "--missing", "--machine", machine, *words])
        calls.clear()
        report.main("toy", ["a", "b", "c"], measure, apart)
        return list(calls)

    def markdown(rows):
        return report.table(["", "value"], [[case, str(row["value"])] for case, row in rows.items()])

    toy = types.SimpleNamespace(
        run=run, broken=False, markdown=markdown, page=lambda: (tmp_path / "results.md").read_text()
    )
    monkeypatch.setitem(sys.modules, "toy", toy)
    monkeypatch.setattr(report, "BENCHMARKS", {"toy": ()})
    monkeypatch.setattr(report, "FOLDER", tmp_path)
    monkeypatch.setattr(report.provenance, "code", lambda: "one")
    monkeypatch.setattr(report.provenance, "commit", lambda: "c0ffee")
    return toy


def test_what_was_measured_is_not_measured_again(report, toy, capsys):
    toy.broken = True
    with pytest.raises(RuntimeError):
        toy.run()
    assert list(report.read()["toy"]) == ["a", "b"]
    toy.broken = False
    assert toy.run() == [["c"]] and toy.run() == []
    assert toy.run("--quick", "--only", "a", machine="N") == [["a"]] and report.read()["toy"]["a"]["machine"] == "M"
    assert toy.run("--only", "a", machine="N") == [["a"]]
    assert toy.page().count("| `python tests/benchmarks/toy.py --only ROW ...` | ") == 2
    assert re.search(r"^\| a \| .* \| N; load .* c0ffee \| Python 3\.", toy.page(), re.M)
    assert re.search(r"^\| b; c \| .* \| M; load ", toy.page(), re.M)
    report.provenance.code = lambda: "two"
    assert toy.run() == [["a"], ["b"], ["c"]]


def test_what_is_compared_is_measured_in_one_run(report, toy, capsys):
    assert toy.run("--only", "a", apart=False) == [["a"]]
    assert toy.run("--only", "a", apart=False) == []
    assert toy.run(apart=False) == [["a", "b", "c"]] and toy.run(apart=False) == []
    assert toy.run(apart=False, machine="N") == [["a", "b", "c"]]
    assert "| all | `python tests/benchmarks/toy.py` | N; load " in toy.page()


def test_one_that_fails_does_not_hold_up_the_others(report, monkeypatch, tmp_path, capfd):
    bench = importlib.import_module("bench")
    (tmp_path / "first.py").write_text("raise SystemExit(3)")
    (tmp_path / "second.py").write_text("import sys; print('with', *sys.argv[1:])")
    monkeypatch.setattr(report, "BENCHMARKS", {"first": (), "second": ()})
    monkeypatch.setattr(report, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "argv", ["bench.py", "--machine", "M"])
    assert bench.main() == 1
    said = capfd.readouterr().out
    assert "with --machine M --missing\n" in said and said.endswith("FAILED python tests/benchmarks/first.py\n")
    assert "| second | `python tests/benchmarks/second.py` | not yet | – |" in (tmp_path / "results.md").read_text()


def test_numbers_depend_on_code_alone(report, tmp_path):
    provenance = report.provenance
    files = ("sim/a.py", "policies/a.yaml", "deploy/a.py", "firmware/a.c", "constraints.txt", "tests/benchmarks/a.py")
    others = ("sim/a.md", "tests/benchmarks/results.json", "tests/benchmarks/test_a.py", "docs/a.md", "README.md")
    for file in (*files, *others):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("before")
    seen = {provenance.code(tmp_path)}
    for count, file in enumerate(files, 2):
        (tmp_path / file).write_text("after")
        seen.add(provenance.code(tmp_path))
        assert len(seen) == count
    for file in others:
        (tmp_path / file).write_text("after")
        assert provenance.code(tmp_path) in seen
    assert provenance.commit(tmp_path) == "–"
    told = provenance.versions(["numpy", "no-such-package", "$NO_SUCH_CHECKOUT"])
    assert set(told) == {"Python", "numpy", "onnxruntime"}


def test_curves_are_drawn_of_whatever_was_measured(report, monkeypatch, tmp_path, capsys):
    curves, results = importlib.import_module("curves"), report.read()["manipulation"]
    monkeypatch.setattr(report, "FOLDER", tmp_path)
    curves.draw({"pick-place": results["pick-place"], "pick-place, rlpd": {"runs": [{}]}})
    assert (tmp_path / "manipulation.png").stat().st_size > 10_000
    said = capsys.readouterr().out
    assert "no curves of pick-place, rlpd: measure it first" in said and "no curves of pick-place:" not in said
