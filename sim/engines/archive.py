"""Named arrays in a file, with what they are in JSON: written by us, read from anybody, bounded and without pickles."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
Made = TypeVar("Made")
ABOUT = "about"


@dataclass(frozen=True)
class Archive:
    """A kind of file. `name` and `no` begin what is said of another: "learned world", "not a learned world"."""

    kind: str
    version: int
    largest: int  # bytes, packed or not
    name: str
    no: str
    command: str  # which makes one
    error: type[ValueError]

    def content(self, about: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
        """The file."""
        said = json.dumps({"kind": self.kind, "version": self.version, **about}).encode()
        made = io.BytesIO()
        np.savez(made, allow_pickle=False, **{ABOUT: np.frombuffer(said, np.uint8), **arrays})
        return made.getvalue()

    def load(self, path: str | Path, make: Callable[[dict[str, Any], Arrays], Made]) -> Made:
        """What `make` makes of a file; `error` says what is wrong with it."""
        path = Path(path)
        if not path.is_file():
            raise self.error(f"{path}: there is no such file; make it with: python -m {self.command}")
        if path.stat().st_size > self.largest:
            raise self.error(f"{path}: larger than {self.largest // 2**20} MiB, so no {self.name}")
        try:
            with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                if sum(info.file_size for info in file.zip.infolist()) > self.largest:
                    raise self.error(f"{path}: unpacks to more than {self.largest // 2**20} MiB")
                arrays = {name: file[name] for name in file.files}
            about = json.loads(arrays.pop(ABOUT).tobytes())
            if about["kind"] != self.kind or about["version"] != self.version:
                raise self.error(f"{path}: {self.no} of version {self.version}")
            return make(about, arrays)
        except self.error:
            raise
        except (BadZipFile, EOFError, KeyError, IndexError, TypeError, ValueError, ArithmeticError, OSError) as error:
            raise self.error(f"{path}: {self.no}, or damaged ({error})") from None
