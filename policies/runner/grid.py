"""A policy over its task's grid of conditions: every cell, or in about a second the worst one; what to say about it.

Or under the conditions that a task of its own world declares: what is lost in worlds unlike those of training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from deploy.drivers.simulated import Simulated
from deploy.drivers.tasks import task_for
from deploy.loop import run
from deploy.policy_file import PolicyFile
from deploy.safety.grid import TRUSTED, where
from policies.models.networks import Array
from policies.runner.report import table, wilson
from sim.conditions import Cell, Conditions
from sim.env import with_engine
from sim.tasks import Task, agents_of, grid_of

FORCE = 0.05  # of the weight per axis: the disturbance of "Learning to Fly in Seconds"
EPISODES = 200  # per cell
SCREENING = 16  # flights of every cell, to find the ones that are flown EPISODES times
FINALISTS = 6
TOGETHER = 4000  # flights in one batch: their record takes 70 kB each
RECORDED = 50  # episodes: what they record, pictures too, takes a megabyte and a half each
RED, YELLOW, GREEN, BOLD, PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[32m", "\x1b[1m", "\x1b[0m"


def cells_of(task: Task) -> list[Cell]:
    """All of the task's grid; ValueError when it has none."""
    if (declared := grid_of(task)) is None:
        raise ValueError(f"the task {task.name!r} declares no grid of conditions")
    return declared.cells()


