import os
import stat
import subprocess
import sys

import onnx
import pytest

from deploy import PolicyFile, PolicyFileError, cli, sign
from deploy.trust import signature
from policies.models.export import update_evaluation
from tests.deploy.sample_policy import exported, resealed


@pytest.fixture
def home(tmp_path, monkeypatch):
    """No keys but the test's own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv(signature.TRUST, raising=False)
    return tmp_path


@pytest.fixture
def signed(home):
    """A signed file, and the folder of keys that trusts its signer: (file, folder)."""
    assert cli.call(sign.main, [f"new={home / 'anna'}"]) == 0
    exported(home / "p.onnx")
    assert cli.call(sign.main, [f"policy={home / 'p.onnx'}", f"key={home / 'anna'}"]) == 0
    (home / "trust").mkdir()
    (home / "anna.pub").rename(home / "trust" / "anna.pub")
    return home / "p.onnx", home / "trust"


def test_an_unsigned_file_is_consistent_and_no_more(home):
    policy = exported(home / "p.onnx")
    assert (policy.signed_by, policy.standing, policy.remark) == (None, "consistent", "")
    with pytest.raises(PolicyFileError, match=r"p\.onnx: it is not signed, and a signature is required"):
        policy.require_signature()


def test_a_signed_file_says_whose_it_is_and_flies_the_same(signed):
    file, trust = signed
    policy = PolicyFile.load(file, trust)
    assert (policy.signed_by, policy.standing, policy.remark) == ("anna", "signed by anna", "")
    policy.require_signature()
    assert {p.key for p in onnx.load(file).metadata_props} == {"sim2metal", "sim2metal.signature"}
    assert policy.content() == file.read_bytes()


def test_the_name_that_counts_is_that_of_the_trusted_key(signed):
    file, trust = signed
    (trust / "anna.pub").rename(trust / "factory.pub")
    assert PolicyFile.load(file, trust).standing == "signed by factory"


def test_a_signature_of_a_stranger_proves_nothing(signed, tmp_path):
    file, _ = signed
    (tmp_path / "empty").mkdir()
    policy = PolicyFile.load(file, tmp_path / "empty")
    assert policy.standing == "consistent"
    assert policy.remark == "the signature by 'anna' is of a key that is not trusted here"
    with pytest.raises(PolicyFileError, match="key that is not trusted here, and a signature is required"):
        policy.require_signature()


def test_a_stranger_cannot_borrow_a_trusted_name(signed, tmp_path):
    file, trust = signed
    (tmp_path / "evil").mkdir()
    signature.new_key(tmp_path / "evil" / "anna")
    forged = sign.sign(file.read_bytes(), "p.onnx", tmp_path / "evil" / "anna")
    assert PolicyFile.from_bytes(forged, "p.onnx", trust).standing == "consistent"
    # nor put a trusted key beside a signature of their own
    unsigned, theirs = signature.split(forged)
    _, annas = signature.split(file.read_bytes())
    mixed = unsigned + signature.Signature("anna", annas.key, theirs.ed25519).entry()
    with pytest.raises(PolicyFileError, match="the signature by 'anna' does not hold"):
        PolicyFile.from_bytes(mixed, "p.onnx", trust)


def test_a_signature_cannot_be_moved_to_another_file(signed, tmp_path):
    file, trust = signed
    unsigned, mark = signature.split(file.read_bytes())
    other = resealed(PolicyFile.load(file), tmp_path / "q.onnx", name="other").read_bytes()
    assert other != unsigned and signature.split(other)[1] is None
    with pytest.raises(PolicyFileError, match="does not hold: the file was changed"):
        PolicyFile.from_bytes(other + mark.entry(), "q.onnx", trust)


def test_no_flipped_bit_of_a_signature_ever_passes(signed):
    file, trust = signed
    content = file.read_bytes()
    start = len(signature.split(content)[0])
    for at in range(start, len(content)):
        for bit in (0, 6):
            damaged = bytearray(content)
            damaged[at] ^= 1 << bit
            with pytest.raises(PolicyFileError):
                PolicyFile.from_bytes(bytes(damaged), "p.onnx", trust)


@pytest.mark.parametrize("more", [b" ", b"\x72\x00", b"\n"])
def test_nothing_may_follow_a_signature(signed, more):
    file, trust = signed
    content = file.read_bytes()
    for changed in (content + more, content[:-1], content + content[len(signature.split(content)[0]) :]):
        with pytest.raises(PolicyFileError):
            PolicyFile.from_bytes(changed, "p.onnx", trust)


def test_signing_again_replaces_and_changing_drops_the_signature(signed, tmp_path, capsys):
    file, _ = signed
    before = file.stat().st_size
    signature.new_key(tmp_path / "bert")
    assert cli.call(sign.main, [f"policy={file}", f"key={tmp_path / 'bert'}", f"out={tmp_path / 'b.onnx'}"]) == 0
    assert (tmp_path / "b.onnx").stat().st_size == before
    assert PolicyFile.load(tmp_path / "b.onnx", tmp_path).standing == "signed by bert"
    assert update_evaluation(file, {"success": 0.5}).signed_by is None


def test_keys_are_private_and_never_overwritten(home, capsys):
    assert cli.call(sign.main, [f"new={home / 'anna'}"]) == 0
    assert stat.S_IMODE((home / "anna").stat().st_mode) == 0o600
    assert (home / "anna.pub").read_text().startswith("ssh-ed25519 AAAA")
    before = (home / "anna").read_bytes()
    assert cli.call(sign.main, [f"new={home / 'anna'}"]) == 2
    (home / "anna.pub").unlink()
    assert cli.call(sign.main, [f"new={home / 'anna'}"]) == 2
    assert (home / "anna").read_bytes() == before
    assert "exists" in capsys.readouterr().err


def test_the_command_says_who_signed(signed, capsys, monkeypatch):
    file, trust = signed
    assert cli.call(sign.main, [f"policy={file}", f"trust={trust}"]) == 0
    assert capsys.readouterr().out.endswith("p.onnx: signed by anna\n")
    monkeypatch.setenv(signature.TRUST, str(trust))
    assert PolicyFile.load(file).standing == "signed by anna"
    monkeypatch.delenv(signature.TRUST)
    assert PolicyFile.load(file).standing == "consistent"
    default = os.path.expanduser("~/.config/sim2metal/trust")
    os.makedirs(os.path.dirname(default))
    trust.rename(default)
    assert PolicyFile.load(file).standing == "signed by anna"


@pytest.mark.parametrize(
    ("arguments_given", "message"),
    [
        ([], "needs policy=FILE, or new=KEY"),
        (["new={0}/k", "key={0}/k"], "new=KEY goes alone"),
        (["policy={0}/p.onnx", "out={0}/q.onnx"], "out=FILE needs key=KEY"),
        (["policy={0}/p.onnx", "key={0}/p.onnx"], "is no private key in PEM"),
        (["policy={0}/p.onnx", "key={0}/nothing"], "is no private key in PEM"),
        (["policy={0}/p.onnx", "trust={0}/nothing"], "there is no such folder"),
        (["policy={0}/p.onnx", "trust={0}/bad"], "x.pub is no public key"),
        (["new={0}/a b"], "a key is named by letters"),
        (["policy=quad_any", "key={0}/anna"], "shipped with sim2metal; sign a copy: out=FILE"),
    ],
)
def test_what_cannot_be_done_is_one_line(signed, tmp_path, capsys, arguments_given, message):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "x.pub").write_bytes(b"ssh-ed25519 \xff\n")
    assert cli.call(sign.main, [a.format(tmp_path) for a in arguments_given]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_without_the_library_a_trusted_signature_is_an_error_and_another_a_remark(signed, tmp_path):
    file, trust = signed
    (tmp_path / "empty").mkdir()
    code = (
        "import sys; sys.modules['cryptography.exceptions'] = sys.modules['cryptography'] = None\n"
        "from deploy import PolicyFile\n"
        "print(PolicyFile.load(sys.argv[1], sys.argv[3]).remark)\n"
        "try: PolicyFile.load(sys.argv[1], sys.argv[2])\n"
        "except ValueError as error: print(error)"
    )
    command = [sys.executable, "-c", code, str(file), str(trust), str(tmp_path / "empty")]
    remark, error = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert remark.startswith("the signature by 'anna' cannot be checked: signatures need the library cryptography: pip")
    assert "signed by anna, which cannot be checked" in error
