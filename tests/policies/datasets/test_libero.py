"""LIBERO's files become a dataset of ours."""

import json

import h5py
import numpy as np
import pytest

from policies import collect
from policies.datasets import Dataset, DatasetError, libero
from policies.datasets.check import problems
from sim.rotations import rotation_matrices
from sim.spec import unpack
from sim.tasks.external.libero import COMMANDS, measured, smaller
from tests.policies.datasets.libero_files import CONTROLLER, NAME, attributes, demonstration, write

AGENT = collect.PICTURES + "agentview"


def converted(tmp_path, **settings):
    count = libero.convert(libero.Config(source=str(tmp_path / "in"), out=str(tmp_path / "out"), **settings))
    dataset = Dataset(tmp_path / "out")
    assert len(dataset) == count and not list(problems(dataset))
    return dataset


@pytest.mark.parametrize("after", [True, False])
def test_a_frame_is_what_was_seen_and_then_done(tmp_path, after):
    demos = [demonstration(steps, seed, after=after) for steps, seed in ((6, 0), (4, 1))]
    write(tmp_path / "in" / f"{NAME}_demo.hdf5", demos, None if after else {})
    dataset = converted(tmp_path, size=0)
    assert dataset.fps == 20 and dataset.lengths.tolist() == [6 - after, 4 - after]
    assert dataset.tasks == ["pick up the bowl and place it on the plate"]
    for number, demo in enumerate(demos):
        found, steps = dataset.episode(number), len(demo["actions"]) - after
        np.testing.assert_array_equal(found[AGENT], demo["obs/agentview_rgb"][:steps, ::-1])
        assert (found[AGENT][:, -32:] == 255).all()  # the floor is below
        state = unpack(measured(), found["observation.state"])
        for name, theirs in (("joint_position", "joint_states"), ("finger_position", "gripper_states")):
            np.testing.assert_allclose(state[name], demo[f"obs/{theirs}"][:steps], atol=1e-6)
        np.testing.assert_allclose(state["hand_position"], demo["obs/ee_pos"][:steps], atol=1e-6)
        turned = demo["obs/ee_ori"][:steps]
        angle = np.linalg.norm(turned, axis=1, keepdims=True)
        quaternions = np.column_stack([np.cos(angle / 2), np.sin(angle / 2) * turned / angle])
        np.testing.assert_allclose(state["hand_rotation"], rotation_matrices(quaternions).reshape(-1, 9), atol=1e-6)
        done, actions = unpack(COMMANDS, found["action"]), demo["actions"][after:]
        np.testing.assert_allclose(done["hand_step"], 0.05 * actions[:, :3], atol=1e-7)
        np.testing.assert_allclose(done["hand_turn"], 0.5 * actions[:, 3:6], atol=1e-7)
        np.testing.assert_allclose(done["gripper_effort"], actions[:, 6:], atol=1e-7)
        assert found["next.success"][:, 0].tolist() == [False] * (steps - 1) + [True]
        assert found["next.reward"][:, 0].tolist() == [0.0] * (steps - 1) + [1.0]


def test_no_turn_is_no_rotation():
    np.testing.assert_allclose(libero.rotations(np.zeros((2, 3))), np.eye(3).reshape(1, 9).repeat(2, 0), atol=0)


def test_pictures_are_made_smaller_by_means(tmp_path):
    demo = demonstration()
    write(tmp_path / "in" / f"{NAME}_demo.hdf5", [demo])
    found = converted(tmp_path).episode(0)[AGENT]
    upright = demo["obs/agentview_rgb"][:5, ::-1].astype(float)
    assert found.shape == (5, 64, 64, 3)
    assert np.abs(found - upright.reshape(5, 64, 2, 64, 2, 3).mean((2, 4))).max() <= 0.5
    assert smaller(demo["obs/agentview_rgb"], 128) is demo["obs/agentview_rgb"]
    with pytest.raises(ValueError, match="128 x 128 pixels are not a whole number of times 50 x 50"):
        smaller(demo["obs/agentview_rgb"], 50)


def test_pictures_of_the_other_convention_are_upright_already(tmp_path):
    demo = demonstration()
    write(tmp_path / "in" / f"{NAME}_demo.hdf5", [demo], attributes(macros_image_convention="opencv"))
    np.testing.assert_array_equal(converted(tmp_path, size=0).episode(0)[AGENT], demo["obs/agentview_rgb"][:5])


