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
MUTANTS, SEED = int(os.environ.get("FUZZ", "300")), os.environ.get("FUZZ_SEED", "0")


def printed(module: str, *arguments: str) -> str:
    """What a fuzzer prints: in a process of its own, so that one that dies or hangs is seen."""
    limit = 120 + MUTANTS
    command = [sys.executable, "-m", f"tests.fuzz.{module}", *arguments]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SIM2METAL")}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit, env=environment)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def bombs():
    return json.loads(printed("policy_files", "bombs=true"))


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
    found = json.loads(printed("policy_files", f"count={MUTANTS}", f"seed={SEED}"))
    assert not found["tracebacks"], "\n".join(found["tracebacks"])
    assert sum(found["ends"].values()) == MUTANTS
    assert found["slowest"][0] < SECONDS and found["largest"][0] < MEGABYTES
    # the mutators reach beyond the digest: some of their files load
    assert all(found["ends"].get(f"{kind} loaded") for kind in ("damaged_json", "damaged_graph"))


def test_operators_make_what_was_foretold_and_never_end_the_process():
    *wrong, ran = printed("operators", f"each={max(10, MUTANTS // 20)}", f"seed={SEED}").splitlines()
    assert not wrong, "\n".join(wrong[:20])
    assert int(ran.split()[0]) >= 400
