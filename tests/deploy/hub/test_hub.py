"""Policy files to a model hub and back, by its own client, from a server on this machine."""

import pytest

from deploy import cli
from deploy.hub import __main__ as command
from deploy.policy_file import PolicyFile
from deploy.trust.content import content_of
from tests.deploy.hub.stand_in import Hub, hub

REPO = "somebody/quad_any"


@pytest.fixture
def served(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    with hub() as made:
        yield made


def said(capsys, served: Hub, *words: str) -> tuple[int, str]:
    status = cli.call(command.main, [f"endpoint={served.url}", f"repo={REPO}", *words])
    out = capsys.readouterr()
    return status, out.out + out.err


def test_there_and_back_is_the_same_file(capsys, served, tmp_path):
    status, text = said(capsys, served, "push=quad_any", "license=mit", "private=true")
    assert status == 0 and f"uploaded to {served.url}/{REPO}" in text
    content = content_of("quad_any")
    assert served.repos[REPO]["policy.onnx"] == content and served.private[REPO]
    assert served.tokens == {"Bearer hf_secret"} and len(served.messages) == 1
    card = served.repos[REPO]["README.md"].decode()
    assert card in served.cards and f"repo={REPO}" in card and 'license: "mit"' in card
    out = tmp_path / "pulled.onnx"
    status, text = said(capsys, served, f"pull={out}")
    assert status == 0 and "consistent, sha256 9257587a" in text
    assert out.read_bytes() == content and PolicyFile.load(out).name == "quad_any"


def test_a_card_that_somebody_wrote_is_kept_unless_it_is_to_be_replaced(capsys, served):
    served.repos[REPO] = {"README.md": b"mine"}
    status, text = said(capsys, served, "push=quad_any")
    assert status == 0 and "README.md was kept" in text and served.repos[REPO]["README.md"] == b"mine"
    assert said(capsys, served, "push=quad_any", "card=replace")[0] == 0
    assert served.repos[REPO]["README.md"].startswith(b"---\nlibrary_name: sim2metal\n")


@pytest.mark.parametrize("damage", ["cut", "another file", "changed"])
def test_what_is_no_policy_file_is_not_written(capsys, served, tmp_path, damage):
    content = bytearray(content_of("quad_any"))
    content[9000] ^= 1
    bad = {"cut": content_of("quad_any")[:-1], "another file": b"\x80\x04pickle", "changed": bytes(content)}[damage]
    served.repos[REPO] = {"policy.onnx": bad}
    out = tmp_path / "pulled.onnx"
    out.write_text("what was there")
    status, text = said(capsys, served, f"pull={out}")
    assert status == 2 and text.startswith("error: ") and out.read_text() == "what was there"


@pytest.mark.parametrize(
    ("repos", "words", "reason"),
    [
        ({}, [], "there is no such repository, or it is private"),
        ({REPO: {}}, [], "there is no policy.onnx in it"),
        ({REPO: {"policy.onnx": b"x"}}, ["revision=nowhere"], "there is no such revision"),
    ],
)
def test_what_is_not_there_is_said(capsys, served, tmp_path, repos, words, reason):
    served.repos.update(repos)
    status, text = said(capsys, served, f"pull={tmp_path / 'out.onnx'}", *words)
    assert status == 2 and f"pull of {REPO}: {reason}" in text and text.count("\n") == 1
    assert not (tmp_path / "out.onnx").exists()


def test_a_file_that_claims_to_be_huge_is_not_downloaded(capsys, served, tmp_path):
    served.repos[REPO], served.size = {"policy.onnx": b"x"}, 1 << 50
    status, text = said(capsys, served, f"pull={tmp_path / 'out.onnx'}")
    assert status == 2 and f"policy.onnx has {1 << 50} bytes, more than" in text


def test_a_hub_that_does_not_answer_is_one_sentence(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with hub() as gone:
        pass
    for words in (["push=quad_any"], [f"pull={tmp_path / 'out.onnx'}"]):
        status, text = said(capsys, gone, *words)
        assert status == 2 and f" {REPO}: " in text
        assert text.startswith("error: ") and text.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "needs push=FILE or pull=FILE"),
        (["push=a", "pull=b"], "needs push=FILE or pull=FILE"),
        (["push=a", "card=new"], "neither keep nor replace"),
        (["pull=a", "license=mit"], "go with push=FILE"),
    ],
)
def test_arguments_that_make_no_sense(capsys, words, reason):
    assert cli.call(command.main, [f"repo={REPO}", *words]) == 2
    assert reason in capsys.readouterr().err


def test_nothing_is_uploaded_that_does_not_load(capsys, served, tmp_path):
    (tmp_path / "bad.onnx").write_bytes(content_of("quad_any")[:-1])
    status, _ = said(capsys, served, f"push={tmp_path / 'bad.onnx'}")
    assert status == 2 and not served.repos


def test_a_name_that_is_none_is_refused_before_anything_is_asked(capsys, served, tmp_path):
    assert cli.call(command.main, [f"endpoint={served.url}", "repo=../x", f"pull={tmp_path / 'out.onnx'}"]) == 2
    assert "../x" in capsys.readouterr().err
