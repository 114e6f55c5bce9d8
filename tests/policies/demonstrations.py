"""Episodes whose frames tell episode and step, for the tests of datasets."""

import numpy as np

from policies.datasets import Feature, Writer

STATE = {
    "observation.state": Feature("float32", (3,), ("x", "y", "z")),
    "action": Feature("float32", (2,)),
    "next.success": Feature("bool", (1,)),
}
SCENE = {"observation.images.scene": Feature("image", (4, 6, 3))}
WRIST = {"observation.images.wrist": Feature("video", (16, 24, 3))}
ALL = STATE | SCENE | WRIST


def episode(seed: int, steps: int, features=STATE):
    """Frames that tell their episode and step."""
    rng = np.random.default_rng(seed)
    frames = {}
    for name, feature in features.items():
        frames[name] = rng.integers(0, 256, (steps, *feature.shape)).astype(feature.numpy)
        if feature.dtype == "video":  # flat: what coding can lose is not in question
            frames[name][:] = (40 * np.arange(steps) % 200 + 10 * seed).astype(np.uint8)[:, None, None, None]
    return frames


def write(folder, lengths=(4, 1, 3), features=STATE):
    with Writer(folder, 10, features, "toy") as writer:
        for seed, steps in enumerate(lengths):
            writer.add_episode(episode(seed, steps, features), f"task {seed % 2}")
    return folder


def assert_episode(dataset, index, frames):
    found = dataset.episode(index)
    assert set(found) == set(frames)
    for name, value in frames.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
        assert found[name].flags.writeable
        if dataset.features[name].dtype == "video":
            assert np.abs(found[name].astype(int) - value).max() <= 3
        else:
            np.testing.assert_array_equal(found[name], value)
