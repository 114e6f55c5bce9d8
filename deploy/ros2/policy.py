"""The policy node: a policy file flown by the one control loop (`deploy.loop`), on ROS 2 topics, as a lifecycle node.

configure    load and check the file, compare its contract with the topics' types and units
activate     only armed, with signals that were fresh and inside the envelope for `settle_s`, nobody else commanding
deactivate   hand over: silence, in which the robot lands by itself. One that has no flight controller is landed first:
             then `deactivate` fails, and the node deactivates once it is down; an arm gets its safe command
error        a flight that broke down leads back to unconfigured

A flight that ends by itself (emergency stop, override, disarmed, the guard) deactivates the node. What the guard stops
goes down the ladder of `deploy/safety` first, commanded by this node.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn

from deploy.drivers.ros2 import Ros2
from deploy.guard import HOLD, REASONS
from deploy.loop import Policy, Record, run
from deploy.policy_file import PolicyFile, PolicyFileError
from deploy.recording.recorder import START, NoRecorder, Recorder
from deploy.remote.split_policy import FROM_SERVER, SERVER, connected
from deploy.ros2.arming.armed import Armed
from deploy.ros2.arming.emergency_stop import EmergencyStop
from deploy.ros2.node.diagnostics import ERROR, OK, WARN, Diagnostics, Status
from deploy.ros2.node.journal import Journal
from deploy.ros2.node.parameters import declare, setting
from deploy.ros2.node.subscriptions import every
from deploy.ros2.ros2_control import FORWARD, TWIST, TWISTS, WAYS
from deploy.ros2.settings import Settings as DriverSettings
from deploy.runtimes import CONTROLLERS, Connected, controller
from deploy.safety.envelope import ASKED, replaced
from deploy.safety.ladder import NONE, OFF, RUNGS
from deploy.safety.limits import describe, guard_of, limits_of
from deploy.safety.pictures import PictureWatch
from deploy.system.clock import boottime
from deploy.system.interrupts import LANDING
from deploy.system.realtime import PRIORITY, realtime

SUCCESS, FAILURE, FAILED = (
    TransitionCallbackReturn.SUCCESS,
    TransitionCallbackReturn.FAILURE,
    TransitionCallbackReturn.ERROR,
)
# Settings of the driver, too.
SAME: tuple[str, ...] = ("armed", "silence_s", "transfer", "commands", "joints", "fingers", "key", "twist")
SAME += ("resize", "reliable", "view")
LOOK = 0.02  # s between two looks at signals (inactive) or at the flight (active)
RETRY = 0.2  # s between two attempts to activate, with autostart
TELL = 5.0  # s after which it says why it waits
PATIENCE = 1.0  # s in which the control loop must end when told to, if it has not to land the robot first
LOGGING = 5.0  # s in which the flight's log must be closed then, which commands nothing any more


@dataclass
class Settings:
    """Parameters of the node. Where a limit is 0, the policy file's own holds, if it has one."""

    policy: str = setting("", "the policy file, or the name of one that comes with sim2metal")
    controller: str = setting("onnxruntime", f"one of: {', '.join(CONTROLLERS)}, or a board's serial device")
    server: str = setting("", SERVER)
    blend: int = setting(0, "control steps over which a new plan of the server takes over", 0, 1000)
    instruction: str = setting("", "what to do, in words, until the topic instruction says something else")
    autostart: bool = setting(False, "configure at once, and activate as soon as everything is ready, once")
    settle_s: float = setting(1.0, "s of good signals before it may be activated", 0.0, 60.0)
    robot: str = setting("", "which robot it is; empty: what the topic robot says, or else the policy's own")
    transfer: bool = setting(False, "allow another robot than the policy was made for")
    armed: bool = setting(True, "fly only while the topic armed says so")
    silence_s: float = setting(0.25, "s for which armed may be silent; it comes every 0.05 s", 0.05, 10.0)
    key: str = setting("", "file of the key that signs arming (python -m deploy.ros2.key); empty: it is not signed")
    limits: str = setting("", "a file with the robot's own limits (TOML); empty: those that are listed for it")
    recovery: bool = setting(False, "a vehicle that is stuck frees itself, as its limits say")
    ground: float = setting(0.0, "m: its height, where a robot that lands comes down to", -1e4, 1e4)
    fence: float = setting(0.0, "m from the origin on any axis, beyond which it stops", 0.0, 1e6)
    max_tilt: float = setting(0.0, "degrees between body and world z, beyond which it stops", 0.0, 180.0)
    max_speed: float = setting(0.0, "m/s beyond which it stops", 0.0, 1e6)
    max_body_rate: float = setting(0.0, "rad/s beyond which it stops", 0.0, 1e6)
    min_voltage: float = setting(0.0, "V of the battery below which it stops", 0.0, 1e3)
    commands: str = setting(FORWARD, f"how an arm is commanded, one of: {', '.join(WAYS)}", choices=WAYS)
    joints: str = setting("", "of an arm's joints: a,b,...; empty: ROBOT_joint1,...; or of a camera's: pan_joint")
    fingers: str = setting("", "and of its fingers; empty: ROBOT_finger_joint1,ROBOT_finger_joint2")
    twist: str = setting(TWIST, f"what drives wheels on cmd_vel, one of: {', '.join(TWISTS)}", choices=TWISTS)
    resize: bool = setting(False, "average larger pictures down to the policy's size")
    reliable: bool = setting(False, "have lost pictures sent again, where their publisher does: large ones need it")
    view: float = setting(
        0.0, "degrees that its cameras see across, by camera_info; 0: as its file tells, where they say it", 0.0, 179.0
    )
    trust: str = setting("", "folder of trusted keys NAME.pub; empty: SIM2METAL_TRUST, or ~/.config/sim2metal/trust")
    require_signature: bool = setting(False, "fly only what somebody signed whom we trust")
    log: str = setting("", "folder for flight logs, one .mcap file per flight; empty: none")
    priority: int = setting(PRIORITY, "of the control loop: of SCHED_FIFO, 1 to 99; 0: as any other program", 0, 99)


