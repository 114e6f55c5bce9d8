"""python -m deploy.hub push=FILE repo=OWNER/NAME | pull=FILE repo=OWNER/NAME: a policy file to a model hub, or from it.

push=FILE   checks the file, then uploads it as policy.onnx, with a card where there is none yet
pull=FILE   downloads policy.onnx, checks it as any stranger's file, and writes it here
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy import cli
from deploy.hub.card import card
from deploy.policy_file import PolicyFile
from deploy.sign import TRUST
from deploy.system.files import write_atomic
from deploy.trust.content import content_of
from deploy.trust.onnx_limits import Limits

if TYPE_CHECKING:
    from huggingface_hub import HfApi

FILE, CARD = "policy.onnx", "README.md"


class HubError(ValueError):
    """The hub cannot be reached, or refuses; the message says what and what to do."""


@dataclass
class Config:
    """Settings of the command."""

    repo: str = field(metadata={"help": "OWNER/NAME on the hub"})
    push: str | None = field(default=None, metadata={"help": "the policy file to upload"})
    pull: str | None = field(default=None, metadata={"help": "the file to write what is downloaded to"})
    revision: str | None = field(default=None, metadata={"help": "branch, tag or commit"})
    private: bool = field(default=False, metadata={"help": "push: a new repository is private"})
    license: str = field(
        default="", metadata={"help": "push: the licence in the card, as the hub spells it (mit, apache-2.0)"}
    )
    card: str = field(default="keep", metadata={"help": "push: keep a card that is there, or replace it"})
    trust: str | None = field(default=None, metadata={"help": TRUST})
    endpoint: str | None = field(
        default=None, metadata={"help": "another server than the public hub (also $HF_ENDPOINT)"}
    )

    def __post_init__(self) -> None:
        if (self.push is None) == (self.pull is None):
            raise cli.ArgumentError("needs push=FILE or pull=FILE")
        if self.card not in ("keep", "replace"):
            raise cli.ArgumentError(f"card={self.card} is neither keep nor replace")
        if self.pull is not None and (self.private or self.license or self.card != "keep"):
            raise cli.ArgumentError("private, license and card go with push=FILE")


def asked(what: str, call: Callable[[], Any]) -> Any:
    """What the hub answers; HubError with one sentence otherwise."""
    from huggingface_hub import errors

    try:
        return call()
    except errors.RepositoryNotFoundError:
        raise HubError(
            f"{what}: there is no such repository, or it is private; HF_TOKEN=... says who you are"
        ) from None
    except errors.RevisionNotFoundError:
        raise HubError(f"{what}: there is no such revision") from None
    except errors.LocalEntryNotFoundError as error:
        raise HubError(f"{what}: the hub does not answer: {error}") from None
    except errors.EntryNotFoundError:
        raise HubError(f"{what}: there is no {FILE} in it") from None
    except errors.HFValidationError as error:
        raise HubError(f"{what}: {error}") from None
    except (OSError, ValueError, RuntimeError, EOFError) as error:  # of its client for HTTP, too
        raise HubError(f"{what}: {type(error).__name__}: {error}") from None
    except Exception as error:  # its client's own kinds differ between versions
        if type(error).__module__.partition(".")[0] not in (
            "httpx",
            "httpx2",
            "httpcore",
            "requests",
            "huggingface_hub",
        ):
            raise
        raise HubError(f"{what}: the hub does not answer: {type(error).__name__}: {error}") from None


def push(api: HfApi, config: Config) -> str:
    """Upload file and card in one commit; where they are."""
    from huggingface_hub import CommitOperationAdd

    policy = PolicyFile.load(str(config.push), config.trust)
    what, repo = f"push to {config.repo}", config.repo
    asked(what, lambda: api.create_repo(repo, private=config.private or None, exist_ok=True))
    operations = [CommitOperationAdd(FILE, policy.content())]
    has = asked(what, lambda: api.file_exists(repo, CARD, revision=config.revision))
    if not has or config.card == "replace":
        operations.append(CommitOperationAdd(CARD, card(policy, repo, config.license).encode()))
    message = f"{policy.name}, {policy.sha256[:12]}"
    made = asked(what, lambda: api.create_commit(repo, operations, commit_message=message, revision=config.revision))
    kept = "" if len(operations) > 1 else f"; its {CARD} was kept, card=replace writes another"
    return f"{policy.path}: {policy.standing}, uploaded to {made.repo_url}{kept}"


def pull(api: HfApi, config: Config) -> str:
    """Download, check, and only then write; what it is."""
    what, out = f"pull of {config.repo}", str(config.pull)
    if Path(out).is_dir():
        raise HubError(f"pull={out} is a folder, not a file")

    commit = asked(what, lambda: api.model_info(config.repo, revision=config.revision)).sha

    def download(**more: Any) -> Any:
        return api.hf_hub_download(config.repo, FILE, revision=commit, **more)

    with tempfile.TemporaryDirectory() as folder:
        size = asked(what, lambda: download(local_dir=folder, dry_run=True)).file_size
        most = Limits.declared().memory / 3
        if size is None or size > most:
            raise HubError(
                f"{what}: {FILE} has {size} bytes, more than {most:.0f}; SIM2METAL_MEMORY_MB=... allows more"
            )
        content = content_of(asked(what, lambda: download(local_dir=folder)))
    policy = PolicyFile.from_bytes(content, out, config.trust)
    write_atomic(out, content)
    return f"wrote {out}: {policy.name} for {policy.robot}, {policy.standing}, sha256 {policy.sha256}"


def main(argv: Sequence[str]) -> None:
    """Upload or download."""
    if cli.wants_help(argv):
        print(f"{__doc__}\n\n{cli.usage(Config)}")
        return
    (config,) = cli.parse(argv, Config)
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # read when it is imported
    from huggingface_hub import HfApi

    for name in ("huggingface_hub", "httpx", "httpx2"):  # every request, and every retry
        logging.getLogger(name).setLevel(logging.ERROR)
    api = HfApi(endpoint=config.endpoint)
    print(push(api, config) if config.push is not None else pull(api, config))


if __name__ == "__main__":
    sys.exit(cli.call(main))
