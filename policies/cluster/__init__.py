"""Whole runs of training as jobs, here or on a cluster (`jobs`), and searches that are made of them (`search`)."""
