"""Vision-language models as advisers: tiny ones with random weights, made here, of two supported classes.

They run; that a large one gives good advice is not shown.
"""

import importlib.util
import string
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.advisers import AdviserConfig, make
from policies.advisers.process import AdviserProcess
from policies.advisers.vision_language import choices, decided
from policies.advisers.worker import Question
from tests.policies.advisers.test_process import hear, nothing_waits
from tests.policies.toy_reach import ToyReach
from tests.policies.toy_sight import PIXELS, ToySight, drawn

installed = pytest.mark.skipif(not importlib.util.find_spec("transformers"), reason="without sim2metal[vlm]")
KINDS = ("clip", "llava")


def tokenizer(ends):
    """Of letters and the words of the options; a text may end with a token of its own, by which CLIP knows it."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<unk>", "<image>", *["velocity", "1", "2", "lowest", "middle", "highest", ",", ":"]]
    words += [*string.ascii_uppercase, "</s>"]
    made = Tokenizer(WordLevel({word: k for k, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = Whitespace()
    if ends:
        made.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", len(words) - 1)])
    special = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "</s>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=made, **special, extra_special_tokens={"image_token": "<image>"})
    return fast, len(words)


def save(folder, kind):
    """A model with random weights, and its processor."""
    import torch
    from transformers import (
        CLIPConfig,
        CLIPImageProcessor,
        CLIPModel,
        CLIPProcessor,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
    )

    words, count = tokenizer(ends=kind == "clip")
    ends = {"eos_token_id": count - 1, "bos_token_id": count - 1, "pad_token_id": 0}
    square = {"height": PIXELS, "width": PIXELS}
    looks = CLIPImageProcessor(size={"shortest_edge": PIXELS}, crop_size=square)
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sight = {**small, "image_size": PIXELS, "patch_size": 8}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "clip":
            text = {
                **small,
                "vocab_size": count,
                "eos_token_id": 2,
                "bos_token_id": 2,
                "pad_token_id": 0,
                "max_position_embeddings": 32,
            }
            model = CLIPModel(CLIPConfig(text_config=text, vision_config=sight, projection_dim=8))
            processor = CLIPProcessor(looks, words)
        else:
            text = LlamaConfig(**small, vocab_size=count, **ends)
            parts = {"vision_config": CLIPVisionConfig(**sight), "text_config": text}
            config = LlavaConfig(**parts, image_token_index=2, vision_feature_layer=-1)
            model = LlavaForConditionalGeneration(config)
            processor = LlavaProcessor(
                looks, words, patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1
            )
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


def seen(count):
    rng = np.random.default_rng(0)
    goal, position = rng.uniform(-1.0, 1.0, (2, count, 2)).astype(np.float32)
    return {"position": position, "goal": goal, "camera": drawn(goal, position)}, np.tanh(position)


@installed
@pytest.mark.parametrize("kind", KINDS)
def test_a_tiny_model_of_a_supported_class_advises_in_its_process(kind, tmp_path):
    save(tmp_path, kind)
    config = AdviserConfig(adviser="vlm", model=str(tmp_path))
    signals, done = seen(3)
    adviser = make(ToySight(), config)
    adviser.open()
    action, weight, score = adviser.advise(signals, done)
    assert {*action.ravel()} <= {-1.0, 0.0, 1.0} and ((weight >= 0.0) & (weight <= 1.0)).all()
    assert np.isfinite(score).all() and len({*score}) == 3  # it looks at the picture
    alone = adviser.advise({name: value[1:2] for name, value in signals.items()}, done[1:2])
    np.testing.assert_allclose(alone.score, score[1:2], atol=1e-4)

    asked = AdviserProcess(ToySight(), config)
    asked.submit(Question(np.arange(3), signals, done))
    (heard,) = hear(asked, nothing_waits)
    asked.close()
    np.testing.assert_allclose(heard.action, action, atol=1e-6)
    np.testing.assert_allclose(heard.score, score, rtol=1e-3, atol=1e-4)
    assert asked.restarts == 0 and asked.counts["refused"] == 0


@installed
def test_code_and_pickles_of_a_folder_are_left_alone(tmp_path):
    save(tmp_path, "clip")
    weights = tmp_path / "model.safetensors"
    (tmp_path / "pytorch_model.bin").write_bytes(weights.read_bytes())
    weights.unlink()
    config = AdviserConfig(adviser="vlm", model=str(tmp_path))
    with pytest.raises(ValueError, match=r"no folder with config.json and \*.safetensors"):
        make(ToySight(), config)
    weights.write_bytes(b"no weights at all")
    adviser = make(ToySight(), config)
    with pytest.raises(Exception, match="(?i)safetensor|header"):
        adviser.open()


def test_where_a_model_cannot_advise_one_sentence_says_so(tmp_path):
    config = AdviserConfig(adviser="vlm", model=str(tmp_path))
    with pytest.raises(ValueError, match="toy_reach shows its policy no pictures"):
        make(ToyReach(), config)
    with pytest.raises(ValueError, match="is no folder with config.json"):
        make(ToySight(), config)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    many = ToySight()
    many.commands = tuple(replace(many.commands[0], name=f"wheel_{k}") for k in range(2))
    with pytest.raises(ValueError, match="26 options at most; 3 levels of each command of toy_sight are 81"):
        make(many, config)
    assert make(ToySight(), config).options[0] == "velocity 1 lowest, velocity 2 lowest"


def test_options_are_the_corners_and_what_lies_between():
    words, actions = choices(ToySight(), 3)
    assert len(words) == 9 and words[5] == "velocity 1 middle, velocity 2 highest"
    np.testing.assert_allclose(actions[5], [0.0, 1.0])


@given(st.integers(0, 99))
def test_the_likeliest_option_counts_by_its_margin(seed):
    rng = np.random.default_rng(seed)
    actions = choices(ToySight(), 3)[1]
    chance = np.log(rng.dirichlet(np.ones(9), 4))
    picked = rng.integers(0, 9, 4)
    answer = decided(chance, actions, actions[picked] * 0.9)
    for row in range(4):
        sure = np.sort(np.exp(chance[row]))
        np.testing.assert_allclose(answer.action[row], actions[chance[row].argmax()])
        assert answer.weight[row] == pytest.approx(sure[-1] - sure[-2])
        others = np.delete(chance[row], picked[row])
        assert answer.score[row] == pytest.approx(chance[row, picked[row]] - others.max())
