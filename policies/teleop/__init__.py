"""A human who steers in simulation: to collect demonstrations, or to intervene."""
