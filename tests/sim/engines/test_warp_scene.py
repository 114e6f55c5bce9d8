"""Any MJCF in MuJoCo Warp as in MuJoCo, or refused by one sentence that names the element.

Few models with many elements each: compiling Warp's kernels takes minutes where they were never compiled.
"""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import warp

from sim.engines.scene import Scene
from sim.engines.warp_scene import WarpScene

ROWS, DT, STEPS = 3, 0.01, 12
# m, rad, and per second; sensors as shares of 1 + what they say. Warp's numbers are float32, its solver stops at 1e-6.
TOLERANCE = {"qpos": 5e-4, "qvel": 2e-2, "sensed": 1e-2}

ASSETS = """<asset>
  <mesh name="tetrahedron" vertex="0 0 0 .2 0 0 0 .2 0 0 0 .2"/>
  <hfield name="hills" nrow="3" ncol="3" size="1 1 .2 .1" elevation="0 0 0 0 .5 0 0 0 0"/>
</asset>"""
ARM = """<body name="upper" pos="0 0 1" gravcomp=".5">
  <joint name="shoulder" axis="0 1 0" armature=".05" damping=".5" stiffness="2" springref=".2" range="-60 60"/>
  <geom name="upper" type="capsule" size=".04" fromto="0 0 0 .3 0 0"/><site name="s1" pos=".1 0 0"/>
  <body name="lower" pos=".3 0 0">
    <joint name="elbow" axis="0 0 1" damping=".1" frictionloss=".2" actuatorfrcrange="-5 5"/>
    <geom name="lower" type="box" size=".1 .05 .03" pos=".1 0 0"/><site name="s2" pos=".2 0 0" size=".05"/>
    <body name="hand" pos=".25 0 0">
      <joint name="slide" type="slide" axis="1 0 0" range="-.1 .1" damping="1"/>
      <geom name="hand" type="sphere" size=".04" density="500"/><site name="s3" size=".06"/>
      <body name="bell" pos="0 0 -.1">
        <joint name="ball" type="ball" damping=".05" stiffness=".1" range="0 40"/>
        <geom name="bell" type="capsule" size=".02" fromto="0 0 0 0 0 -.15"/>
      </body>
    </body>
  </body>
</body>"""


def mjcf(bodies: str, rest: str, option: str) -> str:
    """A file of these bodies."""
    return f"""<mujoco><option timestep=".005" {option}</option>{ASSETS}
      <worldbody>{bodies}</worldbody>{rest}</mujoco>"""


def free(name: str, at: str, geom: str) -> str:
    """A body of that shape."""
    return f"""<body name="{name}" pos="{at}"><freejoint/><geom name="{name}" {geom}/>
      <site name="{name}" size=".2"/></body>"""


def actuated() -> str:
    """Actuators of every kind, with states of their own and delays; tendons; what they and joints say."""
    tendons = """<tendon>
      <fixed name="fixed" stiffness="3" damping=".2" range="-.5 .5">
        <joint joint="shoulder" coef="1"/><joint joint="elbow" coef="-.5"/>
      </fixed>
      <spatial name="spatial" range="0 .45" frictionloss=".2" armature=".1" stiffness="5">
        <site site="s1"/><site site="s3"/>
      </spatial>
      <spatial name="wrapped" stiffness="5">
        <site site="hook"/><geom geom="drum"/><site site="s2"/><pulley divisor="2"/><site site="s2"/><site site="s3"/>
      </spatial>
    </tendon>"""
    filters = 'dynprm=".1" gainprm="3'
    actuators = f"""<actuator>
      <motor name="motor" joint="shoulder" gear="3" ctrlrange="-1 1" forcerange="-2 2"/>
      <position name="position" joint="elbow" kp="5" kv=".3"/>
      <velocity joint="slide" kv="3"/>
      <intvelocity joint="shoulder" kp="10" actrange="-1 1"/>
      <damper joint="elbow" kv="1" ctrlrange="0 1"/>
      <cylinder joint="slide" timeconst=".2" area=".5"/>
      <muscle joint="shoulder" force="5" lengthrange="-2 2"/>
      <adhesion body="hand" ctrlrange="0 1" gain="2"/>
      <general joint="elbow" dyntype="integrator" gainprm="2"/>
      <general joint="elbow" dyntype="filter" {filters}" biastype="affine" biasprm="0 -2 -.1" actearly="true"/>
      <general joint="shoulder" dyntype="filterexact" gaintype="affine" {filters} 1 .1"/>
      <general site="s2" gear="1 0 0 0 .5 0"/>
      <position site="s2" refsite="s1" gear="0 1 0 0 0 0" kp="5"/>
      <motor joint="ball" gear=".1 .2 .1"/>
      <motor jointinparent="ball" gear=".1 0 .1"/>
      <position tendon="fixed" kp="3"/>
      <motor joint="shoulder" gear="2" delay=".02" nsample="5"/>
    </actuator>"""
    told = [f'<joint{kind} joint="slide"/>' for kind in ("pos", "vel", "actuatorfrc", "limitpos", "limitvel")]
    told += [f'<tendon{kind} tendon="spatial"/>' for kind in ("pos", "vel", "limitpos", "limitvel")]
    told += [f'<actuator{kind} actuator="position"/>' for kind in ("pos", "vel", "frc")]
    told += ['<tendonpos tendon="wrapped"/><tendonactuatorfrc tendon="fixed"/><clock/>']
    told += ['<ballquat joint="ball"/><ballangvel joint="ball"/><jointvel joint="elbow" cutoff=".2"/>']
    rest = f"{tendons}{actuators}<sensor>{''.join(told)}</sensor>"
    rest += "<keyframe><key name='bent' qpos='.1 .2 .05 1 0 0 0'/></keyframe>"
    drum = """<site name="hook" pos="-.3 0 1.2"/>
      <geom name="drum" type="cylinder" size=".05 .2" pos="0 0 1.15" euler="90 0 0" contype="0" conaffinity="0"/>"""
    return mjcf(ARM + drum, rest, 'integrator="implicitfast">')


