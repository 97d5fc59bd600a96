"""Secrets that a single machine makes for itself, each in a file that only its owner reads."""

import os
import secrets
from contextlib import suppress
from pathlib import Path


def secret_in_file(folder: Path, name: str, random_bytes: int) -> str:
    """The secret of this name: made by whoever asks first, and the same ever after."""
    path = folder / name
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _make(path, secrets.token_urlsafe(random_bytes))
    return path.read_text(encoding="utf-8")


def _make(path: Path, secret: str) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        draft.touch(mode=0o600)
        with draft.open("w", encoding="utf-8") as file:
            file.write(secret)
            file.flush()
            # Else a power cut may leave the name without the secret.
            os.fsync(file.fileno())
        # A link never replaces what is there, and what is there is whole.
        with suppress(FileExistsError):
            path.hardlink_to(draft)
    finally:
        draft.unlink(missing_ok=True)