def fly_cells(
    policy: PolicyFile,
    task: Task,
    cells: Sequence[Cell],
    episodes: int,
    engine: str,
    seed: int,
    disturbed: bool = False,
    transfer: bool = False,
) -> dict[str, Array]:
    """Scores (cells, episodes) by name. Every cell flies the same initial states."""
    parts = []
    for some in _batches(cells, max(1, TOGETHER // episodes)):
        delay, lag, mass, thrust = (
            np.repeat([cell[name] for cell in some], episodes) for name in ("delay", "rotor_lag", "mass", "thrust")
        )
        conditions = Conditions(delay, mass, thrust, lag, noise=float(disturbed), force=FORCE * disturbed)
        driver = Simulated(task, len(lag), engine, seed, conditions, copies=len(some))
        if run(policy, driver, transfer=transfer).interrupted:
            raise KeyboardInterrupt
        parts.append({name: value.reshape(len(some), episodes) for name, value in driver.scores().items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _batches(cells: Sequence[Cell], size: int) -> Iterator[Sequence[Cell]]:
    return (cells[start : start + size] for start in range(0, len(cells), size))


def grid(
    policy: PolicyFile,
    *,
    task: Task | None = None,
    engine: str = "",
    episodes: int = EPISODES,
    seed: int = 0,
    transfer: bool = False,
) -> list[dict[str, Any]]:
    """Success in every cell, without and with sensor noise and a random force: one dict per cell."""
    task = task or task_for(policy)
    cells = cells_of(task)
    found = []
    for disturbed in (False, True):
        success = fly_cells(policy, task, cells, episodes, engine, seed, disturbed, transfer)["success"]
        found += [{**cell, "disturbed": disturbed, **_share(flown)} for cell, flown in zip(cells, success, strict=True)]
    return found


def _share(success: Array) -> dict[str, Any]:
    count, episodes = int(success.sum()), len(success)
    return {"success": count / episodes, "success_ci": wilson(count, episodes), "episodes": episodes}


def worst(policy: PolicyFile, task: Task, engine: str = "", seed: int = 0) -> dict[str, Any]:
    """The worst cell of the task's grid, without noise and force, and how it was found.

    Every cell is flown SCREENING times, the FINALISTS that did worst EPISODES times, from other starts: the smallest of
    many shares of few flights would be a matter of luck.
    """
    cells = cells_of(task)
    first = fly_cells(policy, task, cells, SCREENING, engine, seed)
    error = next((value for name, value in first.items() if task.scores[name] == "m"), first["success"])
    largest = np.nan_to_num(error, nan=np.inf, posinf=np.inf).max(axis=1)
    order = np.lexsort((-largest, first["success"].sum(axis=1)))  # of equal ones, the largest error first
    finalists = [cells[k] for k in order[:FINALISTS]]
    success = fly_cells(policy, task, finalists, EPISODES, engine, seed + 1)["success"]
    lowest = int(np.argmin(success.sum(axis=1)))
    return {
        "worst": {**finalists[lowest], **_share(success[lowest])},
        "cells": len(cells),
        "screening": SCREENING,
        "finalists": len(finalists),
        "engine": engine or task.engine,
        "seed": seed,
    }


def verdict(cell: Mapping[str, Any], required: float = TRUSTED) -> str:
    """One line on the worst cell."""
    holds = "holds" if cell["success"] >= required else "does not hold"
    disturbed = ", with noise and force" if cell.get("disturbed") else ""
    return f"{holds}: worst cell {100 * cell['success']:.1f} % at {where(cell)}{disturbed}"


def lowest(cells: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The worst of the cells."""
    return min(cells, key=lambda cell: cell["success"])


def text(cells: Sequence[Mapping[str, Any]], required: float = TRUSTED, coloured: bool = False) -> str:
    """Success in percent over the grid: one table without and one with noise and force; then the verdict.

    The worst cell is marked; on a terminal, colours say which cells are below `required` and which below 99 %.
    """
    worst_one = lowest(cells)
    parts = []
    for disturbed in sorted({c["disturbed"] for c in cells}):
        chosen = [c for c in cells if c["disturbed"] == disturbed]
        columns = list(dict.fromkeys((c["mass"], c["thrust"]) for c in chosen))
        rows = [["delay, rotor lag", *(f"m {mass:g} T {thrust:g}" for mass, thrust in columns)]]
        colours: list[list[str]] = []
        for delay, lag in dict.fromkeys((c["delay"], c["rotor_lag"]) for c in chosen):
            line = {(c["mass"], c["thrust"]): c for c in chosen if (c["delay"], c["rotor_lag"]) == (delay, lag)}
            shown = [line[column] for column in columns]
            marks = [("> " if c is worst_one else "") + f"{100 * c['success']:.1f}".replace(".0", "") for c in shown]
            rows.append([f"{1000 * delay:g} ms, {lag:g}", *marks])
            colours.append([_colour(c["success"], required) for c in shown])
        title = "with sensor noise and a random force" if disturbed else "without noise and force"
        drawn = table(rows)
        parts.append(f"success in %, {title}\n\n{_painted(drawn, rows, colours) if coloured else drawn}")
    said = verdict(worst_one, required)
    if coloured:
        said = f"{BOLD}{_colour(worst_one['success'], required)}{said}{PLAIN}"
    return "\n\n".join([*parts, said])


def _colour(success: float, required: float) -> str:
    return RED if success < required else YELLOW if success < 0.99 else GREEN


def _painted(drawn: str, rows: Sequence[Sequence[str]], colours: Sequence[Sequence[str]]) -> str:
    """The table with its numbers in colour: columns are set before, so that escapes do not count as width."""
    lines = drawn.splitlines()
    for number, (row, painted) in enumerate(zip(rows[1:], colours, strict=True), start=2):
        line, place = lines[number], len(row[0])
        done = line[:place]
        for word, colour in zip(row[1:], painted, strict=True):
            at = line.index(word, place)
            done += f"{line[place:at]}{colour}{word}{PLAIN}"
            place = at + len(word)
        lines[number] = done
    return "\n".join(lines)


def _successes(policy: PolicyFile, task: Task, episodes: int, seed: int, transfer: bool) -> Array:
    """(episodes,), 0 or 1, of the same initial states whatever the conditions."""
    parts = []
    for first in range(0, episodes, RECORDED):
        num = min(RECORDED, episodes - first) * agents_of(task)
        driver = Simulated(task, num, seed=seed, first=first)
        try:
            if run(policy, driver, transfer=transfer).interrupted:
                raise KeyboardInterrupt
            parts.append(driver.scores()["success"])
        finally:
            driver.close()
    found: Array = np.concatenate(parts)
    return found


def tried(
    policy: PolicyFile,
    conditions: Mapping[str, Task],
    *,
    engine: str = "",
    episodes: int,
    seed: int = 0,
    transfer: bool = False,
) -> list[dict[str, Any]]:
    """Success under each condition, and which share of that under the first is "lost" (None where that is none)."""
    rows: list[dict[str, Any]] = []
    for name, task in conditions.items():
        success = _successes(policy, with_engine(task, engine), episodes, seed, transfer)
        row = {"condition": name, **_share(success)}
        nominal = (rows or [row])[0]["success"]
        rows.append({**row, "lost": 1.0 - row["success"] / nominal if nominal else None})
    return rows


def conditions_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line per condition, then the worst."""
    lines = [["condition", "success, %", "95 % interval", "lost, %"]]
    for row in rows:
        low, high = (f"{100.0 * end:.1f}" for end in row["success_ci"])
        lost = "-" if row["lost"] is None else f"{100.0 * row['lost']:.1f}"
        lines.append([row["condition"], f"{100.0 * row['success']:.1f}", f"{low} .. {high}", lost])
    worst = lowest(rows)
    return f"{table(lines)}\n\nworst: {100.0 * worst['success']:.1f} % ({worst['condition']})"
