"""Policies of LeRobot: pictures and numbers in, chunks of actions out; `policies.adopt from=lerobot`."""
