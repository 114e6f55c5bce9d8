"""What flies inside Betaflight: a module around a policy's C, in place of the mixer."""
