"""Jobs from rows: a table, a prompt template, and what is the same in every request."""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import PurePath
from typing import Any, Self

import msgspec

from tasks.errors import UserError
from tasks.template import PromptTemplate

PROMPT_COLUMN = "prompt"
"""Column of a pasted list of prompts."""

ROWS_ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings")

_PROMPT_FIELDS = {
    "/v1/chat/completions": "messages",
    "/v1/completions": "prompt",
    "/v1/responses": "input",
    "/v1/embeddings": "input",
}
_SYSTEM_ENDPOINTS = frozenset({"/v1/chat/completions", "/v1/responses"})
_OURS = frozenset({"model", "messages", "prompt", "input", "instructions", "stream", "stream_options"})
"""Fields of a body that come from the row, the job or the way it runs."""


class RowsFormat(StrEnum):
    """How a table is written."""

    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"


class RowsSpec(msgspec.Struct, frozen=True):
    """How the rows of a file become requests."""

    format: RowsFormat
    template: str
    """Prompt of each row, such as `Summarise: {{ text }}`."""
    system: str | None = None
    """System prompt of every request."""
    id_column: str | None = None
    """Column whose values are the custom_ids; null: `row-1`, `row-2` and so on."""
    body: dict[str, Any] = {}
    """What else every request's body has: sampling settings, the form of answers."""

    def to_options(self) -> dict[str, Any]:
        """The spec as `Job.options` keeps it."""
        options: dict[str, Any] = msgspec.to_builtins(self)
        return options

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """The spec of a job of kind `rows`."""
        known = {name: options[name] for name in cls.__struct_fields__ if name in options}
        return msgspec.convert(known, cls)

    def check(self, endpoint: str) -> None:
        """Find out what can be known before a row is read.

        Raises:
            UserError: the endpoint takes no prompts, the template is not valid, or a setting is not one.
        """
        if endpoint not in ROWS_ENDPOINTS:
            known = ", ".join(ROWS_ENDPOINTS)
            raise UserError(f"Rows cannot be sent to {endpoint!r}; only to {known}.", param="endpoint")
        if self.system is not None and endpoint not in _SYSTEM_ENDPOINTS:
            raise UserError(f"{endpoint} has no system prompt.", param="system")
        for name in self.body:
            if name in _OURS:
                raise UserError(
                    f"{name!r} cannot be a setting: it comes from the row or the job.",
                    param=f"settings.{name}",
                )
        try:
            msgspec.json.encode((self.system, self.id_column, self.body))
        except UnicodeEncodeError as error:
            raise UserError("The system prompt or a setting is not valid Unicode text.") from error
        PromptTemplate(self.template)

    def body_of(self, endpoint: str, model: str, prompt: str) -> bytes:
        """The body of the request with this prompt, UTF-8 JSON."""
        asked: Any = prompt
        body: dict[str, Any] = {"model": model}
        if endpoint == "/v1/chat/completions":
            asked = [{"role": "user", "content": prompt}]
            if self.system is not None:
                asked.insert(0, {"role": "system", "content": self.system})
        elif self.system is not None:
            body["instructions"] = self.system
        body[_PROMPT_FIELDS[endpoint]] = asked
        return msgspec.json.encode({**body, **self.body})


def prompts_as_rows(prompts: Iterable[str]) -> Iterator[bytes]:
    """A list of prompts as the lines of a JSONL table."""
    for prompt in prompts:
        yield msgspec.json.encode({PROMPT_COLUMN: prompt}) + b"\n"


def format_of(filename: str) -> RowsFormat:
    """The format that a file's name says.

    Raises:
        UserError: it says none that is known.
    """
    ending = PurePath(filename).suffix.lower().removeprefix(".")
    if ending == "ndjson":
        return RowsFormat.JSONL
    try:
        return RowsFormat(ending)
    except ValueError as error:
        known = ", ".join(f".{kind}" for kind in RowsFormat)
        raise UserError(
            f"Cannot tell the format of {filename!r}: name one, or use {known}.", param="format"
        ) from error