def test_what_was_to_be_done_is_told_by_the_name_or_by_the_file(tmp_path):
    write(tmp_path / "in" / "KITCHEN_SCENE10_close_the_top_drawer_demo.hdf5", [demonstration()], {})
    write(tmp_path / "in" / "recorded.hdf5", [demonstration()], attributes('"Turn on the stove"'))
    listed = json.dumps({"language_instruction": ["put ", "it down"]})
    write(tmp_path / "in" / "told.hdf5", [demonstration()], {"problem_info": listed})
    assert converted(tmp_path).episode_tasks == ["close the top drawer", "Turn on the stove", "put it down"]


def test_an_interrupted_import_continues(tmp_path, capsys):
    for name in ("close_it", "open_it"):
        write(tmp_path / "in" / f"{name}_demo.hdf5", [demonstration(seed=k) for k in range(12)])
    said = [f"source={tmp_path / 'in'}", "size=32"]
    whole = converted(tmp_path, size=32)
    written = []
    original = libero.Writer.add_episode

    def failing(self, frames, task):
        if len(written) == 13:
            raise OSError("no space left")
        written.append(original(self, frames, task))

    with pytest.MonkeyPatch.context() as patch, pytest.raises(OSError, match="no space"):
        patch.setattr(libero.Writer, "add_episode", failing)
        libero.main([*said, f"out={tmp_path / 'other'}"])
    libero.main([*said, f"out={tmp_path / 'other'}"])
    assert "24 episodes" in capsys.readouterr().out
    other = Dataset(tmp_path / "other")
    assert other.episode_tasks == whole.episode_tasks == ["close it"] * 12 + ["open it"] * 12
    for k in (0, 9, 10, 13, 23):  # demo_10 comes after demo_9
        np.testing.assert_array_equal(other.episode(k)["action"], whole.episode(k)["action"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: write(folder / "a_demo.hdf5", [demonstration(seed=7)]), "episode 0 is 'open it', not 'a'"),
        (
            lambda folder: write(folder / "open_it_demo.hdf5", [demonstration(seed=8)]),
            "2 episodes, .* 1: take",
        ),
        (
            lambda folder: write(folder / "open_it_demo.hdf5", [demonstration(seed=k) for k in (0, 8)]),
            "episode 1 does not have the actions of .*open_it_demo.hdf5: demo_1; take another folder",
        ),
    ],
)
def test_an_import_of_something_else_does_not_continue(tmp_path, change, message):
    write(tmp_path / "in" / "open_it_demo.hdf5", [demonstration(seed=k) for k in range(2)])
    converted(tmp_path)
    assert len(converted(tmp_path)) == 2
    with pytest.raises(DatasetError, match="episode 1 does not have the actions"):
        converted(tmp_path, observed="before")
    change(tmp_path / "in")
    with pytest.raises(DatasetError, match=message):
        converted(tmp_path)
    assert len(Dataset(tmp_path / "out")) == 2


@pytest.mark.parametrize("part", ["demo_0", "demo_0/obs", "demo_0/actions", "demo_0/obs/agentview_rgb"])
def test_demonstrations_with_two_names_are_refused(tmp_path, part):
    path = write(tmp_path / "in" / f"{NAME}_demo.hdf5", [demonstration()] * 2)
    with h5py.File(path, "a") as file:
        del file["data"][part.replace("0", "1")]
        file["data"][part.replace("0", "1")] = file["data"][part]
    with pytest.raises(DatasetError, match="two demonstrations are the same"):
        converted(tmp_path)


def test_chunks_that_memory_cannot_hold_are_not_unpacked(tmp_path):
    path = write(tmp_path / "in" / f"{NAME}_demo.hdf5", [changed("obs/agentview_rgb", nothing)])
    with h5py.File(path, "a") as file:  # a chunk of a gigabyte for six pictures
        told = {"chunks": (20_000, 128, 128, 3), "maxshape": (None, 128, 128, 3), "compression": "gzip"}
        file["data/demo_0/obs"].create_dataset("agentview_rgb", (6, 128, 128, 3), np.uint8, **told)
    with pytest.raises(DatasetError, match=r"'agentview_rgb' of shape \(6, 128, 128, 3\) is packed by .*, 937 MiB"):
        converted(tmp_path)


def changed(name, change):
    """A demonstration with something else under a name; None: nothing."""
    demo = demonstration()
    demo[name] = change(demo[name])
    return {key: value for key, value in demo.items() if value is not None}


def nothing(value):
    return None


def with_nan(value):
    value[3] = np.nan
    return value


