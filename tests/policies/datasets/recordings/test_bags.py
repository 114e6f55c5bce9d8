"""A rosbag2 of any robot becomes a dataset: bags that rosbags writes, with standard messages."""

import io

import numpy as np
import pytest
from PIL import Image
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from deploy import cli
from policies.datasets.features import DatasetError
from policies.datasets.reader import Dataset
from policies.datasets.recordings import __main__ as command
from policies.datasets.recordings import bag_map, bags

STORE = get_typestore(Stores.LATEST)
MAP = """\
fps: 20
task: push the block
robot: an_arm
episodes: {topic: /recording}
features:
  observation.state:
    - {topic: /joint_states, field: position, names: [elbow, shoulder]}
    - {topic: /odometry, field: pose.pose.position}
  observation.images.front: {topic: /camera}
  action: {topic: /commands}
"""
T = STORE.types


def now_of(ms: int) -> int:
    return 1_000_000_000_000 + ms * 1_000_000


def header():
    return T["std_msgs/msg/Header"](T["builtin_interfaces/msg/Time"](0, 0), "world")


def joints(shoulder, elbow, names=("shoulder", "elbow", "gripper")):
    empty = np.zeros(0)
    return T["sensor_msgs/msg/JointState"](header(), list(names), np.array([shoulder, elbow, 9.0]), empty, empty)


def odometry(x):
    pose = T["geometry_msgs/msg/Pose"](
        T["geometry_msgs/msg/Point"](x, 2.0, 3.0), T["geometry_msgs/msg/Quaternion"](0.0, 0.0, 0.0, 1.0)
    )
    zero = T["geometry_msgs/msg/Vector3"](0.0, 0.0, 0.0)
    covariance = np.zeros(36)
    return T["nav_msgs/msg/Odometry"](
        header(),
        "base_link",
        T["geometry_msgs/msg/PoseWithCovariance"](pose, covariance),
        T["geometry_msgs/msg/TwistWithCovariance"](T["geometry_msgs/msg/Twist"](zero, zero), covariance),
    )


def picture(level, encoding="rgb8"):
    data = np.full((6, 8, 3), level, np.uint8)
    return T["sensor_msgs/msg/Image"](header(), 6, 8, encoding, 0, 24, data.reshape(-1))


def packed(level):
    file = io.BytesIO()
    Image.fromarray(np.full((6, 8, 3), level, np.uint8)).save(file, "png")
    return T["sensor_msgs/msg/CompressedImage"](header(), "png", np.frombuffer(file.getvalue(), np.uint8))


def command_of(*values):
    layout = T["std_msgs/msg/MultiArrayLayout"]([], 0)
    return T["std_msgs/msg/Float32MultiArray"](layout, np.array(values, np.float32))


def said(value):
    return T["std_msgs/msg/Bool" if isinstance(value, bool) else "std_msgs/msg/String"](value)


def two_episodes(camera=picture):
    """Joints at 100 Hz, odometry and commands at 20, a camera at 10; recorded from 200 to 700 ms and 900 to 1300."""
    for ms in range(0, 1500, 10):
        yield ms, "/joint_states", joints(0.001 * ms, -0.001 * ms)
        if ms % 50 == 0:
            yield ms, "/odometry", odometry(0.01 * ms)
            yield ms + 5, "/commands", command_of(ms, 1.0)
        if ms % 100 == 0:
            yield ms + 1, "/camera", camera(ms % 250)
        if ms in (200, 700, 900, 1300):
            yield ms + 7, "/recording", said(ms in (200, 900))


def bag(folder, messages, storage=StoragePlugin.MCAP, store=STORE):
    with Writer(folder, version=9, storage_plugin=storage) as writer:
        connections = {}
        for ms, topic, message in sorted(messages, key=lambda m: m[0]):
            kind = message.__msgtype__
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, kind, typestore=store)
            writer.write(connections[topic], now_of(ms), store.serialize_cdr(message, kind))
    return folder


def written(path, text=MAP):
    path.write_text(text)
    return bag_map.read(str(path))


def read(tmp_path, messages, text=MAP):
    *found, short = bags.episodes(str(bag(tmp_path / "bag", messages)), written(tmp_path / "map.yaml", text))
    return found, short


