"""Packages of others declare names by entry points: found without importing anything, loaded when asked for."""

import sys

import pytest

from policies.runner.config import compose
from policies.runner.mistakes import SettingsError
from sim import registry
from sim.engines import ENGINES
from sim.registry import StrangerError, load, names_from, package_of, plugins


def installed(folder, monkeypatch, name: str, points: str, **modules: str) -> None:
    """What pip leaves of a package: its metadata with entry points, and its modules."""
    for module, code in modules.items():
        (folder / f"{module}.py").write_text(code)
        monkeypatch.delitem(sys.modules, module, raising=False)
    info = folder / f"{name}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(points)
    if str(folder) not in sys.path:
        monkeypatch.syspath_prepend(folder)


def test_a_name_is_loaded_when_it_is_asked_for(tmp_path, monkeypatch):
    installed(
        tmp_path, monkeypatch, "acme", "[sim2metal.tasks]\nslalom = acme_slalom:Slalom\n", acme_slalom="Slalom = 7"
    )
    assert [package_of(point) for point in plugins("task")["slalom"]] == ["acme 1.5"]
    assert "acme_slalom" not in sys.modules
    assert load("task", "slalom", {}) == 7
    with pytest.raises(ValueError, match=r"unknown robot 'slalom'"):
        load("robot", "slalom", {})


def test_ours_go_first(tmp_path, monkeypatch):
    installed(
        tmp_path, monkeypatch, "acme", "[sim2metal.engines]\nflight = acme_flight:Other\n", acme_flight="Other = 7"
    )
    assert load("engine", "flight", {"flight": "sim.registry:GROUPS"}) is registry.GROUPS
    assert "acme_flight" not in sys.modules


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import nowhere_to_be_found", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("1 / 0", "ZeroDivisionError"),
        ("Other = 3", "AttributeError"),
    ],
)
def test_a_broken_package_is_named(tmp_path, monkeypatch, code, said):
    installed(tmp_path, monkeypatch, "acme", "[sim2metal.robots]\nheron = acme_heron:HERON\n", acme_heron=code)
    with pytest.raises(ValueError, match=rf"robot 'heron' of the package acme 1\.5 \(acme_heron:HERON\).*{said}"):
        load("robot", "heron", {})
    assert load("robot", "racer", {"racer": "sim.registry:GROUPS"}) is registry.GROUPS  # nobody else is disturbed


def test_two_packages_with_one_name_are_both_named(tmp_path, monkeypatch):
    for name in ("acme", "zenith"):
        points = "[sim2metal.algorithms]\nmagic = acme_magic:Magic\n"
        installed(tmp_path, monkeypatch, name, points, acme_magic="Magic = 1")
    with pytest.raises(ValueError, match=r"'magic' is declared by (acme|zenith) 1\.5 and by (acme|zenith) 1\.5"):
        load("algorithm", "magic", {})


def test_a_strangers_file_loads_none(tmp_path, monkeypatch):
    installed(
        tmp_path, monkeypatch, "acme", "[sim2metal.tasks]\nslalom = acme_slalom:Slalom\n", acme_slalom="Slalom = 7"
    )
    with names_from("file.onnx"), pytest.raises(StrangerError, match="name it yourself with task=slalom"):
        load("task", "slalom", {})
    assert "acme_slalom" not in sys.modules
    with names_from("file.onnx", "slalom"):
        assert load("task", "slalom", {}) == 7


def test_choices_and_settings_know_them(tmp_path, monkeypatch):
    installed(tmp_path, monkeypatch, "acme", "[sim2metal.engines]\nwhirl = acme_whirl:Whirl\n", acme_whirl="")
    with pytest.raises(ValueError, match=r"unknown engine 'whrl' \(did you mean 'whirl'\?\); choices: .*flight"):
        load("engine", "whrl", ENGINES)
    assert compose(["engine=whirl"]).options.engine == "whirl"
    with pytest.raises(SettingsError, match=r"unknown engine 'whrl' \(did you mean 'whirl'\?\); choices: .*flight"):
        compose(["engine=whrl"])
