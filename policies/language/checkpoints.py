"""Models out of local folders, as Hugging Face's `transformers` writes them.

Nothing is downloaded, no code of a folder is run, and weights are read as safetensors only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.registry import check_named

if TYPE_CHECKING:
    import torch

LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
# Those that look at pictures and go on writing, one token after another: model_type -> the class in transformers.
WRITERS = {"llava": "LlavaForConditionalGeneration", "paligemma": "PaliGemmaForConditionalGeneration"}


def folder_of(said: str, folder: str) -> Path:
    """The folder that somebody named by the setting `said`; ValueError where it holds no model that is read."""
    check_named("model", folder)
    where = Path(folder)
    if (where / "config.json").is_file() and [*where.glob("*.safetensors")]:
        return where
    pickles = sorted(path.name for kind in PICKLES for path in where.glob(kind))
    more = f"; {pickles[0]} is a pickle, which could run anything: have it saved as safetensors" if pickles else ""
    raise ValueError(f"{said}={folder!r} is no folder with config.json and *.safetensors{more}")


def quiet() -> None:
    """No progress bars, and no warnings that no user could heed."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def writer_of(folder: Path) -> str:
    """The class of the model in a folder, one of WRITERS; ValueError for any other."""
    try:
        told = json.loads((folder / "config.json").read_text())
        kind = str(told["model_type"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / 'config.json'} says no model_type: {error}") from error
    if kind not in WRITERS:
        code = "; what it is, code in the folder says, which is not run" if "auto_map" in told else ""
        raise ValueError(f"{folder} holds a model of type {kind!r}, not one of {', '.join(WRITERS)}{code}")
    return WRITERS[kind]


def written(folder: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    """Model, in `dtype`, and processor of a folder of one of WRITERS; ValueError where it is not whole."""
    name = writer_of(folder)
    import transformers

    quiet()
    try:
        processor = transformers.AutoProcessor.from_pretrained(folder, **LOCAL)
        _ = processor.tokenizer, processor.image_processor, processor.image_token
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{folder} has no processor that can be read, of words (tokenizer.json) and pictures "
            f"(processor_config.json or preprocessor_config.json): {_first(error)}"
        ) from error
    try:
        model, found = getattr(transformers, name).from_pretrained(
            folder, use_safetensors=True, dtype=dtype, output_loading_info=True, **LOCAL
        )
    except Exception as error:  # of safetensors' own kind, too
        if isinstance(error, MemoryError) or "allocate" in str(error):
            raise
        raise ValueError(f"{folder} holds no weights of {name} that can be read: {_first(error)}") from error
    if lacking := sorted(found["missing_keys"]):
        raise ValueError(f"the weights in {folder} lack {len(lacking)} of {name}'s, {lacking[0]} first")
    return model, processor


def _first(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]
