"""Prompt templates: Jinja's syntax, reduced to what filling in a row needs.

A template comes from a user and meets data of any size, so it has no loops, no calls and no arithmetic: what
it can cost is bounded by its own length and the row's. Only plain data is reachable from it.
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import StrictUndefined, TemplateError, UndefinedError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tasks.errors import UserError

MAX_TEMPLATE_CHARACTERS = 100_000

MAX_FILTERS_ON_A_VALUE = 4
"""Some filters lengthen their text; a chain of many would do so exponentially."""

ROW = "row"
"""The row itself, for columns whose names are no identifiers: `{{ row["my column"] }}`."""

_NOT_COLUMNS = frozenset({"self", "super"})
"""Names that Jinja takes for itself."""

TESTS = frozenset({"defined", "none"})

_ALLOWED: tuple[type[nodes.Node], ...] = (
    nodes.Template,
    nodes.Output,
    nodes.TemplateData,
    nodes.Name,
    nodes.Getattr,
    nodes.Getitem,
    nodes.Slice,
    nodes.Const,
    nodes.Neg,
    nodes.Filter,
    nodes.Test,
    nodes.If,
    nodes.CondExpr,
    nodes.Compare,
    nodes.Operand,
    nodes.And,
    nodes.Or,
    nodes.Not,
)


class CannotRender(Exception):
    """This row does not fit the template; the message says why."""


class PromptTemplate:
    """A template that was checked, and the columns that it names."""

    def __init__(self, source: str, param: str = "template") -> None:
        """Parse and check the template.

        Raises:
            UserError: it is not valid, or uses what templates here do not have.
        """
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise _fault(f"The template is longer than {MAX_TEMPLATE_CHARACTERS:,} characters.", param)
        try:
            tree = _environment.parse(source)
            columns = _Columns(param)
            columns.visit(tree)
            self._render = _environment.from_string(tree)
        except TemplateError as error:
            line = getattr(error, "lineno", None)
            place = f" on line {line}" if line else ""
            message = (error.message or "unknown error").rstrip(".")
            raise _fault(f"The template is not valid{place}: {message}.", param) from error
        except (RecursionError, MemoryError, OverflowError) as error:
            raise _fault("The template is nested too deeply.", param) from error
        except (TypeError, ValueError) as error:
            # A filter on a constant is worked out while the template is read.
            raise _fault(f"The template is not valid: {error}.", param) from error
        self.columns = frozenset(columns.named - columns.optional)
        """Columns that every row must have."""

    def missing(self, columns: Mapping[str, Any] | frozenset[str]) -> list[str]:
        """Columns that the template needs and these lack, sorted."""
        return sorted(column for column in self.columns if column not in columns)

    def render(self, row: Mapping[str, Any], max_characters: int) -> str:
        """The prompt of this row.

        Raises:
            CannotRender: the row lacks a part, or the prompt gets longer than `max_characters`.
        """
        pieces: list[str] = []
        left = max_characters
        try:
            for piece in self._render.generate({**row, ROW: row}):
                left -= len(piece)
                if left < 0:
                    raise CannotRender(f"The prompt is longer than {max_characters:,} characters.")
                pieces.append(piece)
        except UndefinedError as error:
            raise CannotRender(f"{error.message}.") from error
        except (TypeError, ValueError, RecursionError) as error:
            raise CannotRender(f"The template cannot be filled in: {error}.") from error
        return "".join(pieces)


def text_of(value: Any) -> str:
    """A value as it stands in a prompt: text as it is, nothing for null, all else as JSON."""
    if isinstance(value, str):
        return str(value)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, StrictUndefined):
        return str(value)  # raises, with the name
    return _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _join(value: Any, separator: str = "") -> str:
    if not isinstance(value, list):
        raise TypeError("'join' needs a list")
    return separator.join(text_of(item) for item in value)


def _truncate(value: Any, length: int = 255) -> str:
    return text_of(value)[: max(0, length)]


def _default(value: Any, instead: Any = "") -> Any:
    return instead if isinstance(value, StrictUndefined) or value is None else value


def _of_text(change: Callable[[str], str]) -> Callable[[Any], str]:
    return lambda value: change(text_of(value))


FILTERS: dict[str, Callable[..., Any]] = {
    "default": _default,
    "first": lambda value: value[0] if value else "",
    "join": _join,
    "last": lambda value: value[-1] if value else "",
    "length": len,
    "lower": _of_text(str.lower),
    "title": _of_text(str.title),
    "tojson": _json,
    "trim": _of_text(str.strip),
    "truncate": _truncate,
    "upper": _of_text(str.upper),
}
"""What may be done to a value. None of them can multiply text by a number."""


class _Environment(ImmutableSandboxedEnvironment):
    """Reaches into rows only: no attribute of any Python object."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        return self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, dict | list | str) and not (isinstance(obj, dict) and isinstance(argument, slice)):
            try:
                return obj[argument]
            except (LookupError, TypeError):
                pass
        return self.undefined(obj=obj, name=argument)


_environment = _Environment(
    undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True, finalize=text_of, cache_size=0
)
_environment.filters = dict(FILTERS)
_environment.globals = {}


class _Columns:
    """Walks a template: refuses what is not allowed, and collects the columns that it names."""

    def __init__(self, param: str) -> None:
        self.named: set[str] = set()
        self.optional: set[str] = set()
        """Those with a default, or that are asked for before they are used."""
        self._param = param

    def visit(self, node: nodes.Node, *, filters: int = 0, optional: bool = False) -> None:
        if not isinstance(node, _ALLOWED):
            raise self._refused(node, type(node).__name__.lower())
        if isinstance(node, nodes.Filter):
            filters += 1
            if node.name not in FILTERS:
                known = ", ".join(FILTERS)
                raise self._refused(node, f"the filter {node.name!r}; known: {known}")
            if filters > MAX_FILTERS_ON_A_VALUE:
                raise self._refused(node, f"more than {MAX_FILTERS_ON_A_VALUE} filters on one value")
            optional = optional or node.name == "default"
        if isinstance(node, nodes.Test):
            if node.name not in TESTS:
                raise self._refused(node, f"the test {node.name!r}; known: {', '.join(sorted(TESTS))}")
            optional = True
        if (column := _named_column(node)) is not None:
            if column in _NOT_COLUMNS and isinstance(node, nodes.Name):
                raise self._refused(node, f"{column!r} without row[{column!r}]")
            (self.optional if optional else self.named).add(column)
            return
        for child in node.iter_child_nodes():
            self.visit(child, filters=filters, optional=optional)

    def _refused(self, node: nodes.Node, what: str) -> UserError:
        return _fault(
            f"The template uses {what} on line {node.lineno}, which is not allowed here.", self._param
        )


def _named_column(node: nodes.Node) -> str | None:
    match node:
        case nodes.Name(name=name) if name != ROW:
            return str(name)
        case nodes.Getattr(node=nodes.Name(name="row"), attr=name):
            return str(name)
        case nodes.Getitem(node=nodes.Name(name="row"), arg=nodes.Const(value=str(name))):
            return name
    return None


def _fault(message: str, param: str) -> UserError:
    return UserError(message, code="invalid_template", param=param)