@pytest.mark.parametrize("storage", list(StoragePlugin))
@pytest.mark.parametrize("camera", [picture, packed])
def test_a_bag_becomes_a_dataset(tmp_path, capsys, storage, camera):
    source = bag(tmp_path / "bag", two_episodes(camera), storage)
    (tmp_path / "map.yaml").write_text(MAP)
    words = [f"out={tmp_path / 'data'}", f"bag={source}", f"map={tmp_path / 'map.yaml'}"]
    assert cli.call(command.main, words) == 0
    assert "2 episodes added, 2 there" in capsys.readouterr().out
    dataset = Dataset(tmp_path / "data")
    assert dataset.fps == 20 and dataset.lengths.tolist() == [10, 8] and dataset.info["robot_type"] == "an_arm"
    assert dataset.episode_tasks == ["push the block"] * 2
    first = dataset.episode(0)
    began = 207 + 50 * np.arange(10)  # ms: "recording" was the last to be heard
    np.testing.assert_allclose(first["observation.state"][:, 0], -0.001 * (began // 10 * 10), atol=1e-6)
    np.testing.assert_allclose(first["observation.state"][:, 1], 0.001 * (began // 10 * 10), atol=1e-6)
    np.testing.assert_allclose(first["observation.state"][:, 2], 0.01 * (began // 50 * 50), atol=1e-6)
    np.testing.assert_allclose(first["action"][:, 0], (began + 45) // 50 * 50)  # what was commanded within the step
    np.testing.assert_array_equal(first["observation.images.front"][:, 0, 0, 0], (began - 1) // 100 * 100 % 250)
    names = dataset.features["observation.state"].names
    assert names == ("elbow", "shoulder", *(f"pose.pose.position.{k}" for k in range(3)))


def test_twice_into_one_folder_only_where_it_is_said(tmp_path, capsys):
    source = bag(tmp_path / "bag", two_episodes())
    (tmp_path / "map.yaml").write_text(MAP)
    words = [f"out={tmp_path / 'data'}", f"bag={source}", f"map={tmp_path / 'map.yaml'}"]
    assert cli.call(command.main, words) == 0
    assert cli.call(command.main, words) == 2
    assert "has 2 episodes: append=true adds to them" in capsys.readouterr().err
    assert cli.call(command.main, [*words, "append=true"]) == 0
    assert len(Dataset(tmp_path / "data")) == 4


def test_silence_ends_an_episode_and_another_begins_after_it(tmp_path):
    text = MAP.replace("episodes: {topic: /recording}\n", "oldest: 0.2\n")
    quiet = [m for m in two_episodes() if not (m[1] == "/odometry" and 500 <= m[0] < 1000)]
    found, short = read(tmp_path, quiet, text)
    assert short == 0 and len(found) == 2
    began = 1 + 50 * np.arange(len(found[0].frames["action"]))  # the camera was the last to be heard
    assert began[-1] <= 650 < began[-1] + 100
    np.testing.assert_allclose(found[1].frames["observation.state"][0, 2], 10.0)  # x at 1 000 ms


def test_short_ones_are_left_out_and_counted(tmp_path):
    found, short = read(tmp_path, two_episodes(), MAP + "shortest: 9\n")
    assert [len(each.frames["action"]) for each in found] == [10] and short == 1


def test_what_was_to_be_done_can_be_a_topic(tmp_path):
    messages = [*two_episodes(), (100, "/told", said("push it left")), (800, "/told", said("push it right"))]
    found, _ = read(tmp_path, messages, MAP.replace("task: push the block", "task: {topic: /told}"))
    assert [each.task for each in found] == ["push it left", "push it right"]


def test_the_order_of_joints_does_not_matter_where_they_are_named(tmp_path):
    messages = [
        (ms, topic, joints(m.position[1], m.position[0], ("elbow", "shoulder", "gripper")))
        if topic == "/joint_states" and ms % 20
        else (ms, topic, m)
        for ms, topic, m in two_episodes()
    ]
    found, _ = read(tmp_path, messages)
    state = found[0].frames["observation.state"]
    np.testing.assert_allclose(state[:, 0], -state[:, 1])


NAMED = "names: [elbow, shoulder]"
BAD_MAPS = {
    "no field": (MAP + "fpss: 3\n", "fpss: there is no such field (did you mean 'fps'?)"),
    "no rate": (MAP.replace("fps: 20", "robot_: 3"), "fps: needs a whole number from 1 to 1000"),
    "no action": (MAP.replace("  action: {topic: /commands}\n", ""), "needs one that begins with 'observation.'"),
    "a topic without a slash": (MAP.replace("/commands", "commands"), "needs a whole name"),
    "a text": ("nothing", "needs fields and values"),
    "twice": (MAP + "fps: 30\n", "is given twice"),
    "both": (MAP.replace(NAMED, f"{NAMED}, elements: [0]"), "goes without elements"),
    "negative": (MAP.replace(NAMED, "elements: [-1]"), "needs a list of numbers from 0"),
    "oldest": (MAP + "oldest: 0\n", "needs a finite number above 0"),
}


@pytest.mark.parametrize("name", BAD_MAPS)
def test_a_bad_map_is_named(tmp_path, name):
    text, reason = BAD_MAPS[name]
    with pytest.raises(ValueError, match=r"map\.yaml: ") as error:
        written(tmp_path / "map.yaml", text)
    assert reason in str(error.value)


BAD_BAGS = {
    "no topic": (MAP.replace("/commands", "/orders"), "there is no topic /orders; it has: "),
    "no joint": (MAP.replace("elbow, ", "wrist, "), "are named shoulder, elbow, gripper, not wrist, shoulder"),
    "no field of it": (MAP.replace("field: pose.pose.position", "field: pose.position"), "has no such field"),
    "hidden": (MAP.replace("field: pose.pose.position", "field: __class__"), "has no such field"),
    "no numbers": (MAP.replace("field: pose.pose.position", "field: header.frame_id"), "holds no numbers"),
    "no element": (MAP.replace(NAMED, "elements: [7]"), "has 3 numbers, no element 7"),
    "no picture": (MAP.replace("{topic: /camera}", "{topic: /odometry}"), "is no picture"),
    "not true or false": (MAP.replace("topic: /recording", "topic: /odometry"), "has to hold std_msgs/msg/Bool"),
}


@pytest.mark.parametrize("name", BAD_BAGS)
def test_a_bag_that_does_not_fit_its_map_is_named(tmp_path, name):
    text, reason = BAD_BAGS[name]
    with pytest.raises(DatasetError) as error:
        read(tmp_path, two_episodes(), text)
    assert reason in str(error.value)


def test_joints_that_change_their_order_have_to_be_named(tmp_path):
    messages = [*two_episodes(), (1200, "/joint_states", joints(0.0, 0.0, ("elbow", "shoulder", "gripper")))]
    with pytest.raises(DatasetError, match="change their order"):
        read(tmp_path, messages, MAP.replace(f", {NAMED}", ""))


@pytest.mark.parametrize(("camera", "reason"), [(lambda level: picture(level, "mono8"), "has no colours")])
def test_a_picture_that_cannot_be_read_is_named(tmp_path, camera, reason):
    with pytest.raises(DatasetError, match=reason):
        read(tmp_path, two_episodes(camera))


def test_a_picture_that_claims_to_be_huge_is_not_unpacked(tmp_path):
    file = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(file, "png")
    huge = T["sensor_msgs/msg/CompressedImage"](header(), "png", np.frombuffer(file.getvalue(), np.uint8))
    with pytest.raises(DatasetError):
        read(tmp_path, two_episodes(lambda level: huge))


def test_types_of_others_are_not_read_from_the_bag(tmp_path):
    """Their definitions lie in the bag, and code would be made of them."""
    store = get_typestore(Stores.LATEST)
    store.register(get_types_from_msg("float32[] data", "their_msgs/msg/Thing"))
    thing = store.types["their_msgs/msg/Thing"](np.zeros(2, np.float32))
    source = bag(tmp_path / "bag", [*two_episodes(), (3, "/things", thing)], store=store)
    with pytest.raises(DatasetError, match="their_msgs/msg/Thing, which is no type of ROS 2 itself"):
        list(bags.episodes(str(source), written(tmp_path / "map.yaml", MAP.replace("/commands", "/things"))))


def test_a_message_that_is_cut_off_is_one_sentence(tmp_path):
    source = bag(tmp_path / "bag", two_episodes())
    folder = tmp_path / "cut"
    with Writer(folder, version=9, storage_plugin=StoragePlugin.SQLITE3) as writer:
        connection = writer.add_connection("/commands", "std_msgs/msg/Float32MultiArray", typestore=STORE)
        data = STORE.serialize_cdr(command_of(1.0, 2.0), "std_msgs/msg/Float32MultiArray")
        writer.write(connection, now_of(0), bytes(data)[:-3])
    text = "fps: 20\ntask: x\nfeatures:\n  observation.x: {topic: /commands}\n  action: {topic: /commands}\n"
    with pytest.raises(DatasetError, match=f"{folder}: damaged, or no rosbag2: SerdeError"):
        list(bags.episodes(str(folder), written(tmp_path / "map.yaml", text)))
    (file,) = folder.glob("*.db3")
    file.write_bytes(file.read_bytes()[:-3000])
    with pytest.raises(DatasetError, match="damaged, or no rosbag2"):
        list(bags.episodes(str(folder), written(tmp_path / "map.yaml", text)))
    assert source.is_dir()


@pytest.mark.parametrize("damage", ["cut", "no bag", "nothing"])
def test_a_damaged_bag_is_one_sentence(tmp_path, capsys, damage):
    source = bag(tmp_path / "bag", two_episodes())
    (tmp_path / "map.yaml").write_text(MAP)
    (file,) = source.glob("*.mcap")
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:5000])
    path = {"cut": source, "no bag": tmp_path / "map.yaml", "nothing": tmp_path / "none"}[damage]
    words = [f"out={tmp_path / 'data'}", f"bag={path}", f"map={tmp_path / 'map.yaml'}"]
    assert cli.call(command.main, words) == 2
    text = capsys.readouterr().err
    assert text.startswith("error: ") and text.count("\n") == 1 and str(path) in text
    assert not (tmp_path / "data" / "meta").exists()
