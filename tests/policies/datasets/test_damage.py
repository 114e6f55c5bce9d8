"""Datasets survive kills, full disks and flipped bytes: no episode is lost or half, what is damaged is named."""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from policies.datasets import Dataset, DatasetError, Writer
from policies.datasets.check import problems
from tests.policies.demonstrations import ALL, SCENE, STATE, WRIST, assert_episode, episode, write

ROOT = Path(__file__).resolve().parents[3]

# A child that dies at its k-th step of writing, for every k: forked, so that each costs milliseconds.
KILLED = """
import os, signal, sys
from policies.datasets import Dataset, Writer
from policies.datasets.check import problems
from tests.policies.demonstrations import ALL, assert_episode, episode
folder, whole, k, points = sys.argv[1], 0, 0, []
while True:
    k += 1
    child = os.fork()
    if child == 0:
        count = [0]
        def dying(original):
            def call(*arguments, **named):
                count[0] += 1
                if count[0] == k:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*arguments, **named)
            return call
        with Writer(folder, 10, ALL) as writer:
            for name in ("replace", "fsync"):
                setattr(os, name, dying(getattr(os, name)))
            writer.add_episode(episode(len(writer), 2, ALL), f"task {len(writer)}")
        os._exit(0)
    died = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    before = whole
    if os.path.exists(folder + "/meta/episodes/chunk-000/file-000.parquet"):
        dataset = Dataset(folder)
        whole = len(dataset)
        for index in range(before, whole):
            assert_episode(dataset, index, episode(index, 2, ALL))
    assert whole - before in (0, 1), (before, whole)
    points.append(whole - before)
    if not died:
        break
with Writer(folder, 10, ALL):
    pass
assert not list(problems(Dataset(folder)))
print(*points)
"""


def test_a_kill_at_any_moment_leaves_whole_episodes(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "d")], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    points = [int(word) for word in done.stdout.split()]
    assert len(points) > 15 and 0 in points and sum(points) > 2


RECORDER = """
import sys
from policies.datasets import Writer
from tests.policies.demonstrations import STATE, episode
with Writer(sys.argv[1], 10, STATE) as writer:
    while True:
        print(writer.add_episode(episode(len(writer), 200), "task"), flush=True)
"""


