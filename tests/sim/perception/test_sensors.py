"""Rays, depth and ranges: what formulas say, what MuJoCo's own rays meet, and what the pitch's camera says."""

import math
from typing import Any

import mujoco
import mujoco.egl
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engines.pitch.camera import GOAL_OTHER, GROUND, IS_BALL, IS_OPPONENT, LINE, SKY, WALL, Eyes
from sim.engines.pitch.mujoco import MujocoPitch
from sim.engines.sight.lens import Lens
from sim.engines.sight.picture import FAR
from sim.perception import meshes, mjcf
from sim.perception.casting import NOTHING, MeshScene
from sim.perception.meshes import Mesh, looking, pose_of
from sim.perception.sensors import DepthCamera, Lidar
from sim.robots.wheeled import DIFFERENTIAL
from sim.scenes.pitch import FIELDS, Ball

SMALL = DepthCamera(30, 40)
ROOM = """<mujoco><asset><hfield name="h" nrow="9" ncol="11" size="2 1.5 .4 .2"/>
<mesh name="m" vertex="0 0 0 .3 0 0 0 .4 0 0 0 .5 .2 .2 .4"/><material name="glass" rgba="1 1 1 0"/></asset>
<worldbody><geom name="floor" type="plane" size="5 5 .1"/>
<geom name="ground" type="hfield" hfield="h" pos="0 0 .3"/>
<geom name="ball" type="sphere" size=".3" pos="1 0 1.2"/>
<geom name="egg" type="ellipsoid" size=".2 .3 .1" pos="1 -1 1.2" euler="50 30 40"/>
<geom name="pill" type="capsule" size=".1 .3" pos="-1 0 1" euler="20 30 40"/>
<geom name="tin" type="cylinder" size=".2 .3" pos="-1 1 1" euler="50 30 40"/>
<geom name="box" type="box" size=".2 .3 .1" pos="1 1 1" euler="50 30 40"/>
<geom name="gem" type="mesh" mesh="m" pos="-1 -1 1" euler="10 20 80"/>
<geom name="hull" type="box" size="1 1 1" group="3"/>
<geom name="air" type="box" size=".2 .3 .1" pos="0 0 2" rgba="0 0 0 0"/>
<geom name="window" type="box" size=".2 .3 .1" pos="0 1 2" material="glass"/>
<camera name="eye" pos="0 -3 2" xyaxes="1 0 0 0 .6 .8" fovy="50"/></worldbody></mujoco>"""
# m: rays meet flat things where they are, round things where their triangles are.
FLAT, ROUND = 2e-5, 0.02


def room() -> tuple[Any, Any]:
    model = mujoco.MjModel.from_xml_string(ROOM)
    model.hfield_data[:] = np.random.default_rng(0).uniform(0.0, 1.0, model.hfield_data.shape)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return model, data


def test_every_kind_of_geom_is_where_mujocos_rays_meet_it():
    model, data = room()
    scene, rng = mjcf.mesh_scene(model, data), np.random.default_rng(0)
    assert set(scene.names) == {"floor", "ground", "ball", "egg", "pill", "tin", "box", "gem"}
    start = rng.uniform(-1.0, 1.0, (4000, 3)) * (4.0, 4.0, 0.0) + (0.0, 0.0, 3.0)
    way = rng.uniform(-1.0, 1.0, (4000, 3)) * (2.0, 2.0, 0.6) + (0.0, 0.0, 0.6) - start
    way /= np.linalg.norm(way, axis=1, keepdims=True)
    ours, geom, seen = scene.cast(np.concatenate([start, way], axis=1)), np.zeros(1, np.int32), set[str]()
    differ = 0
    for k in range(4000):
        groups = np.array([1, 1, 1, 0, 0, 0], np.uint8)
        theirs = mujoco.mj_ray(model, data, start[k], way[k], groups, 1, -1, geom)
        name = mjcf.name_of(model, int(geom[0])) if theirs >= 0.0 else None
        found = scene.names[ours.part[k]] if ours.part[k] != NOTHING else None
        if name != found:
            differ += 1  # grazing
            continue
        if name is None:
            assert ours.distance[k] == np.inf and not ours.normal[k].any()
            continue
        seen.add(name)
        assert ours.distance[k] == pytest.approx(theirs, abs=ROUND if name in ("ball", "egg", "pill", "tin") else FLAT)
        assert np.linalg.norm(ours.normal[k]) == pytest.approx(1.0, abs=1e-5)
    assert differ <= 8 and seen == set(scene.names)


