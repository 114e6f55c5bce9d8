import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engines.rotors import rotations
from sim.rotations import normalised, quaternion, rotation_matrices, rotation_matrix

QUATERNIONS = st.lists(st.floats(-1.0, 1.0), min_size=4, max_size=4).filter(lambda q: np.linalg.norm(q) > 0.1)


@given(QUATERNIONS)
def test_there_and_back(q):
    w, x, y, z = q
    back = quaternion(rotation_matrix(w, x, y, z))
    assert abs(np.dot(back, [x, y, z, w])) / np.linalg.norm(q) == pytest.approx(1.0, abs=1e-12)


@given(QUATERNIONS)
def test_a_rotation_matrix_rotates(q):
    r = np.array(rotation_matrix(*q)).reshape(3, 3)
    np.testing.assert_allclose(r @ r.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(r) == pytest.approx(1.0)


@given(QUATERNIONS)
def test_of_many_as_of_one(q):
    many = normalised(np.array([[q, q[::-1]]]))
    got = rotation_matrices(many)
    assert got.shape == (1, 2, 3, 3)
    np.testing.assert_allclose(got.reshape(2, 9), [rotation_matrix(*one) for one in many[0]], atol=1e-12)
    np.testing.assert_allclose(got[0], rotations(many[0]), atol=1e-12)


def test_a_quarter_turn_to_the_left_takes_forward_to_left():
    r = np.array(rotation_matrix(np.sqrt(0.5), 0.0, 0.0, np.sqrt(0.5))).reshape(3, 3)
    np.testing.assert_allclose(r @ [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], atol=1e-12)


def test_what_is_not_finite_stays_so():
    assert not np.isfinite(quaternion(np.full(9, np.nan))).any()
