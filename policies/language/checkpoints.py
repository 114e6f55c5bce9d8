"""Models out of local folders, as Hugging Face's `transformers` writes them.

Nothing is downloaded, no code of a folder is run, and weights are read as safetensors only. What `transformers` would
do because a config.json says so is refused here: it fetches and runs an attention kernel of any repository that is
named there, without trust_remote_code (huggingface/transformers, pull request 46708), and it opens the model that an
adapter names, wherever that is.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.trust.reading import read_json_object
from sim.registry import check_named

if TYPE_CHECKING:
    import torch

LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
LONGEST = 1 << 22  # bytes of config.json
KERNELS = ("attn_implementation", "attn_implementation_internal", "experts_implementation")  # how such settings end
OURS = (None, "eager", "sdpa")  # torch's own
# Those that look at pictures and go on writing, one token after another: model_type -> the class in transformers.
WRITERS = {"llava": "LlavaForConditionalGeneration", "paligemma": "PaliGemmaForConditionalGeneration"}


def folder_of(said: str, folder: str) -> Path:
    """The folder that somebody named by the setting `said`; ValueError where it holds no model that is read."""
    check_named("model", folder)
    where = Path(folder)
    if (where / "config.json").is_file() and [*where.glob("*.safetensors")]:
        _check(where)
        return where
    pickles = sorted(path.name for kind in PICKLES for path in where.glob(kind))
    more = f"; {pickles[0]} is a pickle, which could run anything: have it saved as safetensors" if pickles else ""
    raise ValueError(f"{said}={folder!r} is no folder with config.json and *.safetensors{more}")


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        return read_json_object(path, LONGEST)
    except ValueError as error:
        raise ValueError(f"{path} {error}") from None


def _check(folder: Path) -> None:
    """ValueError for what would load more than the folder holds."""
    if (folder / "adapter_config.json").exists():
        raise ValueError(f"{folder} holds an adapter of another model (adapter_config.json): merge it into that first")
    left: list[Any] = [_config(folder)]
    while left:
        for key, value in left.pop().items():
            if key.endswith(KERNELS):
                wanted = [*value.values()] if isinstance(value, dict) else [value]
                if strange := [one for one in wanted if one not in OURS]:
                    raise ValueError(
                        f"{folder / 'config.json'}: {key} is {strange[0]!r:.80}, which may be code from elsewhere: "
                        'take that line out, or write "sdpa"'
                    )
            else:
                left += [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict)]


def quiet() -> None:
    """No progress bars, and no warnings that no user could heed."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def writer_of(folder: Path) -> str:
    """The class of the model in a folder, one of WRITERS; ValueError for any other."""
    try:
        told = _config(folder)
        kind = str(told["model_type"])
    except (ValueError, KeyError) as error:
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
