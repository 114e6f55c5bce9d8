"""A policy whose expensive part is computed elsewhere."""
