"""Tasks by others: Meta-World and Gymnasium-Robotics."""
