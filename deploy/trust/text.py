"""Text of strangers (names, units, frames, error messages that quote them) on its way to a terminal or into C."""

from __future__ import annotations

import unicodedata

# Letters and marks that show nothing and yet count as printable: the combining grapheme joiner, fillers of Hangul, the
# empty Braille cell, variation selectors.
_INVISIBLE = (
    frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
    | {chr(code) for code in range(0xFE00, 0xFE10)}
    | {chr(code) for code in range(0xE0100, 0xE01F0)}
)
_STACKED = 2  # marks on one letter; towers of them are painted over the lines above
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_COMMENT = frozenset(" abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.,:;=+-/^%()[]<>'|")
_STRING = frozenset(chr(code) for code in range(0x20, 0x7F)) - frozenset('"\\?')


def _escape(ch: str) -> str:
    code = ord(ch)
    return _SHORT.get(ch) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: max(0, longest - 3)]}..."


def printable(text: object, longest: int = 200) -> str:
    """One line for a terminal or a log: what does not print (controls, ANSI, bidi, lone surrogates) as its escape.

    At most `longest` characters; a text that is longer ends in "...". A backslash of the text stays as it is: this is
    for people to read, not for a program to decode.
    """
    shown, marks = [], 0
    for ch in str(text)[: longest + 1]:
        marks = marks + 1 if unicodedata.combining(ch) else 0
        shown.append(ch if ch.isprintable() and ch not in _INVISIBLE and marks <= _STACKED else _escape(ch))
    return _shortened("".join(shown), longest)


def c_comment(text: str, longest: int = 120) -> str:
    """The same for the inside of a C comment, of either kind: a few plain ASCII characters.

    They can neither end it nor begin another, and make no trigraph. `kg*m/s²` becomes `kg.m/s2`; what has no such form
    becomes `_`.
    """
    plain = unicodedata.normalize("NFKD", text[: longest + 1]).replace("*", ".").replace("\N{MIDDLE DOT}", ".")
    kept = "".join(ch if ch in _COMMENT else "_" for ch in plain if not unicodedata.combining(ch))
    while "//" in kept:  # next to a `*` of ours it must not matter either
        kept = kept.replace("//", "/_/")
    return _shortened(kept, longest)


def c_string(text: str, longest: int = 200) -> str:
    """A C string literal with its quotes: printable ASCII stays, anything else becomes a question mark.

    Quotes, backslashes and question marks too, and each question mark is escaped: `??/` is a backslash to a C11
    compiler, and with it a name would run on into the literal after it.
    """
    return '"' + "".join(ch if ch in _STRING else "\\?" for ch in _shortened(text, longest)) + '"'
