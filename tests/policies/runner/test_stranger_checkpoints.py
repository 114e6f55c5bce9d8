"""A downloaded run: its checkpoint takes no more memory than it has bytes, and its folder leads nowhere else."""

import copy
import io
import json
import os
import shutil
import tracemalloc
import zipfile

import numpy as np
import pytest

from deploy.system.files import write_atomic
from policies import train
from policies.runner import checkpoint
from policies.runner.config import RunError, compose
from policies.runner.folder import opened
from policies.runner.log import counted


def written(path, tree, arrays=(), kind=zipfile.ZIP_STORED):
    """A checkpoint with a right checksum, of whatever is given."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as archive:
        archive.comment = b"0" * checkpoint.DIGEST
        archive.writestr("tree", tree if isinstance(tree, str) else json.dumps({"schema": 1, "tree": tree}))
        for index, content in enumerate(arrays):
            archive.writestr(f"{index}.npy", content)
    digest = checkpoint._digest(file)
    file.seek(-checkpoint.DIGEST, os.SEEK_END)
    file.write(digest)
    path.write_bytes(file.getvalue())
    return path


def array(shape, values=b"", descr="<f4"):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})
    return stream.getvalue() + values


WHOLE = {"dict": [["algorithm", {"array": 0}]]}
MALFORMED = [
    (WHOLE, [array((1 << 40,), bytes(16))], "not as long as it says"),
    (WHOLE, [array((-4,), bytes(16))], "not as long as it says|malformed"),
    (WHOLE, [array((4,), bytes(16), "|O")], "not as long as it says|malformed"),
    (WHOLE, [b"x" * 200], "malformed"),
    ({"list": [{"array": 0}] * 1000}, [array((4,), bytes(16))], "named twice"),
    ({"list": [{"array": True}]}, [array((4,), bytes(16))], "is none"),
    ({"list": [{"array": "../0"}]}, [array((4,), bytes(16))], "is none"),
    ({"list": [{"array": 7}]}, [], "malformed"),
    ({"object": "os.system"}, [], "unknown"),
    ({"array": 0, "list": []}, [array((4,), bytes(16))], "malformed"),
    ({"dict": [[["unhashable"], 1]]}, [], "malformed"),
    (3, [], "holds no tree"),
    ({"tensor": [0, "float32", [1 << 20, 1 << 20]]}, [array((16,), bytes(16), "|u1")], "malformed"),
    ('{"schema": 1, "tree": ' + '{"list":[' * 100_000 + "]}" * 100_000 + "}", [], "malformed"),
    ("[]", [], "malformed"),
]


@pytest.mark.parametrize(("tree", "arrays", "said"), MALFORMED, ids=range(len(MALFORMED)))
def test_what_a_stranger_wrote_is_one_sentence(tmp_path, tree, arrays, said):
    path = written(tmp_path / "c.npz", tree, arrays)
    with pytest.raises(checkpoint.CheckpointError, match=said) as error:
        checkpoint.load(path)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


def test_a_compressed_one_is_not_unpacked(tmp_path):
    many = array((1 << 25,), bytes(1 << 27))
    path = written(tmp_path / "c.npz", WHOLE, [many], zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(checkpoint.CheckpointError, match="is compressed, and a checkpoint never is"):
        checkpoint.load(path)


def test_arrays_in_one_place_are_refused(tmp_path):
    file = io.BytesIO()
    content = array((1 << 16,), bytes(1 << 18))
    with zipfile.ZipFile(file, "w") as archive:
        archive.comment = b"0" * checkpoint.DIGEST
        tree = {"list": [{"array": index} for index in range(50)]}
        archive.writestr("tree", json.dumps({"schema": 1, "tree": tree}))
        archive.writestr("x.npy", content)
        for index in range(50):  # the local header says another name of the same length: only the first is written
            same = copy.copy(archive.getinfo("x.npy"))
            same.filename = same.orig_filename = f"{index}.npy"
            archive.filelist.append(same)
    path = tmp_path / "c.npz"
    path.write_bytes(file.getvalue()[: -checkpoint.DIGEST] + checkpoint._digest(file))
    with pytest.raises(checkpoint.CheckpointError, match="malformed: what it holds overlaps"):
        checkpoint.load(path)


def test_an_array_is_not_held_twice():
    content = checkpoint.dumps({"buffer": np.ones(1 << 22, np.float32)})
    tracemalloc.start()
    assert checkpoint.loads(content, "c.npz")["buffer"].nbytes == 1 << 24
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.25 * (1 << 24)


GOOD = {"rows": 3, "step": 4000, "seconds": 1.5, "cpu_seconds": 2.0}


@pytest.mark.parametrize(
    "more", [{"rows": -1}, {"rows": 1.5}, {"step": "4"}, {"seconds": float("nan")}, {"seconds": -1.0}, {"rows": True}]
)
def test_what_a_log_continues_from_is_counted(more):
    assert counted({**GOOD, "folder": "elsewhere"}) == GOOD
    with pytest.raises(ValueError, match=f"its log's {next(iter(more))} is"):
        counted({**GOOD, **more})


LINKS = ["metrics.jsonl", "timing.json", "checkpoint.npz.tmp", "policy.onnx", "diverged", "algorithm/first.onnx"]


@pytest.mark.parametrize("name", LINKS)
@pytest.mark.parametrize("dangling", [False, True])
def test_a_run_is_not_continued_through_links(tmp_path, name, dangling):
    (tmp_path / "run" / "algorithm").mkdir(parents=True)
    mine = tmp_path / "mine"
    if not dangling:
        mine.write_text("precious")
    (tmp_path / "run" / name).symlink_to(mine)
    settings = compose(["task=quad_hover", f"out={tmp_path / 'other'}"])
    settings.options.resume = str(tmp_path / "run")
    with pytest.raises(RunError, match=f"{name} in it is a link out of it, and a run would write there"):
        opened(settings)
    assert mine.exists() is not dangling and not (tmp_path / "run" / ".lock").exists()


@pytest.mark.parametrize("name", ["metrics.jsonl", "algorithm/metrics.jsonl", "config.yaml"])
def test_nor_through_hard_links(tmp_path, name):
    """An archive may hold one to a file beside the folder that it is unpacked in: what is appended comes there."""
    (tmp_path / "run" / "algorithm").mkdir(parents=True)
    mine = tmp_path / "mine"
    mine.write_text("precious")
    (tmp_path / "run" / name).hardlink_to(mine)
    (tmp_path / "run" / "notes").hardlink_to(mine)  # nobody writes that
    settings = compose(["task=quad_hover", f"out={tmp_path / 'other'}"])
    settings.options.resume = str(tmp_path / "run")
    with pytest.raises(RunError, match=f"{name} in it is a hard link, .*; copy the folder first: cp -rL"):
        opened(settings)
    (tmp_path / "run" / name).unlink()
    (tmp_path / "run" / ".lock").hardlink_to(mine)  # it is emptied by who takes it
    with pytest.raises(RunError, match=r"\.lock in it is a hard link; remove it"):
        opened(settings)
    (tmp_path / "run" / ".lock").unlink()
    opened(settings)[1].release()
    assert mine.read_text() == "precious"


def test_nor_is_one_begun_there_but_other_links_are_nobodys_business(tmp_path):
    folder, mine = tmp_path / "run", tmp_path / "mine"
    folder.mkdir()
    (folder / "data").symlink_to(mine)
    settings = compose(["task=quad_hover", f"out={folder}"])
    opened(settings)[1].release()
    (folder / "config.yaml").unlink()
    (folder / "config.yaml").symlink_to(mine)
    with pytest.raises(RunError, match=r"config\.yaml in it is a link out of it"):
        opened(settings)
    assert not mine.exists()


def test_nobody_waits_for_a_pipe(tmp_path):
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run" / "metrics.jsonl")
    settings = compose(["task=quad_hover", f"out={tmp_path / 'other'}"])
    settings.options.resume = str(tmp_path / "run")
    with pytest.raises(RunError, match=r"metrics\.jsonl in it is no file, .*; remove it"):
        opened(settings)


def test_a_link_to_itself_is_named(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").symlink_to("metrics.jsonl")
    settings = compose(["task=quad_hover", f"out={tmp_path / 'other'}"])
    settings.options.resume = str(tmp_path / "run")
    with pytest.raises(RunError, match=r"metrics\.jsonl in it is a link to itself, .*; remove it"):
        opened(settings)


def test_a_run_that_wandb_logged_is_continued_unless_its_folders_lead_away(tmp_path):
    logs = tmp_path / "run" / "wandb" / "offline-run-20260101_000000-x" / "logs"
    logs.mkdir(parents=True)
    (tmp_path / "cache").mkdir()
    (logs / "debug-core.log").symlink_to(tmp_path / "cache" / "core-debug.log")
    (tmp_path / "run" / "wandb" / "latest-run").symlink_to(logs.parent.name)
    settings = compose(["task=quad_hover", f"out={tmp_path / 'other'}"])
    settings.options.resume = str(tmp_path / "run")
    opened(settings)[1].release()
    (tmp_path / "run" / "wandb" / "run-20260101_000001-x").symlink_to(tmp_path / "cache")
    with pytest.raises(RunError, match="wandb/run-20260101_000001-x in it is a link out of it"):
        opened(settings)
    shutil.rmtree(tmp_path / "run" / "wandb")
    (tmp_path / "run" / "wandb").symlink_to(tmp_path / "cache")
    with pytest.raises(RunError, match=r"wandb in it is a link out of it, .*; copy the folder first: cp -rL .*run NEW"):
        opened(settings)


def test_what_is_half_written_goes_through_no_link(tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("precious")
    (tmp_path / "c.npz.tmp").symlink_to(mine)
    checkpoint.save(tmp_path / "c.npz", {"step": 1})
    (tmp_path / f".a.json.{os.getpid()}.tmp").symlink_to(mine)
    write_atomic(tmp_path / "a.json", b"{}")
    assert mine.read_text() == "precious" and checkpoint.load(tmp_path / "c.npz") == {"step": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "c.npz", "mine"]


def test_train_names_a_checkpoint_of_another_log(tmp_path, capsys):
    folder = tmp_path / "run"
    words = ["task=quad_hover", "algorithm=ppo", f"out={folder}"]
    settings = compose(words)
    opened(settings)[1].release()
    checkpoint.save(folder / "checkpoint.npz", {"algorithm": {}, "log": {**GOOD, "rows": -1}})
    settings.options.resume, settings.options.out = str(folder), None
    with pytest.raises(RunError, match=r"checkpoint\.npz does not fit this version of ppo: its log's rows is -1"):
        train._restore(folder, settings, None)