def heaped() -> str:
    """Things of each shape on the floor, a hill and a plate, in a wind; what sees and feels them."""
    shapes = {
        "box": 'type="box" size=".1 .1 .1"',
        "ball": 'type="sphere" size=".1" condim="6" friction="1 .01 .01"',
        "capsule": 'type="capsule" size=".05 .1" condim="1"',
        "cylinder": 'type="cylinder" size=".1 .05" condim="4"',
        "egg": 'type="ellipsoid" size=".1 .07 .05" fluidshape="ellipsoid" solref=".01 .8"',
    }
    things = "".join(free(name, f"{k} 0 .12", geom) for k, (name, geom) in enumerate(shapes.items()))
    things += free("falling", "7 0 1", 'type="mesh" mesh="tetrahedron"')  # on a plane it touches with other points
    things += free("hiker", "-3 0 .4", 'type="sphere" size=".1" conaffinity="2"')
    things += free("guest", "-6 0 .32", 'type="sphere" size=".1" conaffinity="4"')
    # What falls onto what is told apart: each pair of shapes that might touch is a kernel to compile.
    ground = """<geom name="floor" type="plane" size="9 9 .1" contype="1"/>
      <geom type="hfield" hfield="hills" pos="-3 0 .05" contype="2"/>
      <body name="plate" mocap="true" pos="-6 0 .2"><geom type="box" size=".2 .2 .02" contype="4"/></body>
      <camera name="camera" pos="0 -2 1" xyaxes="1 0 0 0 0 1"/>"""
    contact = """<contact>
      <pair geom1="floor" geom2="ball" friction="1 1 .01 .001 .001" condim="4"/><exclude body1="world" body2="egg"/>
    </contact>"""
    told = ['<contact geom1="box" data="found force" reduce="netforce"/><touch site="box"/>']
    told += ['<insidesite site="box" objtype="body" objname="box"/>']
    told += ['<rangefinder site="ball"/><camprojection site="box" camera="camera"/>']
    told += [f'<{kind} geom1="ball" geom2="capsule" cutoff="5"/>' for kind in ("distance", "normal", "fromto")]
    air = 'density="1.2" viscosity=".01" wind="2 0 0" cone="elliptic">'
    apart = '<default><geom contype="0" conaffinity="1"/></default>'
    return mjcf(ground + things, f"{apart}{contact}<sensor>{''.join(told)}</sensor>", air)


