"""A model card of a policy file, as Hugging Face reads one: YAML for its search, Markdown for people.

All of it is what the file says of itself; the texts in it are a stranger's, and stay inside quotes and code spans.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from deploy.policy_file import PolicyFile
from deploy.safety.grid import summary
from deploy.trust.text import printable
from sim.spec import Group

LONGEST = 120  # characters of a stranger's text in the card
MOST = 60  # rows of a table


def quoted(text: object) -> str:
    """A string for YAML, whatever is in the text."""
    return json.dumps(printable(text, LONGEST), ensure_ascii=False)


def code(text: object) -> str:
    """A code span, also in a table: nothing in the text is Markdown or HTML."""
    kept = printable(text, LONGEST).replace("`", "'").replace("|", "\N{BROKEN BAR}").strip()
    return f"`{kept}`" if kept else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """In Markdown; nothing where there are no rows."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    left = len(lines) - MOST
    lines = lines[:MOST] + ([f"| and {left} more |{' |' * (len(head) - 1)}"] if left > 0 else [])
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines, ""] if lines else []


def _number(value: Any) -> float | None:
    sound = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12
    return float(value) if sound and math.isfinite(value) else None


def _mapping(found: Any, *keys: str) -> Mapping[str, Any]:
    """What stands at these keys of a stranger's JSON; empty where it is no mapping."""
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _list(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []


def _scores(evaluation: Mapping[str, Any]) -> Iterator[tuple[str, float, str, str]]:
    """(name, mean, unit, 95 % interval) of what was measured."""
    success = {"mean": evaluation.get("success"), "ci": evaluation.get("success_ci"), "unit": "1"}
    for name, value in {"success": success, **_mapping(evaluation, "score")}.items():
        score = _mapping(value)
        mean, ends = _number(score.get("mean")), [_number(end) for end in _list(score.get("ci"))]
        if mean is not None:
            interval = " to ".join(f"{end:.4g}" for end in ends if end is not None) if len(ends) == 2 else ""
            yield str(name), mean, str(score.get("unit", "")), interval


def front_matter(policy: PolicyFile, licence: str) -> list[str]:
    """What the hub's search reads: library, tags, and the scores as the file has them, not verified by the hub."""
    tags = ["robotics", "reinforcement-learning", "sim2real", "onnx", policy.task, policy.robot]
    lines = ["---", "library_name: sim2metal", "pipeline_tag: robotics", "tags:"]
    lines += [f"- {quoted(tag)}" for tag in dict.fromkeys(tags) if tag]
    lines += [f"license: {quoted(licence)}"] * bool(licence)
    evaluation = _mapping(policy.metadata, "evaluation")
    scores = list(_scores(evaluation))
    if scores:
        engine = f"{evaluation.get('engine', 'unknown')}, {evaluation.get('robot', policy.robot)}"
        lines += ["model-index:", f"- name: {quoted(policy.name)}", "  results:"]
        lines += ["  - task:", "      type: robotics", f"      name: {quoted(policy.task)}"]
        lines += ["    dataset:", "      type: simulation", f"      name: {quoted(engine)}", "    metrics:"]
        for name, mean, _, _ in scores:
            lines += [f"    - type: {quoted(name)}", f"      value: {mean:.6g}"]
    return [*lines, "---", ""]


def _signals(policy: PolicyFile) -> list[str]:
    def rows(kind: str, group: Group) -> Iterator[list[str]]:
        for s in group:
            shape = " x ".join(str(k) for k in s.shape)
            bounds = "" if math.isinf(s.low) and math.isinf(s.high) else f"{s.low:g} to {s.high:g}"
            yield [kind, code(s.name), shape, code(s.unit), code(s.frame), bounds]

    lines = table(
        ["", "signal", "shape", "unit", "frame", "limits"], [*rows("in", policy.inputs), *rows("out", policy.outputs)]
    )
    state = ", ".join(f"{code(s.name)} ({' x '.join(map(str, s.initial.shape))})" for s in policy.state)
    return lines + [f"It remembers {state}; the caller only carries that along.", ""] * bool(state)


def _details(value: Any) -> str:
    """A setting of randomisation: `std` 0.01, `low` 0, `high` 0.03."""
    told = {key: item for key, item in _mapping(value).items() if key not in ("name", "kind") and item is not None}
    return ", ".join(f"{code(key)} {code(json.dumps(item))}" for key, item in told.items())


def _varied(training: Mapping[str, Any]) -> list[str]:
    found = _mapping(training, "randomisation")
    rows = [[code(_mapping(v).get("name", "")), "", _details(v)] for v in _list(found.get("vary"))]
    rows += [
        [code(name), code(_mapping(fault).get("kind", "")), _details(fault)]
        for name, faults in _mapping(found, "signals").items()
        for fault in _list(faults)
    ]
    lines = table(["what", "kind", "how much"], rows)
    return ["## What varied in training", "", *lines] if lines else []


def _origin(policy: PolicyFile) -> list[str]:
    training = _mapping(policy.metadata, "training")
    argv = " ".join(str(word) for word in _list(training.get("argv")))
    told = {
        "task": policy.task,
        "robot": policy.robot,
        "algorithm": _mapping(training, "config").get("algorithm"),
        "seed": training.get("seed"),
        "command": f"python -m policies.train {argv}" if argv else None,
        "commit": training.get("commit"),
        "date": training.get("date"),
        "versions": ", ".join(f"{name} {value}" for name, value in _mapping(training, "versions").items()) or None,
    }
    rows = [[name, code(value)] for name, value in told.items() if value is not None]
    return ["## Where it comes from", "", *table(["", ""], rows)]


def _measured(policy: PolicyFile) -> list[str]:
    evaluation = _mapping(policy.metadata, "evaluation")
    rows = [
        [code(name), f"{mean:.4g}", code("" if unit == "1" else unit), interval]
        for name, mean, unit, interval in _scores(evaluation)
    ]
    if not rows:
        return ["## What it scored", "", "Nothing is recorded in the file.", ""]
    told = {name: evaluation.get(name) for name in ("episodes", "seed", "engine", "robot")}
    told |= _mapping(evaluation, "conditions")
    said = ", ".join(f"{code(name)} {code(value)}" for name, value in told.items() if value is not None)
    head = f"In simulation: {said}. The {summary(policy)}."
    return ["## What it scored", "", head, "", *table(["score", "mean", "unit", "95 % interval"], rows)]


def card(policy: PolicyFile, repo: str = "OWNER/NAME", licence: str = "") -> str:
    """The text of a README.md for the policy: `repo` is where it will lie, `licence` a name that the hub knows."""
    lines = front_matter(policy, licence)
    lines += [
        f"# {code(policy.name)}",
        "",
        f"A controller for {code(policy.robot)}, task {code(policy.task)}, {policy.rate_hz:g} Hz.",
        "**One ONNX file is the whole of it**: raw signals in, commands out. Observation building, normalisation,",
        "history and limits are inside, and so are the test vectors with which every target proves it",
        f"({policy.vectors.steps} closed-loop steps, tolerance {policy.vectors.tolerance:g}).",
        "",
        "```bash",
        "pip install 'sim2metal[train,hub]'",
        f"python -m deploy.hub pull=policy.onnx repo={printable(repo, LONGEST)}",
        "python -m deploy.inspect policy=policy.onnx    # contract, provenance; replays the test vectors",
        "python -m deploy.run policy=policy.onnx        # the control loop, with a simulated robot",
        "python -m deploy.export policy=policy.onnx target=c out=build/c",
        "```",
        "",
        "## What goes in and out",
        "",
        *_signals(policy),
        *_origin(policy),
        *_varied(_mapping(policy.metadata, "training")),
        *_measured(policy),
        "## Limits",
        "",
        "The numbers are the file's own, from simulation. It records no flight, drive or step on hardware. Try it in",
        "simulation with your robot's parameters, then on the robot under a guard, slowly.",
        "",
        f"SHA-256: `{policy.sha256}`. "
        + (f"Signed by {code(policy.signed_by)}." if policy.signed_by else "It agrees with itself; nobody signed it."),
    ]
    return "\n".join(lines) + "\n"
