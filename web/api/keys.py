"""`/api/key` and `/api/keys`: who is calling, and who may."""

from datetime import datetime
from typing import Any

from flask import Response
from flask_openapi import APIBlueprint, Tag

from tasks.keys import create_key, list_keys, revoke_key
from tasks.tables import Key, Role
from web.api.answers import KEY_SECURITY, Answer, answer, errors, moment
from web.api.fields import Asked, Asking, Text
from web.auth import backends, caller, needs
from web.bodies import described, read_json

TAG = Tag(name="Keys", description="API keys. Only a key with the role `admin` sees and changes them.")

api = APIBlueprint("api_keys", __name__, url_prefix="/api", abp_tags=[TAG], abp_security=KEY_SECURITY)


class KeyPath(Asking):
    """Which key."""

    key_id: Text


class NewKeyAsked(Asked):
    """What the new key is for."""

    name: Text
    role: Role = Role.SUBMIT
    tenant: Text | None = None
    """Whose jobs it sees; the caller's own tenant, unless it is given."""


class CallerView(Answer):
    """The key that the request came with."""

    id: str
    name: str
    tenant: str
    role: Role


class KeyView(Answer):
    """A key, without its secret."""

    id: str
    name: str
    tenant: str
    role: Role
    prefix: str
    """The start of the secret, to recognise it by."""
    created_at: datetime | None
    revoked_at: datetime | None


class NewKeyView(KeyView):
    """A key at the only moment when its secret is shown."""

    secret: str


class KeyList(Answer):
    """All keys of all tenants, newest first, revoked ones too."""

    data: list[KeyView]


@api.get("/key", responses={200: CallerView, **errors()})
def who_am_i() -> Response:
    """Say which key this is"""
    who = caller()
    return answer(CallerView(id=who.key_id, name=who.name, tenant=who.tenant, role=who.role))


@api.get("/keys", responses={200: KeyList, **errors()})
@needs(Role.ADMIN)
def list_all() -> Response:
    """List all keys"""
    return answer(KeyList(data=[KeyView(**_fields(key)) for key in list_keys(backends().database)]))


@api.post(
    "/keys", request_body=described(api, json=NewKeyAsked), responses={201: NewKeyView, **errors(413, 415)}
)
@needs(Role.ADMIN)
def create() -> Response:
    """Make a key

    Its secret is in this answer and nowhere else.
    """
    asked = read_json(NewKeyAsked)
    new = create_key(
        backends().database,
        tenant=caller().tenant if asked.tenant is None else asked.tenant,
        name=asked.name,
        role=asked.role,
    )
    return answer(NewKeyView(**_fields(new.key), secret=new.secret), 201, {"Cache-Control": "no-store"})


@api.delete("/keys/<string:key_id>", responses={200: KeyView, **errors(404)})
@needs(Role.ADMIN)
def revoke(path: KeyPath) -> Response:
    """Revoke a key, at once and for good"""
    return answer(KeyView(**_fields(revoke_key(backends().database, path.key_id))))


def _fields(key: Key) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "tenant": key.tenant,
        "role": Role(key.role),
        "prefix": key.prefix,
        "created_at": moment(key.created_ms),
        "revoked_at": moment(key.revoked_ms),
    }
