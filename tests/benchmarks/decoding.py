"""What a chunk costs a policy that is told in words, when several environments plan at the same moment.

    python tests/benchmarks/decoding.py [--quick] [--only "all at once" ...]

`vla`'s own network at its first weights, as `vla_rl` practises with it: two pictures of 64x64 are looked at, and the
tokens of a chunk are drawn, for 1, 4, 16 or 64 environments at once. One thread. It takes no sentence encoder: what
was said is encoded once per episode, and here is drawn at random.
"""

import dataclasses
import statistics
import time

import report
import torch

from policies.algorithms.vla import VlaConfig
from policies.learning.vla.looking import Told
from policies.learning.vla.tiny import TinyVla
from policies.models.tokens import BinTokens
from sim import spec
from sim.spec import Group
from sim.tasks import make

CASES = {"all at once": True, "token after token": False}
TOGETHER = (1, 4, 16, 64)  # environments
ROUNDS = 40  # of all of them, one after the other, so that who is beside disturbs them alike
WORDS, SIZE = 24, 384  # of a sentence, and numbers of a word


def measure(cases: list[str], quick: bool) -> report.Rows:
    """Per way to decode: CPU ms per chunk when so many environments plan, and how much more that is per second."""
    task, threads = make("arm_words"), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {case: _decoded(task.policy, spec.size(task.commands), CASES[case], quick) for case in cases}
    finally:
        torch.set_num_threads(threads)


def _decoded(seen: Group, actions: int, parallel: bool, quick: bool) -> dict[str, object]:
    config = VlaConfig()
    network = dataclasses.replace(config.network, parallel=parallel)
    tokens = BinTokens(config.parts, actions, config.bins)
    numbers, pictures = spec.size(spec.numbers(seen)), spec.pictures(seen)
    policy = TinyVla(tokens, numbers, pictures, SIZE, network, seed=0).eval()
    generator = torch.Generator().manual_seed(0)
    words, there = torch.randn(64, WORDS, SIZE, generator=generator), torch.ones(64, WORDS, dtype=torch.bool)
    measured = torch.randn(64, numbers, generator=generator)
    shown = {s.name: torch.randint(0, 256, (64, *s.shape), dtype=torch.uint8, generator=generator) for s in pictures}

    def plan(told: Told, n: int) -> float:
        began = time.process_time()
        prefix = policy.encode(told, measured[:n], {name: some[:n] for name, some in shown.items()})
        policy.generate(prefix, 1.0, generator)
        return 1e3 * (time.process_time() - began) / n

    took: dict[int, list[float]] = {n: [] for n in TOGETHER}
    with torch.no_grad():
        told = {n: policy.tell(words[:n], there[:n]) for n in TOGETHER}
        for _ in range(3 if quick else ROUNDS):
            for n in TOGETHER:
                took[n].append(plan(told[n], n))
    each = {n: statistics.median(some[1:]) for n, some in took.items()}
    return {
        "tokens": tokens.length,
        "ms_per_chunk": {str(n): round(ms, 3) for n, ms in each.items()},
        "throughput": {str(n): round(each[1] / ms, 2) for n, ms in each.items()},
    }


def markdown(rows: report.Rows) -> str:
    """A line per way to decode."""
    titles = ["CPU ms per chunk (times the throughput of one)", "tokens", *(f"{n} at once" for n in TOGETHER)]
    lines = []
    for name, row in rows.items():
        told = [f"{row['ms_per_chunk'][str(n)]:.2f} ({row['throughput'][str(n)]:.1f})" for n in TOGETHER]
        lines.append([name, str(row["tokens"]), *told])
    return report.table(titles, lines)


if __name__ == "__main__":
    report.main("decoding", CASES, measure)
