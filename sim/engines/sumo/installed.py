"""SUMO as its wheels bring it: libsumo, and the programs and data of eclipse-sumo."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

MISSING = "traffic needs SUMO: pip install 'sim2metal[traffic]'"
# Of SUMO's own model PHEMlight 5 the free data are two cars.
PHEMLIGHT = "data/emissions/PHEMlight5"


def library() -> Any:
    """The module libsumo: one simulation per process. ModuleNotFoundError names the extra."""
    os.environ["LIBSUMO_AS_TRACI"] = "quiet"  # else it prints about versions of pyarrow, which nothing here uses
    try:
        import libsumo
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(MISSING, name="libsumo") from error
    return libsumo


def home() -> Path:
    """The folder of SUMO's programs and data. ModuleNotFoundError names the extra."""
    try:
        import sumo
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(MISSING, name="sumo") from error
    return Path(sumo.SUMO_HOME)


def tool(name: str) -> tuple[str, dict[str, str]]:
    """One of its programs, and the environment in which it finds its own data."""
    return str(home() / "bin" / name), {**os.environ, "SUMO_HOME": str(home())}


def check() -> None:
    """ModuleNotFoundError, naming the extra, where SUMO is not installed; nothing is imported."""
    for name in ("libsumo", "sumo"):
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(MISSING, name=name)
