"""ros2 launch sim2metal manipulator.launch.py policy:=FILE [backend:=sim|hil|ros2_control]: a policy moves one arm.

Without ROS 2's launch: python -m deploy.launch launch/manipulator.launch.py policy:=FILE
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


def policy(given):
    """Parameters of the policy node: it starts by itself, as soon as everything is ready and it is armed."""
    names = ("policy", "instruction", "server", "controller", "commands", "joints", "fingers", "log", "key")
    return {name: given[name] for name in names} | {
        "autostart": True,
        "transfer": flag(given["transfer"]),
        **trusting(given),
    }


def supervisor(given, arm):
    """Parameters of the supervisor node."""
    return {"watch": given["watch"], "auto_arm": arm, "key": given["key"]}


def simulated(given):
    """Robot, policy and supervisor as nodes on topics, in real time."""
    robot = {name: given[name] for name in ("policy", "task", "commands", "key")} | {"seed": int(given["seed"])}
    return nodes(given, {"robot": robot, "policy": policy(given), "supervisor": supervisor(given, flag(given["arm"]))})


def in_the_loop(given):
    """The same with the policy on a microcontroller, or on an emulated one."""
    return simulated({**given, "controller": given["port"]})


def ros2_control(given):
    """Policy and supervisor for an arm whose controllers run already; it is armed by the service `arm` only."""
    return nodes(given, {"policy": policy(given), "supervisor": supervisor(given, False)})


BACKENDS = {"sim": simulated, "hil": in_the_loop, "ros2_control": ros2_control}


def start(context):
    """What the chosen backend consists of."""
    given = context.launch_configurations
    return [*reaching(given), *BACKENDS[given["backend"]](given)]


def generate_launch_description():
    """The arguments and the chosen backend's nodes; when one of them ends, all end."""
    params = str(Path(__file__).resolve().with_name("manipulator.yaml"))
    arguments = [
        DeclareLaunchArgument("policy", description="The policy file."),
        DeclareLaunchArgument(
            "instruction",
            default_value="",
            description="What to do, in words; empty: as the topic instruction says. For policies told in words.",
        ),
        DeclareLaunchArgument(
            "server", default_value="", description="Who plans: HOST:PORT, or process; empty: nobody."
        ),
        DeclareLaunchArgument("backend", default_value="sim", choices=[*BACKENDS], description="What moves."),
        DeclareLaunchArgument("task", default_value="", description="sim, hil: empty: the policy's own."),
        DeclareLaunchArgument("seconds", default_value="0", description="How long; 0: until interrupted."),
        DeclareLaunchArgument("seed", default_value="0", description="sim, hil: of the episodes."),
        DeclareLaunchArgument("namespace", default_value="", description="Of nodes and topics."),
        DeclareLaunchArgument("remap", default_value="", description="Topics: from:=to,from:=to."),
        DeclareLaunchArgument(
            "watch",
            default_value="joint_states",
            choices=["joint_states", "hand_pose"],
            description="What the supervisor sees of the arm; simulated benchmarks have hand_pose.",
        ),
        DeclareLaunchArgument(
            "commands",
            default_value="forward",
            choices=["forward", "trajectory"],
            description="For a forward_command_controller (numbers), or a JointTrajectoryController (one point).",
        ),
        DeclareLaunchArgument("joints", default_value="", description="Their names: a,b,...; empty: ROBOT_joint1,..."),
        DeclareLaunchArgument("fingers", default_value="", description="Empty: ROBOT_finger_joint1, and 2."),
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
