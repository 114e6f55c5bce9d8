"""ros2 launch sim2metal policy.launch.py policy:=FILE [remap:=from:=to,...]: the policy node alone, on your own robot.

Its topics are those that `ros2 node info` shows; remap them to your robot's.
"""

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction

from deploy.launching.files import checked, flag, node, reach, reaching, remappings, required, signatures, trusting

SWITCHES = dict.fromkeys(("autostart", "armed", "transfer", "use_sim_time"), bool)


def start(context):
    """The node, with what was given as its parameters."""
    given = context.launch_configurations
    texts = {name: given[name] for name in ("policy", "controller", "robot", "log", "key")}
    switches = {name: flag(given[name]) for name in SWITCHES}
    policy = required(
        node(
            "policy_node",
            name=given["name"],
            namespace=given["namespace"] or None,
            parameters=[*filter(None, [given["params_file"]]), texts | switches | trusting(given)],
            remappings=remappings(given["remap"]),
        )
    )
    return [*reaching(given), *policy]


def generate_launch_description():
    """The arguments and the policy node; the launch ends with it."""
    arguments = [
        DeclareLaunchArgument("policy", description="The policy file, or the name of one that comes with sim2metal."),
        DeclareLaunchArgument("name", default_value="policy", description="Of the node."),
        DeclareLaunchArgument("namespace", default_value="", description="Of the node and its topics."),
        DeclareLaunchArgument("remap", default_value="", description="Topics: from:=to,from:=to."),
        DeclareLaunchArgument("params_file", default_value="", description="More parameters, in a file."),
        DeclareLaunchArgument(
            "controller", default_value="onnxruntime", choices=["onnxruntime", "c"], description="What computes it."
        ),
        DeclareLaunchArgument("robot", default_value="", description="Which robot it is; empty: as the robot says."),
        DeclareLaunchArgument("transfer", default_value="false", description="Allow a policy of another robot."),
        DeclareLaunchArgument("autostart", default_value="false", description="Configure and activate by itself."),
        DeclareLaunchArgument("armed", default_value="true", description="Fly only while the topic armed says so."),
        DeclareLaunchArgument("use_sim_time", default_value="false", description="Time comes from the topic /clock."),
        DeclareLaunchArgument("key", default_value="", description="File of the key that signs arming."),
        *signatures(),
        reach(),
        DeclareLaunchArgument("log", default_value="", description="Folder for flight logs (.mcap)."),
    ]
    return LaunchDescription(
        [
            *checked(__file__, arguments, SWITCHES | {"network": bool, "require_signature": bool}),
            OpaqueFunction(function=start),
        ]
    )
