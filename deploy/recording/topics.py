"""The control steps of a flight log once more, as the messages that everybody's tools know.

    /tf                    tf2_msgs/TFMessage, the robots' poses                  50 Hz
    /ROBOT/odometry        nav_msgs/Odometry; the twist in the robot's own axes   100 Hz
    /ROBOT/target          geometry_msgs/PoseStamped                              where it changes
    /ROBOT/joint_states    sensor_msgs/JointState, of an arm                      50 Hz
    /ROBOT/sent/COMMAND    std_msgs/Float64MultiArray                             50 Hz
    /diagnostics           diagnostic_msgs/DiagnosticArray: what the guard does, where it changes; events

At most; of the first few robots. `ros2 bag play` plays them, and no topic is one on which a robot listens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.recording.cdr import definition, encoder
from deploy.recording.definitions import DEFINITIONS
from sim.rotations import quaternion
from sim.spec import Group

ODOMETRY_HZ, OTHERS_HZ = 100.0, 50.0
ROBOTS = 8
WORLD = "world"
JOINTS = {"joint_position": "position", "joint_velocity": "velocity", "joint_effort": "effort"}
OK, WARN, ERROR = 0, 1, 2
LEVELS = (OK, WARN, ERROR, WARN, WARN, WARN)  # of the guard's verdicts
OF_EVENTS = {
    "emergency_stop": ERROR,
    "diagnostic": WARN,
    "rung": WARN,
    "recovery": WARN,
    "battery": WARN,
    "override": WARN,
}
Message = Mapping[str, Any]
Add = Callable[[int, int, bytes], None]  # channel, ns, message


def _pairs(names: str, values: Any) -> dict[str, float]:
    return dict(zip(names, map(float, values), strict=True))


def _stamp(ns: int) -> dict[str, int]:
    return dict(zip(("sec", "nanosec"), divmod(ns, 1_000_000_000), strict=True))


def _header(ns: int, frame: str = "") -> Message:
    return {"stamp": _stamp(ns), "frame_id": frame}


class Topics:
    """Registers its channels with a writer of MCAP; then makes messages of control steps and events."""

    def __init__(
        self, writer: Any, add: Add, about: Mapping[str, Any], names: list[str], signals: Group, commands: Group
    ) -> None:
        self._writer, self._add = writer, add
        self._encoders: dict[int, Callable[[Message], bytes]] = {}
        self._schemas: dict[str, int] = {}
        self._names, self._robot = names, str(about["robot"])
        self._reasons, self._verdicts = about["reasons"], ("pass", "hold", "safe", "override", "stay", "land")
        self._few = max(1, round(float(about["rate_hz"]) / OTHERS_HZ))  # control steps from one message to the next
        self._some = max(1, round(float(about["rate_hz"]) / ODOMETRY_HZ))
        shapes = {s.name: s.shape for s in signals}
        self._frames = {s.name: s.frame for s in signals if s.shape == (3,)}
        self._joints = [name for name in JOINTS if len(shapes.get(name, ())) == 1]
        self._commands = commands
        posed = shapes.get("position") == (3,) and shapes.get("rotation") == (9,)
        some = names[:ROBOTS]
        self._tf = self._channel("/tf", "tf2_msgs/TFMessage") if posed else 0
        self._odometry = [self._channel(f"/{n}/odometry", "nav_msgs/Odometry") for n in some if posed]
        aimed = shapes.get("target_position") == (3,)
        self._targets = [self._channel(f"/{n}/target", "geometry_msgs/PoseStamped") for n in some if aimed]
        self._states = [self._channel(f"/{n}/joint_states", "sensor_msgs/JointState") for n in some if self._joints]
        self._sent = [
            [self._channel(f"/{n}/sent/{s.name}", "std_msgs/Float64MultiArray") for s in commands] for n in some
        ]
        self._diagnostics = self._channel("/diagnostics", "diagnostic_msgs/DiagnosticArray")
        self._aims: dict[int, bytes] = {}  # the last target of each robot
        self._told = np.full((len(names), 2), -1, np.int64)  # the last verdict and reason of each robot
        self._told_at = -self._few

    def _channel(self, topic: str, kind: str) -> int:
        """A channel of messages "package/Type"."""
        if kind not in self._schemas:
            text = definition(kind, DEFINITIONS).encode()
            self._schemas[kind] = self._writer.register_schema(kind.replace("/", "/msg/"), "ros2msg", text)
        channel: int = self._writer.register_channel(topic, "cdr", self._schemas[kind])
        self._encoders[channel] = encoder(kind, DEFINITIONS)
        return channel

    def _send(self, channel: int, ns: int, values: Message) -> None:
        self._add(channel, ns, self._encoders[channel](values))

    def step(self, record: NDArray[Any], count: int, ns: int) -> None:
        """The so-manieth control step of all robots."""
        few = count % self._few == 0
        with np.errstate(all="ignore"):
            if self._tf and (few or (self._odometry and count % self._some == 0)):
                self._poses(record, ns, few, count % self._some == 0)
            if few:
                for k, channel in enumerate(self._targets):
                    self._target(k, channel, record["signals.target_position"][k], ns)
                for k, channel in enumerate(self._states):
                    self._send(channel, ns, self._state(record[k], ns))
                for k, channels in enumerate(self._sent):
                    for signal, channel in zip(self._commands, channels, strict=True):
                        self._send(channel, ns, _array(signal.shape, record[f"sent.{signal.name}"][k]))
        self._guard(record, count, ns)

    def _poses(self, record: NDArray[Any], ns: int, tf: bool, odometry: bool) -> None:
        for k, name in enumerate(self._names):
            wanted = odometry and k < len(self._odometry)
            if not (tf or wanted):
                return
            position, rotation = record["signals.position"][k], record["signals.rotation"][k]
            seen = np.isfinite([record["ages.position"][k], record["ages.rotation"][k]]).all()
            turned = np.array(quaternion(rotation)).astype(np.float32)  # as exact as what it is made of
            if not (seen and np.isfinite(position).all() and np.isfinite(turned).all()):
                continue
            where, how = _pairs("xyz", position), _pairs("xyzw", turned)
            if tf:
                moved = {"translation": where, "rotation": how}
                one = {"header": _header(ns, WORLD), "child_frame_id": name, "transform": moved}
                self._send(self._tf, ns, {"transforms": [one]})
            if wanted:
                pose = {"pose": {"position": where, "orientation": how}}
                twist, known = self._twist(record[k], rotation)
                covariance = {} if known else {"covariance": [-1.0, *[0.0] * 35]}  # as unknown as can be said
                body = {"child_frame_id": name, "pose": pose, "twist": {"twist": twist, **covariance}}
                self._send(self._odometry[k], ns, {"header": _header(ns, WORLD), **body})

    def _twist(self, one: Any, rotation: Any) -> tuple[Message, bool]:
        """Linear and angular velocity in the robot's axes, and whether both are measured."""
        found = {}
        for part, name in (("linear", "linear_velocity"), ("angular", "angular_velocity")):
            if name in self._frames:
                value = one[f"signals.{name}"].astype(np.float64)
                if self._frames[name] == WORLD:
                    value = (value @ rotation.reshape(3, 3).astype(np.float64)).astype(np.float32)
                found[part] = _pairs("xyz", value)
        return found, len(found) == 2

    def _target(self, k: int, channel: int, position: Any, ns: int) -> None:
        if self._aims.get(k) != position.tobytes() and np.isfinite(position).all():
            self._aims[k] = position.tobytes()
            pose = {"position": _pairs("xyz", position), "orientation": {"w": 1.0}}
            self._send(channel, ns, {"header": _header(ns, WORLD), "pose": pose})

    def _state(self, one: Any, ns: int) -> Message:
        count = max(one[f"signals.{name}"].size for name in self._joints)
        columns = {JOINTS[name]: one[f"signals.{name}"].reshape(-1) for name in self._joints}
        return {"header": _header(ns), "name": [f"{self._robot}_joint{k + 1}" for k in range(count)], **columns}

    def _guard(self, record: NDArray[Any], count: int, ns: int) -> None:
        """What has changed for whom."""
        now = np.stack([record["verdict"], record["reason"]], axis=1).astype(np.int64)
        changed = np.flatnonzero((now != self._told).any(axis=1))
        if not len(changed) or count - self._told_at < self._few:
            return
        self._told, self._told_at = now, count
        status = []
        for k in changed.tolist():
            verdict, reason = now[k].tolist()
            why = self._reasons[reason] if reason < len(self._reasons) else f"reason {reason}"
            text = self._verdicts[verdict] if verdict < len(self._verdicts) else f"verdict {verdict}"
            level = LEVELS[verdict] if verdict < len(LEVELS) else ERROR
            says = text if reason == 0 else f"{text}: {why}"
            status.append({"level": level, "name": f"{self._names[k]}: guard", "message": says})
        self._send(self._diagnostics, ns, {"header": _header(ns), "status": status})

    def event(self, kind: str, text: str, who: str, ns: int) -> None:
        """Something happened."""
        values = [{"key": "who", "value": who}] if who else []
        status = {"level": OF_EVENTS.get(kind, OK), "name": f"flight: {kind}", "message": text, "values": values}
        self._send(self._diagnostics, ns, {"header": _header(ns), "status": [status]})


def _array(shape: tuple[int, ...], values: Any) -> Message:
    """A std_msgs/Float64MultiArray."""
    strides = [int(np.prod(shape[k:])) for k in range(len(shape))]
    dim = [{"label": "", "size": size, "stride": stride} for size, stride in zip(shape, strides, strict=True)]
    return {"layout": {"dim": dim}, "data": values.reshape(-1)}
