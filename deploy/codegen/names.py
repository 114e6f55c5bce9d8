"""Names of a policy file's signals, commands and states as the names of members in C: they are taken, or refused."""

from __future__ import annotations

import re
from collections.abc import Iterable

from deploy.codegen.onnx_graph import GraphError

PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
LONGEST = 63  # characters that C11 promises to tell apart
# Of C11, C23 and C++20 (headers are read by both), and what compilers and old headers define in small letters.
WORDS = """ alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t char8_t class
    co_await co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype default
    delete do double dynamic_cast else enum errno explicit export extern false float for fortran friend goto i386 if
    inline int linux long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public
    register reinterpret_cast requires restrict return short signed sizeof static static_assert static_cast stderr stdin
    stdout struct switch template this thread_local throw true try typedef typeid typename typeof typeof_unqual union
    unix unsigned using virtual void volatile wchar_t while xor xor_eq """
KEYWORDS = frozenset(WORDS.split())
TYPES = re.compile(r"(u?int|size|ssize|ptrdiff|max_align)\w*_t|policy_\w*")  # of stdint.h and stddef.h; our functions


def member(name: str) -> str:
    """`name` itself. GraphError when it is no plain ASCII identifier, or one that C, C++ or a header may take."""
    if (
        not PLAIN.fullmatch(name)
        or len(name) > LONGEST
        or name in KEYWORDS
        or TYPES.fullmatch(name)
        or name.upper() == name  # macros are in capitals
    ):
        raise GraphError(f"{name[:80]!r} cannot be the name of a member in C; rename the signal and export it again")
    return name


def members(names: Iterable[str]) -> list[str]:
    """The names of one struct; GraphError also when one is there twice."""
    taken = [member(name) for name in names]
    for name in taken:
        if taken.count(name) > 1:
            raise GraphError(f"{name!r} is the name of two members in C; rename one and export it again")
    return taken
