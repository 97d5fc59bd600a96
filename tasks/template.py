"""Prompt templates: Jinja's syntax, reduced to what filling in a row needs.

A template comes from a user and meets data of any size, so it has no loops, no calls and no arithmetic: what
it can cost is bounded by its own length and the row's. Only plain data is reachable from it.
"""

from collections.abc import Container, Mapping
from typing import Any

from jinja2 import StrictUndefined, TemplateError, UndefinedError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tasks.errors import UserError
from tasks.template_filters import FILTERS, text_of

MAX_TEMPLATE_CHARACTERS = 100_000

MAX_FILTERS_ON_A_VALUE = 4
"""Some filters lengthen their text; a chain of many would do so exponentially."""

MAX_DEPTH = 40
"""Of conditions and expressions inside each other; Python itself takes no more than 100 levels."""

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
            source.encode()
            tree = _environment.parse(source)
            columns = _Columns(param)
            columns.visit(tree)
            self._render = _environment.from_string(tree)
        except TemplateError as error:
            line = getattr(error, "lineno", None)
            place = f" on line {line}" if line else ""
            message = (error.message or "unknown error").rstrip(".")
            raise _fault(f"The template is not valid{place}: {message}.", param) from error
        except (RecursionError, MemoryError, OverflowError, SyntaxError) as error:
            raise _fault("The template is nested too deeply.", param) from error
        except UnicodeEncodeError as error:
            raise _fault("The template is not valid Unicode text.", param) from error
        except ValueError as error:
            # A number of more digits than Python reads.
            raise _fault(f"The template is not valid: {error}.", param) from error
        self.columns = frozenset(columns.named - columns.optional)
        """Columns that every row must have."""

    def missing(self, columns: Container[str]) -> list[str]:
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
            raise CannotRender(f"The template cannot be filled in: {error.message}.") from error
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            raise CannotRender(f"The template cannot be filled in: {error}.") from error
        prompt = "".join(pieces)
        if not prompt.isascii():
            try:
                prompt.encode()
            except UnicodeEncodeError as error:
                # `{{ "\\ud800" }}`: half a character.
                raise CannotRender("The prompt is not valid Unicode text.") from error
        return prompt


class _Environment(ImmutableSandboxedEnvironment):
    """Reaches into rows only: no attribute of any Python object."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        return self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, StrictUndefined):
            str(obj)  # raises, with the name of what is missing
        if isinstance(obj, dict | list | str) and not (isinstance(obj, dict) and isinstance(argument, slice)):
            try:
                return obj[argument]
            except (LookupError, TypeError):
                pass
        return self.undefined(hint=f"a value has no part {text_of(argument)!r}")


_environment = _Environment(
    undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True, finalize=text_of, cache_size=0
)
# Nothing is worked out while a template is read: what goes wrong then has no row to be the fault of.
_environment.optimized = False
_environment.filters = {name: spec.work for name, spec in FILTERS.items()}
_environment.globals = {}

_NAMES: dict[type[nodes.Node], str] = {
    nodes.Call: "a call",
    nodes.For: "a loop",
    nodes.Assign: "an assignment",
    nodes.Macro: "a macro",
    nodes.Concat: "'~'",
    **dict.fromkeys(
        (nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow), "arithmetic"
    ),
}


class _Columns:
    """Walks a template: refuses what is not allowed, and collects the columns that it names."""

    def __init__(self, param: str) -> None:
        self.named: set[str] = set()
        self.optional: set[str] = set()
        """Those with a default, or that are asked for before they are used."""
        self._param = param
        self._line = 1

    def visit(self, node: nodes.Node, *, depth: int = 0, filters: int = 0, optional: bool = False) -> None:
        self._line = node.lineno or self._line
        if depth > MAX_DEPTH:
            raise self._refused(f"more than {MAX_DEPTH} levels of conditions and expressions")
        if not isinstance(node, _ALLOWED):
            raise self._refused(_NAMES.get(type(node), f"'{type(node).__name__.lower()}'"))
        if isinstance(node, nodes.Filter):
            filters += 1
            self._check_filter(node, filters)
        if isinstance(node, nodes.Test) and node.name not in TESTS:
            raise self._refused(f"the test {node.name!r}", f"tests: {', '.join(sorted(TESTS))}")
        if (column := _named_column(node)) is not None:
            if column in _NOT_COLUMNS and isinstance(node, nodes.Name):
                raise self._refused(f"the name {column!r}", f'write row["{column}"]')
            (self.optional if optional else self.named).add(column)
            return
        asked_for = _asked_for(node)
        for child in node.iter_child_nodes():
            self.visit(child, depth=depth + 1, filters=filters, optional=child is asked_for)

    def _check_filter(self, node: nodes.Filter, filters: int) -> None:
        spec = FILTERS.get(node.name)
        if spec is None:
            raise self._refused(f"the filter {node.name!r}", f"filters: {', '.join(FILTERS)}")
        if filters > MAX_FILTERS_ON_A_VALUE:
            raise self._refused(f"more than {MAX_FILTERS_ON_A_VALUE} filters on one value")
        if node.kwargs or node.dyn_args is not None or node.dyn_kwargs is not None:
            raise self._refused(f"named or spread arguments of {node.name!r}")
        if not spec.least <= len(node.args) <= spec.most:
            wanted = f"{spec.least}" if spec.least == spec.most else f"{spec.least} to {spec.most}"
            raise self._refused(f"{node.name!r} with {len(node.args)} arguments", f"it takes {wanted}")

    def _refused(self, what: str, instead: str | None = None) -> UserError:
        hint = "" if instead is None else f" ({instead})"
        return _fault(
            f"The template uses {what} on line {self._line}, which is not allowed here{hint}.", self._param
        )


def _asked_for(node: nodes.Node) -> nodes.Node | None:
    """The value that may be missing, because this node looks whether it is there."""
    if isinstance(node, nodes.Test) or (isinstance(node, nodes.Filter) and node.name == "default"):
        return node.node
    return None


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
