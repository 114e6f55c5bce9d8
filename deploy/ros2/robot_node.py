"""python -m deploy.ros2.robot_node --ros-args -p NAME:=VALUE ...: a simulated robot on ROS 2 topics.

See `deploy/ros2/robot.py`.
"""

import sys

from deploy.ros2.node import process


def main() -> int:
    """Run the node; the exit status."""
    return process.run("deploy.ros2.robot:RobotNode")


if __name__ == "__main__":
    sys.exit(main())
