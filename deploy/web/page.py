"""A policy that flies in a browser: one HTML file with everything inside, which may load nothing.

Its content security policy allows the one script and the one style sheet that are in it, by their hashes, and
WebAssembly; no address at all. What the policy file says of itself is a stranger's text, and is escaped.
"""

from __future__ import annotations

import base64
import hashlib
import html

from deploy.codegen.source import Source
from deploy.policy_file import PolicyFile
from deploy.trust.text import printable
from deploy.web import quadrotors, wasm
from sim.spec import ANY_ROBOT

LARGEST = 150_000  # bytes
SCRIPTS = ("policy.mjs", "world.mjs", "scene.mjs", "page.mjs")  # one script; each uses those before it
PARTS = ("flight.c", "world.c")


class PageError(ValueError):
    """The policy makes no page; the message says why."""


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def security(script: str, style: str) -> str:
    """The content security policy."""
    allowed = {
        "default-src": "'none'",
        "script-src": f"{_hash(script)} 'wasm-unsafe-eval'",
        "style-src": _hash(style),
        "img-src": "data:",  # the empty icon, which a browser would otherwise ask a server for
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{key} {value}" for key, value in allowed.items())


def _what(policy: PolicyFile) -> str:
    """What the policy is, in a line."""
    vehicle = "any quadrotor" if policy.robot == ANY_ROBOT else policy.robot
    signals = f"{len(policy.inputs)} signals in, four rotor commands out, {policy.rate_hz:g} times a second"
    return f"A policy for {vehicle}, task {policy.task}: {signals}. Its file has {policy.size / 1000:.0f} kB."


def page(policy: PolicyFile, content: bytes, weights: str = "float32", compiler: str = "auto") -> bytes:
    """The HTML file. Raises VehicleError where the policy flies no quadrotor, GraphError, ToolchainError, PageError."""
    quadrotors.check(policy)
    source, vehicles = Source(policy, content, weights), quadrotors.airframes(policy)
    about, headers = quadrotors.told(policy, vehicles), quadrotors.headers(policy, vehicles)
    module = wasm.module(source, about, headers, compiler, *PARTS)
    style = (wasm.WEB / "page.css").read_text()
    script = "\n".join((wasm.WEB / name).read_text() for name in SCRIPTS)
    made = (
        (wasm.WEB / "page.html")
        .read_text()
        .format(
            policy=security(script, style),
            name=html.escape(printable(policy.name)),
            what=html.escape(printable(_what(policy), 400)),
            style=style,
            script=script,
            module=base64.b64encode(module).decode(),
        )
    )
    whole = made.encode()
    if len(whole) > LARGEST:
        raise PageError(
            f"{policy.path}: its page would have {len(whole)} bytes, more than {LARGEST}, {len(module)} of them "
            "WebAssembly; weights=float16 or int8 takes less, a smaller network too"
        )
    return whole
