"""ros2 launch sim2metal quad_hover.launch.py policy:=FILE [backend:=sim|hil|crazyflie]: a policy flies one quadrotor.

Without ROS 2's launch: python -m deploy.launch launch/quad_hover.launch.py policy:=FILE
"""

import socket
from pathlib import Path

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction

from deploy.launching.files import (
    checked,
    command,
    flag,
    nodes,
    reach,
    reaching,
    required,
    signatures,
    trusting,
)

NUMBERS = {"seconds": float, "seed": int, "arm": bool, "transfer": bool, "network": bool, "require_signature": bool}


def simulated(given):
    """Robot, policy and supervisor as nodes on topics, in real time."""
    robot = {name: given[name] for name in ("robot", "engine", "key")} | {"seed": int(given["seed"])}
    policy = {name: given[name] for name in ("policy", "controller", "log", "key")}
    policy |= {"autostart": True, "transfer": flag(given["transfer"]), **trusting(given)}
    supervisor = {"auto_arm": flag(given["arm"]), "key": given["key"]}
    return nodes(given, {"robot": robot, "policy": policy, "supervisor": supervisor})


def in_the_loop(given):
    """The same with the policy on a microcontroller, or on an emulated one. `python -m deploy.hil` measures it."""
    return simulated({**given, "controller": given["port"]})


def free_port():
    """A UDP port that nobody uses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def crazyflie(given):
    """A Crazyflie over its radio, or a simulated one; the policy is on board, and the supervisor is its firmware's."""
    vehicle = [f"{name}={given[name]}" for name in ("policy", "robot")]
    flown = [f"require_signature={str(flag(given['require_signature'])).lower()}"]
    flown += [f"trust={given['trust']}"] * bool(given["trust"])
    flown += [f"seconds={given['seconds']}"] * (float(given["seconds"]) > 0.0)
    uri, simulators = given["uri"], []
    if uri == "simulated":
        uri = f"udp://127.0.0.1:{free_port()}"
        simulators = [command("deploy.crazyflie_sim", f"uri={uri}", *vehicle)]
    return required(*simulators, command("deploy.run", "driver=crazyflie", f"uri={uri}", *vehicle, *flown))


BACKENDS = {"sim": simulated, "hil": in_the_loop, "crazyflie": crazyflie}


def start(context):
    """What the chosen backend consists of."""
    given = context.launch_configurations
    return [*reaching(given), *BACKENDS[given["backend"]](given)]


def generate_launch_description():
    """The arguments and the chosen backend's processes; when one of them ends, all end."""
    params = str(Path(__file__).resolve().with_name("quad_hover.yaml"))
    arguments = [
        DeclareLaunchArgument("policy", description="The policy file, or the name of one that comes with sim2metal."),
        DeclareLaunchArgument("backend", default_value="sim", choices=[*BACKENDS], description="What flies."),
        DeclareLaunchArgument("robot", default_value="crazyflie", description="Its airframe."),
        DeclareLaunchArgument("seconds", default_value="0", description="Length of the flight; 0: backend's default."),
        DeclareLaunchArgument("seed", default_value="0", description="sim, hil: of what is random."),
        DeclareLaunchArgument(
            "engine", default_value="flight", choices=["flight", "mujoco", "bullet"], description="sim, hil: physics."
        ),
        DeclareLaunchArgument("namespace", default_value="", description="sim, hil: of nodes and topics."),
        DeclareLaunchArgument(
            "controller",
            default_value="onnxruntime",
            choices=["onnxruntime", "c"],
            description="sim: what computes it.",
        ),
        DeclareLaunchArgument("arm", default_value="true", description="sim, hil: at once; else by the service arm."),
        DeclareLaunchArgument("transfer", default_value="false", description="sim, hil: of another airframe."),
        DeclareLaunchArgument("params_file", default_value=params, description="sim, hil: more parameters."),
        DeclareLaunchArgument("key", default_value="", description="sim, hil: file of the key that signs arming."),
        *signatures(),
        reach(),
        DeclareLaunchArgument("log", default_value="", description="sim, hil: folder for flight logs (.mcap)."),
        DeclareLaunchArgument("port", default_value="emulated", description="hil: emulated, or a serial device."),
        DeclareLaunchArgument(
            "uri", default_value="simulated", description="crazyflie: radio://..., udp://... or simulated."
        ),
    ]
    return LaunchDescription([*checked(__file__, arguments, NUMBERS), OpaqueFunction(function=start)])
