"""A policy on a microcontroller: emulated, measured, or at the other end of a serial line."""
