"""A policy that flies or drives in a browser: one HTML file with everything inside, which may load nothing.

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
from deploy.web import cars, football, quadrotors, wasm
from deploy.web.kind import Kind, VehicleError
from sim.spec import ANY_ROBOT

LARGEST = 150_000  # bytes
KINDS = (quadrotors.KIND, cars.KIND, football.KIND)
COMMON = ("policy.mjs", "common.mjs")  # scripts; a kind's own follow
CAPTION = '<header>\n<h1>{name}</h1>\n<p>{what}</p>\n<p id="test" role="status">Self-test ...</p>\n</header>'


class PageError(ValueError):
    """The policy makes no page; the message says why."""


def kind_of(policy: PolicyFile) -> Kind:
    """The kind of page that it makes. Raises VehicleError where it makes none, with all reasons."""
    for kind in KINDS:
        if policy.robot in kind.robots:
            kind.check(policy)
            return kind
    known = "; ".join(f"{kind.what}: {', '.join(kind.robots)}" for kind in KINDS)
    raise VehicleError(f"{policy.path} is for the robot {policy.robot!r}; pages are for {known}")


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


def _what(policy: PolicyFile, kind: Kind) -> str:
    """What the policy is, in a line."""
    vehicle = kind.noun if policy.robot == ANY_ROBOT else policy.robot
    count = sum(s.size for s in policy.inputs), sum(s.size for s in policy.outputs)
    signals = f"{count[0]} numbers in, {count[1]} commands out, {policy.rate_hz:g} times a second"
    return f"A policy for {vehicle}, task {policy.task}: {signals}. Its file has {policy.size / 1000:.0f} kB."


def page(policy: PolicyFile, content: bytes, weights: str = "float32", compiler: str = "auto") -> bytes:
    """The HTML file. Raises VehicleError where no page is for such a policy, GraphError, ToolchainError, PageError."""
    kind = kind_of(policy)
    own = wasm.WEB / kind.folder
    source = Source(policy, content, weights)
    parts = (f"{kind.folder}/{name}" for name in kind.sources)
    module = wasm.module(source, kind.told(policy), kind.headers(policy), compiler, *parts)
    style = (wasm.WEB / "page.css").read_text()
    files = [*(wasm.WEB / name for name in COMMON), *(own / name for name in kind.scripts)]
    script = "\n".join(path.read_text() for path in files)
    name, what = html.escape(printable(policy.name)), html.escape(printable(_what(policy, kind), 400))
    made = (
        (wasm.WEB / "page.html")
        .read_text()
        .format(
            policy=security(script, style),
            name=name,
            panel=(own / "panel.html").read_text().format(caption=CAPTION.format(name=name, what=what)),
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
