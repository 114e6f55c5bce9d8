"""What a file or a peer from outside may say and do here: the checks of strangers' data."""
