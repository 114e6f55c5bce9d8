"""What keeps a robot safe whatever file flies it: its own limits, and the ladder hold -> land -> off."""
