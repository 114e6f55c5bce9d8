"""Controllers written by hand: teachers and baselines."""
