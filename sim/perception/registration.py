"""How one cloud has to be moved to lie on another: iterative closest points (Open3D's), in m.

From points to points: Besl and McKay 1992. From points to planes: Chen and Medioni 1992. Robust weights: Tukey's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.perception import open3d
from sim.perception.clouds import Cloud
from sim.perception.meshes import Double

METHODS = ("point_to_point", "point_to_plane")


@dataclass(frozen=True, eq=False)
class Registration:
    """`pose` (4, 4): moved by it the source lies on the target. A wrong one may fit nearly as well."""

    pose: Double
    fitness: float  # 0..1: the share of the source's points that have a neighbour
    rmse: float  # m, over those


def register(
    source: Cloud,
    target: Cloud,
    reach: float,
    start: Any = None,
    method: str = "point_to_plane",
    iterations: int = 50,
    robust: float = 0.0,
) -> Registration:
    """Begin with `start` (4, 4; None: where they are). `reach`: m within which neighbours are looked for.

    Threads add up in any order, so that results differ in their last digits.

    `robust`: m, from which on neighbours count less and less (`point_to_plane` alone; 0: all alike). Missing normals of
    the target are estimated. ValueError where nothing is within reach.
    """
    if method not in METHODS:
        raise ValueError(f"method {method!r} is not one of {', '.join(METHODS)}")
    if not (0.0 < reach < np.inf and iterations >= 1 and robust >= 0.0):
        raise ValueError(f"register needs reach > 0, iterations >= 1, robust >= 0: {reach}, {iterations}, {robust}")
    if min(len(source), len(target)) < 3:
        raise ValueError(f"clouds of at least 3 points are registered, got {len(source)} and {len(target)}")
    begin = np.eye(4) if start is None else np.asarray(start, np.float64)
    library, plane = open3d(), method == "point_to_plane"
    known = with_normals(target) if plane and target.normals is None else target
    steps = library.pipelines.registration
    clouds = [_handed(library, cloud) for cloud in (source, known)]
    near = steps.evaluate_registration(*clouds, reach, begin)
    if len(near.correspondence_set) < 3:
        raise ValueError(
            f"no three points of the source are within {reach:g} m of the target: a better start, or a larger reach"
        )
    if plane:
        weights = steps.TukeyLoss(k=robust) if robust else steps.L2Loss()
        way = steps.TransformationEstimationPointToPlane(weights)
    else:
        way = steps.TransformationEstimationPointToPoint()
    until = steps.ICPConvergenceCriteria(relative_fitness=1e-9, relative_rmse=1e-9, max_iteration=iterations)
    found = steps.registration_icp(*clouds, reach, begin, way, until)
    return Registration(np.array(found.transformation), float(found.fitness), float(found.inlier_rmse))


def with_normals(cloud: Cloud, neighbours: int = 20, seen_from: Any = None) -> Cloud:
    """With normals of planes through so many neighbours; `seen_from` (3,): towards a sensor that stood there."""
    if not 3 <= neighbours <= len(cloud):
        raise ValueError(f"normals need 3 to {len(cloud)} neighbours, as many as points at most; got {neighbours}")
    library = open3d()
    handed = _handed(library, Cloud(cloud.points))
    handed.estimate_normals(library.geometry.KDTreeSearchParamKNN(neighbours))
    if seen_from is not None:
        handed.orient_normals_towards_camera_location(np.asarray(seen_from, np.float64))
    return Cloud(cloud.points, np.array(handed.normals), cloud.colours)


def thinned(cloud: Cloud, size: float) -> Cloud:
    """One point per cube of this size, m: the mean of those in it, without normals and colours."""
    if not 0.0 < size < np.inf:
        raise ValueError(f"size must be above 0 m, got {size}")
    handed = _handed(open3d(), Cloud(cloud.points))
    return Cloud(np.array(handed.voxel_down_sample(size).points))


def _handed(library: Any, cloud: Cloud) -> Any:
    made = library.geometry.PointCloud(library.utility.Vector3dVector(cloud.points))
    if cloud.normals is not None:
        made.normals = library.utility.Vector3dVector(cloud.normals)
    return made
