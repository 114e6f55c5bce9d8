# Of NVIDIA's Isaac Gym (Preview 4), what `sim/engines/isaacgym/worker.py` calls; names as in its documentation.
