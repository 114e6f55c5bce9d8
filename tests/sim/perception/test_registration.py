"""Clouds are laid on one another, and depth pictures become a surface."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.perception import meshes
from sim.perception.casting import MeshScene
from sim.perception.clouds import Cloud
from sim.perception.fusion import Fusion
from sim.perception.meshes import looking, pose_of
from sim.perception.registration import METHODS, register, thinned, with_normals
from sim.perception.sensors import DepthCamera, Lidar


def room() -> MeshScene:
    parts = {"ball": meshes.sphere(1.0), "box": meshes.box((1.0, 0.5, 0.7)), "room": meshes.box((6.0, 5.0, 1.5))}
    places = {"ball": (0.0, 0.0, 1.0), "box": (2.5, 0.0, 0.7), "room": (0.0, 0.0, 1.5)}
    return MeshScene(parts, {name: pose_of(np.eye(3), place) for name, place in places.items()})


def turned(yaw: float, pitch: float, place: Any) -> Any:
    c, s, cp, sp = math.cos(yaw), math.sin(yaw), math.cos(pitch), math.sin(pitch)
    return pose_of([[c * cp, -s, c * sp], [s * cp, c, s * sp], [-sp, 0.0, cp]], place)


@pytest.fixture(scope="module")
def cloud() -> Cloud:
    """Of a room, from the middle of it."""
    lidar = Lidar(24, 180, -50.0, 50.0)
    pose = pose_of(np.eye(3), (-3.0, 1.0, 1.2))
    return with_normals(Cloud(lidar.points(lidar.scan(room(), pose).distance, np.eye(4))), seen_from=(0.0, 0.0, 0.0))


small = st.floats(-0.05, 0.05)  # rad


@given(small, small, st.tuples(*(st.floats(-0.05, 0.05) for _ in range(3))), st.sampled_from(METHODS))
@settings(max_examples=20, deadline=None)
def test_a_rigid_motion_is_found(yaw: float, pitch: float, place: Any, method: str):
    rng, motion = np.random.default_rng(0), turned(yaw, pitch, place)
    sides = rng.integers(3, size=1000), rng.choice([-1.0, 1.0], 1000)
    points = rng.uniform(-1.0, 1.0, (1000, 3))
    points[np.arange(1000), sides[0]] = sides[1]  # on a box
    cloud = Cloud(points * (0.5, 1.0, 0.7))
    found = register(cloud, cloud.moved(motion), reach=0.5, method=method, iterations=100)
    np.testing.assert_allclose(found.pose, motion, atol=1e-3)
    assert found.fitness == 1.0 and found.rmse < 2e-3


def test_two_scans_from_different_places_fit():
    lidar, scene = Lidar(32, 360, -30.0, 10.0), room()
    first, second = pose_of(np.eye(3), (-4.0, 1.0, 1.2)), turned(0.08, 0.0, (-4.2, 1.15, 1.2))
    clouds = [Cloud(lidar.points(lidar.scan(scene, pose).distance, np.eye(4))) for pose in (first, second)]
    rough = register(clouds[1], clouds[0], reach=0.5)
    fine = register(clouds[1], clouds[0], reach=0.1, start=rough.pose, robust=0.05)
    truth = np.linalg.inv(first) @ second
    np.testing.assert_allclose(fine.pose, truth, atol=1e-3)
    assert np.abs(fine.pose - truth).max() < np.abs(rough.pose - truth).max() + 1e-4
    again = register(clouds[1], clouds[0], reach=0.5)
    np.testing.assert_allclose(again.pose, rough.pose, atol=1e-9)  # threads add up in any order


def test_normals_point_to_whoever_saw_them(cloud: Cloud):
    assert cloud.normals is not None
    assert ((cloud.normals * -cloud.points).sum(axis=1) >= 0.0).mean() > 0.999
    floor = np.abs(cloud.points[:, 2] + 1.2) < 1e-6
    assert (np.abs(cloud.normals[floor] - (0.0, 0.0, 1.0)).max(axis=1) < 0.05).mean() > 0.9


def test_thinning_keeps_one_point_per_cube(cloud: Cloud):
    fewer = thinned(cloud, 0.5)
    assert 100 < len(fewer) < len(cloud) / 3
    away = np.linalg.norm(fewer.points[:, None] - cloud.points, axis=-1).min(axis=1)
    assert away.max() < 0.5 * np.sqrt(3.0)  # both are in one cube


def test_depth_pictures_become_the_surface_that_they_show():
    scene, camera = room(), DepthCamera(180, 240)
    around = [2.0 * math.pi * k / 12 for k in range(12)]
    poses = np.stack([looking((4.5 * math.cos(a), 4.0 * math.sin(a), 2.5), (0.0, 0.0, 1.0)) for a in around])
    hits = camera.see(scene, poses)
    fusion = Fusion(camera, size=0.05)
    with pytest.raises(ValueError, match="no depth picture has shown anything"):
        fusion.surface()
    fusion.add(hits.distance, poses)
    made = fusion.surface(views=3)
    off = scene.distance(made.vertices)  # m, where a cube has 0.05
    assert np.median(off) < 0.015 and np.quantile(off, 0.95) < 0.04 and len(made.triangles) > 20_000
    seen = MeshScene({"made": made}).distance(camera.points(hits.distance[:1], poses[:1]))
    assert np.median(seen) < 0.025 and np.quantile(seen, 0.9) < 0.1


def test_what_makes_no_sense_is_refused(cloud: Cloud):
    far = cloud.moved(pose_of(np.eye(3), (100.0, 0.0, 0.0)))
    with pytest.raises(ValueError, match="no three points of the source are within 0.1 m"):
        register(cloud, far, reach=0.1)
    with pytest.raises(ValueError, match="method 'icp' is not one of point_to_point, point_to_plane"):
        register(cloud, cloud, reach=0.1, method="icp")
    with pytest.raises(ValueError, match="register needs reach > 0"):
        register(cloud, cloud, reach=0.0)
    with pytest.raises(ValueError, match="clouds of at least 3 points"):
        register(Cloud(np.zeros((2, 3))), cloud, reach=0.1)
    with pytest.raises(ValueError, match="normals need 3 to 2 neighbours"):
        with_normals(Cloud(np.zeros((2, 3))))
    with pytest.raises(ValueError, match="size must be above 0 m"):
        thinned(cloud, 0.0)
    with pytest.raises(ValueError, match="1 poses of this camera: depth is"):
        Fusion(DepthCamera(3, 4), 0.1).add(np.zeros((4, 3)), np.eye(4))
