"""Scalar equations compiled for a block of robots per processor instruction."""
