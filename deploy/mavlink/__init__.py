"""MAVLink, as PX4 speaks it: what driver=mavlink flies by, and a simulated vehicle that speaks it too."""
