"""Which model a person means, and whether it can be used."""

import json
import os
from collections.abc import Callable

from config.catalogue import FALLBACK_MODEL, ModelEntry, is_hub_name_or_folder
from config.settings import Settings
from tasks.errors import UserError
from workers.hub import why_unavailable


def with_model(settings: Settings, model: str) -> tuple[Settings, dict[str, str]]:
    """Settings whose catalogue has the model, and the variables that tell child processes the same.

    Raises:
        UserError: it is not in the catalogue, and neither a hub name nor a folder.
    """
    if model in settings.catalogue:
        return settings, {}
    if not is_hub_name_or_folder(model):
        known = ", ".join(sorted(settings.catalogue))
        raise UserError(f"no model {model!r} in the catalogue ({known}); a hub name has a slash in it")
    models = {**settings.models, model: ModelEntry(source=model)}
    named = json.loads(os.environ.get("GRISTMILL_MODELS", "{}"))
    variables = {"GRISTMILL_MODELS": json.dumps({**named, model: {"source": model}})}
    return settings.model_copy(update={"models": models}), variables


def usable_default(settings: Settings, say: Callable[[str], None]) -> str:
    """The default model, or the built-in one if nobody can get the default; says so."""
    name = settings.default_model
    reason = why_unavailable(settings.catalogue[name])
    if reason is None:
        return name
    say(
        f"No model was named, and the default {name} cannot be used: {reason}.\n"
        f"Using the built-in model {FALLBACK_MODEL!r} instead: random weights, so its answers are noise. "
        "Name another with --model."
    )
    return FALLBACK_MODEL


def must_be_usable(settings: Settings, model: str) -> None:
    """Check a model that was named.

    Raises:
        UserError: it cannot be used, and why.
    """
    entry = settings.catalogue.get(model)
    if entry is not None and (reason := why_unavailable(entry)):
        raise UserError(f"the model {model!r} cannot be used: {reason}")
