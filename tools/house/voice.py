"""The part of the style guide's section "Voice" that a program can check.

Documents, docstrings, comments and strings name the actor, and say "not a" instead of "no". The
check runs with the other promises (tools.house.promises).
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from ugpu.tools.house.layers import PACKAGES

# Phrase and what to write instead. "is no" is fine before a comparative, and after "there".
PATTERNS = tuple(
    (re.compile(pattern, re.IGNORECASE), instead)
    for pattern, instead in (
        (r"\b(?:nobody|somebody|whoever|whomever)\b", "name the actor, or use the passive"),
        (r"\b(?:says?|said|tells?|told) of (?:itself|themselves)\b", "reports"),
        (
            r"(?<!there )\b(?:is|are|was|were) no (?!(?:longer|more|less|fewer|faster|slower|larger"
            r"|smaller|shorter|better|worse|later|earlier|higher|lower)\b)[a-z]",
            "is not a",
        ),
        (r"\bha(?:s|ve) not so many\b", "requested A, it has B"),
        (r"\bof ours\b", "of ugpu, or our"),
        (r"\b(?:tells?|told|telling) apart\b", "distinguish"),
        (r"\basked of\b", "requested from"),
        (r"\bhears? of\b|\bheard of\b", "is notified of"),
        (r"\bbeside ours\b", "compared with ugpu's"),
        (r"\bin vain\b", "name what failed or timed out"),
        (r"\banew\b", "again, or recreate, restart"),
        (r"\bstand(?:s|ing)? aside\b", "yield"),
        (r"\bc(?:o|a)mes? to rest\b", "is idle, or has finished"),
        (
            r"\b(?:says so|(?:says?|tells?|told) (?:why|what|which|how))\b",
            "reports, shows, contains",
        ),
    )
)


def voice(root: Path) -> Iterator[str]:
    """Check that documents, docstrings, comments and strings have no phrase that the style guide
    rules out."""
    for page in _pages(root):
        for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
            yield from _faults(f"{page.relative_to(root)}:{number}", line)
    for package in PACKAGES:
        for file in sorted((root / package).rglob("*.py")):
            where = file.relative_to(root)
            source = file.read_text("utf-8")
            if where.as_posix() == "tools/house/voice.py" or not _suspect(source):
                continue
            for number, text in _texts(source):
                yield from _faults(f"{where}:{number}", text)


def _pages(root: Path) -> Iterator[Path]:
    """Yield all documents except STYLE.md, which quotes the phrases."""
    yield from sorted(page for page in root.glob("*.md") if page.name != "STYLE.md")
    for folder in ("docs", *PACKAGES):
        yield from sorted((root / folder).rglob("*.md"))


def _suspect(source: str) -> bool:
    """Return whether a phrase occurs anywhere in the file, code included. This avoids parsing each
    file, which takes long."""
    text = " ".join(source.split())
    return any(pattern.search(text) for pattern, _ in PATTERNS)


def _texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each string and each comment."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, " ".join(node.value.split())
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _faults(where: str, text: str) -> Iterator[str]:
    for pattern, instead in PATTERNS:
        if match := pattern.search(text):
            yield f"{where}: {match.group()!r}; write: {instead} (STYLE.md, Voice)"
