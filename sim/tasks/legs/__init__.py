"""Tasks of legged robots, from their MJCF or URDF files."""
