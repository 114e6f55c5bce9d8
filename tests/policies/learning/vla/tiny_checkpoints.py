"""Folders as `transformers` writes them, of the classes that are read: small models whose weights are drawn."""

from tests.policies.language.tiny_bert import WORDS

KINDS = ("llava", "paligemma")
PIXELS, PATCH = 16, 8  # of what the model sees
MARKS = ["<pad>", "<unk>", "<s>", "</s>"]
FILLED = 64  # tokens at the end of the vocabulary that no word is made of
SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def tokenizer(filled):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    told = ["In", ":", "What", "action", "should", "robot", "take", "?", "Out", *WORDS]
    words = [*MARKS, *dict.fromkeys(told), *(f"<fill{k}>" for k in range(filled))]
    made = Tokenizer(WordLevel({word: k for k, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = Whitespace()
    made.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 2)])
    special = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    more = {"image_token": "<image>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **special, extra_special_tokens=more), len(words)


def saved(folder, kind, filled=FILLED, seed=0):
    """The folder, with a model of that kind and its processor."""
    import torch

    words, size = tokenizer(filled)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model, processor = {"llava": llava, "paligemma": paligemma}[kind](words, size)
        for name, parameter in model.named_parameters():  # with those of `transformers` all would look alike
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.5 if "lm_head" in name or "embed" in name else 0.25)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def llava(words, size):
    from transformers import (
        CLIPImageProcessorPil,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
    )

    sight = CLIPVisionConfig(**SMALL, image_size=PIXELS, patch_size=PATCH)
    text = LlamaConfig(**SMALL, vocab_size=size + 8, pad_token_id=0, bos_token_id=2, eos_token_id=3)
    config = LlavaConfig(vision_config=sight, text_config=text, image_token_index=size, vision_feature_layer=-1)
    square = {"height": PIXELS, "width": PIXELS}
    looks = CLIPImageProcessorPil(size={"shortest_edge": PIXELS}, crop_size=square)
    processor = LlavaProcessor(
        looks, words, patch_size=PATCH, vision_feature_select_strategy="default", num_additional_image_tokens=1
    )
    return LlavaForConditionalGeneration(config), processor


def paligemma(words, size):
    from transformers import (
        GemmaConfig,
        PaliGemmaConfig,
        PaliGemmaForConditionalGeneration,
        PaliGemmaProcessor,
        SiglipImageProcessorPil,
        SiglipVisionConfig,
    )

    sight = SiglipVisionConfig(**SMALL, image_size=PIXELS, patch_size=PATCH, projection_dim=16, vision_use_head=False)
    marks = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    text = GemmaConfig(**SMALL, vocab_size=size + 8, head_dim=8, num_key_value_heads=1, **marks)
    config = PaliGemmaConfig(vision_config=sight, text_config=text, image_token_index=size, projection_dim=16)
    looks = SiglipImageProcessorPil(size={"height": PIXELS, "width": PIXELS})
    looks.image_seq_length = (PIXELS // PATCH) ** 2
    return PaliGemmaForConditionalGeneration(config), PaliGemmaProcessor(looks, words)
