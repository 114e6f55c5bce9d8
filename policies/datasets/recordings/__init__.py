"""Recordings of robots, rosbag2 and flight logs of ours, as datasets."""
