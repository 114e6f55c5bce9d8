"""A simulated arm as a driver: policy files move it, in C too, are recorded and replayed; it stays where it stops."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from deploy import replay, run
from deploy.drivers.simulated import Settings, Simulated, evaluation_seed
from deploy.guard import SAFE, Guard
from deploy.loop import run as fly
from deploy.policy_file import PolicyFile
from deploy.ros2.simulation.scene import Scene
from deploy.runtimes import CompiledPolicy
from deploy.safety.envelope import Envelope
from policies import evaluate
from policies.models.chunking import ChunkPolicy, Denoiser, NoiseTable, Schedule, Steering
from policies.models.export import export
from policies.models.networks.feed_forward import Mlp
from sim import spec
from sim.spec import Signal
from sim.tasks.arm import CAMERAS
from sim.tasks.arm.pick_place import ArmPickPlace
from sim.tasks.arm.reach import ArmReach, ReachConfig
from tests.deploy.arm_policy import POSE, posing, reaching


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policies")
    made = {"reaching": reaching(), "posing": posing()}
    return {name: export(controller, folder / f"{name}.onnx").path for name, controller in made.items()}


def dense(rng, rows, columns):
    return (rng.normal(0.0, columns**-0.5, (rows, columns)).astype(np.float32), 0.1 * rng.normal(0.0, 1.0, rows))


def untrained(task, chosen="steered"):
    """A flow policy of three steps with random weights, which plans four actions and executes two."""
    rng, seen, actions, hidden = np.random.default_rng(0), spec.size(task.policy), spec.size(task.commands), 16
    layers = [tuple(np.float32(part) for part in dense(rng, rows, hidden)) for rows in (hidden, 4 * actions)]
    base = Denoiser(
        horizon=4,
        actions=actions,
        schedule=Schedule(*(np.float32(v) for v in ([0, 1 / 3, 2 / 3], [1, 1, 1], [1, 1, 1], [1 / 3] * 3)), clip=False),
        see=dense(rng, hidden, seen)[0],
        look=dense(rng, hidden, 4 * actions)[0],
        bias=rng.normal(0.0, 0.1, (3, hidden)).astype(np.float32),
        layers=layers,
    )
    actor = [tuple(np.float32(part) for part in dense(rng, *size)) for size in ((hidden, seen), (actions, hidden))]
    steering = Steering(Mlp(actor, "relu"), 1.5, repeat=4)
    return ChunkPolicy.from_task(task, base, steering if chosen == "steered" else NoiseTable.normal(4 * actions, 5), 2)


@pytest.mark.parametrize("controller", ["onnxruntime", "c"])
def test_a_policy_file_moves_the_arm_and_its_log_replays(files, controller, tmp_path, capsys):
    log = tmp_path / "flight.mcap"
    run.main([f"policy={files['reaching']}", "episodes=3", f"controller={controller}", f"log={log}"])
    said = capsys.readouterr().out
    assert "3 robot(s)" in said and "success          100 %" in said
    replay.main([f"log={log}", f"controller={controller}"])
    assert capsys.readouterr().out.count("equal, every bit") == 4


@pytest.mark.timed
def test_in_real_time(files):
    policy = PolicyFile.load(files["reaching"])
    driver = Simulated.from_config(Settings(real_time=True), policy)
    record = fly(policy, driver, settle=0.1)
    driver.close()
    assert driver.done and record.duration >= 0.1 + (record.steps - 1) / policy.rate_hz


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["engine=bullet"], "arm_reach brings its own physics; it has no engine 'bullet'; it has mujoco, mujoco_warp"),
        (["engine=mujoco", "delay=0.01", "mass=1.2"], "arm_reach brings its own physics; it has no delay, mass"),
        (["robot=racer"], "unexpected keyword argument 'robot'; its settings are: control, cameras, robust, steps"),
        (["fence=1"], "fence_low needs the signal 'position'; there are: goal_position, gripper_opening"),
        (["task=arm_push"], "is for the task 'arm_reach', not 'arm_push'"),
    ],
)
def test_what_it_does_not_have_is_refused(files, words, complaint):
    with pytest.raises(ValueError, match=complaint):
        run.main([f"policy={files['reaching']}", *words])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("engine=flying", "arm_reach brings its own physics; it has no engine 'flying'"),
        ("grid=true", "the task 'arm_reach' declares no grid"),
    ],
)
def test_its_evaluation_has_its_own_engines(files, words, said):
    with pytest.raises(ValueError, match=said):
        evaluate.main([f"policy={files['reaching']}", words])


@pytest.mark.parametrize("noise", ["steered", "drawn"])  # drawn: from a table
@pytest.mark.parametrize("task", [ArmReach(), ArmPickPlace()], ids=lambda t: t.name)
def test_a_policy_in_c_plans_as_its_file_does(task, noise, tmp_path):
    policy = export(untrained(task, noise), tmp_path / "policy.onnx")
    compiled = CompiledPolicy(policy)  # which reproduces the file's vectors, or is refused
    rng = np.random.default_rng(1)
    policy.reset(3)
    compiled.reset(3)
    for _ in range(7):
        signals = {s.name: rng.uniform(-1.0, 1.0, (3, *s.shape)).astype(np.float32) for s in task.policy}
        theirs = compiled.step(signals)
        for name, value in policy.step(signals).items():
            assert np.abs(theirs[name] - value).max() < 1e-5
            assert np.ptp(value, axis=0).min() > 1e-4  # it depends on what it sees


JOINTS, GRIPPER = Signal("joint_position", (2,), "rad"), Signal("gripper_target", (1,), "m", "", 0.0, 0.08)
TARGET = Signal("joint_target", (2,), "rad", "", -3.0, 3.0)
STAY = {"safe": {"joint_target": "joint_position", "gripper_target": "last"}}


def guarded(envelope=STAY):
    return Guard((JOINTS,), (TARGET, GRIPPER), Envelope.from_json(envelope))


def step(guard, place, target, opening, age=0.0):
    guard.screen({"joint_position": np.full((guard.n, 2), place)}, {"joint_position": age})
    sent = guard.filter(
        {"joint_target": np.full((guard.n, 2), target), "gripper_target": np.full((guard.n, 1), opening)}
    )
    return float(sent["joint_target"][0, 0]), pytest.approx(float(sent["gripper_target"][0, 0]))


def test_an_arm_that_is_stopped_stays_where_it_is_and_holds_what_it_holds():
    guard = guarded()
    assert step(guard, 1.0, 1.5, 0.02) == (1.5, 0.02)
    guard.stop()
    assert step(guard, 1.25, 2.0, 0.08) == (1.25, 0.02) and guard.verdict[0] == SAFE
    assert step(guard, 1.75, 2.0, 0.08) == (1.25, 0.02)  # and does not drift with what it measures
    guard.release()
    guard.reset(1)
    assert step(guard, 1.5, 2.0, 0.08) == (2.0, 0.08)


def test_a_flight_that_begins_with_bad_signals_leaves_the_arm_alone():
    guard = guarded()
    guard.screen({"joint_position": np.full((1, 2), -1.5)}, {"joint_position": 0.0})  # before the flight
    guard.reset(1)
    assert step(guard, 9.0, 2.0, 0.08, age=5.0)[0] == -1.5 and guard.verdict[0] == SAFE
    guard.reset(2)  # of other robots nothing is known
    assert step(guard, 9.0, 2.0, 0.08, age=5.0)[0] == 0.0


def test_the_place_to_stay_must_be_a_signal_of_the_same_shape():
    with pytest.raises(ValueError, match="the safe joint_target needs the signal 'joints'; there are: joint_position"):
        guarded({"safe": {"joint_target": "joints"}})
    with pytest.raises(ValueError, match=r"the safe 'gripper_target' 'joint_position' has another shape than \(1,\)"):
        guarded({"safe": {"gripper_target": "joint_position"}})


def moved(arm, command, steps, moving=True):
    for _ in range(steps):
        arm.step(command, moving)
    return arm.read()


def test_the_arm_of_the_robot_node_is_the_scene_that_evaluation_sees(files):
    policy = PolicyFile.load(files["posing"])
    arm = Scene(posing_task(), seed=3)
    bench = Simulated(posing_task(), 1, seed=3)
    assert bench.seed == evaluation_seed(3) != 3
    with bench:
        assert arm.read()["goal_position"].tolist() == bench.read().signals["goal_position"][0].tolist()
        policy.reset(1)
        for _ in range(20):
            seen = bench.read().signals
            commands = policy.step(seen)
            bench.write(commands)
            arm.step(spec.pack(arm.commands, commands)[0], True)
            assert arm.read()["joint_position"].tolist() == bench.read().signals["joint_position"][0].tolist()
    bench.close()
    assert np.abs(arm.read()["joint_position"] - POSE).max() < 0.01
    assert arm.status()["episode"] == 0 and arm.time == pytest.approx(1.0)
    goal = arm.read()["goal_position"]
    arm.reset()
    assert arm.status() == {"episode": 1, "success": False, "lost": False}
    assert arm.read()["goal_position"].tolist() != goal.tolist()
    arm.close()


def posing_task():
    return ArmReach(ReachConfig(control="joint"))


def test_an_arm_that_may_not_move_stays_and_keeps_its_gripper_open():
    arm = Scene(posing_task(), seed=0)
    before = arm.read()
    after = moved(arm, arm.safe(), 20, moving=False)
    assert np.abs(after["joint_position"] - before["joint_position"]).max() < 1e-3
    assert after["gripper_opening"][0] > 0.079
    moved(arm, np.array([*POSE, 0.01], np.float32), 3)
    where = arm.read()["joint_position"]
    stopped = moved(arm, arm.safe(), 20, moving=False)
    assert np.abs(stopped["joint_position"] - where).max() < 0.05 < np.abs(where - before["joint_position"]).max()
    assert stopped["gripper_opening"][0] == pytest.approx(0.01, abs=0.002)
    arm.close()


def test_its_cameras_work_whichever_thread_asks():
    arm = Scene(ArmReach(ReachConfig(cameras=[*CAMERAS])), seed=0)
    first = arm.read()["scene_camera"]
    command = spec.pack(arm.commands, {"hand_velocity": np.full(3, 0.2), "gripper_target": np.full(1, 0.08)})
    with ThreadPoolExecutor(1) as thread:
        after = thread.submit(moved, arm, command, 3).result()["scene_camera"]
    arm.close()
    assert after.shape == (64, 64, 3) and (after != first).mean() > 0.005
