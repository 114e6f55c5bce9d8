"""MuJoCo scenes that are built, not drawn."""
