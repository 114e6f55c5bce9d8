"""Settings of a robot on ROS 2 topics, whoever flies it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from deploy.ros2.ros2_control import FORWARD, TWIST, TWISTS, WAYS


@dataclass
class Settings:
    """Settings of the ROS 2 driver."""

    namespace: str = field(default="", metadata={"help": "of the robot's topics"})
    robot: str | None = field(default=None, metadata={"help": "which robot it is (default: what the topic robot says)"})
    connect_s: float = field(default=5.0, metadata={"help": "s in which everything must be ready"})
    armed: bool = field(default=True, metadata={"help": "fly only while the topic armed says so"})
    silence_s: float = field(default=0.25, metadata={"help": "s for which armed may be silent; it comes every 0.05 s"})
    key: str = field(default="", metadata={"help": "file of the key that signs arming (default: it is not signed)"})
    transfer: bool = field(default=False, metadata={"help": "allow another robot than the policy was made for"})
    commands: str = field(default=FORWARD, metadata={"help": f"how an arm is commanded, one of: {', '.join(WAYS)}"})
    joints: str = field(default="", metadata={"help": "names of an arm's joints: a,b,... (default: ROBOT_joint1,...)"})
    fingers: str = field(default="", metadata={"help": "and of its fingers (default: ROBOT_finger_joint1,...)"})
    twist: str = field(default=TWIST, metadata={"help": f"what drives wheels on cmd_vel, one of: {', '.join(TWISTS)}"})
    resize: bool = field(default=False, metadata={"help": "average larger pictures down to the policy's size"})
    reliable: bool = field(default=False, metadata={"help": "have lost pictures sent again: large ones need it"})
    view: float = field(
        default=0.0,
        metadata={"help": "degrees its cameras must see across; 0: as its file says, if camera_info does"},
    )

    def __post_init__(self) -> None:
        if not 0.0 <= self.view < 180.0:
            raise ValueError(f"view must be 0 to 180 degrees, got {self.view:g}")
        for name in ("connect_s", "silence_s"):
            if not (getattr(self, name) > 0.0 and math.isfinite(getattr(self, name))):
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
