"""ROS 2 nodes on standard messages: a policy, a simulated robot, a supervisor. `topics.py` says what they exchange."""
