"""A flight log as a file: MCAP records, ROS 2 messages, its writing process, and what is saved of a damaged one."""
