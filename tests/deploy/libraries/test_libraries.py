"""A policy's C as a library of Arduino, PlatformIO, Zephyr: the examples run here, the C is built for other cores."""

import ctypes
import json
import subprocess
from pathlib import Path

import pytest
import yaml

from deploy import cli, export
from deploy.codegen import toolchain
from deploy.codegen.cores import CORES, RISC_V
from deploy.libraries import LIBRARIES, name_of
from deploy.policy_file import PolicyFile
from tests.deploy.sample_policy import exported, linear_hover

HEADERS = Path(__file__).parent / "headers"
INCLUDE = ("-I", HEADERS)
OTHERS = [core for core in CORES.values() if core.family == RISC_V]


def written(folder: Path, target: str, policy: str = "quad_any") -> Path:
    assert cli.call(export.main, [f"policy={policy}", f"target={target}", f"out={folder}"]) == 0
    return folder


def compiled(*words: object, cpp: bool = False) -> None:
    _, command = toolchain.choose("zig", "cc")
    toolchain.run([*command[:-1], "c++" if cpp else "cc", *words])


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    return {target: written(tmp_path_factory.mktemp(target), target) for target in LIBRARIES}


def said_by(library: Path) -> str:
    loaded = ctypes.CDLL(str(library))
    loaded.bench()
    return (ctypes.c_char * 500).in_dll(loaded, "said").value.decode()


@pytest.mark.parametrize("target", ["arduino", "platformio"])
def test_the_sketch_runs_the_self_test_and_times_a_step(folders, tmp_path, target):
    folder = folders[target]
    (sketch,) = folder.glob("examples/SelfTest/SelfTest.*")
    include = (*INCLUDE, "-I", folder / "src", "-include", "Arduino.h")
    plain = ("-O2", "-fPIC", "-Wall", "-Wextra", "-Werror", "-fno-exceptions", "-fno-rtti")
    compiled(*plain, *include, "-x", "c++", "-c", sketch, "-o", tmp_path / "sketch.o", cpp=True)
    compiled(*plain, *include, "-c", HEADERS / "core.cpp", "-o", tmp_path / "core.o", cpp=True)
    sources = [*folder.glob("src/*.c"), tmp_path / "sketch.o", tmp_path / "core.o"]
    compiled(*toolchain.FLAGS, *toolchain.HOST, *sources, "-o", tmp_path / "all.so")
    line = said_by(tmp_path / "all.so")
    assert line.startswith("quad_any: self-test passed, worst 0.0")
    assert line.endswith(" of the tolerance; 10.0 us a step, of 10000 us\n")


def test_the_sample_of_zephyr_does_too(folders, tmp_path):
    folder = folders["zephyr"]
    sources = [*folder.glob("src/*.c"), folder / "samples/selftest/src/main.c", HEADERS / "zephyr.c"]
    flags = ("-Dmain=sample", *INCLUDE, "-I", folder / "src")
    compiled(*toolchain.FLAGS, *toolchain.HOST, *flags, *sources, "-o", tmp_path / "all.so")
    line = said_by(tmp_path / "all.so")
    assert line.startswith("quad_any: self-test passed, worst ") and line.endswith(" 10 us a step, of 10000 us\n")


def test_the_manifests_say_what_is_there(folders):
    lines = (folders["arduino"] / "library.properties").read_text().splitlines()
    told = dict(line.split("=", 1) for line in lines)
    needed = {"name", "version", "author", "maintainer", "sentence", "paragraph", "category", "architectures"}
    assert needed <= told.keys() and told["name"] == "policy_quad_any"
    assert (folders["arduino"] / "src" / told["includes"]).is_file()
    told = json.loads((folders["platformio"] / "library.json").read_text())
    (example,) = told["examples"]
    assert all((folders["platformio"] / example["base"] / name).is_file() for name in example["files"])
    assert told["build"]["flags"] == ["-ffp-contract=off"]
    zephyr = folders["zephyr"]
    told = yaml.safe_load((zephyr / "zephyr" / "module.yml").read_text())
    assert told["build"] == {"cmake": ".", "kconfig": "Kconfig"}
    switch = "SIM2METAL_POLICY"
    assert f"config {switch}\n" in (zephyr / "Kconfig").read_text()
    assert f"CONFIG_{switch}=y" in (zephyr / "samples/selftest/prj.conf").read_text()
    cmake = (zephyr / "CMakeLists.txt").read_text()
    assert f"if(CONFIG_{switch})" in cmake
    assert all(f"src/{path.name}" in cmake for path in (zephyr / "src").glob("*.c"))


@pytest.mark.parametrize("core", OTHERS, ids=lambda core: core.name)
def test_the_c_is_built_for_other_cores(folders, tmp_path, core):
    for source in (folders["arduino"] / "src").glob("*.c"):
        command = (
            *core.flags["zig"],
            "-std=c11",
            "-Os",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-ffreestanding",
            "-ffp-contract=off",
        )
        compiled(*command, "-c", source, "-o", tmp_path / "policy.o")


def test_a_name_of_a_stranger_stays_a_name(tmp_path):
    path = exported(tmp_path / "p.onnx", linear_hover()).path
    policy = PolicyFile.load(path)
    for name in ("../x\n$(rm)", "größe", "", '"; sentence=', "9 lives"):
        policy.name = name
        made = name_of(policy)
        assert made.isidentifier() and made.isascii() and made.startswith("policy")
        for library in LIBRARIES.values():
            for path, text in library(policy, FakeSource()).items():
                assert not Path(path).is_absolute() and ".." not in path
                if path == "library.properties":
                    assert all(line.count("=") >= 1 for line in text.splitlines()) and len(text.splitlines()) == 9
                if path == "library.json":
                    json.loads(text)


class FakeSource:
    """No C."""

    def files(self) -> dict[str, str]:
        return {"policy.h": "", "policy.c": ""}


def test_an_unknown_target_names_these(capsys, tmp_path):
    assert cli.call(export.main, ["policy=quad_any", "target=arduin", f"out={tmp_path / 'x'}"]) == 2
    assert "arduino, platformio, zephyr" in capsys.readouterr().err
    assert subprocess.run(["ls", tmp_path], capture_output=True, text=True).stdout == ""