@pytest.mark.parametrize(
    ("demo", "message"),
    [
        (changed("actions", nothing), "there is no 'actions'"),
        (changed("rewards", nothing), "there is no 'rewards'"),
        (changed("obs/ee_ori", nothing), "there is no 'ee_ori'"),
        (changed("obs/agentview_rgb", nothing), "there is no 'agentview_rgb'"),
        (changed("actions", lambda v: v[:, :4]), r"'actions' has shape \(6, 4\), not \(6, 7\)"),
        (changed("actions", lambda v: 2 * v), r"demo_0: 'actions' go up to 1\.\d+, beyond 1"),
        (changed("actions", with_nan), "demo_0: 'actions' is not a finite number in frame 3"),
        (changed("actions", lambda v: np.array(["x"] * 6, "S4")), "'actions' holds no numbers"),
        (changed("obs/joint_states", with_nan), "'joint_states' is not a finite number in frame 3"),
        (changed("obs/joint_states", lambda v: v[1:]), r"'joint_states' has shape \(5, 7\), not \(6, 7\)"),
        (changed("obs/agentview_rgb", lambda v: v[:, :64]), r"has shape \(6, 64, 128, 3\), not \(6, 64, 64, 3\)"),
        (
            changed("obs/eye_in_hand_rgb", lambda v: v[:, :64, :64]),
            r"'eye_in_hand_rgb' has shape \(6, 64, 64, 3\), not",
        ),
        (changed("obs/agentview_rgb", lambda v: v / 255), "'agentview_rgb' holds float64, not uint8"),
        (changed("obs/agentview_rgb", lambda v: v[0, 0, 0]), "'agentview_rgb' has shape"),
        (changed("states", nothing), r"no 'states' tell .* set observed=after \(LIBERO's own files\) or =before"),
        (changed("states", lambda v: v[:, :5]), r"'states' has shape \(6, 5\), not \(6, more than 8\)"),
        (changed("states", lambda v: 0 * v + np.nan), "'states' do not tell when things were seen"),
        ({k: v[:1] for k, v in demonstration().items()}, "demo_0: 1 actions; between 2 and 10000 are read"),
    ],
)
def test_a_demonstration_that_is_none_is_named(tmp_path, demo, message):
    write(tmp_path / "in" / "whole_demo.hdf5", [demonstration()])
    path = write(tmp_path / "in" / "zzz_demo.hdf5", [demo])
    with pytest.raises(DatasetError, match=f"{path}: .*{message}"):
        converted(tmp_path)
    if (tmp_path / "out").exists():  # found as it was read: what was written before is whole
        assert len(Dataset(tmp_path / "out")) == 1


def test_when_things_were_seen_can_be_said(tmp_path):
    write(tmp_path / "in" / f"{NAME}_demo.hdf5", [changed("states", nothing)])
    assert converted(tmp_path, observed="before").lengths.tolist() == [6]


@pytest.mark.parametrize(
    ("name", "told", "message"),
    [
        ("x.hdf5", {}, r"neither an attribute problem_info nor a name TASK_demo\.hdf5 says what was to be done"),
        ("x.hdf5", {"problem_info": "{"}, "it is damaged: JSONDecodeError"),
        ("x.hdf5", {"problem_info": "{}"}, "it is damaged: KeyError: 'language_instruction'"),
        ("x.hdf5", {"problem_info": '{"language_instruction": ""}'}, "an instruction of 0 characters"),
        ("x.hdf5", {"problem_info": json.dumps({"language_instruction": "a" * 501})}, "an instruction of 501 char"),
        ("x.hdf5", {"problem_info": np.arange(3)}, "neither an attribute problem_info"),
        (f"{NAME}_demo.hdf5", {"macros_image_convention": "sideways"}, "'sideways' is neither opengl nor opencv"),
        (
            f"{NAME}_demo.hdf5",
            {"env_args": json.dumps({"env_kwargs": {"controller_configs": {**CONTROLLER, "type": "JOINT_VELOCITY"}}})},
            "env_args has type 'JOINT_VELOCITY', not 'OSC_POSE'",
        ),
        (
            f"{NAME}_demo.hdf5",
            {"env_args": json.dumps({"env_kwargs": {"control_freq": 10}})},
            r"env_args has control_freq 10, not 20\.0",
        ),
        (
            f"{NAME}_demo.hdf5",
            {"env_args": json.dumps({"env_kwargs": {"controller_configs": [CONTROLLER]}})},
            "env_args has controller_configs .* which is no map",
        ),
        (
            f"{NAME}_demo.hdf5",
            {"env_args": json.dumps({"env_kwargs": {"controller_configs": {**CONTROLLER, "input_max": 2}}})},
            "env_args has input_max 2, not 1",
        ),
        (f"{NAME}_demo.hdf5", {"env_args": "[1]"}, "it is damaged: AttributeError"),
    ],
)
def test_a_file_that_says_something_else_is_named(tmp_path, name, told, message):
    path = write(tmp_path / "in" / name, [demonstration()], told)
    with pytest.raises(DatasetError, match=f"{path}: .*{message}"):
        converted(tmp_path)
    assert not (tmp_path / "out").exists()


