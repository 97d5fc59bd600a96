"""What `gristmill up` says of itself to other terminals, in a file of its data folder."""

from pathlib import Path

import msgspec

FILE_NAME = "up.json"


class UpState(msgspec.Struct, frozen=True):
    """A running mill. It holds no secrets."""

    pid: int
    model: str
    web_url: str
    flower_url: str | None
    database: str
    """Kind of database."""
    broker: str
    """Kind of broker."""
    processes: dict[str, int | None]
    """Part to process id; null while it is down."""


def write_state(folder: Path, state: UpState) -> None:
    """Replace the file as a whole."""
    path = folder / FILE_NAME
    draft = path.with_suffix(".draft")
    draft.write_bytes(msgspec.json.encode(state))
    draft.replace(path)


def read_state(folder: Path) -> UpState | None:
    """What stands there; of a mill that was killed it may be old: see `workers.data_folder.holder`."""
    try:
        return msgspec.json.decode((folder / FILE_NAME).read_bytes(), type=UpState)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def remove_state(folder: Path) -> None:
    """The mill has stopped."""
    (folder / FILE_NAME).unlink(missing_ok=True)
