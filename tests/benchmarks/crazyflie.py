"""The simulated Crazyflie as Bitcraze's own client meets it: connecting, logging, commanding, flying.

python tests/benchmarks/crazyflie.py [--quick]
"""

import contextlib
import logging
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import commands
import numpy as np
import report
from cflib import crtp
from cflib.crazyflie import Crazyflie
from cflib.crazyflie.log import LogConfig
from cflib.crazyflie.swarm import Swarm
from cflib.crazyflie.syncCrazyflie import SyncCrazyflie

CASES = ("connecting", "logging", "commanding", "quad_any", "quad_hover")
VEHICLES = 8
TARGET = (0.5, 0.3, 0.8)  # m
PLACE = [f"stateEstimate.{axis}" for axis in "xyz"]


@contextlib.contextmanager
def simulated(*arguments: str) -> Iterator[list[str]]:
    """The command in a process of its own: the vehicles' addresses. Prints whether it kept up with the clock."""
    plain = ("uri=udp://127.0.0.1:0", "positioning=truth", "auto_arm=false")  # sensors and battery: rehearsal.py
    command = [sys.executable, "-m", "deploy.crazyflie_sim", *plain, *arguments]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background starts with it ignored
    process = subprocess.Popen(command, cwd=report.ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    signal.signal(signal.SIGINT, before)
    count = next((int(each.partition("=")[2]) for each in arguments if each.startswith("vehicles=")), 1)
    assert process.stdout is not None
    try:
        yield [process.stdout.readline().split()[1] for _ in range(count)]
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=30.0)[0]
        print(said or "never behind the clock", file=sys.stderr, flush=True)
    finally:
        process.kill()
        process.wait()


def spread(values: Sequence[float]) -> dict[str, float]:
    """In ms: median, 99th percentile and worst."""
    ms = 1e3 * np.array(values)
    return {"median": float(np.median(ms)), "p99": float(np.percentile(ms, 99)), "worst": float(ms.max())}


def connect(uri: str) -> tuple[Crazyflie, float, float, float]:
    """A client without remembered tables; seconds to `connected`, to `fully_connected`, and of its processor time."""
    client, done, times = Crazyflie(), threading.Event(), []
    client.connected.add_callback(lambda uri: times.append(time.perf_counter()))
    client.fully_connected.add_callback(lambda uri: (times.append(time.perf_counter()), done.set()))
    began, used = time.perf_counter(), time.process_time()
    client.open_link(uri)
    assert done.wait(20.0)
    first, second = times
    return client, first - began, second - began, time.process_time() - used


def connecting(quick: bool) -> dict[str, Any]:
    """From open_link to `connected` and `fully_connected`."""
    times = []
    with simulated() as (uri,):
        for _ in range(2 if quick else 40):
            client, *took = connect(uri)
            times.append(took)
            client.close_link()
            time.sleep(1.2)  # its threads linger
    entries = sum(len(group) for toc in (client.log.toc, client.param.toc) for group in toc.toc.values())
    first, second, used = zip(*times, strict=True)
    return {
        "tries": len(times),
        "entries": entries,
        "connected": spread(first),
        "fully_connected": spread(second),
        "processor": spread(used),
    }


