"""A Crazyflie: its radio protocol, the link through the official client, a policy as an app of its firmware."""
