import json

import numpy as np
import pytest
import torch

from policies.language.minilm import SentenceEncoder
from sim.language import spoken
from sim.language.folder import installed
from sim.language.wordpiece import InstructionError, WordPiece, split
from tests.policies.language.tiny_bert import SIZE, written

SENTENCES = ["open the drawer", "please close the drawer", "go ahead and push the red ball"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return written(tmp_path_factory.mktemp("tiny_bert"))


def test_a_sentence_is_cut_into_its_longest_pieces(folder):
    words = SentenceEncoder(folder).words
    numbers, there = words.encode(["Open, the  DRÁWER", "pushing"], most=8)
    named = [[words.vocabulary[k] for k in row[seen]] for row, seen in zip(numbers, there, strict=True)]
    assert named == [["[CLS]", "open", ",", "the", "drawer", "[SEP]"], ["[CLS]", "push", "##ing", "[SEP]"]]
    assert (numbers[~there] == 0).all()
    said = [words.decode(row) for row in numbers]
    assert said == ["open , the drawer", "pushing"] and np.array_equal(words.encode(said, most=8)[0], numbers)


@pytest.mark.parametrize(
    ("sentence", "message"),
    [
        ("", "has no words"),
        (" \n", "has no words"),
        ("open the 抽屉", "unknown word: '抽屉'"),
        ("open " * 30, "takes 32 tokens, and 24 are the most"),
        ("a" * 200, "unknown word"),
    ],
)
def test_a_sentence_that_cannot_be_told_is_named(folder, sentence, message):
    with pytest.raises(InstructionError, match=message):
        SentenceEncoder(folder).states([sentence])


def test_states_do_not_depend_on_padding_or_neighbours(folder):
    encoder = SentenceEncoder(folder)
    together, there = encoder.states(SENTENCES)
    assert together.shape == (3, 24, SIZE) and there.sum(1).tolist() == [5, 6, 9]
    alone, _ = SentenceEncoder(folder).states(SENTENCES[1:2], most=6)
    assert torch.allclose(together[1, :6], alone[0], atol=1e-5) and not together[~there].any()


def test_many_sentences_are_encoded_together_each_as_if_alone(folder):
    many = [" ".join(["open", "the", "drawer", "please"][: 1 + k % 4] + ["push"] * (k // 4)) for k in range(72)]
    encoder, calls = SentenceEncoder(folder), []
    encoder.register_forward_hook(lambda _, given, made: calls.append(len(made)))
    together, there = encoder.states([*many, *many])  # each of them twice
    assert sum(calls) == len({*many}) and max(calls) <= 32 and len(calls) < len(many) // 2
    for k in (0, 5, 40, 71):
        alone, seen = SentenceEncoder(folder).states([many[k]])
        assert torch.allclose(together[k], alone[0], atol=1e-5) and torch.equal(there[k], seen[0])
        assert torch.equal(together[k], together[k + 72])


def test_word_order_and_words_count(folder):
    encoder = SentenceEncoder(folder)
    one, other = encoder.states(["open the drawer", "drawer the open"])[0]
    assert (one[1:4] - other[1:4].flip(0)).abs().max() > 1e-3


def test_the_states_after_some_of_the_layers(folder):
    whole, first = SentenceEncoder(folder), SentenceEncoder(folder, layers=1)
    assert len([*first.buffers()]) < len([*whole.buffers()]) and SentenceEncoder(folder, layers=2).layers == 2
    after = []
    norm = whole._norm
    whole._norm = lambda x, name: after.append((name, norm(x, name))) or after[-1][1]
    whole.states(SENTENCES[:1])
    (expected,) = (made for name, made in after if name == "encoder.layer.0.output.LayerNorm")
    states, there = first.states(SENTENCES[:1])
    assert torch.equal(states[there], expected[0])
    with pytest.raises(ValueError, match="a model of 2 layers: encoder_layers is at most that, got 4"):
        SentenceEncoder(folder, layers=4)


def test_states_are_those_of_transformers(folder):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    encoder = SentenceEncoder(folder)
    states, there = encoder.states(SENTENCES)
    numbers, seen = (torch.from_numpy(v) for v in encoder.words.encode(SENTENCES))
    with torch.no_grad():
        expected = theirs(input_ids=numbers, attention_mask=seen.long()).last_hidden_state
    assert torch.allclose(states[there], expected[there], atol=1e-5)


def test_pieces_are_those_of_tokenizers(folder):
    tokenizers = pytest.importorskip("tokenizers")
    theirs = tokenizers.BertWordPieceTokenizer(str(folder / "vocab.txt"))
    words = SentenceEncoder(folder).words
    for sentence in [told.learned[0] for told in spoken().values()] + ["Öpen, the_door", "don't"]:
        encoded = theirs.encode(sentence)
        if "[UNK]" in encoded.tokens:
            with pytest.raises(InstructionError, match="unknown word"):
                words.encode([sentence], most=64)
        else:
            numbers, there = words.encode([sentence], most=64)
            assert numbers[there].tolist() == encoded.ids, sentence


@pytest.mark.skipif(installed() is None, reason="the extra [vla] is not installed")
def test_the_real_model_tells_opposites_apart_by_its_tokens():
    encoder = SentenceEncoder()
    states, there = encoder.states(["open the drawer", "close the drawer"])
    assert states.shape[2] == 384
    pooled = [row[seen].mean(0) for row, seen in zip(states, there, strict=True)]
    assert torch.cosine_similarity(*pooled, dim=0) > 0.8
    assert torch.cosine_similarity(states[0, 1], states[1, 1], dim=0) < 0.8  # "open" and "close"
    for told in spoken().values():
        encoder.words.encode([*told.learned, *told.held_out])


def test_bad_folders_are_named(folder, tmp_path):
    with pytest.raises(ValueError, match="no folder with config.json"):
        SentenceEncoder(tmp_path)
    other = written(tmp_path / "other")
    (other / "config.json").write_text(json.dumps({"model_type": "t5"}))
    with pytest.raises(ValueError, match="of type 't5'"):
        SentenceEncoder(other)
    damaged = written(tmp_path / "damaged") / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"damaged/model.safetensors: its tensors are \d+ bytes, it holds \d+"):
        SentenceEncoder(damaged.parent)
    with pytest.raises(ValueError, match=r"without \[PAD\]"):
        WordPiece(("open",))


def test_words_are_split_at_marks():
    assert split("Don't_go, Zoë!") == ["don", "'", "t", "_", "go", ",", "zoe", "!"]
    assert np.array_equal(split(""), [])
