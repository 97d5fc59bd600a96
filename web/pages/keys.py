"""`/keys`: make a key, see which there are, end one. For admins."""

from flask import Blueprint, Response, flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from tasks.errors import UserError
from tasks.keys import NewKey, create_key, list_keys, revoke_key
from tasks.tables import Role
from web.api.answers import moment
from web.auth import backends, caller, needs

pages = Blueprint("key_pages", __name__, url_prefix="/keys")


@pages.get("")
@needs(Role.ADMIN)
def index() -> ResponseReturnValue:
    """All keys."""
    return _page()


@pages.post("")
@needs(Role.ADMIN)
def create() -> ResponseReturnValue:
    """Make a key, and show it in the answer: it is never shown again."""
    role = request.form.get("role", "")
    try:
        if role not in list(Role):
            raise UserError("'role' must be read, submit or admin.", param="role")
        new = create_key(
            backends().database,
            tenant=request.form.get("tenant", "").strip() or caller().tenant,
            name=request.form.get("name", "").strip(),
            role=Role(role),
        )
    except UserError as error:
        flash(error.message, "error")
        return Response(_page(), status=400)
    return _page(new)


@pages.post("/<key_id>/revoke")
@needs(Role.ADMIN)
def revoke(key_id: str) -> ResponseReturnValue:
    """End a key."""
    key = revoke_key(backends().database, key_id)
    flash(f"The key {key.name} is revoked.", "done")
    return redirect(url_for("key_pages.index"))


def _page(new: NewKey | None = None) -> str:
    return render_template(
        "keys.html",
        keys=[
            {
                "id": key.id,
                "name": key.name,
                "tenant": key.tenant,
                "role": key.role,
                "prefix": key.prefix,
                "created_at": moment(key.created_ms),
                "revoked_at": moment(key.revoked_ms),
            }
            for key in list_keys(backends().database)
        ],
        new=new,
        roles=list(Role),
        tenant=caller().tenant,
        own_id=caller().key_id,
    )
