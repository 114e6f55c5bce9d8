"""A vision-language-action model out of a local folder: large, and trained elsewhere, or begun here.

The folder is one of Hugging Face's `transformers` (`policies.language.checkpoints`): a causal language model with
pictures before its words, as OpenVLA (LLaVA's class), or one that attends both ways before it speaks, as PI0-FAST
(PaliGemma's). Action tokens are the last of its vocabulary, counted from the end as both count them; no other token is
ever computed. What is measured is told as such tokens, too, after the words (PI0-FAST tells it in digits).

The model is where `device` says; what goes in and comes out is the CPU's, so that a learner need not know.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from policies.language.checkpoints import folder_of, written
from policies.learning.vla import Judged, Spoken, saying
from policies.models.tokens import ActionTokens
from sim import spec
from sim.language.wordpiece import WordPiece
from sim.spec import Group
from sim.tasks.abilities import HasWords

PROMPT = "In: What action should the robot take to {instruction}?\nOut:"  # OpenVLA's (arXiv 2406.09246)
SLOT = "{instruction}"
PRECISIONS = ("float32", "bfloat16")
AGREEMENT = {"float32": 1e-3, "bfloat16": 1.0}  # nats per chunk: a cache adds up in another order
FARTHEST = 3.0  # deviations from the mean that are told apart
SMALLEST = 1e-3  # deviation of what is measured
MOST_ALPHA = 16  # OpenVLA's: lora_alpha is the rank, or this


@dataclass
class PretrainedConfig:
    """A model out of a folder, and what of it learns."""

    folder: str = ""  # as `transformers` writes one, llava or paligemma, with safetensors; none: tiny_vla is made
    prompt: str = PROMPT  # after the pictures; the instruction stands in the place of {instruction}
    cameras: list[str] = field(default_factory=list)  # that it is shown, in that order; none: all of the task's
    measured: bool = True  # it is told what is measured, too, a token per number
    spared: int = 0  # of the vocabulary's last tokens, which are none of actions: 128 of PI0-FAST, 0 of OpenVLA
    lora_rank: int = 0  # of what is added to each layer, and learns alone (LoRA); 0: all weights learn
    precision: str = "float32"  # or "bfloat16", in which what does not learn is kept, too
    graded: int = 50  # episodes at the end, at temperature 0: there is no policy file that could be graded

    def __post_init__(self) -> None:
        if SLOT not in self.prompt:
            raise ValueError(f"pretrained.prompt has no {SLOT}, got {self.prompt!r}")
        for name in ("spared", "lora_rank", "graded"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision {self.precision!r} is not one of {', '.join(PRECISIONS)}")
        if not self.folder and (self.cameras or self.spared or self.lora_rank or self.precision != PRECISIONS[0]):
            raise ValueError("settings of pretrained are those of a model: name its folder in pretrained.folder")


@dataclass
class Told:
    """Prompts."""

    numbers: Tensor  # (n, k) of the model's vocabulary
    there: Tensor  # (n, k)

    def at(self, rows: NDArray[np.int64]) -> Told:
        """Of these rows."""
        return Told(self.numbers[rows], self.there[rows])


@dataclass
class Prefix:
    """All that is before the action tokens."""

    numbers: Tensor  # (n, k) of the model's vocabulary
    there: Tensor  # (n, k)
    pixels: Tensor  # (n * cameras, 3, height, width)


class Prompts:
    """Words of a model out of a folder: prompts as numbers of its vocabulary (n, k, 1), their ends below each other."""

    def __init__(self, processor: Any, prompt: str, pictures: Group, words: WordPiece) -> None:
        """For these pictures, which stand before the prompt."""
        self.processor, self.words = processor, words
        self.prompt = processor.image_token * len(pictures) + prompt
        self.blank = [np.zeros(s.shape, np.uint8) for s in pictures]
        self._told: dict[str, Tensor] = {}

    def states(self, sentences: list[str], most: int) -> tuple[Tensor, Tensor]:
        """A sentence is told as the task's pieces say it: so it is the same here and where it is acted upon."""
        told = [self._numbers(self.words.decode(row)) for row in self.words.encode(sentences, most)[0]]
        longest = max(map(len, told))
        there = torch.stack([torch.arange(longest) >= longest - len(one) for one in told])
        numbers = torch.stack([F.pad(one, (longest - len(one), 0)) for one in told])
        return numbers[..., None], there

    def _numbers(self, sentence: str) -> Tensor:
        if sentence not in self._told:
            text = self.prompt.replace(SLOT, sentence)
            self._told[sentence] = torch.tensor(self.processor(images=[self.blank], text=[text])["input_ids"][0])
        return self._told[sentence]