def bound() -> str:
    """Equalities of each kind, a mocap body that holds another one, and all that is said of how bodies move."""
    box = 'type="box" size=".1 .1 .1"'
    grip = '<body name="grip" mocap="true" pos="1 0 .6"/>'
    bodies = f"{ARM}{grip}{free('held', '1 0 .6', box)}{free('tied', '2 0 1', box)}"
    equality = """<tendon>
        <fixed name="t1"><joint joint="shoulder" coef="1"/></fixed>
        <fixed name="t2"><joint joint="slide" coef="1"/></fixed>
      </tendon>
      <equality>
        <weld body1="grip" body2="held" solref=".1 1"/>
        <connect body1="held" body2="tied" anchor=".5 0 0" solref=".1 1"/>
        <weld site1="held" site2="tied" torquescale=".5" active="false"/>
        <joint joint1="shoulder" joint2="elbow" polycoef="0 .5 .1 0 0"/><tendon tendon1="t1" tendon2="t2"/>
      </equality>"""
    felt = ("accelerometer", "velocimeter", "gyro", "force", "torque", "magnetometer")
    kinds = ("pos", "quat", "xaxis", "linvel", "angvel", "linacc", "angacc")
    told = [f'<{kind} site="s2"/>' for kind in felt]
    told += [f'<frame{kind} objtype="{of}" objname="lower"/>' for kind in kinds for of in ("body", "xbody", "geom")]
    told += [f'<frame{kind} objtype="site" objname="s2" reftype="body" refname="held"/>' for kind in kinds[:5]]
    told += [f'<subtree{kind} body="upper"/>' for kind in ("com", "linvel", "angmom")]
    told += ["<e_potential/>"]
    return mjcf(
        bodies,
        f"{equality}<sensor>{''.join(told)}</sensor>",
        'integrator="Euler"><flag energy="enable" contact="disable"/>',
    )


MODELS = {"actuated": actuated, "heaped": heaped, "bound": bound}


@pytest.fixture(scope="module", autouse=True)
def compiled_in_a_hurry():
    """Half the time to compile, twice the time to run: a good bargain for so few steps."""
    usual, warp.config.optimization_level = warp.config.optimization_level, 0
    yield
    warp.config.optimization_level = usual


def moved(kind, model, change=None):
    """What each world's joints and sensors say after each step, from starts and under commands of its own."""
    rng = np.random.default_rng(0)
    scene = kind(model, ROWS, DT)
    qpos, qvel = np.tile(model.qpos0, (ROWS, 1)), 0.2 * rng.standard_normal((ROWS, model.nv))
    for row in range(1, ROWS):
        mujoco.mj_integratePos(model, qpos[row], 0.05 * rng.standard_normal(model.nv), 1.0)
    if change:
        scene.vary(1, change)
    seen = {name: [] for name in TOLERANCE}
    for step in range(STEPS):
        if step in (0, 5):  # begun anew, as an episode is
            scene.reset(range(1 if step else 0, ROWS), qpos[1 if step else 0 :], qvel[1 if step else 0 :])
        scene.step(rng.uniform(-1.0, 1.0, (ROWS, model.nu)))
        for name, values in seen.items():
            values.append(np.array(getattr(scene, name)))
    scene.close()
    return {name: np.stack(values) for name, values in seen.items()}


def agree(one, other):
    for name, close in TOLERANCE.items():
        apart = np.abs(one[name] - other[name]) / (1.0 + np.abs(other[name]) * (name == "sensed"))
        assert np.isfinite(other[name]).all() and apart.max(initial=0.0) < close, (name, apart.max(axis=(0, 1)))


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_every_element_moves_and_is_sensed_as_in_mujoco(name):
    model = mujoco.MjModel.from_xml_string(MODELS[name]())
    agree(moved(WarpScene, model), moved(Scene, model))


def hinge(rest="", option=">", geom='type="capsule" size=".04" fromto="0 0 0 .3 0 0"'):
    body = f'<body name="b" pos="0 0 1"><joint name="j"/><geom name="g" {geom}/><site name="s"/></body>'
    return mjcf(body, rest, option)


def actuator(element):
    return hinge(f"<actuator>{element}</actuator>")


BOXES = mjcf("".join(free(name, "0 0 1", 'type="box" size=".1 .1 .1" margin=".01"') for name in "ab"), "", ">")
SLIPPERY = hinge(geom='type="sphere" size=".1" friction="0 .01 .01"')
CABLE = """<mujoco><extension><plugin plugin="mujoco.elasticity.cable"/></extension><worldbody>
  <composite prefix="k" type="cable" curve="s" count="4 1 1" size=".5" initial="none">
    <plugin plugin="mujoco.elasticity.cable"><config key="twist" value="1e6"/></plugin>
    <joint kind="main"/><geom type="capsule" size=".01"/>
  </composite></worldbody></mujoco>"""
