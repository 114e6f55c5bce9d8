"""How a foundation policy adapts: what it knows of its vehicle after each moment of flight, and what changes do to it.

    python tests/benchmarks/adaptation.py [--quick]

The shipped policy flies random vehicles. A linear read-out of its recurrent state, fitted on one half of them, guesses
the thrust-to-weight ratio of the other half. Half way, a third of the vehicles picks up 30 % of mass and inertia and
another third loses a quarter of one rotor's thrust. Writes adaptation.png beside this file.
"""

from pathlib import Path
from typing import Any

import numpy as np
import report

from deploy.drivers.simulated import Simulated
from deploy.policy_file import PolicyFile
from sim import tasks
from sim.conditions import Conditions
from sim.robots.quadrotors import GRAVITY

VEHICLES = 3000
LIGHT, HEAVY = 0.1, 2.0  # kg
MOMENTS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0)  # s
CASES = ("random vehicles", "picks up 30 %", "loses a quarter of a rotor")


def fly(policy: PolicyFile, count: int, seed: int) -> dict[str, Any]:
    """Errors (steps, n) in m, recurrent states (steps, n, k), mass and thrust-to-weight ratio (n,), and case (n,)."""
    task = tasks.make("quad_any", path="hold", robot="any_log_uniform")
    driver = Simulated(task, count, seed=seed, conditions=Conditions(delay=0.01))
    case = np.arange(count) % 3
    errors, states = [], []
    policy.reset(count)
    with driver:
        mass, curve = driver.env.engine.read("mass"), driver.env.engine.read("thrust_curve")
        for step in range(task.episode_steps):
            if step == task.episode_steps // 2:
                _change(driver, case, np.random.default_rng(seed))
            seen = driver.read().signals
            driver.write(policy.step(seen))
            errors.append(np.linalg.norm(seen["position"] - seen["target_position"], axis=1))
            states.append(policy.states()["hidden"])
    ratio = 4.0 * curve.sum(axis=1) / (mass[:, 0] * GRAVITY)
    return {"error": np.stack(errors), "state": np.stack(states), "mass": mass[:, 0], "ratio": ratio, "case": case}


def _change(driver: Simulated, case: Any, rng: np.random.Generator) -> None:
    loaded, damaged = case == 1, case == 2
    for name in ("mass", "inertia"):
        driver.env.engine.set_parameters(loaded, {name: 1.3 * driver.env.engine.read(name)[loaded]})
    rotor = rng.integers(4, size=(int(damaged.sum()), 1))
    driver.env.engine.set_parameters(damaged, {"thrust_scale": np.where(np.arange(4) == rotor, 0.75, 1.0)})


def explained(state: Any, value: Any) -> float:
    """The share of the variance of `value` (n,) that a read-out of `state` (n, k) explains on unseen vehicles."""
    half = len(value) // 2
    known = np.concatenate([state, np.ones((len(state), 1))], axis=1)
    known_fit, known_test = known[:half], known[half:]
    weights = np.linalg.solve(known_fit.T @ known_fit + 1e-3 * np.eye(known.shape[1]), known_fit.T @ value[:half])
    rest = value[half:] - known_test @ weights
    return float(1.0 - rest.var() / value[half:].var())


def measure(cases: list[str], quick: bool) -> report.Rows:
    """Per case: median error (m) before and after the change; for random vehicles also what the state tells."""
    flown = fly(PolicyFile.load("quad_any"), 60 if quick else VEHICLES, seed=0)
    error, mass, half = flown["error"], flown["mass"], len(flown["error"]) // 2
    rows: report.Rows = {}
    for index, name in enumerate(CASES):
        own = error[:, flown["case"] == index]
        rows[name] = {
            "before_m": float(np.median(own[half - 50 : half])),
            "largest_after_m": float(np.median(own[half:].max(axis=0))),
            "end_m": float(np.median(own[-50:])),
            "success": float((own[-100:].max(axis=0) < 0.3).mean()),
        }
    whole = rows[CASES[0]]
    whole["moments_s"] = list(MOMENTS)
    whole["thrust_to_weight_r2"] = [explained(flown["state"][round(100 * t)], np.log(flown["ratio"])) for t in MOMENTS]
    for name, chosen in (("light", mass < LIGHT), ("heavy", mass > HEAVY)):
        whole[f"{name}_error_m"] = [float(np.median(error[round(100 * t), chosen])) for t in MOMENTS]
    if not quick:
        plot(flown, whole, report.FOLDER / "adaptation.png")
    return {name: row for name, row in rows.items() if name in cases}


def plot(flown: dict[str, Any], whole: dict[str, Any], path: Path) -> None:
    """Error by mass, what the state tells about the thrust-to-weight ratio, and the two changes."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    error, mass, time = flown["error"], flown["mass"], 0.01 * np.arange(len(flown["error"]))
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12.0, 3.4), layout="constrained")
    for name, chosen in ((f"below {LIGHT:g} kg", mass < LIGHT), (f"above {HEAVY:g} kg", mass > HEAVY)):
        left.plot(time[:200], np.median(error[:200, chosen], axis=1), label=name)
    left.set(title="error after the throw (median)", xlabel="s", ylabel="m")
    moments = np.arange(0, 200, 4)
    told = [explained(flown["state"][t], np.log(flown["ratio"])) for t in moments]
    middle.plot(0.01 * moments, told)
    middle.set(title="thrust to weight, read from the state", xlabel="s", ylabel="variance explained", ylim=(0.0, 1.0))
    for index, name in enumerate(CASES[1:], 1):
        right.plot(time[200:], 100.0 * np.median(error[200:, flown["case"] == index], axis=1), label=name)
    right.set(title="changes at 2.5 s (median error)", xlabel="s", ylabel="cm")
    left.legend()
    right.legend()
    figure.savefig(path, dpi=90)


def markdown(rows: report.Rows) -> str:
    """One line per case, and what the recurrent state tells."""
    table = [
        (name, 100 * row["before_m"], 100 * row["largest_after_m"], 100 * row["end_m"], 100 * row["success"])
        for name, row in rows.items()
    ]
    text = "| half way, the vehicle ... | error before, cm | largest after | at the end | success, % |\n"
    text += "|---|---:|---:|---:|---:|\n"
    text += "\n".join(f"| {n} | {b:.1f} | {a:.1f} | {e:.1f} | {s:.1f} |" for n, b, a, e, s in table)
    whole = rows.get(CASES[0])
    if whole:
        text += (
            "\n\n| after, s | "
            + " | ".join(f"{t:g}" for t in whole["moments_s"])
            + " |\n|---|"
            + "---:|" * len(MOMENTS)
        )
        for name, key in (("light", "light_error_m"), ("heavy", "heavy_error_m")):
            text += f"\n| error of {name} vehicles, cm | " + " | ".join(f"{100 * v:.0f}" for v in whole[key]) + " |"
        told = " | ".join(f"{v:.2f}" for v in whole["thrust_to_weight_r2"])
        text += f"\n| variance of thrust/weight read from the state | {told} |"
    return text


if __name__ == "__main__":
    report.main("adaptation", CASES, measure)
