"""Secrets that a single machine makes for itself, each in a file that only its owner reads."""

import os
import secrets
from pathlib import Path


def secret_in_file(folder: Path, name: str, random_bytes: int) -> str:
    """The secret of this name: made by whoever asks first, and the same ever after."""
    path = folder / name
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f"{name}.{os.getpid()}-{secrets.token_hex(4)}")
    draft.touch(mode=0o600)
    draft.write_text(secrets.token_urlsafe(random_bytes), encoding="utf-8")
    try:
        # A link never replaces what is there, and what is there is whole.
        path.hardlink_to(draft)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
    return path.read_text(encoding="utf-8")