REFUSED = {
    "the option solver: mjSOL_PGS": hinge(option='solver="PGS">'),
    "the option integrator: mjINT_IMPLICIT": hinge(option='integrator="implicit">'),
    "the option noslip_iterations: 3": hinge(option='noslip_iterations="3">'),
    "the flag mjENBL_OVERRIDE of enableflags": hinge(option='><flag override="enable"/>'),
    "the actuator 'crank': mjTRN_SLIDERCRANK": actuator(
        '<general name="crank" cranksite="s" slidersite="s" cranklength=".4"/>'
    ),
    "the actuator 'own': mjGAIN_USER": actuator('<general name="own" joint="j" gaintype="user"/>'),
    "the actuator 'own': mjBIAS_USER": actuator('<general name="own" joint="j" biastype="user"/>'),
    "actuator 0 (it has no name): mjDYN_USER": actuator('<general joint="j" dyntype="user" actdim="1"/>'),
    "the actuator 'off', whose group is disabled (actuatorgroupdisable)": hinge(
        '<actuator><motor name="off" joint="j" group="1"/></actuator>', 'actuatorgroupdisable="1">'
    ),
    "the sensor 'own': mjSENS_USER": hinge('<sensor><user name="own" dim="1"/></sensor>'),
    "the sensor 'energy': mjSENS_E_KINETIC": hinge('<sensor><e_kinetic name="energy"/></sensor>'),
    "the sensor 'still': an acceleration of what nothing moves, which MuJoCo takes for 0": mjcf(
        '<body name="b" pos="0 0 1"><joint/><geom size=".1"/></body><site name="s"/>',
        '<sensor><framelinacc objtype="body" objname="b"/><accelerometer name="still" site="s"/></sensor>',
        ">",
    ),
    "the body 'kB_first', which is a plugin": CABLE,
    "this model: geom pair (a, b) has non-zero margin": BOXES,
    "this model: geom 0: friction[0] (0.0) < MJ_MINMU": SLIPPERY,
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_moves_otherwise_in_warp_is_refused_by_its_name(said):
    model = mujoco.MjModel.from_xml_string(REFUSED[said])
    with pytest.raises(ValueError, match="; engine=mujoco can$") as error:
        WarpScene(model, 2, DT)
    assert str(error.value).startswith(f"mujoco_warp cannot step {said}")
    Scene(model, 2, DT, threads=1).close()


def vary_everything(model):
    """Of the arm: what a task may change from world to world."""
    model.geom_size[1, 0] *= 1.5
    model.body_mass[1:] *= 1.3
    model.body_gravcomp[1] = 0.2
    model.dof_armature[0] += 0.1
    model.dof_frictionloss[1] = 0.5
    model.jnt_stiffness[0] = 5.0
    model.jnt_range[2] = [-0.02, 0.02]
    model.actuator_gear[0] *= 2.0
    model.tendon_stiffness[0] = 10.0
    model.site_pos[1, 0] += 0.05


@pytest.mark.long
def test_a_world_differs_in_whatever_physics_depend_on():
    model = mujoco.MjModel.from_xml_string(actuated())
    ours, theirs = (moved(kind, model, vary_everything) for kind in (WarpScene, Scene))
    agree(ours, theirs)
    usual = moved(Scene, model)
    assert np.abs(usual["qpos"][:, 1] - theirs["qpos"][:, 1]).max() > 20 * TOLERANCE["qpos"]
    np.testing.assert_array_equal(usual["qpos"][:, ::2], theirs["qpos"][:, ::2])


def test_what_cannot_differ_is_named():
    scene = WarpScene(mujoco.MjModel.from_xml_string(hinge()), 2, DT)

    def slower(model):
        model.opt.gravity[2] = -1.0
        model.geom_condim[:] = 4

    def painted(model):
        model.geom_rgba[:] = 0.5

    with pytest.raises(ValueError, match=r"cannot step worlds that differ in geom_condim, opt\.gravity; engine=mujoco"):
        scene.vary(0, slower)
    scene.vary(1, painted)
    scene.close()


@pytest.mark.long
def test_a_world_that_goes_too_far_reads_nan_as_in_mujoco(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MuJoCo leaves a log behind
    model = mujoco.MjModel.from_xml_string(hinge())
    for kind in (WarpScene, Scene):
        scene = kind(model, 3, DT)
        scene.reset([1], model.qpos0[None], np.array([[1e12]]))
        scene.step(np.zeros((3, 0)))
        assert np.isnan(scene.qpos[:, 0]).tolist() == [False, True, False]
        scene.close()


def test_delays_begin_as_mujoco_begins_them():
    model = mujoco.MjModel.from_xml_string(actuated())
    scene, data = Scene(model, 2, DT, threads=1), mujoco.MjData(model)
    scene.step(np.ones((2, model.nu)))
    scene.reset([0], model.qpos0[None])
    scene.step(np.ones((2, model.nu)))
    data.ctrl[:] = np.clip(1.0, scene._low, scene._high)
    mujoco.mj_step(model, data, 2)
    np.testing.assert_allclose(scene.qvel[0], data.qvel, atol=1e-9)
    scene.close()
