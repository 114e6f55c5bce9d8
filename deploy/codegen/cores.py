"""Processor cores that C is built for and that are emulated: what compilers call them, and how they pass floats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Core:
    """One core. `flags`: of each kind of compiler. Without an FPU floats are computed by the compiler's own library."""

    name: str
    flags: Mapping[str, tuple[str, ...]]
    fpu: bool
    model: str  # unicorn's constant

    @classmethod
    def of(cls, name: str, zig: str, gcc: str, model: str, fpu: str = "") -> Core:
        """By the names of LLVM and GCC; `fpu` is GCC's, empty: none."""
        kind, floats = ("eabihf", (f"-mfpu={fpu}", "-mfloat-abi=hard")) if fpu else ("eabi", ("-mfloat-abi=soft",))
        flags = {
            "zig": ("-target", f"thumb-freestanding-{kind}", f"-mcpu={zig}"),
            "gcc": ("-mthumb", f"-mcpu={gcc}", *floats),
        }
        return cls(name, flags, bool(fpu), f"UC_CPU_ARM_{model}")


M4F = "cortex-m4f"
CORES = {
    "cortex-m0plus": Core.of("Cortex-M0+", "cortex_m0plus", "cortex-m0plus", "CORTEX_M0"),
    "cortex-m3": Core.of("Cortex-M3", "cortex_m3", "cortex-m3", "CORTEX_M3"),
    M4F: Core.of("Cortex-M4F", "cortex_m4+vfp4d16sp", "cortex-m4", "CORTEX_M4", "fpv4-sp-d16"),
    "cortex-m7f": Core.of("Cortex-M7F", "cortex_m7+fp_armv8d16sp", "cortex-m7", "CORTEX_M7", "fpv5-sp-d16"),
    "cortex-m33f": Core.of("Cortex-M33F", "cortex_m33+dsp+fp_armv8d16sp", "cortex-m33", "CORTEX_M33", "fpv5-sp-d16"),
}