def logging_together(quick: bool) -> dict[str, Any]:
    """Eight vehicles, each with a block of six floats a hundred times a second, through cflib's Swarm."""
    arrived: dict[str, list[tuple[float, int]]] = {}

    def log(scf: SyncCrazyflie) -> None:
        seen = arrived.setdefault(scf.cf.link_uri, [])
        config = LogConfig("state", 10)
        for name in (*PLACE, *(f"stateEstimate.v{axis}" for axis in "xyz")):
            config.add_variable(name, "float")
        config.data_received_cb.add_callback(lambda stamp, values, block: seen.append((time.perf_counter(), stamp)))
        scf.cf.log.add_config(config)
        config.start()
        time.sleep(1.0 if quick else 20.0)
        config.stop()

    with simulated(f"vehicles={VEHICLES}") as uris, Swarm(uris) as swarm:
        swarm.parallel_safe(log)
    intervals = [float(gap) for seen in arrived.values() for gap in np.diff([when for when, _ in seen])]
    stamps = [np.diff([stamp for _, stamp in seen]) for seen in arrived.values()]
    sent = sum(int(each.sum()) // 10 for each in stamps)
    real = [(seen[-1][1] - seen[0][1]) / 1e3 / (seen[-1][0] - seen[0][0]) for seen in arrived.values()]
    return {
        "vehicles": len(arrived),
        "packets": sent,
        "lost": sent - sum(len(each) for each in stamps),
        "interval": spread(intervals),
        "real_time": min(real),
    }


def commanding(quick: bool) -> dict[str, Any]:
    """From sending to the answer, for writes of a parameter one after the other."""
    took = []
    with simulated() as (uri,), SyncCrazyflie(uri, cf=Crazyflie()) as scf:
        scf.wait_for_params()
        answered = threading.Event()
        scf.cf.param.add_update_callback("ring", "effect", lambda name, value: answered.set())
        for k in range(10 if quick else 500):
            answered.clear()
            began = time.perf_counter()
            scf.cf.param.set_value("ring.effect", k % 2)
            assert answered.wait(5.0)
            took.append(time.perf_counter() - began)
            time.sleep(0.003)
    return {"tries": len(took), "answer": spread(took)}


def flight(policy: str, quick: bool) -> dict[str, Any]:
    """Take-off under PID, the policy to a place half a metre away, hover, landing: all commanded by the client."""
    hover = 0.5 if quick else 5.0
    places: list[tuple[float, float, float]] = []
    with simulated(f"policy={policy}") as (uri,), SyncCrazyflie(uri, cf=Crazyflie()) as scf:
        scf.wait_for_params()
        config = LogConfig("place", 10)
        for name in PLACE:
            config.add_variable(name, "float")
        config.add_variable("policy.flying", "uint8_t")
        flown: list[int] = []

        def received(stamp: int, values: dict[str, Any], block: LogConfig) -> None:
            places.append((values[PLACE[0]], values[PLACE[1]], values[PLACE[2]]))
            flown.append(values["policy.flying"])

        config.data_received_cb.add_callback(received)
        scf.cf.log.add_config(config)
        config.start()
        while not scf.cf.supervisor.can_be_armed:  # it may still be checking itself
            time.sleep(0.02)
        scf.cf.supervisor.send_arming_request(True)
        time.sleep(0.3)
        scf.cf.high_level_commander.takeoff(TARGET[2], 2.0)
        time.sleep(2.5)
        scf.cf.param.set_value("policy.mode", 3)
        scf.cf.param.set_value("stabilizer.controller", 6)
        scf.cf.high_level_commander.go_to(*TARGET, 0.0, 2.0)
        time.sleep(2.0 + hover)
        errors = np.linalg.norm(np.array(places[-100:]) - TARGET, axis=1)
        by_policy = sum(flown) / 100.0
        scf.cf.param.set_value("stabilizer.controller", 1)
        scf.cf.high_level_commander.land(0.0, 2.0)
        time.sleep(2.5)
        landed = places[-1][2]
    return {
        "policy_s": by_policy,
        "error_m": statistics.fmean(errors),
        "worst_m": float(errors.max()),
        "landed_m": landed,
    }


def trained(quick: bool) -> dict[str, Any]:
    """The flight by a policy that has just been trained for this airframe."""
    with tempfile.TemporaryDirectory() as folder:
        commands.train(Path(folder), "task=quad_hover", "quality=quick", *(["algorithm.updates=10"] if quick else []))
        return flight(f"{folder}/policy.onnx", quick)


def measure(cases: list[str], quick: bool) -> report.Rows:
    """What each of the cases gives."""
    logging.getLogger("cflib").setLevel(logging.CRITICAL)
    crtp.init_drivers()
    parts = {
        "connecting": connecting,
        "logging": logging_together,
        "commanding": commanding,
        "quad_any": lambda quick: flight("quad_any", quick),
        "quad_hover": trained,
    }
    rows: report.Rows = {}
    for case in cases:
        rows[case] = {"load": os.getloadavg()[0], **parts[case](quick)}
        print(f"{case}: {rows[case]}", file=sys.stderr, flush=True)
    return rows


def markdown(rows: report.Rows) -> str:
    """One line per quantity."""
    lines = []

    def line(what: str, how: str, value: dict[str, float]) -> None:
        lines.append([what, how, *(f"{value[key]:.1f}" for key in ("median", "p99", "worst"))])

    if row := rows.get("connecting"):
        for name in ("connected", "fully_connected"):
            line(f"open_link to `{name}`", f"{row['tries']} tries, {row['entries']} table entries", row[name])
        line("of which the client computes", f"load average {row['load']:.1f}", row["processor"])
    if row := rows.get("logging"):
        how = f"{row['packets']} packets, {row['lost']} lost; {row['real_time']:.3f} s of flight per second"
        how += f"; load average {row['load']:.1f}"
        line(f"interval of logs, {row['vehicles']} vehicles at 100 Hz", how, row["interval"])
    if row := rows.get("commanding"):
        line("write of a parameter to its echo", f"{row['tries']} tries", row["answer"])
    flights = [
        [
            name,
            f"{row['policy_s']:.1f}",
            f"{100 * row['error_m']:.1f}",
            f"{100 * row['worst_m']:.1f}",
            f"{100 * row['landed_m']:.1f}",
        ]
        for name, row in rows.items()
        if "error_m" in row
    ]
    text = (
        "cflib 0.1.34, unmodified, and `deploy.crazyflie_sim` in a process of its own on the same machine. "
        "Times in ms; connecting without remembered tables."
    )
    parts = [text]
    if lines:
        parts.append(report.table(["time", "of", "median", "99 %", "worst"], lines, texts=2))
    if flights:
        parts.append(
            "Take-off (PID), a place 0.58 m away and hover (the policy), landing (PID), commanded by the client: "
            "position error over the last second of the hover, and height after landing."
        )
        head = ["policy", "s flown by it", "mean error, cm", "worst, cm", "landed at, cm"]
        parts.append(report.table(head, flights))
    return "\n\n".join(parts)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    report.main("crazyflie", CASES, measure, apart=True)