def test_a_models_cameras_see_the_depth_that_mujoco_draws(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mujoco.rendering.classic.gl_context.GLContext", mujoco.egl.GLContext)  # there is no display
    model, data = room()
    vertical = math.radians(50.0)
    view = math.degrees(2.0 * math.atan(math.tan(vertical / 2.0) * 160 / 120))
    pose = mjcf.camera_pose(model, data, "eye")
    rays = DepthCamera(120, 160, view).rays(pose)[0]
    depth = DepthCamera(120, 160, view).see(mjcf.mesh_scene(model, data), pose).distance[0]
    renderer = mujoco.Renderer(model, 120, 160)
    renderer.enable_depth_rendering()
    renderer.update_scene(data, "eye")
    theirs = renderer.render()
    renderer.close()
    seen = np.isfinite(depth) & (depth < 6.0)
    off = np.abs(depth - theirs)[seen]
    assert seen.mean() > 0.5 and np.median(off) < 0.002 and (off < 0.02).mean() > 0.97  # m; but at edges
    np.testing.assert_allclose(rays[:, :, :3], np.broadcast_to((0.0, -3.0, 2.0), rays[:, :, :3].shape), atol=1e-6)
    with pytest.raises(KeyError, match="no camera 'ear'; there are: eye"):
        mjcf.camera_pose(model, data, "ear")
    with pytest.raises(KeyError, match="the model shows no part 'hull'"):
        mjcf.mesh_scene(model, data, without=["hull"])


def test_the_pitch_looks_as_its_own_camera_says():
    pitch = MujocoPitch(DIFFERENTIAL, FIELDS[1], Ball(), 1, 2, 0.05)
    cos, sin = math.cos(0.2), math.sin(0.2)
    where = {"position": [[[-1.0, 0.0], [0.4, 0.5]]], "heading": [[[cos, sin], [0.0, 1.0]]]}
    pitch.reset(np.arange(1), {**where, "ball_position": [[-0.2, -0.3]]})
    depth, what = Eyes(pitch, 1, Lens(120, 160, 90.0, 0.0)).see(extra=True)[1][0]
    model, data = pitch.scene.model, mujoco.MjData(pitch.scene.model)
    data.qpos[:] = pitch.scene.qpos[0]
    mujoco.mj_forward(model, data)
    scene = mjcf.mesh_scene(model, data, without=["robot0"])  # it does not see itself
    hits = DepthCamera(120, 160, 90.0).see(scene, mjcf.camera_pose(model, data, "eye0"))
    off = np.abs(depth - hits.distance[0])
    for kind in (GROUND, LINE, WALL, GOAL_OTHER):
        assert (what == kind).any() and off[what == kind].max() < 1e-3  # m
    part = np.array([*scene.names, ""])[hits.part[0]]
    for kind, name in ((IS_BALL, "ball"), (IS_OPPONENT, "robot1")):
        both = (what == kind) & (part == name)
        assert both.sum() > 50 and both.sum() >= 0.9 * max((what == kind).sum(), (part == name).sum())
        assert np.median(off[both]) < 0.002 and (off[both] < 0.02).mean() > 0.9
    assert np.isinf(hits.distance[0][what == SKY]).all() and (depth[what == SKY] == FAR).all()
    pitch.close()


vectors = st.tuples(*(st.floats(-3.0, 3.0) for _ in range(3)))


@given(vectors, vectors, st.floats(0.05, 2.0))
@settings(max_examples=30, deadline=None)
def test_a_spheres_depth_is_what_the_formula_says(middle: Any, eye: Any, radius: float):
    away = np.subtract(middle, eye)
    distance = np.linalg.norm(away)
    if distance < 1.5 * radius or np.hypot(*away[:2]) < 0.1 * distance:  # inside of it, or straight down
        return
    pose = looking(eye, middle)
    hits = SMALL.see(MeshScene({"ball": meshes.sphere(radius)}, {"ball": pose_of(np.eye(3), middle)}), pose)
    ray = SMALL.directions / np.linalg.norm(SMALL.directions, axis=-1, keepdims=True)
    along = distance * ray[..., 0]  # to where the ray is nearest to the middle
    beside = distance**2 - along**2
    meets = beside < (0.95 * radius) ** 2  # not where it grazes
    depth = (along - np.sqrt(np.maximum(radius**2 - beside, 0.0))) * ray[..., 0]
    np.testing.assert_allclose(hits.distance[0][meets], depth[meets], atol=0.01 * radius + 1e-5)
    assert (hits.part[0][meets] == 0).all() and np.isinf(hits.distance[0][beside > radius**2]).all()


@given(
    st.floats(-3.0, 3.0),
    st.floats(-1.0, 1.0),
    vectors,
    st.sampled_from([DepthCamera(12, 16), Lidar(8, 24, -40.0, 40.0)]),
)
@settings(max_examples=30, deadline=None)
def test_points_lie_on_what_was_seen(yaw: float, pitch: float, place: Any, sensor: Any):
    c, s, cp, sp = math.cos(yaw), math.sin(yaw), math.cos(pitch), math.sin(pitch)
    pose = pose_of([[c * cp, -s, c * sp], [s * cp, c, s * sp], [-sp, 0.0, cp]], place)
    scene = MeshScene({"room": meshes.box((6.0, 5.0, 4.0)), "egg": meshes.ellipsoid((1.0, 0.5, 0.7))})
    poses = np.stack([pose, np.eye(4) @ pose_of(np.eye(3), (2.0, 2.0, 0.0))])
    hits = sensor.scan(scene, poses) if isinstance(sensor, Lidar) else sensor.see(scene, poses)
    points = sensor.points(hits.distance, poses)
    assert len(points) == np.isfinite(hits.distance).sum() > 0
    assert scene.distance(points).max() < 1e-4


def test_a_lidars_beams_go_where_it_says():
    lidar = Lidar(channels=3, columns=4, lowest=-10.0, highest=10.0)
    np.testing.assert_allclose(np.degrees(lidar.elevations), (10.0, 0.0, -10.0))
    np.testing.assert_allclose(np.degrees(lidar.azimuths), (135.0, 45.0, -45.0, -135.0))
    np.testing.assert_allclose(np.linalg.norm(lidar.directions, axis=-1), 1.0)
    scene = MeshScene({"wall": meshes.box((0.1, 50.0, 50.0))}, {"wall": pose_of(np.eye(3), (3.1, 0.0, 0.0))})
    beam = Lidar(1, 1, 0.0, 0.0, around=1.0)
    assert beam.scan(scene, np.eye(4)).distance[0, 0, 0] == pytest.approx(3.0, abs=1e-5)
    assert np.isinf(Lidar(1, 1, 0.0, 0.0, 1.0, farthest=2.9).scan(scene, np.eye(4)).distance).all()
    assert np.isinf(Lidar(1, 1, 0.0, 0.0, 1.0, nearest=3.1).scan(scene, np.eye(4)).distance).all()


def test_a_lidars_noise_is_as_large_as_it_says_and_decided_by_the_seed():
    scene, lidar = MeshScene({"room": meshes.box((6.0, 5.0, 4.0))}), Lidar(32, 360, noise=0.02)
    plain = Lidar(32, 360).scan(scene, np.eye(4)).distance
    one, same = (lidar.scan(scene, np.eye(4), np.random.default_rng(0)).distance for _ in range(2))
    np.testing.assert_array_equal(one, same)
    assert (one - plain).std() == pytest.approx(0.02, rel=0.03) and abs((one - plain).mean()) < 1e-3
    with pytest.raises(ValueError, match="a lidar with noise needs a generator"):
        lidar.scan(scene, np.eye(4))


def test_parts_move_and_many_sensors_see_at_once():
    scene = MeshScene({"box": meshes.box((0.5, 0.5, 0.5)), "floor": meshes.plane(9.0, 9.0)})
    poses = np.stack([looking((3.0, 0.0, 1.0), (0.0, 0.0, 0.3)), looking((0.0, 4.0, 2.0), (0.0, 0.0, 0.3))])
    together = SMALL.see(scene, poses)
    for k in range(2):
        np.testing.assert_array_equal(together.distance[k], SMALL.see(scene, poses[k]).distance[0])
    assert scene.names[together.part[0, 15, 20]] == "box"
    scene.move({"box": pose_of(np.eye(3), (0.0, 0.0, 50.0))})
    after = SMALL.see(scene, poses)
    assert (after.part != 0).all() and after.distance[0, 15, 20] > together.distance[0, 15, 20]
    one = MeshScene({"box": meshes.box((0.5, 0.5, 0.5)), "floor": meshes.plane(9.0, 9.0)}, threads=1)
    np.testing.assert_array_equal(SMALL.see(one, poses).distance, together.distance)


SHAPES = {
    "box": (meshes.box((0.5, 1.0, 1.5)), 6.0),
    "ball": (meshes.sphere(1.0), 4.0 / 3.0 * math.pi),
    "tin": (meshes.cylinder(1.0, 0.5), math.pi),
    "pill": (meshes.capsule(1.0, 0.5), math.pi * 7.0 / 3.0),
    "ground": (meshes.height_field(np.full((4, 5), 0.5), 1.0, 2.0, 0.25), 6.0),
}


@pytest.mark.parametrize("name", SHAPES)
def test_simple_bodies_are_closed_and_as_large_as_they_should_be(name: str):
    mesh, volume = SHAPES[name]
    a, b, c = (mesh.vertices[mesh.triangles[:, k]] for k in range(3))
    inside = (np.cross(a, b) * c).sum() / 6.0  # positive where all triangles turn left, seen from outside
    assert inside == pytest.approx(volume, rel=0.01)
    edges = np.concatenate([mesh.triangles[:, [k, (k + 1) % 3]] for k in range(3)])
    place = {tuple(np.round(v, 9) + 0.0) for v in mesh.vertices}
    assert len(place) >= 8
    turned = edges[:, ::-1]
    named = [
        {(tuple(np.round(mesh.vertices[i], 9) + 0.0), tuple(np.round(mesh.vertices[j], 9) + 0.0)) for i, j in e}
        for e in (edges, turned)
    ]
    assert named[0] == named[1]  # each edge is there in both directions


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="a scene has at least one part"):
        MeshScene({})
    scene = MeshScene({"box": meshes.box((1.0, 1.0, 1.0))})
    for rays in (np.zeros((3, 5)), np.zeros((3, 6)), np.full((3, 6), np.nan)):
        with pytest.raises(ValueError, match=r"rays are \(\.\.\., 6\)"):
            scene.cast(rays)
    with pytest.raises(KeyError, match="the scene has no part 'bax'; it has: box"):
        scene.move({"bax": np.eye(4)})
    with pytest.raises(ValueError, match="the pose of box must be 4 x 4 finite numbers"):
        scene.move({"box": np.full((4, 4), np.nan)})
    with pytest.raises(ValueError, match="a pose are a rotation"):
        SMALL.see(scene, 2.0 * np.eye(4))
    with pytest.raises(ValueError, match="poses are 4 x 4 finite numbers"):
        SMALL.see(scene, np.eye(3))
    with pytest.raises(ValueError, match="there is no upright view"):
        looking((0.0, 0.0, 1.0), (0.0, 0.0, 0.0))
    with pytest.raises(ValueError, match="a triangle has vertices 0 to 2, got 0, 3"):
        Mesh(np.zeros((3, 3)), np.array([[0, 1, 3]]))
    with pytest.raises(ValueError, match="numbers up to"):
        Mesh(np.full((3, 3), np.nan), np.array([[0, 1, 2]]))
    for wrong in ({"height": 0}, {"view": 180.0}, {"nearest": 2.0, "farthest": 1.0}):
        with pytest.raises(ValueError):
            DepthCamera(**wrong)
    for wrong in ({"channels": 0}, {"lowest": 20.0}, {"around": 400.0}, {"noise": -1.0}, {"nearest": math.nan}):
        with pytest.raises(ValueError):
            Lidar(**wrong)