class PretrainedVla(nn.Module):
    """The policy: a `TokenPolicy`. Its copies share what does not learn, and its `state_dict` leaves that out."""

    mean: Tensor
    deviation: Tensor
    begun: Tensor

    def __init__(
        self, tokens: ActionTokens, numbers: int, pictures: Group, model: Any, processor: Any, config: PretrainedConfig
    ) -> None:
        """For `numbers` measured numbers and these pictures. ValueError where the vocabulary is too small."""
        super().__init__()
        self.tokens, self.pictures, self.processor, self.config = tokens, pictures, processor, config
        self.agreement = AGREEMENT[config.precision]
        self.picture = int(model.config.image_token_id)
        self.both_ways = model.config.model_type == "paligemma"  # before it speaks
        self.places = places(processor.tokenizer, tokens.vocabulary, config.spared, self.picture)
        if (rows := model.get_output_embeddings().weight.shape[0]) <= int(self.places.max()):
            raise ValueError(f"the model says {rows} tokens, and its tokenizer has more, {int(self.places.max())} too")
        self.model = model.eval()
        self.worth = nn.Linear(model.config.get_text_config().hidden_size, 1)
        nn.init.zeros_(self.worth.weight)
        nn.init.zeros_(self.worth.bias)
        self.register_buffer("mean", torch.zeros(numbers))
        self.register_buffer("deviation", torch.ones(numbers))
        head = model.get_output_embeddings().weight.detach()[self.places]
        self.register_buffer("begun", head.double().abs().sum())  # by which a folder is known again

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return cast(torch.device, self.model.device)

    def normalise(self, numbers: Tensor) -> None:
        self.mean.copy_(numbers.mean(0))
        self.deviation.copy_(numbers.std(0, unbiased=False).clamp_min(SMALLEST))

    def tell(self, words: Tensor, there: Tensor) -> Told:
        numbers = words[..., 0]
        return Told(numbers, there | (numbers == self.picture))  # pictures have their place, whatever was heard

    def encode(self, told: Told, numbers: Tensor, pictures: Mapping[str, Tensor]) -> Prefix:
        shown = torch.stack([pictures[s.name] for s in self.pictures], 1).flatten(0, 1)
        pixels = self.processor.image_processor(images=[*shown.numpy()], return_tensors="pt")["pixel_values"]
        whole, there = told.numbers, told.there
        if self.config.measured:
            measured = self._measured(numbers)
            whole = torch.cat([whole, measured], 1)
            there = torch.cat([there, torch.ones_like(measured, dtype=torch.bool)], 1)
        return Prefix(whole, there, pixels)

    def _measured(self, numbers: Tensor) -> Tensor:
        """A token for each number (n, k), of the action vocabulary."""
        usual = ((numbers - self.mean) / self.deviation / FARTHEST).clamp(-1.0, 1.0)
        last = len(self.places) - 1
        return self.places[((usual + 1.0) * (0.5 * last)).round().long()]

    def generate(
        self, prefix: Prefix, temperature: float, generator: torch.Generator | None = None, blur: Tensor | None = None
    ) -> Spoken:
        if temperature < 0.0:
            raise ValueError(f"temperature is zero or positive, got {temperature}")
        said: list[Tensor] = []
        likely: list[Tensor] = []
        with torch.no_grad():
            there = prefix.there
            held, cache = self._read(prefix.numbers, there, prefix.pixels, caches=True)
            for k in range(self.tokens.length):
                turn = None if blur is None else blur[k : k + 1]
                likely.append(saying.likely(self._logits(held[:, -1:]), temperature or 1.0, turn)[:, 0])
                said.append(saying.drawn(likely[-1], temperature, generator))
                if k + 1 < self.tokens.length:
                    there = F.pad(there, (0, 1), value=True)
                    held, cache = self._read(self.places[said[-1]][:, None], there, cache=cache, caches=True)
        return saying.ended(torch.stack(said, 1), torch.stack(likely, 1), self.tokens)

    def evaluate(self, prefix: Prefix, tokens: Tensor, temperature: float = 1.0, blur: Tensor | None = None) -> Judged:
        if temperature <= 0.0:
            raise ValueError(f"temperature is positive, got {temperature}")
        held = self._held(prefix, tokens)
        likely = saying.likely(self._logits(held), temperature, blur)
        return Judged(*saying.judged(tokens, likely, self.tokens), self._worth(held[:, 0]))

    def likely(self, prefix: Prefix, tokens: Tensor, temperature: float = 1.0, blur: Tensor | None = None) -> Tensor:
        """Log-probabilities of every token (n, length, vocabulary), given those before it."""
        return saying.likely(self._logits(self._held(prefix, tokens)), temperature, blur)

    def value(self, prefix: Prefix) -> Tensor:
        """(n,) of what is seen."""
        return self._worth(self._read(prefix.numbers, prefix.there, prefix.pixels)[0][:, -1])

    def detokenise(self, tokens: Tensor) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        return self.tokens.decode(tokens.cpu().numpy())

    def _held(self, prefix: Prefix, tokens: Tensor) -> Tensor:
        """What is known before each of tokens (n, length, width): all of them are read at once."""
        before = self.places[tokens[:, :-1]]
        whole = torch.cat([prefix.numbers, before], 1)
        there = F.pad(prefix.there, (0, before.shape[1]), value=True)
        held, _ = self._read(whole, there, prefix.pixels, said=before.shape[1])
        return held[:, -tokens.shape[1] :]

    def _read(
        self,
        numbers: Tensor,
        there: Tensor,
        pixels: Tensor | None = None,
        said: int = 0,
        cache: Any = None,
        caches: bool = False,
    ) -> tuple[Tensor, Any]:
        """What is held of numbers (n, k) of the vocabulary (n, k, width), on the model's device; and its cache.

        `there` (n, .., k) is that of what the cache holds, too. The last `said` of the numbers were said already.
        """
        device, count = self.device, numbers.shape[1]
        given: dict[str, Any] = {"input_ids": numbers.to(device), "cache": cache, "use_cache": caches}
        given["attention_mask"] = there.to(device).long()
        given["position_ids"] = (given["attention_mask"].cumsum(1) - 1).clamp_min(0)[:, -count:]
        if pixels is not None:
            given["pixel_values"] = pixels.to(device)
        if self.both_ways and cache is None:
            given["token_type_ids"] = (torch.arange(count, device=device) >= count - said).long().expand(numbers.shape)
        with self._mixed(device):
            out = self.model.model(**given)
        return out.last_hidden_state, out.cache

    def _mixed(self, device: torch.device) -> AbstractContextManager[Any]:
        return torch.autocast(device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16")

    def _logits(self, held: Tensor) -> Tensor:
        """Of the action tokens alone (n, k, vocabulary), from what is held (n, k, width)."""
        weight = self.model.get_output_embeddings().weight[self.places.to(held.device)]
        logits = F.linear(held.float(), weight.float()).cpu()
        most = getattr(self.model.config.get_text_config(), "final_logit_softcapping", None)
        return logits if most is None else most * torch.tanh(logits / most)

    def _worth(self, held: Tensor) -> Tensor:
        """(n,) of what is held before the first token (n, width); the layer is the CPU's."""
        worth: Tensor = self.worth(held.float().cpu())
        return worth.squeeze(-1)

    def __deepcopy__(self, memo: dict[int, Any]) -> PretrainedVla:
        """One that learns by itself. What does not learn is the same in both."""
        for same in (self.processor, self.places, *(p for p in self.parameters() if not p.requires_grad)):
            memo[id(same)] = same
        made = object.__new__(PretrainedVla)
        memo[id(self)] = made
        made.__dict__.update({name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()})
        return made

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Of what learns."""
        still = {n for n, p in self.named_parameters(remove_duplicate=False) if not p.requires_grad}
        return {name: value for name, value in super().state_dict(*args, **kwargs).items() if name not in still}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Of what learns; ValueError unless that is all of it, and belongs to the model out of the same folder."""
        if strict and (apart := self.state_dict().keys() ^ state.keys()):
            raise ValueError(f"{sorted(apart)[0]} is not in both: another model, or another lora_rank")
        if not torch.equal(state["begun"].cpu(), self.begun.cpu()):
            raise ValueError(f"what was learned belongs to another model than that of {self.config.folder}")
        return super().load_state_dict(state, strict=False, assign=assign)


def places(tokenizer: Any, count: int, spared: int, picture: int) -> Tensor:
    """The numbers of `count` action tokens in a tokenizer's vocabulary, from its end; ValueError where it is too small.

    Token 0 is the last but `spared`, as in OpenVLA and PI0-FAST; tokens that were added to a vocabulary follow its end.
    """
    size = int(tokenizer.vocab_size)
    found = size - 1 - spared - torch.arange(count)
    others = {int(number) for number in tokenizer.all_special_ids} | {picture}
    if int(found.min()) < 0 or others & {*found.tolist()}:
        raise ValueError(
            f"the vocabulary has {size} tokens, marks of its own among the last {spared + count}: too few for {count} "
            "action tokens; lower algorithm.bins, or algorithm.vocabulary of tokens=fast"
        )
    return found


def opened(
    task: HasWords, tokens: ActionTokens, words: WordPiece, config: PretrainedConfig, seed: int, device: str
) -> tuple[Prompts, PretrainedVla]:
    """What hears and what speaks, for a task. ValueError, one sentence, where the folder or the task does not fit."""
    shown = spec.pictures(task.policy)
    known = {s.name: s for s in shown}
    if missing := [name for name in config.cameras if name not in known]:
        raise ValueError(
            f"pretrained.cameras: {task.name} shows its policy no picture {missing[0]!r}, "
            f"only {', '.join(known) or 'none at all'}"
        )
    if not shown:
        raise ValueError(f"{task.name} shows its policy no pictures that a pretrained model could look at")
    pictures = tuple(known[name] for name in config.cameras) or shown
    if device != "cpu" and not torch.cuda.is_available():
        raise ValueError(f"device={device}: torch finds no such device; leave it out, and the CPU learns")
    folder = folder_of("pretrained.folder", config.folder)
    whole = config.precision == "float32" or not config.lora_rank  # what learns is kept in full
    model, processor = written(folder, torch.float32 if whole else torch.bfloat16)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if config.lora_rank:
            model = adapted(model, config.lora_rank)
        policy = PretrainedVla(tokens, spec.size(spec.numbers(task.policy)), pictures, model, processor, config)
    policy.model.to(device)
    return Prompts(processor, config.prompt, pictures, words), policy


def adapted(model: Any, rank: int) -> Any:
    """The model with low-rank additions to all its linear layers but the last (LoRA), which alone learn."""
    from peft import LoraConfig, inject_adapter_in_model

    model.requires_grad_(False)
    lora = LoraConfig(r=rank, lora_alpha=min(rank, MOST_ALPHA), target_modules="all-linear", lora_dropout=0.0)
    made = inject_adapter_in_model(lora, model)
    for name, parameter in made.named_parameters():
        parameter.requires_grad_("lora_" in name)
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return made
