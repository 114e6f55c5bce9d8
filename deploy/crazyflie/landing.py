"""How a Crazyflie comes down: by its own PID controller, at the speed of a take-off; then its motors are off."""

from __future__ import annotations

import math

from deploy.crazyflie.link import Link, LinkError

PID = 1  # value of stabilizer.controller
ITS_OWN = {"stabilizer.controller": PID, "motorPowerSet.enable": 0}  # it flies by itself
CLIMB, STALE = 0.4, 0.1  # m/s, of take-off and landing; s


def come_down(link: Link, ground: float, usual: float, notes: list[str]) -> None:
    """To `ground` (m, by its estimator), from `usual` m above it where it does not say; what is odd joins the notes.

    LinkError when it is not heard any more; it has been told to land then.
    """
    ground = ground if math.isfinite(ground) else 0.0
    above = link.value("stateEstimate.z") - ground
    if not math.isfinite(above):  # nobody waits for that
        above = usual
    seconds = max(above, 0.1) / CLIMB + 0.5

    def land() -> None:
        link.client.commander.send_notify_setpoint_stop()
        link.client.high_level_commander.land(ground, seconds, yaw=None)

    land()  # first somewhere to go, then nobody else at the motors
    if trouble := link.tell(ITS_OWN):
        if link.silence() > STALE:
            land()  # once more: where it was told to hold its place and did not hear this, nothing else ends that
            raise LinkError(trouble)
        notes.append(trouble)
    link.wait(lambda: link.value("stateEstimate.vz") < -0.05, 1.0, land)
    down = link.wait(lambda: link.value("stateEstimate.z") - ground < 0.03, seconds + 3.0)
    notes.append("landed" if down else "did not reach the ground in time; the motors were stopped")
    link.client.high_level_commander.stop()
