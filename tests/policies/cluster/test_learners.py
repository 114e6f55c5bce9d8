"""Several learners that share one update: the same result however many they are, and what becomes of a loss."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from policies.algorithms import LostLearnerError
from policies.algorithms.ppo.torch_parts import drawn
from policies.cluster import learners
from policies.learning.networks import Normalizer, merged, moments
from policies.learning.parallel import group
from policies.learning.parallel.group import Group, Meeting, interface, joined
from policies.learning.parallel.learners import Learners
from policies.runner import checkpoint
from policies.runner.config import RunError, compose
from policies.runner.mistakes import SettingsError
from policies.train import train
from sim.cluster import ClusterError, Place

SMALL = (
    *("task=quad_hover", "algorithm=ppo", "algorithm.path=torch", "algorithm.num_envs=24", "algorithm.rollout_steps=4"),
    *("algorithm.hidden=[8]", "algorithm.critic_hidden=[8]", "algorithm.evaluate_every=0", "report=false"),
    "algorithm.evaluation_episodes=4",
)

GATED = ("algorithm.network=gru", "algorithm.hidden=[8,8]")


def trained(folder, *words, iterations=6):
    """The policy file of a short run there."""
    return train(compose([*SMALL, f"algorithm.total_steps={iterations * 96}", f"out={folder}", *words])).read_bytes()


@pytest.fixture(autouse=True)
def when(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process makes of a run that is cut into three parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        folder = tmp_path_factory.mktemp("alone") / "run"
        return trained(folder, "algorithm.parts=3"), checkpoint.load(folder / "checkpoint.npz")["algorithm"]


def same(one, other):
    """Whether two trees hold the same bits."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return bool((one == other) if not hasattr(one, "shape") else (one == other).all())


