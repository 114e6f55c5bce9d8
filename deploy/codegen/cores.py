"""Processor cores that C is built for and that are emulated: what compilers call them, and how they pass floats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CORTEX_M, RISC_V = "cortex_m", "riscv"  # families, and their folders in firmware/link
GCC = {CORTEX_M: "arm-none-eabi-gcc", RISC_V: "riscv64-unknown-elf-gcc"}


@dataclass(frozen=True)
class Core:
    """One core. `flags`: of each kind of compiler. Without an FPU floats are computed by the compiler's own library."""

    name: str
    family: str
    flags: Mapping[str, tuple[str, ...]]
    fpu: bool
    model: str  # unicorn's constant

    @classmethod
    def cortex_m(cls, name: str, zig: str, gcc: str, model: str, fpu: str = "") -> Core:
        """By the names of LLVM and GCC; `fpu` is GCC's, empty: none."""
        kind, floats = ("eabihf", (f"-mfpu={fpu}", "-mfloat-abi=hard")) if fpu else ("eabi", ("-mfloat-abi=soft",))
        flags = {
            "zig": ("-target", f"thumb-freestanding-{kind}", f"-mcpu={zig}"),
            "gcc": ("-mthumb", f"-mcpu={gcc}", *floats),
        }
        return cls(name, CORTEX_M, flags, bool(fpu), f"UC_CPU_ARM_{model}")

    @classmethod
    def riscv(cls, extensions: str, model: str) -> Core:
        """Of 32 bits, by the letters of its extensions to the 32 registers of RV32I."""
        abi = "ilp32f" if "f" in extensions else "ilp32"
        flags = {
            "zig": (
                "-target",
                "riscv32-freestanding-none",
                f"-mcpu=generic_rv32+{'+'.join(extensions)}",
                f"-mabi={abi}",
            ),
            "gcc": (f"-march=rv32i{extensions}", f"-mabi={abi}"),
        }
        return cls(f"RV32I{extensions.upper()}", RISC_V, flags, "f" in extensions, f"UC_CPU_RISCV32_{model}")


M4F = "cortex-m4f"
CORES = {
    "cortex-m0plus": Core.cortex_m("Cortex-M0+", "cortex_m0plus", "cortex-m0plus", "CORTEX_M0"),
    "cortex-m3": Core.cortex_m("Cortex-M3", "cortex_m3", "cortex-m3", "CORTEX_M3"),
    M4F: Core.cortex_m("Cortex-M4F", "cortex_m4+vfp4d16sp", "cortex-m4", "CORTEX_M4", "fpv4-sp-d16"),
    "cortex-m7f": Core.cortex_m("Cortex-M7F", "cortex_m7+fp_armv8d16sp", "cortex-m7", "CORTEX_M7", "fpv5-sp-d16"),
    "cortex-m33f": Core.cortex_m(
        "Cortex-M33F", "cortex_m33+dsp+fp_armv8d16sp", "cortex-m33", "CORTEX_M33", "fpv5-sp-d16"
    ),
    "rv32imc": Core.riscv("mc", "SIFIVE_E31"),  # which also has atomic instructions, that no compiler is asked for
    "rv32imafc": Core.riscv("mafc", "SIFIVE_U34"),  # which also has double precision
}
