"""Folders of `transformers`: what a config.json may make it load, before the library is imported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from policies.language.checkpoints import folder_of, writer_of

ROOT = Path(__file__).resolve().parents[3]
PLAIN = {"model_type": "llava", "text_config": {"attn_implementation": "sdpa", "_attn_implementation": None}}


def made(folder, config):
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").touch()
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return str(folder)


def test_a_plain_folder_is_taken(tmp_path):
    assert folder_of("model", made(tmp_path / "m", PLAIN)) == tmp_path / "m"
    assert writer_of(tmp_path / "m") == "LlavaForConditionalGeneration"


@pytest.mark.parametrize(
    "more",
    [
        {"attn_implementation": "evil/kernel"},
        {"_attn_implementation": "evil/kernel@main:attention"},
        {"attn_implementation": {"": "sdpa", "text_config": "evil/kernel"}},
        {"text_config": {"_attn_implementation_internal": "evil/kernel"}},
        {"vision_config": {"inner": {"attn_implementation": "evil/kernel"}}},
        {"parts": [{"attn_implementation": "evil/kernel"}]},
        {"experts_implementation": "evil/kernel"},
        {"attn_implementation": "flash_attention_2"},  # fetched where it is not installed
        {"attn_implementation": ["evil/kernel"]},
    ],
)
def test_no_kernel_is_fetched_because_a_file_says_so(tmp_path, more):
    with pytest.raises(ValueError, match="may be code from elsewhere"):
        folder_of("model", made(tmp_path / "m", {**PLAIN, **more}))


def test_an_adapter_opens_no_other_model(tmp_path):
    folder = made(tmp_path / "m", PLAIN)
    (tmp_path / "m" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "/home"}))
    with pytest.raises(ValueError, match="merge it into that first"):
        folder_of("model", folder)


@pytest.mark.parametrize("config", ["[]", "{", "[" * 100_000, '{"a": 1' + " " * (1 << 22) + "}"])
def test_what_is_no_description_is_one_sentence(tmp_path, config):
    with pytest.raises(ValueError, match=r"config\.json is no JSON") as error:
        folder_of("model", made(tmp_path / "m", config))
    assert "\n" not in str(error.value)


def test_nobody_waits_for_a_pipe(tmp_path):
    made(tmp_path / "m", PLAIN)
    (tmp_path / "m" / "config.json").unlink()
    os.mkfifo(tmp_path / "m" / "config.json")
    code = "import sys; from policies.language.checkpoints import folder_of; folder_of('model', sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "m")], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert "is no folder with config.json" in done.stderr