def followers() -> list[int]:
    """Processes of the other learners that this one has begun."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "stat").read_text().rpartition(")")[2].split()
            mine = int(words[1]) == os.getpid() and b"policies.cluster.follower" in (folder / "cmdline").read_bytes()
        except OSError:
            continue
        found += [int(folder.name)] if mine else []
    return found


def listening(process: int) -> set[str]:
    """ADDRESS:PORT on which it does, as the system writes them."""
    sockets = set()
    for file in Path(f"/proc/{process}/fd").glob("*"):
        with contextlib.suppress(FileNotFoundError):  # by which we look
            sockets |= {*re.findall(r"socket:\[(\d+)\]", os.readlink(file))}
    lines = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()]
    return {words[1] for words in lines if words[3] == "0A" and words[9] in sockets}


def addresses(places: set[str]) -> set[str]:
    """Without the ports."""
    return {place.partition(":")[0] for place in places}


@pytest.mark.long  # of two test_learners_meet_at_an_address says it, and of one that continues the next but one below
@pytest.mark.parametrize("learners", [2, 3])
def test_the_number_of_learners_changes_no_bit(tmp_path, alone, learners):
    made = trained(tmp_path / "run", "algorithm.parts=3", f"learners={learners}")
    state = checkpoint.load(tmp_path / "run" / "checkpoint.npz")["algorithm"]
    assert len(state["parts"]) == 3 and same(state, alone[1])
    assert made == alone[0]  # the first alone writes: one file, and what is in it names no learner
    assert not followers()


@pytest.mark.long  # by another network what the test above says
def test_actors_that_remember_learn_together(tmp_path):
    words = ("algorithm.parts=2", "algorithm.minibatches=3", "algorithm.num_envs=6", "algorithm.threads=2", *GATED)
    one, two = (trained(tmp_path / str(n), *words, f"learners={n}") for n in (1, 2))
    assert one == two
    state = checkpoint.load(tmp_path / "2" / "checkpoint.npz")["algorithm"]
    assert [part["state"].shape for part in state["parts"]] == [(3, 8), (3, 8)]


@pytest.mark.slow
def test_a_learner_that_dies_ends_the_run_which_others_continue(tmp_path, alone):
    folder, told = tmp_path / "run", {}

    def kill():
        while not (folder / "checkpoint.npz").exists():
            time.sleep(0.002)
        (process,) = followers()
        told["listens"] = addresses(listening(process))
        os.kill(process, signal.SIGKILL)

    watcher = threading.Thread(target=kill)
    watcher.start()
    begun = time.monotonic()
    with pytest.raises(RunError) as error:
        trained(folder, "algorithm.parts=3", "learners=2", "checkpoint_s=0.001", iterations=2000)
    watcher.join()
    assert time.monotonic() - begun < 120.0
    said = str(error.value)
    assert said.startswith("learner 1 of 2 (0 is this one) is gone: signal 9; the checkpoint of ")
    assert f"is whole, continue with resume={folder}" in said and "\n" not in said
    assert told["listens"] == {"0100007F"}  # 127.0.0.1
    before = checkpoint.load(folder / "checkpoint.npz")  # whole
    assert 0 < before["algorithm"]["iteration"] < 2000 and len(before["algorithm"]["parts"]) == 3
    assert not (folder / "policy.onnx").exists()


@pytest.mark.slow
def test_fewer_learners_continue_exactly(tmp_path, alone, monkeypatch):
    folder = tmp_path / "run"
    from policies.algorithms.ppo.torch_path import TorchPath

    update, count = TorchPath._update, []

    def interrupted(self, data):
        count.append(1)
        if len(count) == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return update(self, data)

    monkeypatch.setattr(TorchPath, "_update", interrupted)
    with pytest.raises(SystemExit):
        trained(folder, "algorithm.parts=3", "learners=2")
    monkeypatch.undo()
    assert checkpoint.load(folder / "checkpoint.npz")["algorithm"]["iteration"] == 4
    train(compose([f"resume={folder}", "learners=1"]))
    assert same(checkpoint.load(folder / "checkpoint.npz")["algorithm"], alone[1])


@pytest.mark.parametrize("moment", ["now and then", "after a signal", "at the end"])
def test_a_learner_that_is_lost_while_it_is_saved(tmp_path, monkeypatch, capfd, moment):
    from policies.algorithms.ppo.torch_path import TorchPath

    update, count, folder = TorchPath._update, [], tmp_path / "run"

    def signalled(self, data):
        count.append(1)
        if len(count) == 4 and moment == "after a signal":
            os.kill(os.getpid(), signal.SIGTERM)
        return update(self, data)

    def lost(self):
        raise LostLearnerError("learner 1 of 2 is gone")

    monkeypatch.setattr(TorchPath, "_update", signalled)
    monkeypatch.setattr(TorchPath, "state_dict", lost)
    said = "learner 1 of 2 is gone; there is no earlier checkpoint"
    if moment == "at the end":  # of what was learned nothing is lost
        assert trained(folder, "checkpoint_s=1000")
        assert said in capfd.readouterr().err
        return
    with pytest.raises(RunError, match=said):
        trained(folder, f"checkpoint_s={0.001 if moment == 'now and then' else 1000}")


def test_what_cannot_be_shared_is_refused():
    for words, why in (
        (("task=quad_hover", "learners=2"), "learners=2: apg learns in one process"),
        (("task=quad_hover", "algorithm=student", "algorithm.parts=2"), "parts=2 cut a student's lessons alone"),
        ((*SMALL, "learners=2", "device=cuda:1"), "learners=2 have a GPU each, or all one: device=cuda, not cuda:1"),
        ((*SMALL, "learners=0"), "learners must be at least 1"),
        ((*SMALL, "learners=3", "algorithm.parts=2"), "learners=3 are more than algorithm.parts=2"),
        ((*SMALL, "algorithm.parts=5"), "num_envs must be a multiple of parts, got 24 and 5"),
        ((*SMALL, "learners=2", "algorithm.workers=2"), "parts=2 does not go with algorithm.workers=2"),
        ((*SMALL, "algorithm.parts=24", *GATED), "1 rows do not make 4 minibatches"),
        ((*SMALL, "algorithm.path=fused", "algorithm.parts=2"), "path=fused does not do algorithm.parts=2"),
    ):
        with pytest.raises((SettingsError, RunError), match=re.escape(why)):
            train(compose([*words]))


def test_a_follower_sends_nothing_back():
    files = {"config.yaml": b"task: none", "checkpoint.npz": bytes(1000)}
    *alive, last = learners.followed("no json", learners._order(), files)
    assert [part.files for part in (*alive, last)] == [{}] * (len(alive) + 1)
    assert last.status == 1 and "JSONDecodeError" in last.said


class Full:
    """A cluster, without Ray: whatever is begun there waits for a place, until it is cancelled."""

    place = Place(1)

    def __init__(self):
        self.cancelled, self.asked = threading.Event(), []

    def room(self, cpus, gpus, what, times):
        self.asked.append((cpus, gpus, times))
        raise ClusterError(f"{what} needs {cpus} CPUs and {gpus} GPUs of one node")

    def stream(self, work, *told, cpus, gpus):
        if not self.cancelled.wait(20.0):
            raise ClusterError("nobody cancels it")
        yield from ()

    def cancel(self):
        self.cancelled.set()


def test_learners_that_have_no_place_are_refused(monkeypatch):
    nodes = Full()
    monkeypatch.setattr(learners, "current", lambda: nodes)
    with (
        pytest.raises(ClusterError, match="each of learners=3 needs 2 CPUs and 0 GPUs"),
        learners.together(compose([*SMALL, "learners=3", "algorithm.threads=2"])),
    ):
        raise AssertionError("it began")
    assert nodes.asked == [(2, 0, 2)]


class Near(Full):
    """Several machines, of which all are this one."""

    place = Place(1, "127.0.0.1:1")

    def room(self, cpus, gpus, what, times):
        pass

    def host(self):
        return "127.0.0.1"

    def stream(self, work, *told, cpus, gpus):
        return work(*told)


@pytest.mark.slow
def test_learners_meet_at_an_address(tmp_path, monkeypatch, alone):
    monkeypatch.setattr(learners, "current", Near)
    assert trained(tmp_path / "run", "algorithm.parts=3", "learners=2") == alone[0]


def test_a_learner_that_waits_for_a_place_is_not_waited_for(monkeypatch):
    nodes = Full()
    monkeypatch.setattr(nodes, "room", lambda cpus, gpus, what, times: None)
    monkeypatch.setattr(learners, "current", lambda: nodes)
    monkeypatch.setattr(group, "JOINING", 0.2)
    before = time.monotonic()
    with (
        pytest.raises(LostLearnerError, match="not all of 2 learners have begun"),
        learners.together(compose([*SMALL, "learners=2"])),
    ):
        raise AssertionError("it began")
    assert nodes.cancelled.is_set() and time.monotonic() - before < 15.0


def test_parts_add_up_to_the_whole():
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)) * 4.0 + 7.0
    whole, parted = Normalizer(3, kept=0.5), Normalizer(3, kept=0.5)
    for _ in range(2):
        whole.update(x)
        parted.take(merged(torch.stack([moments(part) for part in (x[:7], x[7:7], x[7:20], x[20:])])))
    assert whole.count == parted.count
    torch.testing.assert_close(whole.mean, parted.mean, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(whole.variance, parted.variance, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize(("count", "minibatches"), [(12, 4), (10, 4), (9, 4), (3, 4), (0, 2)])
def test_minibatches_are_cut_as_torch_does(count, minibatches):
    wanted = [len(piece) for piece in torch.arange(count).chunk(minibatches) if len(piece)]
    found = [drawn([count], minibatches, k)[0] for k in range(minibatches)]
    assert found == wanted + [0] * (minibatches - len(wanted))


@pytest.mark.parametrize("parts", [1, 3])
def test_the_gradient_is_that_of_the_whole(parts):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 2, generator=generator).t().requires_grad_()  # which lies otherwise
    x = torch.randn(12, 4, generator=generator)
    (wanted,) = torch.autograd.grad((x @ weight.t()).square().mean(), weight)
    learners, pieces = Learners(parts), x.chunk(parts)

    def loss(place, piece):
        value = (pieces[place] @ weight.t()).square().sum() / (2 * len(x))
        return value, {"loss": value}

    shown = learners.gradient(loss, [weight])
    assert weight.grad.stride() == weight.stride()
    torch.testing.assert_close(weight.grad, wanted)
    torch.testing.assert_close(shown["loss"], (x @ weight.t()).square().mean().detach())


def test_each_part_has_one_learner_and_random_numbers_of_its_own():
    with pytest.raises(ValueError, match="3 learners need"):
        Learners(2, group=Group(0, 3))
    every = [Learners(8, group=Group(rank, 3)) for rank in range(3)]
    assert [number for one in every for number in one.mine] == [*range(8)]
    seeds = [seed for one in every for seed in one.seeds(5)]
    assert len({*seeds}) == 8 and seeds == Learners(8).seeds(5)
    assert Learners(1).seeds(5) == [5]


def test_the_way_to_this_machine_is_found():
    assert interface("127.0.0.1") in ("lo", "lo0")
    assert interface("no such host") == "" == interface("no:such:host")


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="no IPv6 here")
def test_the_way_by_ipv6_is_found():
    assert interface("::1") == "lo"


def test_the_first_one_listens_where_the_others_are_alone():
    before = listening(os.getpid())
    port, opened = group.listening("127.0.0.1")
    meeting = Meeting(0, 1, host="127.0.0.1", port=port, listening=opened)
    with joined(meeting, lambda: None):
        assert group._store(meeting._replace(rank=1)).get("here/0") == b"1"  # another one, who finds it
        assert addresses(listening(os.getpid()) - before) == {"0100007F"}


OTHER = """
import sys
from policies.learning.parallel.group import Meeting, joined
with joined(Meeting(1, 2, file=sys.argv[1]), lambda: None) as other:
    assert other.told() == 7
