"""Learning, evaluation and export: from a task in simulation to one policy file. Never imported on a robot."""
