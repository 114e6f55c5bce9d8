"""A simulated Crazyflie: its on-board software as far as a client can tell, and its world.

Behaviour follows bitcraze/crazyflie-firmware @2a18fc29 (August 2026) and the packets of cflib 0.1.34.
"""
