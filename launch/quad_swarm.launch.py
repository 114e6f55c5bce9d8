"""ros2 launch sim2metal quad_swarm.launch.py policy:=FILE [robots:=3]: simulated quadrotors, a namespace for each.

Each has its own robot, policy and supervisor nodes: /quad0/policy, /quad1/policy, ... and a world of its own: they do
not meet, nor does one's wash reach another. The task quad_swarm is several in one airspace (docs/swarm.md).
"""

from pathlib import Path

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription, OpaqueFunction
from launch.launch_description_sources import PythonLaunchDescriptionSource

from deploy.launching.files import checked, end_after, reach, signatures

NUMBERS = {"robots": int, "seconds": float, "seed": int}
NUMBERS |= dict.fromkeys(("arm", "transfer", "network", "require_signature"), bool)
HOVER = str(Path(__file__).resolve().with_name("quad_hover.launch.py"))
PASSED_ON = ("policy", "robot", "engine", "controller", "arm", "transfer", "params_file", "log", "key", "network")
SIGNED = ("trust", "require_signature")


def start(context):
    """One quad_hover per robot, each with its own namespace and seed."""
    given = dict(context.launch_configurations)
    if int(given["robots"]) < 1:
        raise ValueError(f"robots:={given['robots']}: needs at least one")
    same = {name: given[name] for name in (*PASSED_ON, *SIGNED)} | {"backend": "sim", "seconds": "0"}
    swarm = [
        IncludeLaunchDescription(
            PythonLaunchDescriptionSource(HOVER),
            launch_arguments=(
                same | {"namespace": f"{given['prefix']}{k}", "seed": str(int(given["seed"]) + k)}
            ).items(),
        )
        for k in range(int(given["robots"]))
    ]
    seconds = float(given["seconds"])
    return [*swarm, end_after(seconds)] if seconds else swarm


def generate_launch_description():
    """The arguments and the robots; when a node of one ends, all end."""
    params = str(Path(__file__).resolve().with_name("quad_hover.yaml"))
    arguments = [
        DeclareLaunchArgument("policy", description="The policy file, or the name of one that comes with sim2metal."),
        DeclareLaunchArgument("robots", default_value="3", description="How many."),
        DeclareLaunchArgument("prefix", default_value="quad", description="Their namespaces: this and a number."),
        DeclareLaunchArgument("robot", default_value="crazyflie", description="Their airframe."),
        DeclareLaunchArgument("seconds", default_value="0", description="Length of the flight; 0: until interrupted."),
        DeclareLaunchArgument("seed", default_value="0", description="Of the first robot; the others follow."),
        DeclareLaunchArgument(
            "engine", default_value="flight", choices=["flight", "mujoco", "bullet"], description="Physics."
        ),
        DeclareLaunchArgument(
            "controller", default_value="onnxruntime", choices=["onnxruntime", "c"], description="What computes it."
        ),
        DeclareLaunchArgument("arm", default_value="true", description="Arm at once; else call the services arm."),
        DeclareLaunchArgument("transfer", default_value="false", description="Allow a policy of another airframe."),
        DeclareLaunchArgument("params_file", default_value=params, description="More parameters of the nodes."),
        DeclareLaunchArgument("key", default_value="", description="File of the key that signs arming."),
        *signatures(),
        reach(),
        DeclareLaunchArgument("log", default_value="", description="Folder for flight logs (.mcap)."),
    ]
    return LaunchDescription([*checked(__file__, arguments, NUMBERS), OpaqueFunction(function=start)])
