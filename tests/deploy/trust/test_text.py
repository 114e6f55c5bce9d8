"""Text of strangers: nothing of it moves a cursor, ends a comment or leaves a string."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deploy.trust.text import c_comment, c_string, printable

TEXTS = st.text(st.characters(exclude_categories=()) | st.sampled_from('*/\\?"\n\r\x1b'), max_size=60)


@given(TEXTS)
@example("\x1b[2J\x1b]0;owned\x07\x9b31m")
@example("policy\u202egnp.exe\u200b")
@example("a\nerror: nothing is wrong")
@example("\ud800")
def test_printable_is_one_line_of_characters_that_print(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable() and len(shown) <= 200
    shown.encode()  # lone surrogates would break any stream
    assert not {unicodedata.category(ch) for ch in shown} & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def test_printable_leaves_text_alone_and_shows_what_it_hides() -> None:
    assert printable("Küche/m·s⁻² 手") == "Küche/m·s⁻² 手"
    assert printable("\x1b[31mred\t\u202e\U000e0001") == "\\x1b[31mred\\t\\u202e\\U000e0001"
    assert printable("e" + "\u0301" * 50).count("\u0301") == 2
    assert printable("x" * 1000) == "x" * 197 + "..."
    assert printable("x" * 10**7, 20) == "x" * 17 + "..."
    assert printable(ValueError("no\x07")) == "no\\x07"


@given(TEXTS)
@example("**//")
@example("***///")
@example("*\\\n/")
@example("??/\n*/")
@example("**//__attribute__((constructor)) void f(void){}/*")
def test_a_comment_of_c_has_no_way_out(text: str) -> None:
    shown = c_comment(text)
    assert shown.isascii() and shown.isprintable()
    assert not set(shown) & set('*\\?"{}#') and "//" not in shown


@given(st.lists(TEXTS, min_size=1, max_size=4))
@example(["??/", ", 0}; int injected;//"])
@example(['\\"; system("x"); "'])
def test_a_string_of_c_ends_where_we_end_it(texts: list[str]) -> None:
    for text in texts:
        literal = c_string(text)
        assert literal.isascii() and literal.isprintable()
        inside = literal[1:-1].replace("\\?", "")
        assert literal[0] == literal[-1] == '"' and not set(inside) & set('"\\?')


@pytest.mark.parametrize(
    ("text", "comment", "string"),
    [
        ("quad_hover", "quad_hover", '"quad_hover"'),
        ("kg*m/s²", "kg.m/s2", '"kg*m/s\\?"'),
        ("rad/s, m/s^2", "rad/s, m/s^2", '"rad/s, m/s^2"'),
        ('say "hi" \\', "say _hi_ _", '"say \\?hi\\? \\?"'),
    ],
)
def test_what_is_harmless_stays_readable(text: str, comment: str, string: str) -> None:
    assert c_comment(text) == comment and c_string(text) == string
