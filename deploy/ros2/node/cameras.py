"""What cameras say of themselves beside their pictures: how far across they see."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from rclpy.node import Node
from sensor_msgs.msg import CameraInfo

from deploy.ros2.node.subscriptions import Inbox, sensor_quality
from deploy.ros2.pictures import EQUIDISTANT, UNCALIBRATED, other_view, seen_across
from sim.spec import Group, Signal, pictures


def info_topic(camera: Signal) -> str:
    """Where a camera's CameraInfo is."""
    return f"{camera.name}/camera_info"


def told_view(metadata: Mapping[str, Any]) -> float:
    """Degrees that a policy's cameras saw across in training, by its file; 0 where that does not say."""
    training = metadata.get("training")
    settings = training.get("task_config") if isinstance(training, dict) else None
    view = settings.get("view") if isinstance(settings, dict) else None
    return float(view) if isinstance(view, int | float) and math.isfinite(view) and 0.0 < view < 180.0 else 0.0


def camera_info(camera: Signal, view: float, lens: str = "pinhole") -> CameraInfo:
    """Of a pinhole, or a fisheye whose angles are as distances, that sees so many degrees across.

    The models of sensor_msgs/distortion_models.hpp: "equidistant" is that of Kannala and Brandt (2006).
    """
    height, width, _ = camera.shape
    half = math.radians(view) / 2.0
    focal = 0.5 * width / (half if lens == "fisheye" else math.tan(half))  # pixels
    x, y = 0.5 * width, 0.5 * height
    model, count = (EQUIDISTANT, 4) if lens == "fisheye" else ("plumb_bob", 5)
    made = CameraInfo(height=height, width=width, distortion_model=model, d=[0.0] * count)
    made.header.frame_id = camera.name
    made.k, made.r = [focal, 0.0, x, 0.0, focal, y, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]
    made.p = [focal, 0.0, x, 0.0, 0.0, focal, y, 0.0, 0.0, 0.0, 1.0, 0.0]
    return made


class Cameras:
    """Compares the cameras of a policy's pictures with its own.

    What a person says is demanded; what only the policy's file tells is compared where a camera says how far it sees.
    """

    def __init__(self, node: Node, signals: Group, asked: float, told: float) -> None:
        """`asked` by a person and `told` by the policy's file: degrees across; 0: unknown."""
        self._view, self._demanded = asked or told, asked > 0.0
        wanted: Iterable[Signal] = pictures(signals) if self._view else ()
        self._inboxes = [Inbox(node, CameraInfo, info_topic(s), sensor_quality()) for s in wanted]

    def missing(self) -> list[str]:
        """What keeps a flight from beginning."""
        lines = []
        for inbox in self._inboxes:
            inbox.take()
            if inbox.message is None or math.isnan(seen_across(inbox.message)):
                why = "it is not heard" if inbox.message is None else UNCALIBRATED
                lines += [f"{inbox.topic}: {why}; view=0 does not ask for it"] * self._demanded
            elif trouble := other_view(inbox.message, self._view):
                lines.append(f"{inbox.topic}: {trouble}")
        return lines

    def close(self) -> None:
        """Unsubscribe."""
        for inbox in self._inboxes:
            inbox.close()
