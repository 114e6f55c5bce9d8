"""Files of clouds and meshes: what is written is read, as by Open3D; what is none is refused in one line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from sim.perception import meshes, open3d
from sim.perception.clouds import SUFFIXES, Cloud, load, save
from sim.perception.mesh_files import read_mesh, save_mesh
from sim.perception.ply import read_ply
from sim.registry import StrangerError, names_from

points_of = arrays.arrays(np.float64, st.tuples(st.integers(0, 30), st.just(3)), elements=st.floats(-1e3, 1e3))


def full(points: Any, seed: int = 0) -> Cloud:
    rng = np.random.default_rng(seed)
    normals = rng.normal(size=points.shape)
    colours = rng.integers(0, 256, points.shape, dtype=np.uint8)
    return Cloud(points, normals / np.linalg.norm(normals, axis=1, keepdims=True), colours)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@given(points_of, st.sampled_from(SUFFIXES), st.booleans())
@settings(max_examples=60, deadline=None)
def test_what_is_saved_is_loaded(tmp_path_factory: pytest.TempPathFactory, points: Any, suffix: str, plain: bool):
    path = tmp_path_factory.mktemp("clouds") / f"cloud{suffix}"
    cloud = Cloud(points) if plain else full(points)
    save(path, cloud)
    again = load(path)
    if suffix == ".pcd":
        np.testing.assert_array_equal(again.points, points.astype(np.float32))
    else:
        np.testing.assert_array_equal(again.points, points)
    if plain or suffix == ".xyz":
        assert again.normals is None and again.colours is None
    else:
        np.testing.assert_allclose(again.normals, cloud.normals, atol=1e-6)
        np.testing.assert_array_equal(again.colours, cloud.colours)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_open3d_reads_ours_and_we_read_open3ds(tmp_path: Path, suffix: str):
    library, cloud = open3d(), full(np.random.default_rng(1).normal(size=(500, 3)))
    save(tmp_path / f"ours{suffix}", cloud)
    theirs = library.io.read_point_cloud(str(tmp_path / f"ours{suffix}"))
    np.testing.assert_allclose(np.asarray(theirs.points), cloud.points, atol=1e-6)
    if suffix != ".xyz":
        np.testing.assert_allclose(np.asarray(theirs.normals), cloud.normals, atol=1e-6)
        np.testing.assert_allclose(np.asarray(theirs.colors) * 255.0, cloud.colours, atol=1e-4)
    for text in (True, False) if suffix != ".xyz" else (True,):
        path = tmp_path / f"theirs{suffix}"
        library.io.write_point_cloud(str(path), theirs, write_ascii=text, compressed=False)
        again = load(path)
        np.testing.assert_allclose(again.points, cloud.points, atol=1e-5 if text else 1e-6)  # six digits in text
        if suffix != ".xyz":
            np.testing.assert_allclose(again.normals, cloud.normals, atol=1e-5)
            np.testing.assert_array_equal(again.colours, cloud.colours)


def test_points_that_are_no_numbers_are_refused_or_left_out(tmp_path: Path):
    path = written(tmp_path / "a.xyz", "0 0 0\nnan 0 0\n1 2 3\n0 inf 0\n")
    with pytest.raises(ValueError, match="2 of its 4 points are not finite: see skip_invalid"):
        load(path)
    np.testing.assert_array_equal(load(path, skip_invalid=True).points, [[0, 0, 0], [1, 2, 3]])
    with pytest.raises(ValueError, match="1 points are not finite"):
        Cloud(np.array([[0.0, np.nan, 0.0]]))


PCD = "VERSION 0.7\nFIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nCOUNT 1 1 1\nWIDTH 2\nHEIGHT 1\nPOINTS 2\nDATA ascii\n"
PLY = "ply\nformat ascii 1.0\nelement vertex 2\nproperty float x\nproperty float y\nproperty float z\nend_header\n"
REFUSED = {
    "a.txt": ("", "the name of a cloud's file ends in .ply, .pcd, .xyz"),
    "words.xyz": ("1 2 3\n1 2 three\n", "line 2 has no three numbers"),
    "short.xyz": ("1 2\n", "line 1 has no three numbers"),
    "none.ply": ("solid", "this is no PLY file"),
    "short.ply": (PLY + "1 2 3\n", "it ends before its 2 rows of 'vertex'"),
    "wide.ply": (PLY + "1 2 3\n1 2 3 4\n", "a row of 'vertex' has other than 3 numbers"),
    "words.ply": (PLY + "1 2 3\n1 2 z\n", "a row of 'vertex' has what is no number"),
    "axes.ply": (PLY.replace("float z", "float w") + "1 2 3\n1 2 3\n", "its points have no z"),
    "huge.ply": (PLY.replace("vertex 2", "vertex 99999999999999999999"), "no PLY file of at most 20000000 rows has"),
    "odd.ply": (PLY.replace("float y", "quaternion y"), "a header's line that no PLY file"),
    "cut.ply": (PLY.replace("ascii", "binary_little_endian") + "1234", "it ends before its 2 rows of 'vertex'"),
    "none.pcd": ("ply\n", "this is no PCD file"),
    "short.pcd": (PCD + "1 2 3\n", "it has fewer than 2 points of 3 numbers"),
    "huge.pcd": (PCD.replace("POINTS 2", "POINTS 99999999999"), "POINTS must be a number up to 20000000"),
    "size.pcd": (PCD.replace("WIDTH 2", "WIDTH 3"), "WIDTH 3 times HEIGHT 1 is not POINTS 2"),
    "type.pcd": (PCD.replace("SIZE 4 4 4", "SIZE 4 4 3"), "the field 'z' has type 'F', size '3', count '1'"),
    "fields.pcd": (PCD.replace("COUNT 1 1 1", "COUNT 1 1"), "FIELDS, SIZE, TYPE and COUNT do not fit each other"),
    "cut.pcd": (PCD.replace("ascii", "binary") + "1234", "it ends before its 2 points"),
    "packed.pcd": (PCD.replace("ascii", "binary_compressed"), "is not read: save it as binary or ascii"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_cloud_is_refused_in_one_line(tmp_path: Path, name: str):
    text, why = REFUSED[name]
    with pytest.raises(ValueError) as refused:
        load(written(tmp_path / name, text))
    assert why in str(refused.value) and name in str(refused.value) and "\n" not in str(refused.value)


def test_files_that_are_none_are_refused(tmp_path: Path):
    for name in ("absent.ply", "absent.pcd", "absent.xyz"):
        with pytest.raises(ValueError, match="No such file"):
            load(tmp_path / name)
    (tmp_path / "folder.ply").mkdir()
    with pytest.raises(ValueError, match="it is no file"):
        load(tmp_path / "folder.ply")
    with (tmp_path / "large.xyz").open("wb") as file:
        file.truncate(500_000_001)  # takes no room on the disk
    with pytest.raises(ValueError, match="more than 500 MB are not read"):
        load(tmp_path / "large.xyz")
    with pytest.raises(FileExistsError, match="is no file"):
        save(tmp_path / "folder.ply", Cloud(np.zeros((1, 3))))
    path = written(tmp_path / "mine.xyz", "0 0 0\n")
    with names_from("policy.onnx"), pytest.raises(StrangerError, match="name it yourself"):
        load(path)  # which only a file names


OBJ = "mtllib /etc/passwd\nv 0 0 0\nv 1 0 0 0.5\nv 1 1 0\nv 0 1 0\nvn 0 0 1\nusemtl x\nf 1/1/1 2//1 3/1 4\nf -4 -3 -2\n"
STL = (
    "solid a\nfacet normal 0 0 1\nouter loop\nvertex 0 0 0\nvertex 1 0 0\nvertex 0 1 0\nendloop\nendfacet\nendsolid a\n"
)
FACES = (
    "ply\nformat ascii 1.0\nelement vertex 4\nproperty float x\nproperty float y\nproperty float z\nelement face 2\n"
)
FACES += "property list uchar int vertex_indices\nend_header\n0 0 0\n1 0 0\n1 1 0\n0 1 0\n"


def test_meshes_of_each_kind_are_read(tmp_path: Path):
    obj = read_mesh(written(tmp_path / "a.obj", OBJ), scale=0.001)
    np.testing.assert_array_equal(obj.triangles, [[0, 1, 2], [0, 2, 3], [0, 1, 2]])
    np.testing.assert_array_equal(obj.vertices[2], (0.001, 0.001, 0.0))
    stl = read_mesh(written(tmp_path / "a.stl", STL))
    np.testing.assert_array_equal(stl.vertices, [[0, 0, 0], [1, 0, 0], [0, 1, 0]])
    ply = read_mesh(written(tmp_path / "a.ply", FACES + "4 0 1 2 3\n3 0 1 3\n"))
    np.testing.assert_array_equal(ply.triangles, [[0, 1, 2], [0, 2, 3], [0, 1, 3]])


@pytest.mark.parametrize("suffix", [".obj", ".stl", ".ply"])
def test_open3ds_meshes_are_read(tmp_path: Path, suffix: str):
    library, ball = open3d(), meshes.sphere(0.7, 16)
    save_mesh(tmp_path / "ours.ply", ball)
    again = read_mesh(tmp_path / "ours.ply")
    np.testing.assert_array_equal(again.vertices, ball.vertices)
    np.testing.assert_array_equal(again.triangles, ball.triangles)
    theirs = library.io.read_triangle_mesh(str(tmp_path / "ours.ply"))
    theirs.compute_vertex_normals()
    for text in (True, False) if suffix != ".stl" else (False,):
        path = tmp_path / f"theirs{suffix}"
        assert library.io.write_triangle_mesh(str(path), theirs, write_ascii=text)
        found = read_mesh(path)
        corners = found.vertices[found.triangles]
        np.testing.assert_allclose(corners, ball.vertices[ball.triangles], atol=1e-5)


def test_faces_of_different_length_in_binary(tmp_path: Path):
    header = FACES.partition("end_header")[0].replace("ascii", "binary_big_endian") + "end_header\n"
    corners = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]], ">f4").tobytes()
    faces = b"\x04" + np.arange(4, dtype=">i4").tobytes() + b"\x03" + np.array([0, 1, 3], ">i4").tobytes()
    path = tmp_path / "a.ply"
    path.write_bytes(header.encode() + corners + faces)
    np.testing.assert_array_equal(read_mesh(path).triangles, [[0, 1, 2], [0, 2, 3], [0, 1, 3]])
    path.write_bytes(header.encode() + corners + faces[:-1])
    with pytest.raises(ValueError, match="it ends too early"):
        read_mesh(path)


WRONG = {
    "a.step": ("", "the name of a mesh's file ends in .obj, .stl, .ply"),
    "none.obj": ("v 0 0 0\n", "a mesh has at least one triangle"),
    "face.obj": ("v 0 0 0\nf 1 2 3\n", "a triangle has vertices 0 to 0"),
    "word.obj": ("v 0 0 zero\n", "line 1 is no vertex"),
    "nan.obj": ("v 0 0 nan\nv 0 0 1\nv 0 1 0\nf 1 2 3\n", "a mesh's vertices are numbers up to"),
    "none.stl": ("hello", "this is no STL file"),
    "part.stl": (STL.replace("vertex 0 1 0\n", ""), "its last triangle is not whole"),
    "face.ply": (FACES + "4 0 1 2 3\n3 0 1 4\n", "a triangle has vertices 0 to 3, got 0, 4"),
    "list.ply": (FACES + "4 0 1 2 3\n3 0 1\n", "a face's row is no list of corners"),
    "far.ply": (FACES + "4 0 1 2 3\n3 0 1 1e300\n", "a face's row is no list of corners"),
    "float.ply": (FACES.replace("uchar int", "uchar float") + "3 0 1 2\n3 0 1 3\n", "a list of fractions"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_mesh_is_refused_in_one_line(tmp_path: Path, name: str):
    text, why = WRONG[name]
    with pytest.raises(ValueError) as refused:
        read_mesh(written(tmp_path / name, text))
    assert why in str(refused.value) and name in str(refused.value) and "\n" not in str(refused.value)


def test_columns_of_a_ply_are_by_name(tmp_path: Path):
    path = written(tmp_path / "a.ply", PLY.replace("float y", "uchar y") + "1 2 3\n4 5 6\n")
    np.testing.assert_array_equal(read_ply(path).vertices["y"], (2.0, 5.0))
