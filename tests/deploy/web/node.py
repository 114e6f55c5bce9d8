"""What is made for browsers, run by node; tests of it skip where there is none."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

NODE = shutil.which("node") or shutil.which("nodejs")
needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed")


def ran(script: str, *arguments: Any, told: Any = None) -> Any:
    """What a script beside this file prints, given arguments and JSON."""
    done = subprocess.run(
        [NODE, Path(__file__).with_name(script), *map(str, arguments)],
        input=json.dumps(told),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
