"""The documents say what the code does: generated pages are fresh, and what is named in them exists."""

import json
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from config.settings import load_settings
from gristmill import main
from tasks.failpoints import Failpoint
from tasks.validation import Validator, ValidLine

ROOT = Path(__file__).parent.parent
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md"))),
)
OPTION = re.compile(r"(?<![\w-])(--?[a-z][a-z-]*)")


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def code_blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text_of(page), flags=re.MULTILINE | re.DOTALL)


def command_lines(page: str, program: str) -> list[list[str]]:
    """What follows the program's name in the page's shell blocks, without comments, split at blanks."""
    lines = "\n".join(code_blocks(page, "sh")).splitlines()
    starts = re.compile(rf"^(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?{program} ")
    return [starts.sub("", line).partition(" #")[0].split() for line in lines if starts.match(line)]


def test_the_table_of_settings_is_up_to_date() -> None:
    check = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    answer = subprocess.run(check, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_the_documents_exist_with_their_options(page: str) -> None:
    for name, *arguments in command_lines(page, "gristmill"):
        command: click.Command = main.commands[name]
        if isinstance(command, click.Group):
            command = command.commands[arguments[0]]
        known = {
            option for parameter in command.params for option in parameter.opts if option.startswith("-")
        }
        used = {option for argument in arguments for option in OPTION.findall(argument)[:1]}
        assert used <= known, f"gristmill {name} {' '.join(arguments)}"


def test_every_command_is_shown_somewhere() -> None:
    shown = {name for page in PAGES for name, *_ in command_lines(page, "gristmill")}
    assert shown == set(main.commands)


def test_the_readme_shows_the_main_commands() -> None:
    assert {("run",), ("up",), ("test",)} <= {tuple(line) for line in command_lines("README.md", "make")}


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_in_the_documents_exist(page: str) -> None:
    targets = set(re.findall(r"^([a-z]+):.*## ", text_of("Makefile"), flags=re.MULTILINE))
    named = {name for name, *_ in command_lines(page, "make")} | set(
        re.findall(r"`make ([a-z]+)", text_of(page))
    )
    assert named <= targets


@pytest.mark.parametrize("page", PAGES)
def test_settings_files_in_the_documents_are_valid(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, block in enumerate(code_blocks(page, "toml")):
        file = tmp_path / f"{number}.toml"
        file.write_text(block, encoding="utf-8")
        monkeypatch.setenv("GRISTMILL_CONFIG", str(file))
        load_settings()


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page: str) -> None:
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)[^)]*\)", text_of(page))
    assert [target for target in targets if not ((ROOT / page).parent / target).exists()] == []


@pytest.mark.parametrize("package", ["config", "tasks", "web", "workers"])
def test_the_architecture_names_every_module(package: str) -> None:
    modules = {
        path.relative_to(ROOT).with_suffix("").as_posix()
        for path in (ROOT / package).rglob("*.py")
        if path.stem != "__init__" and "migrations" not in path.parts
    }
    rows = re.findall(r"^\| `([\w/]+)` \|", text_of("docs/architecture.md"), flags=re.MULTILINE)
    assert {row for row in rows if row.startswith(f"{package}/")} == modules


def test_the_example_is_a_good_file_of_any_model() -> None:
    lines = (ROOT / "docs" / "example.jsonl").read_bytes().splitlines()
    validator = Validator("/v1/chat/completions", "any", lambda _: True)
    requests = [validator.check(number, line) for number, line in enumerate(lines, start=1)]
    assert all(isinstance(request, ValidLine) for request in requests)
    assert len({json.loads(line)["custom_id"] for line in lines}) == len(lines) == 200
    assert not any("model" in json.loads(line)["body"] for line in lines)


def test_every_failpoint_is_in_the_table_of_guarantees() -> None:
    listed = re.findall(r"^\| `([a-z-]+)` \|", text_of("docs/guarantees.md"), flags=re.MULTILINE)
    assert listed == [failpoint.value for failpoint in Failpoint]


def test_the_tests_named_in_the_guarantees_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text_of("docs/guarantees.md"))
    assert len(named) > 20
    for file, function in named:
        assert f"def {function}" in text_of(file)
