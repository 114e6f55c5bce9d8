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
    app: OutOfTree
    policy: Onboard | None

    @property
    def battery_low(self) -> bool:
        """For how the power management counts it."""

    def variances(self) -> Sequence[float]:
        """Of the estimate's position (3) and velocity (3)."""


LOW_POWER = 3  # a value of pm.state
Reader = Callable[[Source], float]
TABLE: dict[str, Reader] = {}  # what is simulated; all that `contents` names besides reads 0


def _group(name: str, names: str, values: Callable[[Source], Sequence[float]]) -> None:
    """Variables of one group whose values come together."""

    def source(index: int) -> Reader:
        return lambda f: values(f)[index]

    for index, variable in enumerate(names.split()):
        TABLE[f"{name}.{variable}"] = source(index)


def _milli(values: Sequence[float]) -> list[float]:
    return [min(max(1e3 * value, -32768.0), 32767.0) for value in values]


def _with_gravity(acceleration: Triple) -> list[float]:
    x, y, z = acceleration
    return _milli((x, y, z + GRAVITY))


def _nose_up(rate: Triple) -> list[float]:
    x, y, z = rate
    return _milli((x, -y, z))


_group("stateEstimate", "x y z", lambda f: f.sensed.position)
_group("stateEstimate", "vx vy vz", lambda f: f.sensed.velocity)
_group("stateEstimate", "ax ay az", lambda f: [a / GRAVITY for a in f.sensed.acceleration])
_group("stateEstimate", "roll pitch yaw", lambda f: (f.sensed.roll, f.sensed.pitch, f.sensed.yaw))
_group("stateEstimate", "qw qx qy qz", lambda f: f.sensed.quaternion)
_group("stateEstimateZ", "x y z", lambda f: _milli(f.sensed.position))
_group("stateEstimateZ", "vx vy vz", lambda f: _milli(f.sensed.velocity))
_group("stateEstimateZ", "ax ay az", lambda f: _with_gravity(f.sensed.acceleration))
_group("stateEstimateZ", "rateRoll ratePitch rateYaw", lambda f: _nose_up(f.sensed.rate))
TABLE["stateEstimateZ.quat"] = lambda f: compress(f.sensed.quaternion)
_group("stabilizer", "roll pitch yaw", lambda f: (f.sensed.roll, f.sensed.pitch, f.sensed.yaw))
TABLE["stabilizer.thrust"] = lambda f: f.cascade.thrust
_group("gyro", "x y z", lambda f: f.sensed.gyro)
_group("acc", "x y z", lambda f: f.sensed.specific_force)
_group("kalman", "stateX stateY stateZ", lambda f: f.sensed.position)
_group("kalman", "q0 q1 q2 q3", lambda f: f.sensed.quaternion)
_group("kalman", "varX varY varZ varPX varPY varPZ", lambda f: f.variances())
_group("ctrltarget", "x y z", lambda f: f.setpoint.position)
_group("ctrltarget", "vx vy vz", lambda f: f.setpoint.velocity)
_group("ctrltarget", "ax ay az", lambda f: f.setpoint.acceleration)
_group("ctrltarget", "roll pitch", lambda f: f.setpoint.attitude)
TABLE["ctrltarget.yaw"] = lambda f: f.setpoint.rate[2]
TABLE["ctrltarget.thrust"] = lambda f: f.setpoint.thrust
_group("posCtl", "targetVX targetVY targetVZ", lambda f: f.cascade.wanted_velocity)
_group("posCtl", "targetX targetY targetZ", lambda f: f.setpoint.position)
_group("controller", "cmd_roll cmd_pitch cmd_yaw", lambda f: f.cascade.output)
_group("controller", "roll pitch yaw", lambda f: f.cascade.wanted_angle)
_group("controller", "rollRate pitchRate yawRate", lambda f: f.cascade.wanted_rate)
TABLE["controller.cmd_thrust"] = lambda f: f.cascade.thrust
TABLE["controller.actuatorThrust"] = lambda f: f.cascade.thrust
_group("motor", "m1 m2 m3 m4", lambda f: [65535.0 * ratio for ratio in f.ratios])
TABLE["pm.vbat"] = lambda f: f.battery.voltage
TABLE["pm.vbatMV"] = lambda f: 1e3 * f.battery.voltage
TABLE["pm.batteryLevel"] = lambda f: f.battery.level
TABLE["pm.state"] = lambda f: LOW_POWER if f.battery_low else 0
TABLE["sys.canfly"] = lambda f: f.supervisor.can_fly
TABLE["sys.isFlying"] = lambda f: f.supervisor.flying
TABLE["sys.isTumbled"] = lambda f: f.supervisor.tumbled
TABLE["supervisor.info"] = lambda f: f.supervisor.bitfield
_group("policy", "flying failed state reason", lambda f: f.app.told)
TABLE["policy.sound"] = lambda f: 1
TABLE["policy.replaced"] = lambda f: f.app.replaced
TABLE["policy.age"] = lambda f: 1e3 * f.app.age
_group("policy", "force_0 force_1 force_2 force_3", lambda f: f.app.force)
_group("policy", "pid_0 pid_1 pid_2 pid_3", lambda f: f.app.pid)
# The log variables of an app, which are not among the firmware's own.
OF_APP = {
    **{f"policy.{name}": "uint8" for name in ("flying", "failed", "state", "reason", "sound")},
    **{f"policy.{name}": "uint32" for name in ("replaced", "age")},
    **{f"policy.{name}_{rotor}": "float" for name in ("force", "pid") for rotor in range(4)},
}


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
