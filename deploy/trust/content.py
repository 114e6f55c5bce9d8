"""The bytes of a policy file: found by path or name, of a schema that we know, and undamaged by their own SHA-256."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from deploy.trust.onnx_limits import Limits
from deploy.trust.reading import read_regular
from deploy.trust.text import printable

PRETRAINED = Path(__file__).parents[1] / "pretrained"  # policy files that can be named without a path or suffix
SCHEMA = 1
KEY = "sim2metal"
HEADER = re.compile(rb'\{"schema": ([0-9]{1,9}), "digest": "sha256:([0-9a-f]{64})"')
HEADER_WITHIN = 256  # bytes: the metadata comes first


class PolicyFileError(ValueError):
    """The file, or what is fed to it, is not what it should be; the message says what and what to do, in one line."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message, 1000))


def digest(content: bytes, start: int) -> str:
    """SHA-256 of `content`, with the 64 digits that begin at `start` taken as zeros."""
    whole = hashlib.sha256(content[:start])
    whole.update(b"0" * 64)
    whole.update(memoryview(content)[start + 64 :])
    return whole.hexdigest()


def content_of(path: str) -> bytes:
    """The content of the file, or of the one that is shipped under that name."""
    shipped = {file.stem: file for file in sorted(PRETRAINED.glob("*.onnx"))}
    try:
        most = Limits.declared().memory / 3  # it is in memory three times while it is loaded
        return read_regular(shipped[path] if path in shipped and not os.path.exists(path) else path, most)
    except FileNotFoundError:
        raise PolicyFileError(
            f"there is no file {path!r}; python -m policies.train task=quad_hover makes one; shipped with sim2metal: "
            + ", ".join(shipped)
        ) from None
    except IsADirectoryError:
        inside = sorted(Path(path).glob("*.onnx")) or sorted(Path(path).glob("*/policy.onnx"))  # a run, runs by date
        held = f"policy={inside[-1]} is a file in it" if inside else "there is no policy file in it"
        raise PolicyFileError(f"{path}: is a folder; {held}") from None
    except OSError as error:
        raise PolicyFileError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise PolicyFileError(f"{path}: {error}; if you trust it, SIM2METAL_MEMORY_MB=... allows more") from None


def check_digest(path: str, content: bytes) -> int:
    """The schema must be known and the digest right before anything else is interpreted. Where the metadata begin."""
    header = HEADER.search(content, 0, HEADER_WITHIN)
    if header is None:
        raise PolicyFileError(
            f"{path}: not a policy file, or its beginning is damaged: no metadata {KEY!r} in its {len(content)} bytes; "
            "policies.train and policies.models.export write such files; policies.adopt makes one of a policy of others"
        )
    schema = int(header.group(1))
    if schema != SCHEMA:
        raise PolicyFileError(
            f"{path}: has schema {schema}, this version reads schema {SCHEMA}; update, or export it again"
        )
    if digest(content, header.start(2)) != header.group(2).decode():
        raise PolicyFileError(
            f"{path}: damaged, its {len(content)} bytes do not match their SHA-256: truncated or changed; "
            "copy or export it again"
        )
    return header.start()
