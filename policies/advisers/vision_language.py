"""A vision-language model out of a local folder, as Hugging Face's `transformers` writes one.

It chooses among words for commands. A model that compares pictures with texts (CLIP, SigLIP) says how well each option
describes what it sees; one that writes (LLaVA, Qwen-VL) is given the options by letter, and the letter that it would
write next is its choice. Nothing is downloaded, no code of the folder is run, and weights are read as safetensors only.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Mapping
from typing import Any

import numpy as np

from policies.advisers import LEVELS, SPREAD, AdviserConfig, Answer, Array
from policies.language.checkpoints import LOCAL, folder_of, quiet
from sim.spec import pictures, size
from sim.tasks import Task

MOST = len(string.ascii_uppercase)  # options


class VisionLanguage:
    """It is shown the first of the pictures that the task's policy sees."""

    def __init__(self, task: Task, config: AdviserConfig) -> None:
        seen = pictures(task.policy)
        if not seen:
            raise ValueError(f"adviser=vlm: {task.name} shows its policy no pictures that a model could look at")
        self.folder = folder_of("adviser=vlm: model", config.model)
        if (count := config.levels ** size(task.commands)) > MOST:
            raise ValueError(
                f"adviser=vlm chooses among {MOST} options at most; {config.levels} levels of each command of "
                f"{task.name} are {count}: lower algorithm.advice.levels"
            )
        self.picture = seen[0].name
        self.options, self.actions = choices(task, config.levels)
        self.prompt = config.prompt.replace("{robot}", task.robot.name)

    def open(self) -> None:
        """OSError or ValueError where it is no model of the two kinds."""
        import torch
        from transformers import AutoConfig, AutoProcessor
        from transformers.models.auto.modeling_auto import (
            MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
            AutoModelForImageTextToText,
            AutoModelForZeroShotImageClassification,
        )

        quiet()
        torch.set_num_threads(1)
        writes = type(AutoConfig.from_pretrained(self.folder, **LOCAL)) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
        kind = AutoModelForImageTextToText if writes else AutoModelForZeroShotImageClassification
        self.processor: Any = AutoProcessor.from_pretrained(self.folder, **LOCAL)
        self.model: Any = kind.from_pretrained(self.folder, use_safetensors=True, dtype=torch.float32, **LOCAL).eval()
        self.letters = self._letters() if writes else []

    def _letters(self) -> list[int]:
        """The tokens of A, B, C, ..., one per option."""
        tokenizer = self.processor.tokenizer
        found = [
            tokenizer.encode(letter, add_special_tokens=False)[-1]
            for letter in string.ascii_uppercase[: len(self.options)]
        ]
        if len({*found}) < len(found):
            raise ValueError(f"the tokenizer in {self.folder} does not tell letters apart")
        return found

    def advise(self, signals: Mapping[str, Array], done: Array) -> Answer:
        chance = self._chances([*signals[self.picture]])
        return decided(chance, self.actions, done)

    def _chances(self, seen: list[Array]) -> Array:
        """Log probabilities (n, options)."""
        import torch

        with torch.inference_mode():
            if self.letters:
                text = [self._question()] * len(seen)
                told = self.processor(images=[[one] for one in seen], text=text, return_tensors="pt")
                scores = self.model(**told).logits[:, -1, self.letters]
            else:
                told = self.processor(images=seen, text=self.options, padding=True, return_tensors="pt")
                scores = self.model(**told).logits_per_image
            found: Array = torch.log_softmax(scores.double(), -1).numpy()
        return found

    def _question(self) -> str:
        """The prompt, the picture's place in it, and the options by letter."""
        lettered = [f"{letter}: {text}" for letter, text in zip(string.ascii_uppercase, self.options, strict=False)]
        words = "\n".join([self.prompt, *lettered, "Answer with one letter."])
        if self.processor.chat_template:
            content = [{"type": "image"}, {"type": "text", "text": words}]
            asked: str = self.processor.apply_chat_template(
                [{"role": "user", "content": content}], add_generation_prompt=True
            )
            return asked
        return f"{self.processor.image_token}\n{words}\nAnswer:"


def choices(task: Task, levels: int) -> tuple[list[str], Array]:
    """Words for every combination of `levels` of each command, and its action, (options, k) in [-1, 1]."""
    names = [
        f"{s.name.replace('_', ' ')} {k + 1}" if s.size > 1 else s.name.replace("_", " ")
        for s in task.commands
        for k in range(s.size)
    ]
    places = [*itertools.product(range(levels), repeat=len(names))]
    words = [LEVELS[k] for k in SPREAD[levels]]
    options = [", ".join(f"{name} {words[k]}" for name, k in zip(names, place, strict=True)) for place in places]
    return options, np.linspace(-1.0, 1.0, levels)[np.array(places)]


def decided(chance: Array, actions: Array, done: Array) -> Answer:
    """The likeliest option of log probabilities (n, options), whose `actions` are (options, k).

    It counts by how much likelier it is than the next. What was `done` (n, k) is liked by the margin of the nearest
    option over the best of the others (Found-RL's "contrastive action alignment").
    """
    best = chance.argmax(axis=1)
    ordered = np.sort(np.exp(chance), axis=1)
    nearest = np.square(done[:, None] - actions).sum(axis=-1).argmin(axis=1)
    rows = np.arange(len(done))
    others = chance.copy()
    others[rows, nearest] = -np.inf
    return Answer(actions[best], ordered[:, -1] - ordered[:, -2], chance[rows, nearest] - others.max(axis=1))
