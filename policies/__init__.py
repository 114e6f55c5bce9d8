"""Learning, evaluation and export: from a task in simulation to one policy file. Never imported on a robot."""

import os
import sys
from importlib.util import find_spec

# A command of ours, which Python is still looking for; a stranger's package may import us meanwhile, and gets an error.
_WORDS = sys.orig_argv if sys.argv[:1] == ["-m"] else []
_BEGUN = "-m" in _WORDS[:-1] and _WORDS[_WORDS.index("-m") + 1].partition(".")[0] in ("deploy", "policies")

# `python -m` looks into the working directory first, and there may be a `sim` or `deploy` of the user's.
_HERE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
for _found in filter(None, map(find_spec, ("sim", "deploy"))):
    if _found.origin and os.path.dirname(os.path.dirname(os.path.realpath(_found.origin))) != _HERE:
        _hidden = f"{_found.origin} hides the package {_found.name!r} of sim2metal"
        _hidden += ": use the command sim2metal, or python -P -m"
        if _BEGUN:
            sys.stderr.write(f"error: {_hidden}\n")
            raise SystemExit(2)
        raise ImportError(_hidden)

if _BEGUN and "deploy.command" not in sys.orig_argv and find_spec("numpy") is None:
    from deploy.system.extras import missing

    sys.stderr.write(f"error: {missing(ModuleNotFoundError(name='numpy'))}\n")
    raise SystemExit(2)

# numpy's matrices are small here: its threads cost more than they bring, and beside a busy process they hardly advance.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
