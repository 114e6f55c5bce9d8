"""What flies inside PX4: weights for its module mc_raptor, and a module of its own around a policy's C."""
