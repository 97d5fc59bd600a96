"""docs/errors.md lists every error code that the sources can send, and no other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tasks.errors import REQUEST_ERROR_MESSAGES
from tasks.lines import BadLine
from web.errors import _CODES, STATUS_OF_CODE

ROOT = Path(__file__).parent.parent
FAULT_MAKERS = {"LineFault", "fault"}
"""Functions whose first argument is a code."""


def sources() -> list[Path]:
    return sorted((ROOT / "tasks").rglob("*.py")) + sorted((ROOT / "web").rglob("*.py"))


def codes_in(source: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        values = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in FAULT_MAKERS:
            values += node.args[:1]
        for value in values:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.value


def listed(section: str) -> set[str]:
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    match = re.search(rf"^## {section}$(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL)
    assert match is not None
    return set(re.findall(r"^\| `(\w+)` \|", match[1], flags=re.MULTILINE))


ALL_LISTED = listed("Over HTTP") | listed("In an input") | listed("In a result")


def test_every_code_in_the_sources_is_in_the_catalogue() -> None:
    missing = {
        (code, source.name) for source in sources() for code in codes_in(source) if code not in ALL_LISTED
    }
    assert missing == set()


def test_codes_that_are_made_of_statuses_and_bad_lines_are_in_the_catalogue() -> None:
    assert set(_CODES.values()) | set(STATUS_OF_CODE) <= listed("Over HTTP")
    assert {line.value for line in BadLine} <= listed("In an input")


def test_the_codes_of_results_are_those_of_the_sources() -> None:
    assert listed("In a result") == set(REQUEST_ERROR_MESSAGES)


def test_the_catalogue_lists_nothing_that_no_source_sends() -> None:
    sent = {code for source in sources() for code in codes_in(source)}
    sent |= set(_CODES.values()) | {line.value for line in BadLine} | set(REQUEST_ERROR_MESSAGES)
    assert ALL_LISTED - sent == set()
