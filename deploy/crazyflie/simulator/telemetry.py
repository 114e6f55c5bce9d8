"""The variables that can be logged: the firmware's names and types, and where their values come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from deploy.crazyflie.out_of_tree import OutOfTree
from deploy.crazyflie.simulator.battery import Battery, Ratios
from deploy.crazyflie.simulator.onboard import Onboard
from deploy.crazyflie.simulator.parameters import Parameters
from deploy.crazyflie.simulator.pid import Cascade
from deploy.crazyflie.simulator.sensed import GRAVITY, Sensed
from deploy.crazyflie.simulator.setpoints import Setpoint, Triple
from deploy.crazyflie.simulator.supervisor import Supervisor


class Source(Protocol):
    """What the variables are read from: the firmware."""

    sensed: Sensed
    setpoint: Setpoint
    cascade: Cascade
    battery: Battery
    parameters: Parameters
    supervisor: Supervisor
    ratios: Ratios
    external_position: Triple
    app: OutOfTree
    policy: Onboard | None

    def variance(self) -> float:
        """Of the state estimate."""


Reader = Callable[[Source], float]
TABLE: dict[str, tuple[str, Reader]] = {}


def _group(name: str, kind: str, names: str, values: Callable[[Source], Sequence[float]]) -> None:
    """Variables of one group whose values come together."""

    def source(index: int) -> Reader:
        return lambda f: values(f)[index]

    for index, variable in enumerate(names.split()):
        TABLE[f"{name}.{variable}"] = (kind, source(index))


def _milli(values: Sequence[float]) -> list[float]:
    return [min(max(1e3 * value, -32768.0), 32767.0) for value in values]


def _with_gravity(acceleration: Triple) -> list[float]:
    x, y, z = acceleration
    return _milli((x, y, z + GRAVITY))


def _nose_up(rate: Triple) -> list[float]:
    x, y, z = rate
    return _milli((x, -y, z))


_group("stateEstimate", "float", "x y z", lambda f: f.sensed.position)
_group("stateEstimate", "float", "vx vy vz", lambda f: f.sensed.velocity)
_group("stateEstimate", "float", "ax ay az", lambda f: [a / GRAVITY for a in f.sensed.acceleration])
_group("stateEstimate", "float", "roll pitch yaw", lambda f: (f.sensed.roll, f.sensed.pitch, f.sensed.yaw))
_group("stateEstimate", "float", "qw qx qy qz", lambda f: f.sensed.quaternion)
_group("stateEstimateZ", "int16", "x y z", lambda f: _milli(f.sensed.position))
_group("stateEstimateZ", "int16", "vx vy vz", lambda f: _milli(f.sensed.velocity))
_group("stateEstimateZ", "int16", "ax ay az", lambda f: _with_gravity(f.sensed.acceleration))
_group("stateEstimateZ", "int16", "rateRoll ratePitch rateYaw", lambda f: _nose_up(f.sensed.rate))
TABLE["stateEstimateZ.quat"] = ("uint32", lambda f: compress(f.sensed.quaternion))
_group("stabilizer", "float", "roll pitch yaw", lambda f: (f.sensed.roll, f.sensed.pitch, f.sensed.yaw))
TABLE["stabilizer.thrust"] = ("float", lambda f: f.cascade.thrust)
_group("gyro", "float", "x y z", lambda f: f.sensed.gyro)
_group("acc", "float", "x y z", lambda f: f.sensed.specific_force)
_group("kalman", "float", "stateX stateY stateZ", lambda f: f.sensed.position)
_group("kalman", "float", "q0 q1 q2 q3", lambda f: f.sensed.quaternion)
_group("kalman", "float", "varX varY varZ varPX varPY varPZ", lambda f: [f.variance()] * 6)
_group("ctrltarget", "float", "x y z", lambda f: f.setpoint.position)
_group("ctrltarget", "float", "vx vy vz", lambda f: f.setpoint.velocity)
_group("ctrltarget", "float", "ax ay az", lambda f: f.setpoint.acceleration)
_group("ctrltarget", "float", "roll pitch", lambda f: f.setpoint.attitude)
TABLE["ctrltarget.yaw"] = ("float", lambda f: f.setpoint.rate[2])
TABLE["ctrltarget.thrust"] = ("float", lambda f: f.setpoint.thrust)
_group("posCtl", "float", "targetVX targetVY targetVZ", lambda f: f.cascade.wanted_velocity)
_group("posCtl", "float", "targetX targetY targetZ", lambda f: f.setpoint.position)
_group("controller", "float", "cmd_roll cmd_pitch cmd_yaw", lambda f: f.cascade.output)
_group("controller", "float", "roll pitch yaw", lambda f: f.cascade.wanted_angle)
_group("controller", "float", "rollRate pitchRate yawRate", lambda f: f.cascade.wanted_rate)
TABLE["controller.cmd_thrust"] = ("float", lambda f: f.cascade.thrust)
TABLE["controller.actuatorThrust"] = ("float", lambda f: f.cascade.thrust)
_group("motor", "uint16", "m1 m2 m3 m4", lambda f: [65535.0 * ratio for ratio in f.ratios])
_group("locSrv", "float", "x y z", lambda f: f.external_position)
TABLE["pm.vbat"] = ("float", lambda f: f.battery.voltage)
TABLE["pm.vbatMV"] = ("uint16", lambda f: 1e3 * f.battery.voltage)
TABLE["pm.batteryLevel"] = ("uint8", lambda f: f.battery.level)
TABLE["pm.state"] = ("int8", lambda f: 3 if f.battery.voltage < f.parameters["pm.lowVoltage"] else 0)
TABLE["sys.canfly"] = ("uint8", lambda f: f.supervisor.can_fly)
TABLE["sys.isFlying"] = ("uint8", lambda f: f.supervisor.flying)
TABLE["sys.isTumbled"] = ("uint8", lambda f: f.supervisor.tumbled)
TABLE["supervisor.info"] = ("uint16", lambda f: f.supervisor.bitfield)
_group("policy", "uint8", "flying failed state reason", lambda f: f.app.told)
TABLE["policy.sound"] = ("uint8", lambda f: 1)
TABLE["policy.replaced"] = ("uint32", lambda f: f.app.replaced)
TABLE["policy.age"] = ("uint32", lambda f: 1e3 * f.app.age)
_group("policy", "float", "force_0 force_1 force_2 force_3", lambda f: f.app.force)
_group("policy", "float", "pid_0 pid_1 pid_2 pid_3", lambda f: f.app.pid)


def compress(quaternion: Sequence[float]) -> int:
    """The unit quaternion (w, x, y, z) in 32 bits, as set points carry it: see `setpoints.decompress`."""
    w, x, y, z = quaternion
    values = (x, y, z, w)
    largest = max(range(4), key=lambda k: abs(values[k]))
    code = largest
    for k in range(4):
        if k != largest:
            negative = (values[k] < 0.0) != (values[largest] < 0.0)
            code = code << 10 | negative << 9 | min(int(0x1FF * abs(values[k]) * 2.0**0.5 + 0.5), 0x1FF)
    return code
