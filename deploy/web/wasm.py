"""A policy's C as a WebAssembly module that imports nothing and says what it is.

What a program must know to feed it is JSON in its section "sim2metal": `name`, `task`, `robot`, `rate_hz`, `sha256` (of
the policy file), `tolerance` and `steps` (of the vectors), `inputs` and `outputs` (`sim.spec.to_json`, with the C type
and the offset in bytes of each member).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.codegen import toolchain
from deploy.codegen.source import FIRMWARE, Source
from deploy.codegen.structs import struct_type
from deploy.policy_file import PolicyFile
from sim.spec import to_json

WEB = FIRMWARE / "web"
SECTION = "sim2metal"


def contract(source: Source) -> dict[str, Any]:
    """What the module says of itself."""
    policy = source.policy
    fields = struct_type(policy).fields
    offsets = {name: field[1] for name, field in fields.items()} if fields else {}
    inputs = [
        {**told, "type": source.types[told["name"]], "offset": offsets[told["name"]]} for told in to_json(policy.inputs)
    ]
    outputs, at = [], 0
    for signal, told in zip(policy.outputs, to_json(policy.outputs), strict=True):
        outputs.append({**told, "type": "float", "offset": at})
        at += 4 * signal.size
    about = {"name": policy.name, "task": policy.task, "robot": policy.robot, "rate_hz": policy.rate_hz}
    about |= {"sha256": policy.sha256, "tolerance": source.tolerance, "steps": policy.vectors.steps}
    return {**about, "inputs": inputs, "outputs": outputs}


def _length(number: int) -> bytes:
    """LEB128."""
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _length(rest) if rest else bytes([low])


def section(name: str, content: bytes) -> bytes:
    """A custom section, to be put at a module's end."""
    named = _length(len(name)) + name.encode() + content
    return b"\0" + _length(len(named)) + named


def module(source: Source, more: Mapping[str, Any], files: Mapping[str, str], compiler: str, *parts: str) -> bytes:
    """The module of a policy's C and of `parts`, sources of firmware/web; with `files`, name -> text, to include.

    `more` is added to what it says of itself. Raises ToolchainError.
    """
    with tempfile.TemporaryDirectory() as scratch:
        for name, text in {**source.files(), **files}.items():
            (Path(scratch) / name).write_text(text)
        built = toolchain.webassembly(Path(scratch), [WEB / part for part in ("module.c", *parts)], compiler)
    return built + section(SECTION, json.dumps({**contract(source), **more}).encode())


def files(policy: PolicyFile, content: bytes, weights: str = "float32", compiler: str = "auto") -> dict[str, bytes]:
    """policy.wasm and policy.mjs, which runs it. Raises GraphError or ToolchainError."""
    source = Source(policy, content, weights)
    return {"policy.wasm": module(source, {}, {}, compiler), "policy.mjs": (WEB / "policy.mjs").read_bytes()}
