"""Strangers' policy files: every one ends in a sentence or is sound, in bounded time and memory.

FUZZ=10000 in the environment makes it a campaign of so many mutants.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS, MEGABYTES = 2.0, 512.0
MUTANTS = int(os.environ.get("FUZZ", "300"))


def outcome(*arguments: str):
    """What the fuzzer prints: in a process of its own, so that one that dies or hangs is seen."""
    limit = 120 + MUTANTS
    command = [sys.executable, "-m", "tests.fuzz.policy_files", *arguments]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SIM2METAL")}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit, env=environment)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr[-2000:]}"
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def bombs():
    return outcome("bombs=true")


def test_every_bomb_is_refused_for_what_it_is(bombs):
    assert len(bombs) > 60
    wrong = {
        name: (end, why[-300:])
        for name, (reason, end, why, _, _) in bombs.items()
        if end != "refused" or not re.search(reason, why)
    }
    assert not wrong


def test_no_bomb_takes_time_or_memory(bombs):
    assert max((spent, name) for name, (_, _, _, spent, _) in bombs.items()) < (SECONDS, "")
    assert max((grown, name) for name, (_, _, _, _, grown) in bombs.items()) < (MEGABYTES, "")


def test_no_mutant_ends_in_a_traceback():
    found = outcome(f"count={MUTANTS}", f"seed={os.environ.get('FUZZ_SEED', '0')}")
    assert not found["tracebacks"], "\n".join(found["tracebacks"])
    assert sum(found["ends"].values()) == MUTANTS
    assert found["slowest"][0] < SECONDS and found["largest"][0] < MEGABYTES
    # each mutator reaches beyond the digest: some of its files load
    assert all(found["ends"].get(f"{kind} loaded") for kind in ("damaged_bytes", "damaged_json", "damaged_graph"))
