"""What runs ROS 2 launch files where ROS 2's own `launch` is not installed; see deploy/launch.py."""
