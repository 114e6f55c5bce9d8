"""python -m deploy.ros2.supervisor_node --ros-args -p NAME:=VALUE ...: say on ROS 2 who may fly.

See `deploy/ros2/supervisor.py`.
"""

import sys

from deploy.ros2.node import process


def main() -> int:
    """Run the node; the exit status."""
    return process.run("deploy.ros2.supervisor:SupervisorNode")


if __name__ == "__main__":
    sys.exit(main())
