"""Where practice begins: the averaged weights that a run of `vla`, or of `vla_rl`, left in its checkpoint."""

from __future__ import annotations

import hashlib
from pathlib import Path

from policies.learning.vla.kinds import Speaking
from policies.runner import checkpoint
from policies.runner.folder import CHECKPOINT


def take(network: Speaking, start: str) -> str:
    """Give a network the weights of the run in that folder, or of that checkpoint; the SHA-256 of the file.

    ValueError, one sentence, where there is none, or where it is another network's.
    """
    path = Path(start)
    path = path / CHECKPOINT if path.is_dir() else path
    if not path.is_file():
        raise ValueError(f"algorithm.start: {start} is no run, and no checkpoint of one")
    state = checkpoint.load(path).get("algorithm")
    state = state if isinstance(state, dict) else {}
    weights = {**state, **state.get("improvement", {})}.get("average", {})
    ours = network.state_dict()
    if not weights.keys() & ours.keys():
        raise ValueError(f"algorithm.start: {path} is no checkpoint of vla or vla_rl")
    for name in sorted(ours.keys() | weights.keys()):
        there, here = (some[name].shape if name in some else None for some in (weights, ours))
        if there != here:
            raise ValueError(
                f"algorithm.start: {path} is another network: {name} is {_said(there)} there and {_said(here)} here; "
                "set algorithm.clone as it was, and the same tasks; or clone anew, if an earlier version made it"
            )
    network.load_state_dict(weights)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _said(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else "x".join(map(str, shape)) or "a number"
