"""What a submission says, and what it asks of the domain."""

import hashlib
import json
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from tasks.durations import parse_duration
from tasks.errors import UserError
from tasks.rows import PROMPT_COLUMN, RowsFormat, RowsSpec, format_of
from tasks.submission import JobRequest
from tasks.tables import JobKind, Lane
from web.api.fields import Asked, Duration, ExpirySeconds, JsonObject, Metadata, Moment, Text

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
ROWS_ONLY = ("system", "format", "id_column", "settings", "response_format", "json_schema")
SCHEMA_NAME = "answer"
MAX_PROMPTS = 100_000


class JobOptions(Asked):
    """What is asked of an input: how rows become requests, and how the job runs."""

    template: Annotated[Text | None, Field(min_length=1)] = None
    """Prompt of each row, such as `Summarise: {{ text }}`. Without one, the file has request lines."""
    system: Text | None = None
    """System prompt of every request."""
    format: RowsFormat | None = None
    """Of a file of rows; unless it is given, by the file's name."""
    id_column: Annotated[Text | None, Field(min_length=1)] = None
    """Column that holds each row's custom_id; without one they are `row-1`, `row-2` and so on."""
    settings: JsonObject = Field(default={})
    """Sampling settings of every request, such as `temperature` and `max_tokens`."""
    response_format: JsonObject | None = None
    """How every answer is to look, as the endpoint has it."""
    json_schema: JsonObject | None = None
    """JSON schema that every answer is to follow: short for a `response_format` of that type."""
    model: Annotated[Text | None, Field(min_length=1)] = None
    """Served name. Rows: the server's default, unless it is given. Request lines: as the lines say."""
    endpoint: Text = CHAT
    """Where every request goes."""
    priority: Lane = Lane.NORMAL
    window: Duration | None = None
    """Time until the job expires, such as `24h`."""
    deadline: Moment | None = None
    """When the job expires, instead of a window: ISO 8601 with a time zone."""
    metadata: Metadata | None = None
    output_expires_s: ExpirySeconds | None = None
    """Seconds that the output and error files are kept after the job's end."""

    @model_validator(mode="after")
    def _fields_fit_together(self) -> Self:
        if self.window is not None and self.deadline is not None:
            raise ValueError("give 'window' or 'deadline', not both")
        if self.response_format is not None and self.json_schema is not None:
            raise ValueError("give 'response_format' or 'json_schema', not both")
        return self


class JobAsked(JobOptions):
    """A new job, from prompts or from a file that was uploaded before."""

    prompts: Annotated[list[Text] | None, Field(min_length=1, max_length=MAX_PROMPTS)] = None
    """The prompts themselves. A template may go around each as `{{ prompt }}`."""
    input_file_id: Text | None = None
    """A file of `/v1/files`: rows if a template is given, request lines otherwise."""

    @model_validator(mode="after")
    def _prompts_have_no_format(self) -> Self:
        if self.prompts is not None and self.format is not None:
            raise ValueError("'format' is for files; 'prompts' have none")
        return self

    @model_validator(mode="after")
    def _has_one_input(self) -> Self:
        if (self.prompts is None) == (self.input_file_id is None):
            raise ValueError(
                "give one of 'prompts' and 'input_file_id'; or send a file as multipart/form-data"
            )
        return self


def job_request(
    options: JobOptions, *, file_id: str, filename: str, default_model: str, tenant: str, pasted: bool = False
) -> JobRequest:
    """The domain's words for a submission of the file `filename`, or of pasted prompts.

    Raises:
        UserError: a field needs a template that is not there, or the format cannot be told.
    """
    common: dict[str, Any] = {
        "endpoint": options.endpoint,
        "input_file_id": file_id,
        "lane": options.priority,
        "tenant": tenant,
        "window_s": None if options.window is None else parse_duration(options.window),
        "deadline_ms": _epoch_ms(options.deadline),
        "metadata": options.metadata,
        "output_expires_s": options.output_expires_s,
    }
    spec = _rows_spec(options, filename, pasted=pasted)
    if spec is None:
        return JobRequest(model=options.model, **common)
    return JobRequest(
        kind=JobKind.ROWS, model=options.model or default_model, options=spec.to_options(), **common
    )


def _rows_spec(options: JobOptions, filename: str, *, pasted: bool) -> RowsSpec | None:
    if pasted:
        template = options.template or f"{{{{ {PROMPT_COLUMN} }}}}"
        return RowsSpec(RowsFormat.JSONL, template, options.system, options.id_column, _body(options))
    if options.template is not None:
        kind = options.format or format_of(filename)
        return RowsSpec(kind, options.template, options.system, options.id_column, _body(options))
    for name in ROWS_ONLY:
        if getattr(options, name):
            raise UserError(
                f"'{name}' is for rows: give a 'template' too. Request lines carry their own settings.",
                param=name,
            )
    if filename.lower().endswith((".csv", ".parquet")):
        raise UserError("A table needs a 'template', such as 'Summarise: {{ text }}'.", param="template")
    return None


def _body(options: JobOptions) -> dict[str, Any]:
    """What is the same in the body of every request."""
    body: dict[str, Any] = dict(options.settings)
    chosen: dict[str, Any] | None = options.response_format
    if options.json_schema is not None:
        named: dict[str, Any] = {"name": SCHEMA_NAME, "schema": options.json_schema}
        if options.endpoint == RESPONSES:
            chosen = {"type": "json_schema", **named}
        else:
            chosen = {"type": "json_schema", "json_schema": named}
    if chosen is not None:
        key = "text" if options.endpoint == RESPONSES else "response_format"
        if key in body:
            raise UserError(f"'settings' has {key!r} already.", param=f"settings.{key}")
        body[key] = {"format": chosen} if options.endpoint == RESPONSES else chosen
    return body


def _epoch_ms(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp() * 1000)


def digest(options: JobOptions, file_sha256: str | None) -> str:
    """The same for the same submission, however its fields were ordered on their way here."""
    said = options.model_dump(mode="json", exclude_unset=True)
    text = json.dumps([said, file_sha256], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
