"""What the log of a flight on ROS 2 holds beside its control steps: who armed, stopped, overrode and ended it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from rclpy.node import Node

from deploy.drivers.ros2 import Ros2
from deploy.recording.recorder import NoRecorder, Recorder
from deploy.ros2 import topics
from deploy.ros2.node.publishers import named

STEP = 0.1  # V by which the battery has to sink to be told again


class Journal:
    """Notes what changes between two looks. Use it from one thread."""

    def __init__(self, log: Recorder | NoRecorder, node: Node, driver: Ros2) -> None:
        self._log, self._node, self._driver = log, node, driver
        self._armed = self._stopped = self._overridden = False
        self._voltage = math.inf
        self._told: set[str] = set()
        self._sentence = ""
        self.look()

    def look(self) -> None:
        """Note what has changed."""
        armed, emergency = self._driver.armed, self._driver.emergency
        fresh = armed.said and armed.age < self._driver.settings.silence_s
        if fresh != self._armed:
            self._armed = fresh
            who = named(self._node, armed.boxes[0].topic, armed.gid) if armed.gid else ""
            self._log.event("armed" if fresh else "disarmed", "" if armed.said == fresh else "it is not heard", who)
        if emergency is not None and emergency.pressed != self._stopped:
            self._stopped = emergency.pressed
            self._log.event("emergency_stop" if self._stopped else "release", "", emergency.who)
        by = self._overridden_by()
        if bool(by) != self._overridden:
            self._overridden = bool(by)
            self._log.event("override", "begins" if by else "ends", by)
        if (told := self._driver.told).sentence != self._sentence:
            self._sentence = told.sentence
            who = named(self._node, told.boxes[0].topic, told.boxes[0].publisher) if told.boxes[0].publisher else ""
            self._log.event("diagnostic", f"told: {told.sentence}", who)
        voltage = self._battery()
        if math.isfinite(voltage) and voltage <= self._voltage - STEP:
            self._voltage = voltage
            self._log.event("battery", f"{voltage:.2f} V", self._driver.robot)

    def _overridden_by(self) -> str:
        """Who overrides now, by name; empty when nobody does."""
        fresh = (box for box in self._driver.overrides if box.age < self._driver.settings.silence_s)
        return next((named(self._node, box.topic, box.publisher) for box in fresh), "")

    def _battery(self) -> float:
        """V; infinite while it is not known."""
        seen = self._driver.values.get(topics.BATTERY.topic, {}).get("battery_voltage")
        return math.inf if seen is None or not np.isfinite(seen).all() else float(seen.min())

    def troubles(self, lines: Iterable[str]) -> None:
        """Note what the diagnostics say of other publishers, each line once."""
        for line in lines:
            if line not in self._told:
                self._told.add(line)
                self._log.event("diagnostic", line, "policy")

    def end(self, reason: str) -> None:
        """The flight is over."""
        self.look()
        emergency = self._driver.emergency
        who = "policy"
        if emergency is not None and emergency.pressed:
            who = emergency.who
        elif self._overridden:
            who = self._overridden_by() or "a human"
        elif reason.startswith("guard"):
            who = "guard"
        elif not self._armed and self._driver.armed.gid:
            who = named(self._node, self._driver.armed.boxes[0].topic, self._driver.armed.gid)
        self._log.event("end", reason, who)
