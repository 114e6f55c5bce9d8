"""The simulated robot behind the robot node: its world, its own flight controller, the faults it can be given."""
