"""python -m deploy.export policy=FILE target=TARGET out=DIR: as C, for boards and browsers, or what flies it.

Targets: c, stm32f405, nrf52840, rp2350, rp2040, teensy41, crazyflie, arduino, platformio, zephyr, ros2_control, px4,
raptor, betaflight, wasm, page; safetensors: its weights, for other tools.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from deploy import cli
from deploy.codegen import source as c_source
from deploy.codegen import toolchain
from deploy.codegen.cores import CORES
from deploy.mcu.budget import Budget, Demand
from deploy.policy_file import PolicyFile
from deploy.sign import TRUST
from deploy.system.files import replace_all
from deploy.trust.content import content_of
from deploy.trust.text import printable


@dataclass
class Config:
    """Settings of the command."""

    policy: str = field(metadata={"help": "the policy file"})
    target: str = field(
        metadata={
            "help": "c: source files for any compiler; "
            "stm32f405, nrf52840, rp2350, rp2040, teensy41, esp32c3: an image; "
            "crazyflie: an app for its own firmware; arduino, platformio, zephyr: a library folder, with an example; "
            "ros2_control: a package of ROS 2 with a controller in C++; "
            "px4: a module of PX4, a flight mode; "
            "raptor: policy.tar, weights for PX4's module mc_raptor; "
            "betaflight: a module of Betaflight, on a switch; "
            "wasm: WebAssembly, and how JavaScript calls it; "
            "page: an HTML file in which a policy flies, drives or plays football; "
            "safetensors: the weights and the contract, for other tools"
        }
    )
    out: str = field(metadata={"help": "the folder to write into"})
    trust: str | None = field(default=None, metadata={"help": TRUST})
    weights: str = field(default="float32", metadata={"help": f"one of: {', '.join(c_source.WEIGHTS)}"})
    learn: bool = field(
        default=False, metadata={"help": "stm32f405: with what learns in flight, see docs/microcontroller.md"}
    )
    approximate: bool = field(
        default=False, metadata={"help": "raptor: also a policy that the module flies a little otherwise"}
    )
    compiler: str = field(default="auto", metadata={"help": f"one of: {', '.join(toolchain.COMPILERS)}"})
    core: str | None = field(
        default=None,
        metadata={
            "help": "of target=c, arduino, platformio or zephyr: prove and measure it on this core, emulated: "
            f"{', '.join(CORES)}"
        },
    )
    budget_us: float | None = field(
        default=None,
        metadata={
            "help": "the most microseconds that a step may take; otherwise the target's, see docs/microcontroller.md"
        },
    )


def budget_of(target: Budget, config: Config) -> Budget:
    """The target's, or with the time that the user says."""
    if config.budget_us is None:
        return target
    if not config.budget_us > 0.0:
        raise cli.ArgumentError(f"budget_us={config.budget_us:g} is no positive number")
    return replace(target, us=config.budget_us, why="as budget_us says")


def written(source: c_source.Source, folder: Path, beside: Mapping[str, str] | None = None) -> list[str]:
    """Write policy.h, policy.c and what they include, and what is `beside` them; what to say of it."""
    files = source.files() | dict(beside or {})
    replace_all([(folder / name, text.encode()) for name, text in files.items()])
    change = f"{source.rounding:.2g} of their range"
    said = f"{source.weights} weights change the test vectors' commands and states by up to {change}"
    return [f"wrote {folder / name}" for name in files] + [said] * (source.weights != "float32")


def proved(policy: PolicyFile, source: c_source.Source, config: Config) -> list[str]:
    """What a step takes: estimated for a Cortex-M4F, or on the emulated `core`, which also runs the self-test."""
    from deploy.mcu.boards import bearer
    from deploy.mcu.cost import measure
    from deploy.mcu.emulator import Chip

    if config.core is None:
        return [budget_of(Budget(), config).check(Demand.estimated(source))]
    if config.budget_us is not None:
        raise cli.ArgumentError(
            "budget_us goes without core: of other cores instructions are counted, no time is known"
        )
    core, board = CORES[config.core], bearer(config.core)
    with tempfile.TemporaryDirectory() as scratch:
        written(source, Path(scratch))
        image = toolchain.image(Path(scratch), config.compiler, core=core, board=board.name)
        cost = measure(Chip(image, count=True, core=core, board=board), policy)
    return [
        f"self-test on an emulated {core.name}: passed, the worst at {cost.selftest:.2g} of the tolerance",
        f"one step takes {cost.instructions} instructions there, flash {cost.policy_flash}, memory {cost.memory}, "
        f"stack {cost.stack} bytes",
    ]


def write_c(policy: PolicyFile, content: bytes, folder: Path, config: Config) -> list[str]:
    """policy.h, policy.c and what they include. Which chip it is for we do not know: only the user has a budget."""
    source = c_source.Source(policy, content, config.weights)
    said = proved(policy, source, config)
    return [*written(source, folder), *said]