def test_folders_and_files_that_are_none_are_named(tmp_path):
    with pytest.raises(DatasetError, match=r"in is no folder"):
        converted(tmp_path)
    (tmp_path / "in").mkdir()
    with pytest.raises(DatasetError, match=r"in holds no files \*_demo\.hdf5"):
        converted(tmp_path)
    path = tmp_path / "in" / "x_demo.hdf5"
    path.write_bytes(b"no HDF5")
    with pytest.raises(DatasetError, match=r"x_demo\.hdf5: is no HDF5"):
        converted(tmp_path)
    with h5py.File(path, "w") as file:
        file["data"] = np.arange(3)
    with pytest.raises(DatasetError, match=r"x_demo\.hdf5: .*'data' is no group"):
        converted(tmp_path)
    with h5py.File(path, "w") as file:
        file.create_group("data/other")
    with pytest.raises(DatasetError, match=r"x_demo\.hdf5: 'data' holds no demo_0"):
        converted(tmp_path)
    write(path, [demonstration()])
    with h5py.File(path, "a") as file:
        file["data/demo_1"] = h5py.ExternalLink("/etc/passwd", "/")
    with pytest.raises(DatasetError, match=r"'demo_1' is a link, which is not followed"):
        converted(tmp_path)
    path.unlink()
    path.symlink_to(write(tmp_path / "elsewhere_demo.hdf5", [demonstration()]))
    with pytest.raises(DatasetError, match="lies outside of the folder"):
        converted(tmp_path)
    assert not (tmp_path / "out").exists()


def test_what_memory_cannot_hold_is_not_read(tmp_path):
    path = write(tmp_path / "in" / f"{NAME}_demo.hdf5", [changed("obs/agentview_rgb", nothing)])
    with h5py.File(path, "a") as file:  # a few kilobytes that say they are a terabyte
        shape = (6, 300_000, 300_000, 3)
        file["data/demo_0/obs"].create_dataset("agentview_rgb", shape, np.uint8, chunks=(1, 64, 64, 3))
    with pytest.raises(DatasetError, match=r"'agentview_rgb' holds uint8 of shape \(6, 300000, 300000, 3\)"):
        converted(tmp_path)


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "in" / f"{NAME}_demo.hdf5"
    write(path, [demonstration()])
    with h5py.File(path, "a") as file:
        values = file["data/demo_0/obs/ee_pos"][()]
        del file["data/demo_0/obs/ee_pos"]
        file["data/demo_0/obs"].create_dataset("ee_pos", data=values, compression="gzip")
        where = file["data/demo_0/obs/ee_pos"].id.get_chunk_info(0)
    content = bytearray(path.read_bytes())
    content[where.byte_offset : where.byte_offset + where.size] = b"\xff" * where.size
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=f"{path}: demo_0: it is damaged"):
        converted(tmp_path)
    with pytest.raises(DatasetError, match="has no episodes"):  # none of which a half is there
        Dataset(tmp_path / "out")


def test_sizes_that_do_not_fit_and_settings_are_named(tmp_path):
    write(tmp_path / "in" / f"{NAME}_demo.hdf5", [demonstration()])
    with pytest.raises(DatasetError, match="pictures of 128 pixels cannot be made 100 by whole means"):
        converted(tmp_path, size=100)
    write(tmp_path / "in" / "z_demo.hdf5", [demonstration(pixels=64)])
    with pytest.raises(DatasetError, match="z_demo.hdf5: pictures of 64 pixels cannot be made 128"):
        converted(tmp_path, size=0)
    with pytest.raises(ValueError, match="size must be between 0"):
        libero.Config("a", "b", size=-1)
    with pytest.raises(ValueError, match="observed 'later' is not one of auto, after, before"):
        libero.Config("a", "b", observed="later")


def test_it_is_made_for_the_task(tmp_path, capsys):
    write(tmp_path / "in" / f"{NAME}_demo.hdf5", [demonstration()])
    features = converted(tmp_path, film=True).features
    assert features["observation.state"].names == collect.elements(measured())
    assert features["action"].names == collect.elements(COMMANDS)
    assert features[AGENT].dtype == "video"
    libero.main(["--help"])
    assert "pixels per side" in capsys.readouterr().out
