"""python -m deploy.run policy=FILE driver=simulated [key=value ...]: fly a policy file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from deploy import arguments
from deploy.drivers import DRIVERS, driver_class
from deploy.guard import REASONS, Envelope, Guard
from deploy.loop import Record, run
from deploy.policy_file import PolicyFile


@dataclass
class Config:
    """Settings of every flight; the driver adds its own."""

    policy: str = field(metadata={"help": "the policy file"})
    driver: str = field(default="simulated", metadata={"help": f"one of: {', '.join(DRIVERS)}, or module:Class"})
    seconds: float | None = field(default=None, metadata={"help": "length of the flight (default: the driver's)"})
    fence: float | None = field(
        default=None, metadata={"help": "m: stop a robot further than this from the origin on any axis"}
    )
    max_tilt: float | None = field(default=None, metadata={"help": "degrees: stop a robot that leans further"})
    max_speed: float | None = field(default=None, metadata={"help": "m/s: stop a faster robot"})
    max_body_rate: float | None = field(default=None, metadata={"help": "rad/s: stop a robot that turns faster"})


def _envelope(config: Config) -> Envelope:
    fence = config.fence
    return Envelope(
        fence_low=None if fence is None else (-fence, -fence, -fence),
        fence_high=None if fence is None else (fence, fence, fence),
        max_tilt=config.max_tilt,
        max_speed=config.max_speed,
        max_body_rate=config.max_body_rate,
    )


def _summary(record: Record, driver: Any) -> list[str]:
    lines = [f"{record.steps} control steps at {driver.rate_hz:g} Hz, {driver.num} robot(s), {record.duration:.2f} s"]
    if driver.real_time:
        worst = f", the worst by {1e3 * max(record.late):.2f} ms" if record.late else ""
        lines.append(f"deadlines missed: {record.missed}{worst}")
    for reason, count in record.interventions.items():
        lines.append(f"guard: {reason} on {count} robot step(s)")
    stopped = {code: int((record.stopped == code).sum()) for code in sorted(set(record.stopped.tolist()) - {0})}
    lines += [f"guard: stopped {count} robot(s): {REASONS[code]}" for code, count in stopped.items()]
    return [*lines, *driver.report(), *(["interrupted"] if record.interrupted else [])]


def main(argv: Sequence[str]) -> None:
    """Parse, load, verify, connect, fly, report."""
    kind = driver_class(arguments.value_of(argv, "driver", "simulated"))
    if arguments.wants_help(argv):
        print(f"{__doc__}\n\n{arguments.usage(Config, kind.Config)}")
        return
    config, driver_config = arguments.parse(argv, Config, kind.Config)
    policy = PolicyFile.load(config.policy)
    driver = kind.from_config(driver_config, policy)
    guard = Guard(policy.inputs, policy.outputs, _envelope(config))
    steps = None if config.seconds is None else max(1, round(config.seconds * policy.rate_hz))
    record = run(policy, driver, guard, steps, transfer=getattr(driver_config, "transfer", False))
    print("\n".join(_summary(record, driver)))


if __name__ == "__main__":
    sys.exit(arguments.call(main))
