"""Whether a model's weights can be had: in the local cache, or from the hub."""

import os
from pathlib import Path

from config.catalogue import BUILTIN_TINY, EngineKind, ModelEntry

HUB_TIMEOUT_S = 5.0


def why_unavailable(entry: ModelEntry) -> str | None:
    """Null when the model can be loaded here; else a sentence that says what is missing."""
    if entry.engine is not EngineKind.VLLM or entry.source == BUILTIN_TINY:
        return None
    if Path(entry.source).is_dir():
        return None
    if entry.source.startswith(("/", ".")):
        return f"the folder {entry.source} does not exist"
    try:
        from huggingface_hub import HfApi, try_to_load_from_cache
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError:
        return "the engine is not installed (pip install 'gristmill[cpu]' or 'gristmill[gpu]')"
    if isinstance(try_to_load_from_cache(entry.source, "config.json", revision=entry.revision), str):
        return None
    if os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
        return f"{entry.source} is not in the local cache, and HF_HUB_OFFLINE is set"
    try:
        HfApi().model_info(entry.source, revision=entry.revision, timeout=HUB_TIMEOUT_S)
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "an error")
        return f"the model hub answers {status} for {entry.source}"
    except Exception as error:  # noqa: BLE001 - whichever HTTP library the hub client uses, no answer is no hub
        return f"the model hub cannot be reached ({type(error).__name__})"
    return None