def write_board(policy: PolicyFile, content: bytes, folder: Path, config: Config) -> list[str]:
    """The C files, and policy.elf: they and the serial link of firmware/link. Proven on the emulator."""
    from deploy.mcu.boards import BOARDS
    from deploy.mcu.cost import measure
    from deploy.mcu.emulator import Chip
    from deploy.mcu.residual import Residual

    board = BOARDS[config.target]
    source = c_source.Source(policy, content, config.weights)
    residual = Residual() if config.learn else None
    beside = residual.files(policy) if residual else {}
    with tempfile.TemporaryDirectory() as scratch:
        written(source, Path(scratch), beside)
        image = toolchain.image(Path(scratch), config.compiler, core=CORES[board.core], board=board.name)
        cost = measure(Chip(image, count=True, board=board), policy, residual=residual)
        built = image.read_bytes()
    period = Budget(1e6 / policy.rate_hz, f"the control period at {policy.rate_hz:g} Hz")
    said = budget_of(period, config).check(Demand.measured(cost))
    lines = written(source, folder, beside)
    replace_all([(folder / image.name, built)])
    return [
        *lines,
        f"wrote {folder / image.name} for {board.speed}; its serial line: {board.wiring}",
        f"self-test on the emulated chip: passed, the worst at {cost.selftest:.2g} of the tolerance",
        f"one step: {cost.instructions} instructions, {cost.cycles} estimated cycles; "
        f"flash of the policy alone {cost.policy_flash} bytes",
        said,
    ]


def write_crazyflie(policy: PolicyFile, content: bytes, folder: Path, config: Config) -> list[str]:
    """The app, and how to build it in a checkout of the Crazyflie's firmware."""
    from deploy.crazyflie import app, budget

    app.check(policy)
    source = c_source.Source(policy, content, config.weights)
    given = None if config.budget_us is None else budget_of(budget.STABILIZER, config)
    where = budget.place(policy, source, given)
    files = app.around(policy, source, where)
    replace_all([(folder / name, text.encode()) for name, text in files.items()])
    make = f"make -C {shlex.quote(str(folder))} CRAZYFLIE_BASE=$PWD/crazyflie-firmware"
    return [
        *(f"wrote {folder / name}" for name in files),
        where.said,
        "to build and flash it (a Brushless: cf21bl_defconfig):",
        "  git clone --recursive https://github.com/bitcraze/crazyflie-firmware",
        f"  {make} cf2_defconfig all",
        f"  {make} cload",
    ]


def write_library(policy: PolicyFile, content: bytes, folder: Path, config: Config) -> list[str]:
    """A library folder of the same C, and how it is used. The board is the user's: only the user has a budget."""
    from deploy.libraries import LIBRARIES, USE, name_of

    source = c_source.Source(policy, content, config.weights)
    said = proved(policy, source, config)
    files = LIBRARIES[config.target](policy, source)
    replace_all([(folder / name, text.encode()) for name, text in files.items()])
    use = USE[config.target].format(name=name_of(policy), folder=shlex.quote(str(folder)))
    return [*(f"wrote {folder / name}" for name in files), *said, f"to use it: {use}"]


def write_px4(policy: PolicyFile, content: bytes, folder: Path, config: Config) -> list[str]:
    """A module's folder, and how to build it in a checkout of PX4."""
    from deploy.px4 import module

    module.PX4.check(policy)
    source = c_source.Source(policy, content, config.weights)
    said = proved(policy, source, config)
    files = module.files(policy, source)
    replace_all([(folder / name, text.encode()) for name, text in files.items()])
    return [
        *(f"wrote {folder / name}" for name in files),
        *said,
        "to build it: copy the folder to PX4-Autopilot/src/modules/sim2metal_policy, add",
        "CONFIG_MODULES_SIM2METAL_POLICY=y to your board's default.px4board; `sim2metal_policy start`, mode Policy",
    ]


def write_betaflight(policy: PolicyFile, content: bytes, folder: Path, config: Config) -> list[str]:
    """A folder of sources, and how to build it in a checkout of Betaflight."""
    from deploy.betaflight import module

    module.BETAFLIGHT.check(policy)
    source = c_source.Source(policy, content, config.weights)
    said = budget_of(module.BUDGET, config).check(Demand.estimated(source))
    files = module.files(policy, source)
    replace_all([(folder / name, text.encode()) for name, text in files.items()])
    return [
        *(f"wrote {folder / name}" for name in files),
        said,
        *["it needs a position: GPS, or optical flow and a rangefinder"] * module.needs_position(policy),
        "to build it, in a checkout of Betaflight 2026.6: copy the folder to src/main/sim2metal, then",
        *(f"  {line}" for line in module.BUILD),
        *module.SWITCH.splitlines(),
    ]


