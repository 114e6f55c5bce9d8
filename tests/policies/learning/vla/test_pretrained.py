"""Models out of folders, as policies that speak: tiny ones with weights that are drawn, of the two classes.

That one which was trained elsewhere acts well is not shown.
"""

import copy
import json
import shutil

import numpy as np
import pytest
import torch

from policies.learning.vla.in_torch import TorchSpokenPolicy
from policies.learning.vla.pretrained import PretrainedConfig, opened
from policies.models.export import export
from policies.models.tokens import BinTokens, FastTokens
from tests.policies.learning.vla.tiny_checkpoints import KINDS, saved
from tests.policies.toy_words import PIXELS, ToyWords

pytest.importorskip("transformers", reason="without sim2metal[vla]")

BINS = BinTokens(2, 2, 16)
FAST = FastTokens.fit(np.random.default_rng(0).uniform(-0.5, 0.5, (80, 4)), 2, vocabulary=40)
SAID = ["open the drawer", "please close the drawer", "open the window"]
ROWS = len(SAID)


class TwoCameras(ToyWords):
    """The toy, seen from two places."""

    def __init__(self):
        super().__init__()
        position, camera, told = self.policy
        self.policy = (position, camera, type(camera)(**{**vars(camera), "name": "wrist"}), told)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {kind: saved(tmp_path_factory.mktemp(kind), kind) for kind in KINDS}


@pytest.fixture(scope="module", params=KINDS)
def folder(request, folders):
    return folders[request.param]


def made(folder, tokens=BINS, task=None, **settings):
    task = task or ToyWords()
    return opened(task, tokens, task.words, PretrainedConfig(str(folder), **settings), 0, "cpu")


def shown(names=("camera",), seed=0):
    rng = np.random.default_rng(seed)
    pictures = {n: torch.from_numpy(rng.integers(0, 256, (ROWS, PIXELS, PIXELS, 3), dtype=np.uint8)) for n in names}
    return torch.from_numpy(rng.normal(size=(ROWS, 2)).astype(np.float32)), pictures


def prefix_of(hearing, policy, said=SAID, names=("camera",), seed=0):
    return policy.encode(policy.tell(*hearing.states(said, 24)), *shown(names, seed))


@pytest.mark.parametrize("tokens", [BINS, FAST], ids=["bins", "fast"])
def test_what_was_said_is_judged_as_it_was_drawn(folder, tokens):
    hearing, policy = made(folder, tokens)
    torch.nn.init.normal_(policy.worth.weight, generator=torch.Generator().manual_seed(1))
    prefix = prefix_of(hearing, policy)
    spread = torch.rand(tokens.length, tokens.vocabulary, tokens.vocabulary, generator=torch.Generator().manual_seed(3))
    for temperature, blur in ((0.5, None), (1.6, spread / spread.sum(2, keepdim=True))):
        said = policy.generate(prefix, temperature, torch.Generator().manual_seed(2), blur)
        judged = policy.evaluate(prefix, said.tokens, temperature, blur)
        assert said.tokens.shape == (ROWS, tokens.length) and judged.value.shape == (ROWS,)
        assert torch.allclose(said.log_probability, judged.log_probability, atol=1e-5)
        assert torch.allclose(policy.value(prefix), judged.value, atol=1e-5) and judged.value.std() > 0.01
        assert torch.allclose(said.entropy, judged.entropy, atol=1e-5) and said.entropy.max() > 0.1
    greedy = policy.generate(prefix, 0.0).tokens
    assert torch.equal(greedy, policy.generate(prefix, 1e-4, torch.Generator().manual_seed(0)).tokens)


def test_what_is_computed_is_what_the_class_computes(folder):
    hearing, policy = made(folder, task=TwoCameras(), cameras=["wrist", "camera"], measured=False)
    names = ["wrist", "camera"]
    _, pictures = shown(names)
    ours = policy.likely(prefix_of(hearing, policy, names=names), torch.zeros(ROWS, 4, dtype=torch.long))[:, 0]
    mark = policy.processor.image_token
    for row, sentence in enumerate(SAID):
        asked = f"{mark}{mark}In: What action should the robot take to {sentence}?\nOut:"
        seen = [[pictures[name][row].numpy() for name in names]]
        told = policy.processor(images=seen, text=[asked])
        names_of = [name for name in ("input_ids", "pixel_values", "token_type_ids") if name in told]
        given = {name: torch.from_numpy(np.array(told[name])) for name in names_of}
        logits = policy.model(**given).logits[0, -1]
        size = policy.processor.tokenizer.vocab_size
        theirs = torch.stack([logits[size - 1 - token] for token in range(16)]).log_softmax(0)
        assert torch.allclose(ours[row], theirs, atol=1e-5)


