"""ros2 launch sim2metal soccer.launch.py policy:=FILE [backend:=sim|hil|robot]: a policy plays one game of football.

Without ROS 2's launch: python -m deploy.launch launch/soccer.launch.py policy:=FILE
"""

from pathlib import Path

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction

from deploy.launching.files import (
    checked,
    flag,
    nodes,
    reach,
    reaching,
    signatures,
    trusting,
)

NUMBERS = {"seconds": float, "seed": int, "arm": bool, "transfer": bool, "network": bool, "require_signature": bool}
NUMBERS |= {"resize": bool, "reliable": bool, "view": float}


def settings(given):
    """Of the task, in the place of the policy's own, as the robot node takes them."""
    found = [f"opponent={given['opponent']}"] if given["opponent"] else []
    if given["camera"]:
        width, _, height = given["camera"].partition("x")
        if not (width.isdecimal() and height.isdecimal()):
            raise ValueError(f"camera:={given['camera']} is not like 640x480")
        found += [f"width={int(width)}", f"height={int(height)}"]
    return ",".join(found)


def policy(given):
    """Parameters of the policy node: it starts by itself, as soon as everything is ready and it is armed."""
    texts = {name: given[name] for name in ("policy", "controller", "twist", "joints", "log", "key")}
    switches = {"autostart": True, "transfer": flag(given["transfer"]), "resize": flag(given["resize"])}
    switches |= {"reliable": flag(given["reliable"])}
    return texts | switches | {"view": float(given["view"])} | trusting(given)


def supervisor(given, arm):
    """Parameters of the supervisor node."""
    return {"auto_arm": arm, "key": given["key"]}


def simulated(given):
    """Robot, policy and supervisor as nodes on topics, in real time, until the game is over."""
    robot = {name: given[name] for name in ("policy", "task", "engine", "twist", "key")} | {"seed": int(given["seed"])}
    robot |= {"settings": settings(given), "once": True}
    return nodes(given, {"robot": robot, "policy": policy(given), "supervisor": supervisor(given, flag(given["arm"]))})


def in_the_loop(given):
    """The same with the policy on a microcontroller, or on an emulated one."""
    return simulated({**given, "controller": given["port"]})


def robot(given):
    """Policy and supervisor for a robot that is there already; it is armed by the service `arm` only."""
    return nodes(given, {"policy": policy(given), "supervisor": supervisor(given, False)})


BACKENDS = {"sim": simulated, "hil": in_the_loop, "robot": robot}


def start(context):
    """What the chosen backend consists of."""
    given = context.launch_configurations
    return [*reaching(given), *BACKENDS[given["backend"]](given)]


def generate_launch_description():
    """The arguments and the chosen backend's nodes; when one of them ends, all end."""
    params = str(Path(__file__).resolve().with_name("soccer.yaml"))
    arguments = [
        DeclareLaunchArgument("policy", description="The policy file."),
        DeclareLaunchArgument("backend", default_value="sim", choices=[*BACKENDS], description="What plays."),
        DeclareLaunchArgument("task", default_value="", description="sim, hil: empty: the policy's own."),
        DeclareLaunchArgument("opponent", default_value="", description="sim, hil: empty: the policy's own."),
        DeclareLaunchArgument("camera", default_value="", description="sim, hil: its pixels, as 640x480."),
        DeclareLaunchArgument("engine", default_value="", description="sim, hil: pitch or mujoco; empty: pitch."),
        DeclareLaunchArgument("seconds", default_value="0", description="How long; 0: until the game is over."),
        DeclareLaunchArgument("seed", default_value="0", description="sim, hil: of the game."),
        DeclareLaunchArgument("namespace", default_value="", description="Of nodes and topics."),
        DeclareLaunchArgument("remap", default_value="", description="Topics: from:=to,from:=to."),
        DeclareLaunchArgument("resize", default_value="false", description="Average larger pictures down."),
        DeclareLaunchArgument("reliable", default_value="false", description="Have lost pictures sent again."),
        DeclareLaunchArgument(
            "view", default_value="0", description="Degrees that its camera has to see across; 0: see docs/ros2.md."
        ),
        DeclareLaunchArgument(
            "twist", default_value="twist", choices=["twist", "twist_stamped"], description="What cmd_vel is."
        ),
        DeclareLaunchArgument("joints", default_value="", description="Which one turns its camera; empty: pan_joint."),
        DeclareLaunchArgument(
            "controller", default_value="onnxruntime", choices=["onnxruntime", "c"], description="What computes it."
        ),
        DeclareLaunchArgument("arm", default_value="true", description="sim, hil: at once; else by the service arm."),
        DeclareLaunchArgument("transfer", default_value="false", description="Allow a policy of another robot."),
        DeclareLaunchArgument("params_file", default_value=params, description="More parameters."),
        DeclareLaunchArgument("key", default_value="", description="File of the key that signs arming."),
        *signatures(),
        reach(),
        DeclareLaunchArgument("log", default_value="", description="Folder for flight logs (.mcap)."),
        DeclareLaunchArgument("port", default_value="emulated", description="hil: emulated, or a serial device."),
    ]
    return LaunchDescription([*checked(__file__, arguments, NUMBERS), OpaqueFunction(function=start)])