def test_what_was_reported_survives_a_kill(tmp_path):
    """SIGKILL from outside, at a random moment: what add_episode returned is there."""
    reported = -1
    for _ in range(3):
        recorder = subprocess.Popen(
            [sys.executable, "-c", RECORDER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3):
            reported = int(recorder.stdout.readline())
        recorder.kill()
        reported = int([reported, *recorder.communicate()[0].split()][-1])
        dataset = Dataset(tmp_path)
        assert len(dataset) in (reported + 1, reported + 2)
        for index in range(len(dataset)):
            assert_episode(dataset, index, episode(index, 200))


def test_half_an_episode_is_dropped_and_named(tmp_path):
    write(tmp_path, features=ALL)
    left = [
        "data/chunk-000/file-003.parquet",
        "videos/observation.images.wrist/chunk-000/file-003.mp4",
        "data/chunk-000/.file-003.parquet.tmp",
    ]
    for name in left:
        (tmp_path / name).write_bytes(b"half")
    assert sum("belongs to no episode" in problem for problem in problems(Dataset(tmp_path))) == 3
    with Writer(tmp_path, 10, ALL) as writer:
        assert sorted(writer.dropped) == sorted(left) and len(writer) == 3
    assert not list(problems(Dataset(tmp_path)))


def test_totals_that_a_kill_left_behind_are_renewed(tmp_path):
    write(tmp_path)
    old = {name: (tmp_path / name).read_bytes() for name in ("meta/info.json", "meta/stats.json")}
    write(tmp_path, lengths=(2,))
    new = {name: (tmp_path / name).read_bytes() for name in old}
    for name, content in old.items():
        (tmp_path / name).write_bytes(content)
    dataset = Dataset(tmp_path)
    assert len(dataset) == 4 and len(dataset.columns("action")) == 10
    assert len(list(problems(dataset))) == 2
    with Writer(tmp_path, 10, STATE):
        assert {name: (tmp_path / name).read_bytes() for name in old} == new
    assert not list(problems(Dataset(tmp_path)))


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_changes_nothing(tmp_path, monkeypatch, call):
    write(tmp_path)
    original = getattr(os, call)
    with Writer(tmp_path, 10, STATE) as writer:
        for k in range(20):
            calls = []

            def full(*arguments, calls=calls, k=k):
                calls.append(arguments)
                if len(calls) > k:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return original(*arguments)

            monkeypatch.setattr(os, call, full)
            try:
                writer.add_episode(episode(3, 5), "another")
                break
            except OSError as error:
                assert error.errno == errno.ENOSPC
            finally:
                monkeypatch.setattr(os, call, original)
            assert list(tmp_path.rglob(".*")) == [tmp_path / ".lock"]
            dataset = Dataset(tmp_path)
            assert len(dataset) in (3, 4)
            for index, steps in enumerate((4, 1, 3, 5)[: len(dataset)]):
                assert_episode(dataset, index, episode(index, steps))
            assert len(writer) == 3  # what failed can be tried again
        assert k > 3
    dataset = Dataset(tmp_path)
    assert_episode(dataset, 3, episode(3, 5))
    assert not list(problems(dataset))


@pytest.mark.parametrize("features", [STATE, WRIST], ids=["numbers", "film"])
def test_a_disk_that_is_really_full(tmp_path, features):
    """The system's limit of a file's size stands in for the disk's end: for our own files and for ffmpeg's."""
    write(tmp_path, features=features)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Writer(tmp_path, 10, features) as writer:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
            with pytest.raises(OSError, match=r"File too large|ffmpeg failed"):
                writer.add_episode(episode(3, 500, features), "another")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert len(Dataset(tmp_path)) == 3 and not list(problems(Dataset(tmp_path)))
        writer.add_episode(episode(3, 500, features), "another")
    assert_episode(Dataset(tmp_path), 3, episode(3, 500, features))


def test_every_flipped_byte_is_found_and_its_episode_named(tmp_path):
    write(tmp_path, lengths=(3, 2), features=STATE | SCENE)
    whole = Dataset(tmp_path)
    for path in sorted(p for p in tmp_path.rglob("*") if p.is_file()):
        content = path.read_bytes()
        for position in np.unique(np.linspace(0, len(content) - 1, 40).astype(int)):
            flipped = bytearray(content)
            flipped[position] ^= 1 << (position % 8)
            path.write_bytes(flipped)
            try:
                found = list(problems(Dataset(tmp_path)))
            except DatasetError as error:
                found = [str(error)]
            assert found and path.name in found[0], (path, position)
            if path.parts[-3] == "data":
                index = int(path.stem[-1])
                assert f"it holds episode {index}" in found[0] and len(found) == 1
        path.write_bytes(content)
    for index, steps in ((0, 3), (1, 2)):
        assert_episode(whole, index, episode(index, steps, STATE | SCENE))


def test_one_damaged_episode_does_not_take_the_others(tmp_path):
    write(tmp_path, features=ALL)
    film = tmp_path / "videos/observation.images.wrist/chunk-000/file-002.mp4"
    film.write_bytes(film.read_bytes()[:-7])
    (tmp_path / "data/chunk-000/file-001.parquet").unlink()
    dataset = Dataset(tmp_path)
    assert_episode(dataset, 0, episode(0, 4, ALL))
    with pytest.raises(DatasetError, match=r"file-001.parquet is missing; it holds episode 1"):
        dataset.episode(1)["action"]
    with pytest.raises(DatasetError, match=r"file-002.mp4 is damaged.*episode 2"):
        dataset.episode(2)["observation.images.wrist"]
    np.testing.assert_array_equal(dataset.episode(2)["action"], episode(2, 3, ALL)["action"])
    with pytest.raises(DatasetError, match="episode 1"):
        dataset.columns("action")
