"""Recorded flights of other flight controllers, in the names, units and axes of `policies.identify`."""
