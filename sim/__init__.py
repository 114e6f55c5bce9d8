"""Simulated worlds: robots, physics engines, sensors and tasks. Knows nothing of policies, algorithms or hardware."""
