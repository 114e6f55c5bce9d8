"""What MkDocs is told besides docs/: the README is the first page, and what pages link to outside docs/ comes along.

Links are those of the files as they lie in the repository, so that they lead on there, too.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS, README, FIRST = "docs", "README.md", "index.md"
LINK = re.compile(r"(\]\()([^)#\s]+)")


def source(page: str) -> str:
    """Where the page of that name lies in the repository."""
    if page == FIRST:
        return README
    return page if (ROOT / page).is_file() else posixpath.join(DOCS, page)


def placed(file: str) -> str:
    """Where a file of the repository lies in the site."""
    return FIRST if file == README else re.sub(r"\.ipynb$", ".md", file.removeprefix(DOCS + "/"))


def page_of(notebook: Path) -> str:
    """A notebook as a page: its text, and its code in blocks."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    texts = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    return "\n\n".join(text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in texts) + "\n"


def relinked(text: str, page: str) -> str:
    """Links between files of the repository as links between what they are in the site."""
    here, there = posixpath.dirname(source(page)), posixpath.dirname(page) or "."

    def lead(found: re.Match[str]) -> str:
        if "://" in found[2]:
            return found[0]
        file = posixpath.normpath(posixpath.join(here, found[2]))
        return found[1] + posixpath.relpath(placed(file), there) if (ROOT / file).is_file() else found[0]

    return LINK.sub(lead, text)


def linked(text: str, page: str) -> set[str]:
    """The files of the repository outside docs/ that a page links to."""
    here = posixpath.dirname(source(page))
    files = {posixpath.normpath(posixpath.join(here, found[2])) for found in LINK.finditer(text)}
    return {file for file in files if not file.startswith((DOCS + "/", "..")) and (ROOT / file).is_file()}


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the README, and all that is linked to, also by what was added."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, FIRST, abs_src_path=str(ROOT / README)))
    open_ones, added = [FIRST, *(f.src_uri for f in files.documentation_pages())], {README}
    while open_ones:
        page = open_ones.pop()
        for file in sorted(linked((ROOT / source(page)).read_text(encoding="utf-8"), page) - added):
            added.add(file)
            files.append(File.generated(config, file, abs_src_path=str(ROOT / file)))
            if file.endswith(".md"):
                open_ones.append(file)
    for notebook in sorted((ROOT / DOCS).rglob("*.ipynb")):
        name = notebook.relative_to(ROOT).as_posix()
        files.append(File.generated(config, placed(name), content=page_of(notebook)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Lead its links on."""
    return relinked(markdown, page.file.src_uri)