def test_it_looks_listens_and_feels_and_no_row_knows_another(folder):
    hearing, policy = made(folder)
    policy.normalise(torch.randn(50, 2, generator=torch.Generator().manual_seed(0)))
    tokens = torch.ones(ROWS, 4, dtype=torch.long)
    before = prefix_of(hearing, policy)
    likely = policy.likely(before, tokens)
    numbers, pictures = shown()
    told = policy.tell(*hearing.states(SAID, 24))
    others = (
        prefix_of(hearing, policy, [*SAID[:2], "close the window"]),
        policy.encode(told, numbers + torch.tensor([0.0, 1.0]), pictures),
        policy.encode(told, numbers, shown(seed=1)[1]),
    )
    for other in others:
        assert (policy.likely(other, tokens) - likely)[2].abs().max() > 1e-2
    assert torch.allclose(policy.likely(others[0], tokens)[:2], likely[:2], atol=1e-5)
    alone = policy.encode(policy.tell(*hearing.states(SAID[:1], 24)), numbers[:1], {"camera": pictures["camera"][:1]})
    assert torch.allclose(policy.likely(alone, tokens[:1]), likely[:1], atol=1e-5)  # it is the shortest sentence
    later = tokens.clone()
    later[:, 2] = 3
    assert torch.allclose(policy.likely(before, later)[:, :3], likely[:, :3], atol=1e-5)
    assert (policy.likely(before, later)[:, 3] - likely[:, 3]).abs().max() > 1e-2


def test_pictures_stay_when_words_are_left_out(folder):
    hearing, policy = made(folder)
    words, there = hearing.states(SAID, 24)
    told = policy.tell(words, torch.zeros_like(there))
    assert torch.equal(told.there, told.numbers == policy.picture) and told.there.any(1).all()


def test_lora_learns_alone_and_copies_share_the_rest(folder):
    pytest.importorskip("peft")
    hearing, policy = made(folder, lora_rank=2)
    plain = made(folder)[1]
    tokens = torch.ones(ROWS, 4, dtype=torch.long)
    prefix = prefix_of(hearing, policy)
    assert torch.equal(policy.likely(prefix, tokens), plain.likely(prefix, tokens))  # at first it adds nothing
    other = copy.deepcopy(policy)
    learns = [name for name, parameter in policy.named_parameters() if parameter.requires_grad]
    assert learns and all("lora_" in name or name.startswith("worth") for name in learns)
    (-policy.evaluate(prefix, tokens).log_probability.sum()).backward()
    for parameter in policy.parameters():
        if parameter.grad is not None:
            parameter.data -= 0.1 * parameter.grad
    assert (policy.likely(prefix, tokens) - other.likely(prefix, tokens)).abs().max() > 1e-3
    assert torch.equal(other.likely(prefix, tokens), plain.likely(prefix, tokens))
    for (name, one), (_, two) in zip(policy.named_parameters(), other.named_parameters(), strict=True):
        assert (one is two) == (name not in learns)
    state = policy.state_dict()
    assert {*state} == {*learns, "mean", "deviation", "begun"}
    other.load_state_dict(state)
    assert torch.equal(other.likely(prefix, tokens), policy.likely(prefix, tokens))
    with pytest.raises(ValueError, match="another model, or another lora_rank"):
        plain.load_state_dict(state)
    with pytest.raises(ValueError, match="belongs to another model than that of"):
        other.load_state_dict({**state, "begun": state["begun"] + 1.0})


@pytest.mark.parametrize("rank", [0, 2])
def test_half_precision_is_near(folder, rank):
    if rank:
        pytest.importorskip("peft")
    hearing, policy = made(folder, precision="bfloat16", lora_rank=rank)
    prefix = prefix_of(hearing, policy)
    said = policy.generate(prefix, 1.0, torch.Generator().manual_seed(0))
    with torch.no_grad():
        judged, whole = (some.evaluate(prefix, said.tokens) for some in (policy, made(folder)[1]))
    assert float((said.log_probability - judged.log_probability).sum(1).abs().max()) < policy.agreement
    assert 0.0 < float((judged.log_probability - whole.log_probability).abs().max()) < 0.3
    learns = {parameter.dtype for parameter in policy.parameters() if parameter.requires_grad}
    kept = {parameter.dtype for parameter in policy.parameters() if not parameter.requires_grad}
    assert learns == {torch.float32} and kept == ({torch.bfloat16} if rank else set())


