"""What a page drives: the small cars of `sim.robots.cars` on tracks, and policies whose contract is theirs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.codegen.elementwise import number
from deploy.policy_file import PolicyFile
from deploy.web.kind import Kind, check_contract, check_rate, header, offsets, struct_rows
from sim.robots.cars import CAR_1_10, CAR_1_18, REAL_1_10, Car
from sim.spec import Group, Signal

CARS = {"car_1_10": CAR_1_10, "car_1_18": CAR_1_18}
OFFERED = {**CARS, "car_1_10, another": REAL_1_10}  # what no training sees
SOURCES = {
    "car_1_10": "the defaults of f1tenth_gym",
    "car_1_18": "ours, of no particular make",
    "car_1_10, another": "ours: heavier, on softer tyres, slower to answer, out of trim",
}
SUBSTEP = 0.025  # s
VIEW = math.radians(270.0)  # rad, of the lidar
MOST_BEAMS = 1024
PLAIN = (
    *("front", "rear", "steering_limit", "steering_rate", "switch_speed", "speed_gain", "wall_friction"),
    *("longitudinal_stiffness", "lidar", "width", "length"),
)  # what the equations read of a car beside what varies


def parameters(car: Car) -> dict[str, NDArray[Any]]:
    """All that the equations read, by name."""
    found = {name: value[0] for name, value in car.parameters().items()}
    found |= {name: np.float32(getattr(car, name)) for name in PLAIN}
    return {name: np.asarray(value, np.float32) for name, value in (found | car.derived).items()}


def beams(policy: PolicyFile) -> int:
    """Of the lidar that the policy is shown; 0 without one."""
    return sum(s.size for s in policy.inputs if s.name == "lidar")


def sensed(policy: PolicyFile) -> Group:
    """What such a car tells."""
    count = beams(policy)
    lidar = (Signal("lidar", (count,), "m", "body"),) if 0 < count <= MOST_BEAMS else ()
    odometry = (("wheel_speed", "m/s"), ("yaw_rate", "rad/s"), ("steering_angle", "rad"))
    return (*lidar, *(Signal(name, (1,), unit, "body") for name, unit in odometry))


def check(policy: PolicyFile) -> None:
    """VehicleError, with all differences, unless the policy is fed and obeyed like that of a car."""
    check_contract(policy, "drives cars", sensed(policy), CARS[policy.robot].commands)
    check_rate(policy, "drives cars")


def offered(policy: PolicyFile) -> list[str]:
    """The cars that a page has, the policy's own first."""
    return sorted(OFFERED, key=lambda name: name != policy.robot)


def substeps(policy: PolicyFile) -> int:
    """Of the equations in a control period."""
    return max(1, round(1.0 / policy.rate_hz / SUBSTEP))


def headers(policy: PolicyFile) -> dict[str, str]:
    """What firmware/web/car includes: cars.h and settings.h."""
    count = beams(policy)
    angle = (np.arange(count) + 0.5) / max(count, 1) * VIEW - 0.5 * VIEW
    rows = ("{" + ", ".join(map(number, pair)) + "}" for pair in np.stack([np.cos(angle), np.sin(angle)], 1))
    cars = struct_rows("cars", "car_parameters", [parameters(OFFERED[name]) for name in offered(policy)])
    seen = f"#define BEAMS {count}\nstatic const float beams[{max(count, 1)}][2] __attribute__((unused)) = {{"
    text = header("CARS", "The cars of sim/robots/cars.py", cars, seen + (",\n".join(rows) or "{0}") + "};\n")
    return {"cars.h": text, "settings.h": f"#define SUBSTEPS {substeps(policy)}\n"}


def told(policy: PolicyFile) -> dict[str, Any]:
    """What a page must know: the cars, where each parameter lies in C, and the lidar's view."""
    names = offered(policy)
    about = [{"name": name, "source": SOURCES[name]} for name in names]
    return {"cars": about, "parameters": offsets(parameters(OFFERED[names[0]])), "view": VIEW}


KIND = Kind(
    "car",
    tuple(CARS),
    "cars",
    "a car",
    check,
    headers,
    told,
    ("car.c", "track.c", "world.c"),
    ("tracks.mjs", "world.mjs", "scene.mjs", "page.mjs"),
)
