"""`make test`: what may run side by side, on all cores; and what is timed against the clock, one by one.

`python tests/stages.py [all] [WORDS FOR PYTEST]`; `all` means the long ones, too. What failed in any stage is named
in the end, and the last line, which has the form of pytest's, adds them up.

What is timed mostly waits. Where the system has an idle class (Linux), the others fill that time: there they get a core
only while nothing that is timed wants it. Of what is timed, those marked `waits` take little of a core and run beside
the rest. Elsewhere, and on one core, one stage follows the other.

A machine that others use stands still now and then, for longer than a deadline. So a few timed tests that fail are
run once more, when nothing else runs; what passes then is no failure, and is named as UNSTEADY. What is not timed has
one try, but two where it had idle time only.
"""

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

CLOSING = re.compile(r"=+ (.+) in [\d.]+s(?: \([\d:]+\))? =+")
COUNT = re.compile(r"(\d+) (failed|passed|skipped|xfailed|xpassed|error)s?\b")
FAILURE = re.compile(r"(?:FAILED|ERROR) (.+?)(?: - .*)?")
MOST = 8  # workers; each takes 1 GB and more, and files stay together
TESTS_FAILED, NONE_SELECTED = 1, 5  # pytest's exit statuses; one of the stages may have none of the given tests
FEW = 3  # timed tests that fail; more of them are no accident
COMPILE_WAIT = "SIM2METAL_COMPILE_WAIT_S"  # `sim.engines.vector.blocks.WAIT`; importing it would take a second
# It takes that class itself, before it begins workers, which inherit it: we may come to that too late.
IDLE = "import os, sys; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)); os.execv(sys.argv[1], sys.argv[1:])"
SIDE_BY_SIDE, TIMED, WAITING = "side by side", "timed", "timed, waiting"


def commands(cores: int, everything: bool, words: list[str]) -> dict[str, list[str]]:
    """Stage -> its command line. One core has nothing to gain from workers."""
    pytest, short = [sys.executable, "-m", "pytest"], "" if everything else " and not long"
    workers = ["-n", str(min(cores, MOST)), "--dist", "loadfile", "--no-loadscope-reorder"] if cores > 1 else []
    found = {
        SIDE_BY_SIDE: [*pytest, *workers, "-m", f"not timed{short}", *words],
        TIMED: [*pytest, "-m", f"timed and not waits{short}", *(words or marked("timed"))],
    }
    if waiting := marked("waits"):
        found[WAITING] = [*pytest, "-m", f"timed and waits{short}", *(words or waiting)]
    return found


def marked(name: str) -> list[str]:
    """The files with this mark: importing all others would take a quarter of a minute."""
    files = sorted(Path("tests").rglob("test_*.py"))
    return [str(file) for file in files if f"mark.{name}" in file.read_text(encoding="utf-8")]


def shown(line: str) -> None:
    """Print it at once."""
    print(line, end="", flush=True)


def watched(
    command: list[str],
    counts: Counter[str],
    failures: list[str],
    show: Callable[[str], None] = shown,
    hurried: bool = False,
    idle: bool = False,
) -> int:
    """Run it, show what it prints, and add what its summary says; its exit status. `idle`: on time nobody wants.

    `hurried`: it waits for no process that compiles the same kernel, which may be idle and hold it for minutes.
    """
    closed, line = False, "\n"
    environment = {**os.environ, COMPILE_WAIT: "0"} if hurried else None
    command = [sys.executable, "-c", IDLE, *command] if idle else command
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace", env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            show(line)
            if found := CLOSING.fullmatch(line.strip()):
                closed = True
                counts.update({what: int(number) for number, what in COUNT.findall(found[1])})
            elif found := FAILURE.fullmatch(line.rstrip()):
                failures.append(found[1])
    if not line.endswith("\n"):
        show("\n")
    if not closed:
        counts["error"] += 1
        failures.append(f"no closing line, exit status {process.returncode}")
    return 0 if process.returncode == NONE_SELECTED else process.returncode


