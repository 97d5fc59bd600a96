"""What a request line must be: a typed decoder for good lines, and a careful look at the others."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from tasks.errors import LineFault, UserError
from tasks.lines import BadLine, read_lines

MAX_CUSTOM_ID_CHARACTERS = 512
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")

ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/score",
    "/v1/rerank",
)
"""Urls a job can have. Which of them a model serves depends on its engine."""


class _Head(msgspec.Struct):
    """The fields of a body that intake looks at; any type, because their values are the engine's to judge."""

    model: Any = None
    stream: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None


class _Line(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_head = msgspec.json.Decoder(_Head).decode
_decode_parts = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_any = msgspec.json.Decoder().decode
_HEAD = frozenset(_Head.__struct_fields__)


class ValidLine(msgspec.Struct, frozen=True, gc=False):
    """A request line without structural faults."""

    custom_id: str
    body: bytes
    """The body's JSON, exactly as it was sent."""
    max_output_tokens: int | None
    """What the request itself allows; null where it says nothing usable."""


class Validator:
    """Checks the lines of one job. The first line decides the model if the job names none."""

    def __init__(self, endpoint: str, model: str | None, serves: Callable[[str], bool]) -> None:
        self.endpoint = endpoint
        self.model = model
        """Model of the job; null until the first valid line of a job that names none."""
        self._model_is_optional = model is not None
        self._serves = serves

    def check(self, number: int, line: bytes | BadLine) -> ValidLine | list[LineFault]:
        """The request on this line, or everything that is wrong with it (never nothing)."""
        if isinstance(line, BadLine):
            return [bad_line(number, line)]
        try:
            decoded = _decode_line(line)
            head = _decode_head(decoded.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return self._inspect(number, line)
        custom_id = decoded.custom_id
        if (
            decoded.method != "POST"
            or decoded.url != self.endpoint
            or not (head.model == self.model if head.model is not None else self._model_is_optional)
            or (head.stream is not None and head.stream is not False)
            or not custom_id
            or len(custom_id) > MAX_CUSTOM_ID_CHARACTERS
            or (not custom_id.isprintable() and _CONTROL_CHARACTER.search(custom_id))
        ):
            return self._inspect(number, line)
        return ValidLine(custom_id, bytes(decoded.body), _output_limit(head))

    def _inspect(self, number: int, line: bytes) -> ValidLine | list[LineFault]:
        """What `check` answers, by a slow look at each part, for every line that is not plainly good."""

        def fault(code: str, message: str, param: str | None = None) -> LineFault:
            return LineFault(code, message, number, param)

        try:
            try:
                parts = _decode_parts(line)
            except msgspec.ValidationError:
                kind = _kind(_value(line))
                return [fault("invalid_json_line", f"The line must be a JSON object, not {kind}.")]
        except RecursionError:
            return [fault("invalid_json_line", "The line is nested too deeply.")]
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return [fault("invalid_json_line", f"The line is not valid JSON: {error}.")]

        faults = [
            fault("missing_required_parameter", f"The line lacks {name!r}.", name)
            for name in ("custom_id", "method", "url", "body")
            if name not in parts
        ]
        values = {name: _value(parts[name]) for name in ("custom_id", "method", "url") if name in parts}
        if "custom_id" in values and (message := custom_id_fault(values["custom_id"])):
            faults.append(fault("invalid_custom_id", message, "custom_id"))
        if "method" in values and values["method"] != "POST":
            faults.append(fault("invalid_method", "'method' must be \"POST\".", "method"))
        if "url" in values and values["url"] != self.endpoint:
            faults.append(self._url_fault(number, values["url"]))
        if "body" not in parts:
            return faults
        try:
            body = {name: _value(raw) for name, raw in _decode_parts(parts["body"]).items() if name in _HEAD}
        except msgspec.ValidationError:
            kind = _kind(_value(parts["body"]))
            faults.append(fault("invalid_request", f"'body' must be an object, not {kind}.", "body"))
            return faults
        if body.get("stream") is not None and body.get("stream") is not False:
            message = "'stream' must be false in a batch request."
            faults.append(fault("stream_not_supported", message, "body.stream"))
        if model_fault := self._model_fault(number, body.get("model")):
            faults.append(model_fault)
        if faults:
            return faults
        return ValidLine(str(values["custom_id"]), bytes(parts["body"]), _output_limit(_Head(**body)))

    def _url_fault(self, number: int, url: object) -> LineFault:
        if not isinstance(url, str) or not url.startswith("/"):
            message = f"'url' must be a path such as {self.endpoint!r}; other servers are never called."
            return LineFault("invalid_url", message, number, "url")
        message = f"'url' is {url!r}, but every request of this job goes to {self.endpoint!r}."
        return LineFault("url_mismatch", message, number, "url")

    def _model_fault(self, number: int, model: object) -> LineFault | None:
        param = "body.model"
        if model is None:
            if self._model_is_optional:
                return None
            message = "'model' is missing: name it in each line, or for the whole job."
            return LineFault("missing_required_parameter", message, number, param)
        if not isinstance(model, str):
            return LineFault(
                "invalid_request", f"'model' must be a string, not {_kind(model)}.", number, param
            )
        if self.model is None:
            if not self._serves(model):
                message = f"The model {model!r} is not in the catalogue."
                return LineFault("model_not_found", message, number, param)
            self.model = model
        if model != self.model:
            message = f"'model' is {model!r}, but this job runs on {self.model!r}: one model per file."
            return LineFault("model_mismatch", message, number, param)
        return None


class SingleHead(msgspec.Struct, frozen=True):
    """What the body of a request that comes alone says of itself."""

    model: str
    max_output_tokens: int | None


def read_single(body: bytes) -> SingleHead:
    """Look at the body of a request that comes without a line around it.

    Raises:
        UserError: it is no JSON object, names no model, or wants a stream.
    """
    try:
        parts = _decode_parts(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"The body must be a JSON object: {error}.", code="invalid_json") from error
    values = {name: _value(raw) for name, raw in parts.items() if name in _HEAD}
    if values.get("stream") is not None and values.get("stream") is not False:
        raise UserError("'stream' must be false.", code="stream_not_supported", param="stream")
    model = values.get("model")
    if model is None:
        raise UserError("'model' is missing.", code="missing_required_parameter", param="model")
    if not isinstance(model, str):
        raise UserError(f"'model' must be a string, not {_kind(model)}.", param="model")
    return SingleHead(model, _output_limit(_Head(**values)))


def first_named_model(blocks: Iterable[bytes], max_line_bytes: int) -> str | None:
    """The model that the first readable line names, if any. Looks no further than that line."""
    for _, line in read_lines(blocks, max_line_bytes):
        if isinstance(line, bytes):
            try:
                model = _decode_head(_decode_line(line).body).model
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                return None
            return model if isinstance(model, str) else None
    return None


def _value(raw: msgspec.Raw | bytes) -> Any:
    """A JSON value as Python's; infinity for a number that fits into none of Python's types."""
    try:
        return _decode_any(raw)
    except msgspec.ValidationError:
        return float("inf")


def output_limit(body: bytes | dict[str, Any]) -> int | None:
    """The output tokens that a good body allows; null where it says nothing usable."""
    head = _decode_head(body) if isinstance(body, bytes) else msgspec.convert(body, _Head)
    return _output_limit(head)


def _output_limit(head: _Head) -> int | None:
    for limit in (head.max_completion_tokens, head.max_tokens, head.max_output_tokens):
        if type(limit) is int and limit > 0:
            return limit
    return None


def custom_id_fault(custom_id: object) -> str | None:
    """What is wrong with a custom_id; null when nothing is."""
    if not isinstance(custom_id, str):
        return f"'custom_id' must be a string, not {_kind(custom_id)}."
    if not custom_id:
        return "'custom_id' must not be empty."
    if len(custom_id) > MAX_CUSTOM_ID_CHARACTERS:
        return f"'custom_id' has {len(custom_id)} characters; at most {MAX_CUSTOM_ID_CHARACTERS} are allowed."
    if _CONTROL_CHARACTER.search(custom_id):
        return "'custom_id' must not contain control characters."
    return None


def bad_line(number: int, line: BadLine) -> LineFault:
    """The fault of a line that could not be read."""
    message = {
        BadLine.TOO_LONG: "The line is longer than this server accepts.",
        BadLine.NOT_UTF8: "The line is not valid UTF-8.",
    }[line]
    return LineFault(line.value, message, number)


def _kind(value: object) -> str:
    """The JSON name of a value's type, with an article, for messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"