def test_a_controller_carries_out_what_is_said_and_says_why_it_stays_here(folder, tmp_path):
    hearing, policy = made(folder)
    task = ToyWords()
    told = TorchSpokenPolicy.from_task(task, hearing, policy, 4)
    numbers, pictures = shown()
    signals = {"position": numbers.numpy(), "camera": pictures["camera"].numpy()}
    signals["instruction"] = task.words.encode(SAID)[0]
    state, done = told.initial_state(ROWS), []
    assert [(s.name, s.shape) for s in told.state()] == [(name, value.shape[1:]) for name, value in state.items()]
    said, _ = policy.detokenise(policy.generate(prefix_of(hearing, policy), 0.0).tokens)
    for step in range(4):
        if step == 2:  # the last is told something else
            signals["instruction"] = task.words.encode([*SAID[:2], SAID[0]])[0]
        command, state = told.act(signals, state)
        done.append(command["velocity"])
    assert np.allclose(done[0], 2.0 * said[:, :2]) and np.array_equal(done[0], done[1])
    assert np.allclose(done[3][:2], 2.0 * said[:2, 2:])
    assert state["left"][:, 0].tolist() == [0.0, 0.0, 2.0]
    with pytest.raises(ValueError, match=r"million parameters\) is not written to a policy file"):
        export(told, tmp_path / "policy.onnx")
    assert not (tmp_path / "policy.onnx").exists()


def other_class(folder):
    told = json.loads((folder / "config.json").read_text())
    more = {"model_type": "openvla", "auto_map": {"AutoModelForVision2Seq": "modeling_prismatic.OpenVLA"}}
    (folder / "config.json").write_text(json.dumps(told | more))


def no_words(folder):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()


def no_pictures(folder):
    for path in folder.glob("*processor_config.json"):
        path.unlink()


def pickled(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def damaged(folder):
    (folder / "model.safetensors").write_bytes(b"no weights at all")


def half(folder):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    save_file(
        {n: v for n, v in weights.items() if "layers.1." not in n}, folder / "model.safetensors", {"format": "pt"}
    )


@pytest.mark.parametrize(
    ("spoil", "settings", "message"),
    [
        (
            other_class,
            {},
            "a model of type 'openvla', not one of llava, paligemma; what it is, code in the folder says",
        ),
        (no_words, {}, r"has no processor that can be read, of words \(tokenizer.json\) and pictures"),
        (no_pictures, {}, r"has no processor that can be read, of words \(tokenizer.json\) and pictures"),
        (pickled, {}, "is no folder with config.json and .*; pytorch_model.bin is a pickle, which could run anything"),
        (damaged, {}, "holds no weights of LlavaForConditionalGeneration that can be read"),
        (half, {}, r"lack \d+ of LlavaForConditionalGeneration's"),
        (None, {"spared": 80}, "the vocabulary has .*: too few for 16 action tokens; lower algorithm.bins"),
        (None, {"cameras": ["camera", "wrist"]}, "toy_words shows its policy no picture 'wrist', only camera"),
    ],
)
def test_a_folder_that_does_not_fit_is_named(folders, tmp_path, spoil, settings, message):
    copied = shutil.copytree(folders["llava"], tmp_path / "model")
    if spoil:
        spoil(copied)
    with pytest.raises(ValueError, match=message):
        made(copied, **settings)


def test_a_task_without_pictures_is_named(folders):
    task = ToyWords()
    task.policy = tuple(s for s in task.policy if not s.is_picture)
    with pytest.raises(ValueError, match="toy_words shows its policy no pictures"):
        made(folders["llava"], task=task)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"folder": "x", "prompt": "do it"}, "prompt has no {instruction}"),
        ({"folder": "x", "lora_rank": -1}, "lora_rank must not be negative"),
        ({"folder": "x", "precision": "int4"}, "'int4' is not one of float32, bfloat16"),
        ({"lora_rank": 4}, "name its folder in pretrained.folder"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        PretrainedConfig(**settings)
