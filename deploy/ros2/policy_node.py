"""python -m deploy.ros2.policy_node --ros-args -p NAME:=VALUE ...: fly a policy file on ROS 2 topics.

See `deploy/ros2/policy.py`.
"""

import sys

from deploy.ros2.node import process


def main() -> int:
    """Run the node; the exit status."""
    return process.run("deploy.ros2.policy:PolicyNode")


if __name__ == "__main__":
    sys.exit(main())
