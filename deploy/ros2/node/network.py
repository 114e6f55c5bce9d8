"""How far ROS 2 may be heard: on this machine, unless someone asked for the network."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

RANGE = "ROS_AUTOMATIC_DISCOVERY_RANGE"  # ROS 2's own: LOCALHOST, SUBNET, OFF or SYSTEM_DEFAULT
PEERS = "ROS_STATIC_PEERS"  # ROS 2's own: other machines, by name
PROFILES = ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")  # Fast DDS's own
LOOPBACK = Path(__file__).with_name("localhost.xml")
MIDDLEWARE, FAST_DDS = "RMW_IMPLEMENTATION", "rmw_fastrtps"  # ROS 2's own: rmw_fastrtps_cpp, rmw_cyclonedds_cpp
NETWORK = "SIM2METAL_NETWORK"  # 1: as ROS 2 itself does, the whole subnet
SECURITY = "ROS_SECURITY_ENABLE"
YES = ("1", "true", "yes", "on")


def keep_to_this_machine(environment: MutableMapping[str, str] = os.environ) -> None:
    """Call it before rclpy.init: who has set ROS 2's variables, or asked for the network, is not overruled.

    LOCALHOST alone only looks no further: whoever knows this machine's address is still answered, and shared memory is
    used. Fast DDS, the middleware of ROS 2 from pip, is therefore given a profile that speaks and listens nowhere else,
    which counts with SYSTEM_DEFAULT only; other middlewares have to be told in their way.
    """
    if not environment.get(RANGE) and environment.get(NETWORK, "").lower() not in YES:
        environment[RANGE] = "LOCALHOST"
    alone = environment.get(RANGE, "").upper() == "LOCALHOST" and not environment.get(PEERS)
    fast = (environment.get(MIDDLEWARE) or FAST_DDS).startswith(FAST_DDS)
    if alone and fast and not any(environment.get(name) for name in PROFILES):
        environment[PROFILES[0]], environment[RANGE] = str(LOOPBACK), "SYSTEM_DEFAULT"


def middleware(who: str) -> Any:
    """rclpy, kept to this machine; ValueError says that `who` needs it where it is not installed."""
    try:
        import rclpy
    except ModuleNotFoundError as error:
        if error.name != "rclpy":
            raise
        raise ValueError(f"{who} needs rclpy: source your ROS 2, or pip install 'sim2metal[ros]'") from None
    keep_to_this_machine()
    return rclpy


def insecure(error: Exception) -> str:
    """One line for what ROS 2 raised because it was told to be secure; empty where it was not."""
    if os.environ.get(SECURITY, "").lower() != "true":
        return ""
    text = next(iter(str(error).splitlines()), "")
    return (
        f"{SECURITY}=true, but ROS 2 could not begin ({text}): without a keystore it does not, and ROS 2 from pip has "
        "no security libraries; use an installed ROS 2 with its keystore, or signed arming (the parameter key)"
    )