"""


def test_after_a_start_that_failed_the_next_learners_find_each_other(tmp_path, monkeypatch):
    """Torch counts the starts of the first one; the others are new each time."""
    gone, there = (Meeting(0, 2, file=str(tmp_path / name)) for name in ("gone", "there"))
    torch.distributed.FileStore(gone.file, 2).set("here/1", "1")  # of another, which comes no further
    monkeypatch.setattr(group, "PATIENCE", 0.2)
    with pytest.raises(LostLearnerError), joined(gone, lambda: None):
        raise AssertionError("it began")
    monkeypatch.setattr(group, "PATIENCE", 60.0)
    with subprocess.Popen([sys.executable, "-c", OTHER, there.file]) as other:
        try:
            with joined(there, lambda: None) as first:
                assert first.told(7) == 7
            assert other.wait(60.0) == 0
        finally:
            other.kill()


@pytest.mark.parametrize("said", ["", "mine0"])
def test_what_the_user_says_of_the_way_stays(monkeypatch, said):
    monkeypatch.delenv(group.INTERFACE, raising=False)
    if said:
        monkeypatch.setenv(group.INTERFACE, said)
    for meeting, wanted in ((Meeting(0, 2, host="127.0.0.1"), said or "lo"), (Meeting(0, 2, file="here"), "lo")):
        with group._bound(meeting):
            assert os.environ[group.INTERFACE].removesuffix("0") == wanted.removesuffix("0")
        assert os.environ.get(group.INTERFACE, "") == said


def test_each_learner_has_a_gpu_of_its_own_where_there_are_so_many(monkeypatch):
    settings, nodes = compose([*SMALL, "learners=2", "device=cuda"]), Full()
    for there, where, wanted in ((2, None, ["cuda:0", "cuda:1"]), (1, None, ["cuda"] * 2), (2, nodes, ["cuda"] * 2)):
        monkeypatch.setattr(learners, "gpus", lambda there=there: there)
        nccl = learners._nccl(settings, where)
        assert [learners._device(settings, rank, nccl) for rank in range(2)] == wanted
