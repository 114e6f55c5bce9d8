"""Detectors of what is in pictures: what they learn from, how they learn, and what they get wrong."""
