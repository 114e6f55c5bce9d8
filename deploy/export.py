"""python -m deploy.export policy=FILE target=c|stm32f405|crazyflie out=DIR: a policy file as C, or what flies it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deploy import cli
from deploy.codegen import source as c_source
from deploy.codegen import toolchain
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
            "help": "c: source files for any compiler; stm32f405: an image, ready to flash; "
            "crazyflie: an app for its own firmware"
        }
    )
    out: str = field(metadata={"help": "the folder to write into"})
    trust: str | None = field(default=None, metadata={"help": TRUST})
    weights: str = field(default="float32", metadata={"help": f"one of: {', '.join(c_source.WEIGHTS)}"})
    compiler: str = field(default="auto", metadata={"help": f"one of: {', '.join(toolchain.COMPILERS)}"})


def write_c(policy: PolicyFile, content: bytes, folder: Path, config: Config) -> list[str]:
    """policy.h, policy.c, policy_math.h."""
    source = c_source.Source(policy, content, config.weights)
    files = source.files()
    replace_all([(folder / name, text.encode()) for name, text in files.items()])
    change = f"{source.rounding:.2g} of their range"
    said = f"{config.weights} weights change the test vectors' commands and states by up to {change}"
    return [f"wrote {folder / name}" for name in files] + [said] * (config.weights != "float32")


def write_stm32f405(policy: PolicyFile, content: bytes, folder: Path, config: Config) -> list[str]:
    """The C files, and policy.elf: they and the serial link of firmware/stm32f405. Proven on the emulator."""
    from deploy.mcu.cost import measure
    from deploy.mcu.emulator import Chip

    lines = write_c(policy, content, folder, config)
    image = toolchain.image(folder, config.compiler)
    cost = measure(Chip(image, count=True), policy)
    return [
        *lines,
        f"wrote {image}",
        f"self-test on the emulated chip: passed, the worst at {cost.selftest:.2g} of the tolerance",
        f"one step: {cost.instructions} instructions, {cost.cycles} estimated cycles, "
        f"{1e6 * cost.seconds:.0f} us at 168 MHz",
        f"flash {cost.flash} bytes (policy {cost.policy_flash}), stack {cost.stack} bytes, memory {cost.memory} bytes",
    ]


def write_crazyflie(policy: PolicyFile, content: bytes, folder: Path, config: Config) -> list[str]:
    """The app, and how to build it in a checkout of the Crazyflie's firmware."""
    from deploy.crazyflie import app

    files = app.files(policy, content, config.weights)
    replace_all([(folder / name, text.encode()) for name, text in files.items()])
    make = f"make -C {shlex.quote(str(folder))} CRAZYFLIE_BASE=$PWD/crazyflie-firmware"
    return [
        *(f"wrote {folder / name}" for name in files),
        "to build and flash it (a Brushless: cf21bl_defconfig):",
        "  git clone --recursive https://github.com/bitcraze/crazyflie-firmware",
        f"  {make} cf2_defconfig all",
        f"  {make} cload",
    ]


TARGETS: dict[str, Callable[[PolicyFile, bytes, Path, Config], list[str]]] = {
    "c": write_c,
    "stm32f405": write_stm32f405,
    "crazyflie": write_crazyflie,
}


def main(argv: Sequence[str]) -> None:
    """Check the file, then write what the target needs."""
    if cli.wants_help(argv):
        print(f"{__doc__}\n\n{cli.usage(Config)}")
        return
    (config,) = cli.parse(argv, Config)
    if config.target not in TARGETS:
        raise cli.ArgumentError(f"unknown target {config.target!r}; choices: {', '.join(TARGETS)}")
    content = content_of(config.policy)
    policy = PolicyFile.from_bytes(content, config.policy, config.trust)
    print(printable(f"{policy.name}: {policy.standing}"))
    for line in TARGETS[config.target](policy, content, Path(config.out), config):
        print(printable(line, cli.LONGEST))


if __name__ == "__main__":
    sys.exit(cli.call(main, needs="firmware"))
