"""What algorithms share: buffers, critics, rollouts, losses."""
