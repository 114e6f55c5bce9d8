"""From a policy file to a moving robot: numpy and onnxruntime, no learning framework."""

import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deploy.policy_file import PolicyFile, PolicyFileError

__all__ = ["PolicyFile", "PolicyFileError"]

# A command of ours, which Python is still looking for; a stranger's package may import us meanwhile, and gets an error.
_WORDS = sys.orig_argv if sys.argv[:1] == ["-m"] else []
_BEGUN = "-m" in _WORDS[:-1] and _WORDS[_WORDS.index("-m") + 1].partition(".")[0] in ("deploy", "policies")

# `python -m` looks into the working directory first, and there may be a `sim` of the user's.
_HERE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
_found = find_spec("sim")
if _found and _found.origin and os.path.dirname(os.path.dirname(os.path.realpath(_found.origin))) != _HERE:
    _hidden = f"{_found.origin} hides the package 'sim' of sim2metal: use the command sim2metal, or python -P -m"
    if _BEGUN:
        sys.stderr.write(f"error: {_hidden}\n")
        raise SystemExit(2)
    raise ImportError(_hidden)

if _BEGUN and "deploy.command" not in sys.orig_argv and find_spec("numpy") is None:
    from deploy.system.extras import missing

    sys.stderr.write(f"error: {missing(ModuleNotFoundError(name='numpy'))}\n")
    raise SystemExit(2)


def __getattr__(name: str) -> Any:
    """Imported when asked for: numpy takes longer than a command that only prints its help."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from deploy import policy_file

    return getattr(policy_file, name)
