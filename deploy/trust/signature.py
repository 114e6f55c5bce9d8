"""Who vouches for a policy file: an Ed25519 signature as a second entry of the ONNX metadata, at the file's very end.

A signed file is the unsigned one and that entry behind it: any ONNX tool reads both, and the file's digest is that of
the bytes before the entry. The entry has one exact form, and nothing may follow it. Its JSON holds "by", what the
signer calls its key; "key", the public key; and "ed25519", the signature over PREFIX, "by" and the unsigned file.

Whom to trust is a folder of public keys, NAME.pub, in OpenSSH's form of one line. The name that counts is that of the
file in this folder, not what the signature says. Only signing, and checking a signature, needs `cryptography`.
"""

from __future__ import annotations

import base64
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.trust.reading import read_regular

KEY = b"sim2metal.signature"
PREFIX = b"sim2metal policy file, signature 1\n"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
TRUST = "SIM2METAL_TRUST"  # environment: the folder of trusted keys
MISSING = "signatures need the library cryptography: pip install 'sim2metal[trust]'"
_KIND = b"\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20"  # before the 32 bytes of a key in OpenSSH's form
_LONGEST = 1024  # bytes of the entry


class SignatureError(ValueError):
    """A signature that does not hold, or a key that is none."""


@dataclass(frozen=True)
class Signature:
    """As it stands in the file; nothing of it is proven."""

    by: str
    key: bytes  # 32
    ed25519: bytes  # 64

    def entry(self) -> bytes:
        """The bytes at the file's end: field 14 of a ModelProto, a StringStringEntryProto."""
        held = {"by": self.by, "key": _base64(self.key), "ed25519": _base64(self.ed25519)}
        return _field(14, _field(1, KEY) + _field(2, json.dumps(held).encode()))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _field(number: int, data: bytes) -> bytes:
    """A length-delimited protobuf field of fewer than 2**14 bytes."""
    size = len(data)
    length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
    return bytes([number << 3 | 2]) + length + data


def split(content: bytes) -> tuple[bytes, Signature | None]:
    """The unsigned file and what was appended to sign it, if that is so. SignatureError when only the form is wrong."""
    marker = _field(1, KEY)
    at = content.rfind(marker, max(0, len(content) - _LONGEST))
    if at < 0:
        return content, None
    start = at - 3  # the entry's own field number, and two bytes of its length
    found = None
    try:
        value = json.loads(content[max(at, content.find(b"{", at)) :])
        found = Signature(str(value["by"]), *(base64.b64decode(value[k], validate=True) for k in ("key", "ed25519")))
    except (ValueError, TypeError, LookupError, RecursionError):
        pass
    if found is None or not NAME.fullmatch(found.by) or content[max(start, 0) :] != found.entry():
        raise SignatureError("the signature at its end is damaged; copy the file again, or ask for one signed anew")
    if (len(found.key), len(found.ed25519)) != (32, 64):
        raise SignatureError("the signature at its end has the wrong length")
    return content[:start], found


def _message(by: str, unsigned: bytes) -> bytes:
    """What is signed."""
    return PREFIX + by.encode() + b"\n" + unsigned


def holds(signature: Signature, unsigned: bytes) -> bool:
    """Whether the key in the signature signed these bytes. ModuleNotFoundError without `cryptography`."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(signature.key).verify(signature.ed25519, _message(signature.by, unsigned))
    except InvalidSignature:
        return False
    return True


def signer(
    unsigned: bytes, mark: Signature | None, trust: str | os.PathLike[str] | None = None
) -> tuple[str | None, str]:
    """Who signed it, of those in the folder `trust`; and a remark when somebody else did, or it cannot be checked.

    SignatureError when the signature does not hold, or is by one of those and cannot be checked.
    """
    if mark is None:
        if trust is not None:
            trusted(trust)  # a folder that is not there should be noticed before it is needed
        return None, ""
    name = trusted(trust).get(mark.key)
    try:
        sound = holds(mark, unsigned)
    except ImportError:
        if name is not None:
            raise SignatureError(f"signed by {name}, which cannot be checked: {MISSING}") from None
        return None, f"the signature by {mark.by!r} cannot be checked: {MISSING}"
    if not sound:
        raise SignatureError(f"the signature by {name or mark.by!r} does not hold: the file was changed")
    return name, "" if name else f"the signature by {mark.by!r} is of a key that is not trusted here"


def trusted(folder: str | os.PathLike[str] | None = None) -> dict[bytes, str]:
    """Public key -> name, of the folder; without one, of $SIM2METAL_TRUST or ~/.config/sim2metal/trust if it exists.

    SignatureError when the folder, or a key in it, cannot be read.
    """
    named = folder if folder is not None else os.environ.get(TRUST)
    where = Path(named) if named else Path(os.path.expanduser("~/.config/sim2metal/trust"))
    if not named and not where.is_dir():
        return {}
    if not where.is_dir():
        raise SignatureError(f"trust={where}: there is no such folder; it should hold NAME.pub files")
    return {public_key(path): path.stem for path in sorted(where.glob("*.pub"))}


def public_key(path: Path) -> bytes:
    """The 32 bytes of a key in a NAME.pub file. SignatureError when it is none."""
    try:
        kind, text = read_regular(path, 4096).decode().split()[:2]
        data = base64.b64decode(text, validate=True)
    except (OSError, ValueError) as error:
        raise SignatureError(f"{path} is no public key: {error}") from None
    if kind != "ssh-ed25519" or not data.startswith(_KIND) or len(data) != len(_KIND) + 32:
        raise SignatureError(f"{path} is no public key of the kind ssh-ed25519; deploy.sign new=KEY makes one")
    if not NAME.fullmatch(path.stem):
        raise SignatureError(f"{path}: its name should be letters, digits, _, -, @ and dots: it stands for its owner")
    return data[len(_KIND) :]


def private_key(path: Path) -> Any:
    """The key in a PEM file. SignatureError when it is none."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        found = load_pem_private_key(read_regular(path, 4096), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SignatureError(f"key={path} is no private key in PEM without a password: {error}") from None
    if not isinstance(found, Ed25519PrivateKey):
        raise SignatureError(f"key={path} is no Ed25519 key; deploy.sign new=KEY makes one")
    return found


def new_key(path: Path) -> Path:
    """Write a private key that only its owner can read, and PATH.pub beside it; returns the latter's path.

    FileExistsError when one of them exists.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    public = path.with_name(f"{path.name}.pub")
    if not NAME.fullmatch(path.name):
        raise SignatureError(
            f"new={path}: a key is named by letters, digits, _, -, @ and dots: it stands for its owner"
        )
    if public.exists():
        raise FileExistsError(0, "the file exists; a key is not overwritten", str(public))
    made = Ed25519PrivateKey.generate()
    _write(path, made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)
    _write(public, b"ssh-ed25519 %s %s\n" % (_base64(_KIND + _raw(made)).encode(), path.name.encode()), 0o644)
    return public


def _write(path: Path, content: bytes, mode: int) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
        file.write(content)


def _raw(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    made: bytes = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return made


def signed(unsigned: bytes, key: Any, by: str) -> bytes:
    """The file with a signature."""
    return unsigned + Signature(by, _raw(key), key.sign(_message(by, unsigned))).entry()