def again(name: str, command: list[str], counts: Counter[str], failures: list[str]) -> int:
    """Run the few that failed in this stage once more, and let that count instead; the exit status."""
    print(f"== {name}, once more", flush=True)
    second, failed = Counter[str](), list[str]()
    status = watched([*command, "--last-failed", "--last-failed-no-failures=none"], second, failed)
    if second["passed"] + len({*failed}) != len({*failures}):  # not those that failed: the first try counts
        return status or TESTS_FAILED
    for failure in dict.fromkeys(failures):
        if failure not in failed:
            print(f"UNSTEADY {failure}: passed at the second try")
    counts.update({"passed": second["passed"]})
    counts.update({what: second[what] - counts[what] for what in ("failed", "error")})
    failures[:] = failed
    return status


def closing_line(counts: Counter[str], seconds: float) -> str:
    """As pytest's own."""
    kinds = ("failed", "passed", "skipped", "xfailed", "xpassed", "error")
    parts = [f"{counts[what]} {what}" for what in kinds if counts[what]]
    text = f" {', '.join(parts) or 'no tests ran'} in {seconds:.2f}s ({timedelta(seconds=int(seconds))}) "
    return text.center(80, "=")


@dataclass
class Stage:
    """A stage, and what came of it."""

    name: str
    command: list[str]
    counts: Counter[str] = field(default_factory=Counter[str])
    failures: list[str] = field(default_factory=list[str])
    status: int = 0

    def run(self, show: Callable[[str], None] = shown, idle: bool = False) -> None:
        """Once."""
        show(f"== {self.name}\n")
        self.status = watched(self.command, self.counts, self.failures, show, self.name != SIDE_BY_SIDE, idle)


def run(first: Stage, timed: list[Stage], beside: bool) -> None:
    """All, side by side or one after the other; what the others print stands behind the first in any case."""
    if beside:
        kept: list[list[str]] = [[] for _ in timed]
        with ThreadPoolExecutor(len(timed)) as others:
            running = [others.submit(stage.run, lines.append) for stage, lines in zip(timed, kept, strict=True)]
            try:
                first.run(idle=True)
            finally:
                for one, lines in zip(running, kept, strict=True):
                    wait([one])
                    shown("".join(lines))
            for one in running:
                one.result()
    else:
        for stage in (first, *timed):
            stage.run()
    for stage in (first, *timed) if beside else timed:
        if stage.status == TESTS_FAILED and len({*stage.failures}) <= FEW:  # one may fail, and fail to end, too
            stage.status = again(stage.name, stage.command, stage.counts, stage.failures)


def may_run_beside(cores: int) -> bool:
    """Whether there are cores for it, and a process may have no time but what others leave: sandboxes refuse that."""
    if cores < 2 or not hasattr(os, "SCHED_IDLE"):
        return False
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as probe:
        try:
            os.sched_setscheduler(probe.pid, os.SCHED_IDLE, os.sched_param(0))
        except OSError:
            return False
        finally:
            assert probe.stdin is not None
            probe.stdin.close()
    return True


def main(words: list[str]) -> int:
    """The first exit status that is not zero."""
    everything = words[:1] == ["all"]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    began, counts, failures = time.monotonic(), Counter[str](), list[str]()
    first, *timed = [  # each keeps what failed last in a folder of its own: all write that when they end
        Stage(name, [*command, "-o", f"cache_dir=.pytest_cache/{re.sub('[^a-z]+', '_', name)}"])
        for name, command in commands(cores, everything, words[everything:]).items()
    ]
    run(first, timed, beside=may_run_beside(cores))
    for stage in (first, *timed):
        counts.update(stage.counts)
        failures += stage.failures
    for name in failures:
        print(f"FAILED {name}")
    print(closing_line(counts, time.monotonic() - began))
    return next((stage.status for stage in (first, *timed) if stage.status), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
