"""What surrounds a training: its folder, the lock on it, and how it ends."""
