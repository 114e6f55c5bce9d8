"""Mutants of files of clouds and meshes: each is read or refused in one line, in bounded time."""

import time
from pathlib import Path

import numpy as np
import pytest

from sim.perception import meshes
from sim.perception.clouds import SUFFIXES, Cloud, load, save
from sim.perception.mesh_files import read_mesh, save_mesh
from tests.fuzz.mutants import bytes_of, rounds

TEXTS = {
    "text.pcd": "VERSION 0.7\n"
    "FIELDS x y z rgb\nSIZE 4 4 4 4\nTYPE F F F F\nCOUNT 1 1 1 1\nWIDTH 2\nHEIGHT 1\nPOINTS 2\n"
    "DATA ascii\n1 2 3 4\n1 2 4 5\n",
    "text.obj": "v 0 0 0\nv 1 0 0 0.5\nv 1 1 0\nv 0 1 0\nvn 0 0 1\nf 1/1/1 2//1 3/1 4\nf -4 -3 -2\n",
    "text.stl": "solid a\n"
    "facet normal 0 0 1\nouter loop\nvertex 0 0 0\nvertex 1 0 0\nvertex 0 1 0\nendloop\nendfacet\n",
    "text.ply": "ply\nformat ascii 1.0\nelement vertex 4\nproperty float x\nproperty float y\nproperty float z\n"
    "element face 2\nproperty list uchar int vertex_indices\nend_header\n"
    "0 0 0\n1 0 0\n1 1 0\n0 1 0\n4 0 1 2 3\n3 0 1 3\n",
}


@pytest.fixture
def seeds(tmp_path: Path) -> dict[str, bytes]:
    """Whole files of each kind."""
    rng, made = np.random.default_rng(2), {name: text.encode() for name, text in TEXTS.items()}
    points, normals = rng.normal(size=(20, 3)), np.tile((0.0, 0.6, 0.8), (20, 1))
    for suffix in SUFFIXES:
        save(tmp_path / f"seed{suffix}", Cloud(points, normals, rng.integers(0, 256, (20, 3), dtype=np.uint8)))
        made[f"cloud{suffix}"] = (tmp_path / f"seed{suffix}").read_bytes()
    save_mesh(tmp_path / "mesh.ply", meshes.sphere(1.0, 8))
    return made | {"mesh.ply": (tmp_path / "mesh.ply").read_bytes()}


def test_mutants_are_read_or_refused(tmp_path: Path, seeds: dict[str, bytes]):
    rng, began, read, refused = np.random.default_rng(0), time.process_time(), 0, 0
    count = rounds(150)
    for name, seed in seeds.items():
        path = tmp_path / name
        for _ in range(count):
            path.write_bytes(bytes_of(seed, rng))
            try:
                found = load(path) if name.startswith("cloud") or name == "text.pcd" else read_mesh(path)
            except ValueError as error:
                refused += 1
                assert "\n" not in str(error) and len(str(error)) < 500
            else:
                read += 1
                assert np.isfinite(found.points if isinstance(found, Cloud) else found.vertices).all()
    assert read > count / 2 and refused > count / 2
    assert time.process_time() - began < 0.1 * count * len(seeds)
