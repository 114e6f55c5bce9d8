"""python -m deploy.sign policy=FILE key=KEY [out=FILE] | new=KEY | policy=FILE [trust=DIR]: sign a policy file.

new=KEY         makes a private key that only you can read, and KEY.pub for those who are to trust you
policy= key=    signs the file in place, or into out=FILE
policy=         says who signed it, of the keys NAME.pub in trust=DIR
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deploy import cli
from deploy.policy_file import PolicyFile, PolicyFileError
from deploy.system.files import write_atomic
from deploy.trust import signature
from deploy.trust.content import content_of
from deploy.trust.text import printable

TRUST = f"folder of trusted keys, NAME.pub (default: ${signature.TRUST}, or ~/.config/sim2metal/trust)"


@dataclass
class Config:
    """Settings of the command."""

    policy: str | None = field(default=None, metadata={"help": "the policy file"})
    key: str | None = field(default=None, metadata={"help": "the private key to sign with"})
    out: str | None = field(default=None, metadata={"help": "the signed file (default: the policy file itself)"})
    new: str | None = field(default=None, metadata={"help": "make a key, and KEY.pub beside it"})
    trust: str | None = field(default=None, metadata={"help": TRUST})

    def __post_init__(self) -> None:
        if (self.policy is None) == (self.new is None):
            raise cli.ArgumentError("needs policy=FILE, or new=KEY")
        if self.new is not None and (self.key or self.out or self.trust):
            raise cli.ArgumentError("new=KEY goes alone: make the key first, then sign with key=KEY")
        if self.out is not None and self.key is None:
            raise cli.ArgumentError("out=FILE needs key=KEY to sign with")


def sign(content: bytes, path: str, key: Path) -> bytes:
    """The bytes of the file signed with the key, instead of what signed it before. PolicyFileError, SignatureError."""
    if not signature.NAME.fullmatch(key.name):
        raise signature.SignatureError(f"key={key}: a key is named by letters, digits, _, -, @ and dots")
    PolicyFile.from_bytes(content, path)  # nobody vouches for what does not load
    unsigned, _ = signature.split(content)
    made = signature.signed(unsigned, signature.private_key(key), key.name)
    PolicyFile.from_bytes(made, path)
    return made


def describe(policy: PolicyFile) -> str:
    """Who stands behind it, in one line."""
    return f"{policy.path}: {policy.standing}{f' ({policy.remark})' if policy.remark else ''}"


def main(argv: Sequence[str]) -> None:
    """Make a key, sign, or say who signed."""
    if cli.wants_help(argv):
        print(f"{__doc__}\n\n{cli.usage(Config)}")
        return
    (config,) = cli.parse(argv, Config)
    try:
        if config.new is not None:
            public = signature.new_key(Path(config.new))
            print(f"wrote {config.new} (private: keep it) and {public}: it belongs into the folders that trust you")
        elif config.key is not None:
            content = sign(content_of(config.policy), config.policy, Path(config.key))
            target = config.out or config.policy
            if config.out is None and not os.path.exists(config.policy):
                raise PolicyFileError(f"{config.policy} is shipped with sim2metal; sign a copy: out=FILE")
            write_atomic(target, content)
            print(f"wrote {target}, signed with {Path(config.key).name}")
        else:
            print(printable(describe(PolicyFile.load(config.policy, config.trust)), 1000))
    except ImportError:
        raise PolicyFileError(signature.MISSING) from None


if __name__ == "__main__":
    sys.exit(cli.call(main))
