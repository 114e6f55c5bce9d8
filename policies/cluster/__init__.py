"""Whole runs of training as jobs, here or on a cluster (`jobs`); searches of settings that are made of them (`study`)."""
