"""`python -m policies.train -m ... cluster=ray`: every combination as a job, in a sweep's folders."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from policies.cluster.jobs import Job, Jobs, There
from policies.runner.config import RunError, Settings, combinations, compose
from policies.runner.mistakes import SettingsError
from sim.cluster import ClusterError, entered


def sweep(overrides: Sequence[str]) -> None:
    """Do them all. SettingsError before anything is begun; RunError when some failed, or there is no cluster."""
    fixed, words = combinations(overrides)
    if wrong := [key for key in ("resume", "profile") if key in fixed]:
        raise SettingsError(f"a sweep on a cluster takes one folder as out=DIR, and no {wrong[0]}=...")
    if not (cluster := fixed.get("cluster", "")):
        raise SettingsError("a sweep has one cluster: cluster=ray, or none")
    out = Path(fixed.get("out") or f"runs/sweep/{datetime.now():%Y-%m-%d_%H-%M-%S}")
    jobs = [job_of(one, out / ",".join(sorted(w for w in one if w.partition("=")[0] not in fixed))) for one in words]
    if taken := [job.folder for job in jobs if job.folder.exists() and any(job.folder.iterdir())]:
        raise RunError(f"{taken[0]} already holds something; choose another out=DIR")
    try:
        with entered(cluster) as nodes:
            assert nodes is not None
            run(jobs, There(nodes), nodes.cpus)
    except ClusterError as error:
        raise RunError(str(error)) from error


def job_of(words: Sequence[str], folder: Path, judged_by: Sequence[str] = ()) -> Job:
    """These settings as a job; SettingsError when they make no sense."""
    told = tuple(word for word in words if word.partition("=")[0] not in ("out", "cluster"))
    settings = compose([*told])
    return Job(told, folder, tuple(judged_by), cpus_of(settings), int(settings.options.device != "cpu"))


def cpus_of(settings: Settings) -> int:
    """Of a node, for one run: one for each process that steps its worlds, or learns."""
    asked: Any = vars(settings.algorithm_config).get("workers", 1)
    return max(1, int(asked), settings.options.learners)


def run(jobs: Sequence[Job], where: There, together: int) -> None:
    """All of them; RunError, after the last, when some failed."""
    names = ", ".join(job.folder.name or "one run" for job in jobs)
    print(f"{len(jobs)} runs, {together} CPUs -> {jobs[0].folder.parent}: {names}", flush=True)
    try:
        failed = Jobs(where, together, lambda text: print(text, flush=True)).run(jobs)
    except KeyboardInterrupt:
        done = sum(job.done for job in jobs)
        print(f"interrupted; {done} of {len(jobs)} runs are whole, the others have their last checkpoint", flush=True)
        raise SystemExit(130) from None
    for folder, error in failed.items():
        sys.stdout.flush()
        sys.stderr.write(f"error: {folder.name}: {error}\n")
    if failed:
        raise RunError(f"{len(failed)} of the runs failed")
