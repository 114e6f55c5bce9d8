"""Learning, evaluation and export: from a task in simulation to one policy file. Never imported on a robot."""

import os
import sys
from importlib.util import find_spec

# `python -m` looks into the working directory first, and there may be a `deploy` of the user's.
_HERE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
_found = find_spec("deploy")
if _found and _found.origin and os.path.dirname(os.path.dirname(os.path.realpath(_found.origin))) != _HERE:
    _said = f"{_found.origin} hides the package 'deploy' of sim2metal: use the command sim2metal, or python -P -m"
    _words = sys.orig_argv if sys.argv[:1] == ["-m"] else []  # Python still looks for a command
    if "-m" in _words[:-1] and _words[_words.index("-m") + 1].partition(".")[0] == "policies":
        sys.stderr.write(f"error: {_said}\n")
        raise SystemExit(2)
    raise ImportError(_said)
import deploy  # noqa: E402, F401  # ours: it looks for a `sim` of the user's, and for numpy

# numpy's matrices are small here: its threads cost more than they bring, and beside a busy process they hardly advance.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