class PolicyNode(LifecycleNode):
    """Runs the control loop in a thread of its own while active."""

    def __init__(self) -> None:
        super().__init__("policy")
        self.settings = declare(self, Settings)
        self.file: PolicyFile | None = None
        self.driver: Ros2 | None = None
        self.record: Record | None = None
        self.ended = "not configured"  # why it is not flying
        self._controller: Policy | None = None
        self._thread: threading.Thread | None = None
        self._flown = threading.Event()  # its control loop has ended; it may still close the log
        self._crash: BaseException | None = None
        self._troubles: list[str] = []  # with other publishers
        self._journal: Journal | None = None  # while there is a flight to be logged
        self.unlogged = ""  # why there is no log, or not all of it
        self._since, self._trouble = boottime(), "no signals yet"  # of good signals
        self._rung = NONE  # of the ladder, as it was told last
        self._tried, self._told, self._started = -RETRY, boottime(), False
        self.armed = Armed(self, self.settings.key, self.settings.silence_s)
        self.emergency = EmergencyStop(
            self, "~/emergency_stop", self._stop, self.armed if self.settings.armed else None
        )
        self.diagnostics = Diagnostics(self, self.settings.robot, self._status)
        every(self, LOOK, self._look)

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        try:
            self._prepare()
        except (ValueError, OSError) as error:
            self._release("")
            self.ended = f"cannot be configured: {error}"
            return self._refuse()
        return SUCCESS

    def _refuse(self) -> TransitionCallbackReturn:
        self.get_logger().error(self.ended)
        self.diagnostics.publish()
        return FAILURE

    def _prepare(self) -> None:
        s = self.settings
        if not s.policy:
            raise ValueError("the parameter policy is missing: the policy file")
        file = PolicyFile.load(s.policy, s.trust or None)
        if s.require_signature:
            file.require_signature()
        self.get_logger().info(f"{file.name}: {file.standing}")
        self._controller = controller(connected(file, s.server or None, s.blend), s.controller)
        same = {name: getattr(s, name) for name in SAME}
        self.driver = Ros2(file, self, DriverSettings(robot=s.robot or None, **same), self.armed)
        if s.instruction:
            self.driver.tell(s.instruction)
        limits = limits_of(self.driver.robot, s.limits or None)
        rules = replaced(file.envelope, {rule: getattr(s, rule) or None for rule in ASKED})
        self._guard = guard_of(file, self.driver, limits, rules, s.ground, s.recovery)
        for line in describe(limits, self._guard):
            self.get_logger().info(line)
        self.driver.emergency, self.driver.given_up = self.emergency, lambda: self._guard.over
        self.driver.bridges = lambda: bool(self._guard.verdict[0] == HOLD)
        self.file, self.ended, self._sight = file, "not activated yet", PictureWatch(file.inputs)
        self._since = boottime()

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        reasons = self.not_ready()
        if reasons:
            self.ended = f"cannot be activated: {'; '.join(reasons)}"
            return self._refuse()
        assert self.driver is not None
        self._started, self._crash, self.record, self._rung = True, None, None, NONE
        # Here and not as the flight begins: whoever wants it to end may say so before.
        self.driver.done, self.driver.finished = False, ""
        self._guard.release()
        self._guard.reset(1)
        self._flown.clear()
        self._thread = threading.Thread(target=self._fly, name="control loop")
        self._thread.start()
        if self.file is not None:
            self.get_logger().info(f"{self.file.name} flies at {self.file.rate_hz:g} Hz")
        return SUCCESS

    def not_ready(self) -> list[str]:
        """Why a flight cannot begin now; empty when it can."""
        assert self.driver is not None and self.file is not None
        reasons = self.driver.missing()
        try:
            self.file.content()
        except PolicyFileError:
            reasons.append(f"{self.file.path} has changed since it was configured: clean up and configure again")
        good = boottime() - self._since
        if good < self.settings.settle_s:
            why = f" ({self._trouble})" if self._trouble else ""
            reasons.append(f"signals have been good for {good:.1f} s of {self.settings.settle_s:g} s{why}")
        return reasons

    def _fly(self) -> None:
        """The control loop's thread."""
        assert self._controller is not None and self.driver is not None
        s, log = self.settings, None
        try:
            log = self._recorder() if s.log else None
            self._journal = Journal(log, self, self.driver) if log is not None else None
            with realtime(s.priority) as notes:
                for note in notes:
                    self.get_logger().warning(note)
                if not self.driver.done:
                    self.record = run(
                        self._controller,
                        self.driver,
                        self._guard,
                        transfer=s.transfer,
                        log=log,
                        sight=self._sight,
                        clock=self.driver.clock,
                    )
        except Exception as error:  # whatever it was: the driver has stopped, and the node has to say so
            self._crash = error
        finally:
            self._flown.set()
        journal, self._journal = self._journal, None
        if journal is not None:
            crash = f"{type(self._crash).__name__}: {self._crash}" if self._crash else ""
            journal.end(crash or self.driver.finished or "the flight was over")
        if log is not None and (trouble := log.close(patience=LOGGING)):
            self._unlogged(f"the flight log is incomplete: {trouble}")

    def _recorder(self) -> Recorder | NoRecorder:
        """A log named by the time and the robot; a flight without one, where there can be none."""
        assert self.file is not None and self.driver is not None
        name = f"{datetime.now():%Y-%m-%d_%H-%M-%S}{self.get_namespace().rstrip('/').replace('/', '_')}"
        self.unlogged, by = "", FROM_SERVER if self.settings.server else self.settings.controller
        return Recorder.open_or_warn(self.settings.log, name, self.file, self.driver, self._guard, by, self._unlogged)

    def _unlogged(self, why: str) -> None:
        self.unlogged = why
        self.get_logger().warning(why)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        if self._thread is not None and self._thread.is_alive() and self.driver is not None and self.driver.falls:
            self.driver.finish("deactivated")
            self.get_logger().warning("it has no flight controller that could take over: landing it first")
            return FAILURE
        return self._end("deactivated")

    def _end(self, reason: str) -> TransitionCallbackReturn:
        """End the flight, if there is one; ERROR when it broke down or does not end."""
        thread, self._thread = self._thread, None
        if thread is None or self.driver is None:
            return SUCCESS
        self.driver.finish(reason)
        patience = LANDING if self.driver.falls else PATIENCE
        opening = START if self.settings.log and self._journal is None else 0.0  # its log, before the first command
        ended = self._flown.wait(opening + patience)
        self.driver.withdraw()
        self._since = boottime()
        if ended:
            thread.join(2.0 * LOGGING)
        else:
            self._crash = RuntimeError(f"the control loop did not end within {patience:g} s")
        self.ended = f"{type(self._crash).__name__}: {self._crash}" if self._crash else self.driver.finished
        self.diagnostics.publish()
        if self._crash:
            self.get_logger().error(f"the flight broke down: {self.ended}")
            return FAILED
        self.get_logger().info(f"the flight is over: {self.ended}")
        return SUCCESS

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._release("not configured")

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._end("shut down")
        return self._release("shut down")

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._release(self.ended)

    def _release(self, why: str) -> TransitionCallbackReturn:
        if self.driver is not None:
            self.driver.close()
        if self._controller is not None and isinstance(self._controller, Connected):
            self._controller.close()
        self.file = self.driver = self._controller = None
        self.ended = why
        return SUCCESS

    def close(self) -> None:
        """Leave the robot safe; for the end of the process."""
        self._end("interrupted")
        self._release("interrupted")

    def _stop(self) -> None:
        """The emergency stop was pressed."""
        if self._thread is not None and self.driver is not None:
            self._guard.stop()
            self.driver.finish("emergency stop")

    def _look(self) -> None:
        """The timer: is the flight over, are the signals good?"""
        if self._thread is None:
            self.armed.look()
        if self._thread is not None and self.driver is not None:
            if (journal := self._journal) is not None:
                journal.look()
            if self._guard.over:
                self.driver.finish(f"guard: {REASONS[int(self._guard.latched[0])]}")
            if (ladder := self._guard.ladder) is not None and ladder.rung[0] != self._rung:
                self._rung = ladder.rung[0]
                self.diagnostics.publish()
            if not self._thread.is_alive():
                self.trigger_deactivate()
        elif self.driver is not None:
            self._check(self.driver)
        elif self.settings.autostart and not self._started:
            self.trigger_configure()
            if self.driver is None:
                raise ValueError(self.ended)

    def _check(self, driver: Ros2) -> None:
        reading, now = driver.read_now(), boottime()
        if not self.emergency.pressed:
            self._guard.release()
        self._guard.reset(1)
        self._guard.screen(reading.signals, reading.age)
        self._trouble = self._guard.complaint()
        self._guard.reset(1)
        if self._trouble:
            self._since = now
        if self.settings.autostart and not self._started and now - self._tried > RETRY:
            self._tried = now
            if reasons := self.not_ready():
                if now - self._told > TELL:
                    self._told = now
                    self.get_logger().info(f"waits: {'; '.join(reasons)}")
            else:
                self.trigger_activate()

    def _status(self) -> Status:
        flying = self._thread is not None and self.driver is not None
        values: dict[str, Any] = {"policy": self.settings.policy, "controller": self.settings.controller}
        if self.unlogged:
            values["log"] = self.unlogged
        if self.file is not None:
            values |= {"sha256": self.file.sha256[:12], "rate_hz": self.file.rate_hz, "robot": self.file.robot}
        if self.driver is not None:
            values |= self.driver.timing.values() | self.driver.told.values()
            values["guard"] = REASONS[int(self._guard.latched[0])]
            values |= {f"guard: {reason}": count for reason, count in self._guard.interventions().items()}
            values |= self._sight.troubles() if flying else {}
            self._troubles = [*self.driver.contests(), *self.driver.unheard()]
            values |= {f"publishers {k + 1}": line for k, line in enumerate(self._troubles)}
            if (journal := self._journal) is not None:
                journal.troubles(self._troubles)
        if flying:
            rung = RUNGS[int(self._guard.ladder.rung[0])] if self._guard.ladder else "none"
            own = rung == RUNGS[OFF] and self.driver is not None and not (self.driver.falls or self.emergency.pressed)
            failsafe = "handed over to the robot" if own else f"failsafe {rung}"
            message = "flying" if rung == RUNGS[NONE] else f"{failsafe}: {values['guard']}"
            warned = bool(self._guard.interventions() or self._troubles or self.unlogged or self._sight.troubles())
            warned = warned or "instruction refused" in values
            return WARN if warned else OK, message, values
        broken = self._crash is not None or self.ended.startswith(("cannot", "guard", "emergency"))
        return ERROR if broken else OK, self.ended, values
