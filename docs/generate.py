"""Writes docs/configuration.md from the settings: their names, types, defaults and docstrings.

`python docs/generate.py` writes the file; with `--check` it only says whether the file is up to date.
"""

import ast
import difflib
import inspect
import json
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from config.catalogue import BUILTIN_MODELS, FALLBACK_MODEL, ModelEntry, Simulation
from config.settings import CONFIG_VARIABLE, DEFAULT_CONFIG_FILE, ENV_PREFIX, Settings

TARGET = Path(__file__).with_name("configuration.md")

SIMPLE_TYPES: dict[Any, str] = {
    str: "text",
    Path: "path",
    bool: "true or false",
    int: "whole number",
    float: "number",
    SecretStr: "text, secret",
    Any: "any value",
}

INTRODUCTION = f"""\
<!-- Written by docs/generate.py from the settings: change those, then run `make docs`. -->
# Configuration

Gristmill runs without any configuration. What differs in your deployment goes into a file, into environment
variables, or both.

- **File**: `{DEFAULT_CONFIG_FILE}` in the folder where the command is started, or the file that
  `{CONFIG_VARIABLE}` names.
- **Variables**: `{ENV_PREFIX}` and the setting's name in capitals. A variable wins over the file.
- **Tables** are JSON in a variable (`{ENV_PREFIX}MODELS='{{"small": {{"source": "org/model"}}}}'`), or one
  variable for each key, after two underscores (`{ENV_PREFIX}STORAGE_OPTIONS__AWS_REGION=eu-west-1`); keys
  given in the second way become lower case. Tables of the file and of variables are joined key by key.
- All settings are checked when a command starts. It refuses names it does not know, and lists every problem
  at once.
- Secrets are masked wherever settings are printed.

`gristmill models` shows the catalogue that results, `gristmill doctor` tries what the settings name.

```toml
# gristmill.toml
default_model = "small"
database_url = "postgresql+psycopg://gristmill@db.internal/gristmill"
redis_url = "redis://redis.internal:6379/0"
storage_url = "s3://our-bucket/gristmill"

[storage_options]
aws_region = "eu-west-1"

[models.small]
source = "Qwen/Qwen2.5-0.5B-Instruct"
engine_args = {{ max_model_len = 4096, gpu_memory_utilization = 0.85 }}

[models.large]
source = "/srv/models/large"
devices = 2

[models.elsewhere]
engine = "openai"
source = "name-of-the-model-there"
base_url = "http://127.0.0.1:8000/v1"
```
"""

MODELS_INTRODUCTION = f"""\
Each entry of `models` is a table `[models.NAME]`; NAME is what requests call the model. These are built in,
and an entry of the same name replaces them:

{{builtin}}

`{FALLBACK_MODEL}` has random weights, which Gristmill makes itself: its answers are noise. It stands in, with
a message, where the default model was not chosen by anyone and cannot be fetched.
"""

CELERY = """\
Celery's own settings are not configurable: they are in `config/celeryconfig.py`, with the reason for each.
"""


def main(arguments: list[str]) -> int:
    """Write the file, or with `--check` compare; returns the exit status."""
    wanted = document()
    if arguments == ["--check"]:
        present = TARGET.read_text(encoding="utf-8") if TARGET.is_file() else ""
        if present == wanted:
            return 0
        changes = difflib.unified_diff(
            present.splitlines(), wanted.splitlines(), "in the file", "by the settings", n=0, lineterm=""
        )
        sys.stderr.write("\n".join([f"{TARGET.name} is out of date: run `make docs`.", *changes]) + "\n")
        return 1
    if arguments:
        sys.stderr.write("usage: generate.py [--check]\n")
        return 2
    TARGET.write_text(wanted, encoding="utf-8")
    return 0


def document() -> str:
    """The whole page."""
    return "\n".join(
        [
            INTRODUCTION,
            f"## Settings\n\n{_settings_table(Settings)}\n",
            "## Models\n",
            MODELS_INTRODUCTION.replace("{builtin}", _builtin_models()),
            f"{_settings_table(ModelEntry)}\n",
            f"## Simulation\n\n{inspect.getdoc(Simulation)}\n\n{_settings_table(Simulation)}\n",
            f"## Celery\n\n{CELERY}",
        ]
    )


def attribute_docstrings(owner: type) -> dict[str, str]:
    """The string under each annotated attribute of a class, by the attribute's name."""
    (definition,) = ast.parse(inspect.getsource(owner)).body
    assert isinstance(definition, ast.ClassDef)
    docstrings: dict[str, str] = {}
    for statement, follower in zip(definition.body, definition.body[1:], strict=False):
        match statement, follower:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docstrings[name] = inspect.cleandoc(text)
    return docstrings


def _settings_table(owner: type[BaseModel]) -> str:
    meanings = attribute_docstrings(owner)
    rows = []
    for name, field in owner.model_fields.items():
        label = f"`{name}`"
        if owner is Settings:
            label += f"<br>`{ENV_PREFIX}{name.upper()}`"
        kind: Any = field.annotation
        limits = _limits_text(tuple(field.metadata))
        meaning = meanings.get(name) or (inspect.getdoc(kind) if inspect.isclass(kind) else "") or ""
        rows.append((label, _type_text(kind) + limits, _default_text(name, field), meaning))
    return _table(("Setting", "Type", "Default", "Meaning"), rows)


def _builtin_models() -> str:
    rows = []
    for name, entry in BUILTIN_MODELS.items():
        arguments = ", ".join(f"`{key} = {json.dumps(value)}`" for key, value in entry.engine_args.items())
        rows.append((f"`{name}`", f"`{entry.source}`", arguments))
    return _table(("Model", "Source", "Engine arguments"), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"

    return "\n".join(line(cells) for cells in [head, ["---"] * len(head), *rows])


def _type_text(kind: Any) -> str:
    """A type in words."""
    if kind in SIMPLE_TYPES:
        return SIMPLE_TYPES[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _type_text(arguments[0]) + _limits_text(arguments[1:])
    if origin in (Union, UnionType):
        return " or ".join(_type_text(argument) for argument in arguments if argument is not NoneType)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin is dict:
        if arguments[1] is Any:
            return "table"
        return f"table of {_type_text(arguments[1])}"
    if issubclass(kind, Enum):
        return ", ".join(f"`{member.value}`" for member in kind)
    headings = {ModelEntry: "[models](#models)", Simulation: "[table](#simulation)"}
    return headings[kind]


def _limits_text(metadata: tuple[Any, ...]) -> str:
    texts = []
    for item in metadata:
        match item:
            case FieldInfo():
                return _limits_text(tuple(item.metadata))
            case Ge(ge=limit):
                texts.append(f"from {limit}")
            case Gt(gt=limit):
                texts.append(f"above {limit}")
            case Le(le=limit):
                texts.append(f"to {limit}")
            case _:
                raise TypeError(f"no words for the limit {item!r}")
    return ", " + " ".join(texts) if texts else ""


def _default_text(name: str, field: FieldInfo) -> str:
    """A default as it would stand in the file, with a readable size or time beside a long number."""
    value = field.default
    if field.is_required():
        return "required"
    if value is None:
        return "unset"
    if isinstance(value, dict | BaseModel):
        return "empty"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if name.endswith("_bytes"):
        return f"`{value}` ({_size_text(value)})"
    if name.endswith("_s") and value >= 3600:
        return f"`{value:g}` ({value / 3600:g} h)"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _size_text(size_bytes: int) -> str:
    for exponent, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size_bytes >= 2**exponent:
            return f"{size_bytes / 2**exponent:g} {unit}"
    return f"{size_bytes} bytes"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
