"""`/v1/models`: the models that can be named in a request."""

from flask import Response
from flask_openapi import APIBlueprint, Tag

from tasks.errors import NotFound
from web.api.answers import KEY_SECURITY, answer, errors
from web.api.fields import Asking, Text
from web.auth import backends
from web.openai.objects import ModelList, ModelObject

TAG = Tag(name="Models", description="OpenAI's Models API.")
OWNER = "gristmill"

api = APIBlueprint("models", __name__, url_prefix="/v1/models", abp_tags=[TAG], abp_security=KEY_SECURITY)


class ModelPath(Asking):
    """Which model; names may have slashes."""

    model_id: Text


@api.get("", responses={200: ModelList, **errors()})
def index() -> Response:
    """List models"""
    names = backends().settings.catalogue
    return answer(ModelList(data=[ModelObject(id=name, owned_by=OWNER) for name in names]))


@api.get("/<path:model_id>", responses={200: ModelObject, **errors(404)})
def show(path: ModelPath) -> Response:
    """Show a model"""
    if path.model_id not in backends().settings.catalogue:
        raise NotFound("model", path.model_id, param="model", code="model_not_found")
    return answer(ModelObject(id=path.model_id, owned_by=OWNER))
