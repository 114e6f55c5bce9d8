"""Where things are in pictures, as MuJoCo draws them."""

import mujoco
import numpy as np
import pytest

from sim.render.views import seen_from
from tests.sim.render.test_camera import camera, red

BALL = """<mujoco><visual><global offwidth="64" offheight="64"/></visual><worldbody><light pos="0 0 3"/>
<geom pos="{} {} {}" size="0.03" rgba="1 0 0 1"/></worldbody></mujoco>"""
VIEWS = (
    {"lookat": (0.0, 0.68, 0.1), "distance": 1.1, "azimuth": 90.0, "elevation": -45.0},
    {"lookat": (0.1, 0.5, 0.0), "distance": 0.9, "azimuth": 200.0, "elevation": -20.0},
)


@pytest.mark.parametrize("view", VIEWS)
def test_things_are_where_they_are_drawn(view):
    for at in ((0.1, 0.6, 0.05), (-0.15, 0.75, 0.2)):
        model = mujoco.MjModel.from_xml_string(BALL.format(*at))
        data = mujoco.MjData(model)
        mujoco.mj_forward(model, data)
        eye = camera(model, 64, 64)
        if eye is None:
            pytest.skip("nothing draws here")
        row, column, _ = red(eye.see(data, view))
        eye.close()
        right, down = seen_from(view, np.array(at))
        assert abs((right + 1.0) / 2.0 - column - 0.5 / 64) < 0.015
        assert abs((down + 1.0) / 2.0 - row - 0.5 / 64) < 0.015