def write_raptor(policy: PolicyFile, content: bytes, folder: Path, config: Config) -> list[str]:
    """policy.tar, which PX4's module mc_raptor reads as it starts."""
    from deploy.px4 import raptor

    if config.budget_us is not None or config.weights != "float32":
        raise cli.ArgumentError("target=raptor writes float32 weights and no code: budget_us and weights go without")
    made, said = raptor.policy_tar(policy, content, config.approximate)
    replace_all([(folder / "policy.tar", made)])
    return [
        f"wrote {folder / 'policy.tar'}, {len(made)} bytes",
        *said,
        "to fly it: PX4 with CONFIG_MODULES_MC_RAPTOR=y; copy it to raptor/policy.tar on the SD card; mc_raptor start",
    ]


def write_ros2_control(policy: PolicyFile, content: bytes, folder: Path, config: Config) -> list[str]:
    """A package with a chainable controller around the same C."""
    from deploy.libraries.ros2_control import Package

    without_budget(config)
    package = Package(policy, c_source.Source(policy, content, config.weights))
    files = package.files()
    replace_all([(folder / name, text.encode()) for name, text in files.items()])
    return [
        *(f"wrote {folder / name}" for name in files),
        "to build it, in a workspace whose src/ has this folder: "
        f"colcon build --packages-select {shlex.quote(package.name)}",
        "its parameters, with the names of the interfaces: config/example.yaml; what it does: docs/ros2.md",
    ]


def without_budget(config: Config) -> None:
    """ArgumentError for what only chips have."""
    if config.budget_us is not None:
        raise cli.ArgumentError(f"budget_us is for microcontrollers; target={config.target} has none")


def write_wasm(policy: PolicyFile, content: bytes, folder: Path, config: Config) -> list[str]:
    """policy.wasm, and policy.mjs for browsers and node."""
    from deploy.web import wasm

    without_budget(config)
    files = wasm.files(policy, content, config.weights, config.compiler)
    replace_all([(folder / name, made) for name, made in files.items()])
    return [f"wrote {folder / name}, {len(made)} bytes" for name, made in files.items()]


def write_page(policy: PolicyFile, content: bytes, folder: Path, config: Config) -> list[str]:
    """index.html, with everything inside."""
    from deploy.web.page import page

    without_budget(config)
    made = page(policy, content, config.weights, config.compiler)
    replace_all([(folder / "index.html", made)])
    return [f"wrote {folder / 'index.html'}, {len(made)} bytes: open it in a browser"]


def write_safetensors(policy: PolicyFile, content: bytes, folder: Path, config: Config) -> list[str]:
    """weights.safetensors: every number as it is in the file."""
    from deploy.hub.weights import FILE, weights

    without_budget(config)
    if config.weights != "float32":
        raise cli.ArgumentError("weights goes without target=safetensors: they are stored as they are in the file")
    made = weights(policy, content)
    replace_all([(folder / FILE, made)])
    return [f"wrote {folder / FILE}, {len(made)} bytes"]


TARGETS: dict[str, Callable[[PolicyFile, bytes, Path, Config], list[str]]] = {
    "c": write_c,
    "stm32f405": write_board,
    "nrf52840": write_board,
    "rp2350": write_board,
    "rp2040": write_board,
    "teensy41": write_board,
    "esp32c3": write_board,
    "crazyflie": write_crazyflie,
    "arduino": write_library,
    "platformio": write_library,
    "zephyr": write_library,
    "ros2_control": write_ros2_control,
    "px4": write_px4,
    "raptor": write_raptor,
    "betaflight": write_betaflight,
    "wasm": write_wasm,
    "page": write_page,
    "safetensors": write_safetensors,
}
FOR_ANY_CORE = ("c", *(name for name, write in TARGETS.items() if write is write_library))


def main(argv: Sequence[str]) -> None:
    """Check the file, then write what the target needs."""
    if cli.wants_help(argv):
        print(f"{__doc__}\n\n{cli.usage(Config)}")
        return
    (config,) = cli.parse(argv, Config)
    if config.target not in TARGETS:
        raise cli.ArgumentError(f"unknown target {config.target!r}; choices: {', '.join(TARGETS)}")
    if config.core is not None and (config.core not in CORES or config.target not in FOR_ANY_CORE):
        raise cli.ArgumentError(f"core={config.core}: one of {', '.join(CORES)}, of target={'|'.join(FOR_ANY_CORE)}")
    if config.learn and config.target != "stm32f405":
        raise cli.ArgumentError(f"learn=true is for target=stm32f405; target={config.target} learns nothing in flight")
    if config.approximate and config.target != "raptor":
        raise cli.ArgumentError(f"approximate=true is for target=raptor; target={config.target} is exact")
    content = content_of(config.policy)
    policy = PolicyFile.from_bytes(content, config.policy, config.trust)
    print(printable(f"{policy.name}: {policy.standing}"))
    for line in TARGETS[config.target](policy, content, Path(config.out), config):
        print(printable(line, cli.LONGEST))


if __name__ == "__main__":
    sys.exit(cli.call(main, needs="firmware"))
