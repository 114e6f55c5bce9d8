"""What a MuJoCo model shows, as triangles: its geoms, where its state puts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sim.perception import meshes
from sim.perception.casting import MeshScene
from sim.perception.meshes import SEGMENTS, Double, Mesh, pose_of

try:
    import mujoco
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("mujoco is not installed: pip install 'sim2metal[train]'", name="mujoco") from error

DRAWN = (0, 1, 2)  # groups of geoms that MuJoCo draws: by custom the others are for contacts alone
ENDLESS = 1000.0  # m, to either side: planes without a size
KINDS = mujoco.mjtGeom
# MuJoCo's cameras look along -z, with y up.
OF_CAMERA = np.array([[0.0, -1.0, 0.0], [0.0, 0.0, 1.0], [-1.0, 0.0, 0.0]])


def parts(model: Any, groups: Sequence[int] = DRAWN, segments: int = SEGMENTS) -> dict[str, Mesh]:
    """The geoms in these groups by name (or "geom" and the number), each in its own axes. None that are transparent.

    Skins and deformable bodies are left out.
    """
    made = {}
    for geom in range(model.ngeom):
        material = int(model.geom_matid[geom])
        clear = (model.geom_rgba[geom, 3] if material < 0 else model.mat_rgba[material, 3]) == 0.0
        if not clear and int(model.geom_group[geom]) in groups:
            made[name_of(model, geom)] = surface(model, geom, segments)
    return made


def name_of(model: Any, geom: int) -> str:
    """What a geom is called among `parts`."""
    return mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_GEOM, geom) or f"geom {geom}"


def surface(model: Any, geom: int, segments: int = SEGMENTS) -> Mesh:
    """Of one geom, in its own axes."""
    kind, size = int(model.geom_type[geom]), model.geom_size[geom]
    data = int(model.geom_dataid[geom])
    if kind in (KINDS.mjGEOM_MESH, KINDS.mjGEOM_SDF):
        first, count = int(model.mesh_vertadr[data]), int(model.mesh_vertnum[data])
        face, faces = int(model.mesh_faceadr[data]), int(model.mesh_facenum[data])
        return Mesh(model.mesh_vert[first : first + count], model.mesh_face[face : face + faces])
    if kind == KINDS.mjGEOM_HFIELD:
        rows, columns = int(model.hfield_nrow[data]), int(model.hfield_ncol[data])
        first, (x, y, high, low) = int(model.hfield_adr[data]), model.hfield_size[data]
        heights = high * model.hfield_data[first : first + rows * columns].reshape(rows, columns)
        return meshes.height_field(heights, x, y, low)
    if kind == KINDS.mjGEOM_PLANE:
        return meshes.plane(*(side or ENDLESS for side in size[:2]))
    if kind == KINDS.mjGEOM_CAPSULE:
        return meshes.capsule(size[0], size[1], segments)
    if kind == KINDS.mjGEOM_CYLINDER:
        return meshes.cylinder(size[0], size[1], segments)
    if kind == KINDS.mjGEOM_BOX:
        return meshes.box(size)
    return meshes.ellipsoid(size if kind == KINDS.mjGEOM_ELLIPSOID else (size[0],) * 3, segments)


def poses(model: Any, data: Any) -> dict[str, Double]:
    """Of all geoms (4, 4), where `data` (after mj_forward) has them."""
    every = pose_of(data.geom_xmat.reshape(-1, 3, 3), data.geom_xpos)
    return {name_of(model, geom): every[geom] for geom in range(model.ngeom)}


def mesh_scene(
    model: Any, data: Any, groups: Sequence[int] = DRAWN, without: Sequence[str] = (), threads: int = 0
) -> MeshScene:
    """What is drawn, where it is now; `move` it by the `poses` of later.

    `without` these: a camera inside of a part sees that part's inside, where MuJoCo's renderer looks through.
    """
    shown, where = parts(model, groups), poses(model, data)
    if unknown := [name for name in without if name not in shown]:
        raise KeyError(f"the model shows no part {unknown[0]!r}; it shows: {', '.join(shown)[:2000]}")
    kept = {name: part for name, part in shown.items() if name not in without}
    return MeshScene(kept, {name: where[name] for name in kept}, threads)


def camera_pose(model: Any, data: Any, camera: str) -> Double:
    """Of the model's camera of that name (4, 4), x ahead."""
    number = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, camera)
    if number < 0:
        names = ", ".join(model.camera(k).name for k in range(model.ncam)) or "none"
        raise KeyError(f"no camera {camera!r}; there are: {names}")
    return pose_of(data.cam_xmat[number].reshape(3, 3) @ OF_CAMERA, data.cam_xpos[number])
