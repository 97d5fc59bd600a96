"""API keys: made once, shown once, kept as hashes; and the links that log a browser in."""

import hashlib
import hmac
import secrets
from dataclasses import dataclass

from itsdangerous import BadData, URLSafeTimedSerializer
from sqlalchemy import select, update

from config.settings import Settings
from tasks.audit import audit
from tasks.clock import now_ms
from tasks.database import Database
from tasks.errors import NotFound, UserError
from tasks.ids import new_key_id
from tasks.secret_file import secret_in_file
from tasks.tables import Key, Role

KEY_START = "gm-"
PREFIX_CHARACTERS = len(KEY_START) + 8
"""Kept in clear: enough to tell keys apart, and far from enough to guess one."""

MAX_NAME_CHARACTERS = 100

LOGIN_LINK_S = 15 * 60
"""How long a printed login link works."""


@dataclass(frozen=True)
class NewKey:
    """A key at the only moment when its secret is known."""

    key: Key
    secret: str


def create_key(database: Database, *, tenant: str, name: str, role: Role) -> NewKey:
    """Make a key.

    Raises:
        UserError: the tenant or the name is empty, too long or not printable.
    """
    for field, value in (("tenant", tenant), ("name", name)):
        if not value.strip() or len(value) > MAX_NAME_CHARACTERS or not value.isprintable():
            raise UserError(
                f"'{field}' must have 1 to {MAX_NAME_CHARACTERS} printable characters.", param=field
            )
    secret = KEY_START + secrets.token_urlsafe(40)
    with database.write() as session:
        key = Key(
            id=new_key_id(),
            tenant=tenant,
            name=name,
            role=role,
            prefix=secret[:PREFIX_CHARACTERS],
            sha256=_digest(secret),
            created_ms=session.execute(select(now_ms())).scalar_one(),
            revoked_ms=None,
        )
        session.add(key)
        audit(session, tenant, "key.created", key.id, name=name, role=role)
    return NewKey(key, secret)


def authenticate(database: Database, secret: str) -> Key | None:
    """The valid key that this is, if any."""
    if not (secret.isascii() and secret.isprintable()):
        # No key looks like this, and not every database takes every character.
        return None
    with database.read() as session:
        key = session.scalars(select(Key).where(Key.prefix == secret[:PREFIX_CHARACTERS])).one_or_none()
    # A hash is compared also when there is no such key, so that both take the same time.
    expected = "" if key is None else key.sha256
    matches = hmac.compare_digest(expected, _digest(secret))
    return key if key is not None and matches and key.revoked_ms is None else None


def valid_key(database: Database, key_id: str) -> Key | None:
    """The key of a session, unless it was revoked."""
    with database.read() as session:
        key = session.get(Key, key_id)
    return key if key is not None and key.revoked_ms is None else None


def list_keys(database: Database) -> list[Key]:
    """All keys, newest first, revoked ones too."""
    with database.read() as session:
        return list(session.scalars(select(Key).order_by(Key.created_ms.desc(), Key.id.desc())))


def revoke_key(database: Database, key_id: str) -> Key:
    """End a key at once; sessions that it opened end too. Revoking twice is fine.

    Raises:
        NotFound: there is no such key.
    """
    with database.write() as session:
        revoked = session.execute(
            update(Key).where(Key.id == key_id, Key.revoked_ms.is_(None)).values(revoked_ms=now_ms())
        )
        key = session.get(Key, key_id, populate_existing=True)
        if key is None:
            raise NotFound("key", key_id)
        if revoked.rowcount:  # type: ignore[attr-defined]
            audit(session, key.tenant, "key.revoked", key_id)
    return key


def secret_key(settings: Settings) -> str:
    """The key that signs sessions: the setting, else one that is made once in the data folder."""
    # An empty one is none: anybody could sign with it.
    if settings.secret_key:
        return settings.secret_key.get_secret_value()
    return secret_in_file(settings.data_dir, "secret_key", 48)


def login_token(settings: Settings, key_id: str) -> str:
    """A token that logs a browser in as this key, for `LOGIN_LINK_S` seconds."""
    return _signer(settings).dumps(key_id)


def key_id_of_login_token(settings: Settings, token: str) -> str | None:
    """The key that a login token stands for; null when it is forged or too old."""
    try:
        return str(_signer(settings).loads(token, max_age=LOGIN_LINK_S))
    except BadData:
        return None


def _signer(settings: Settings) -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(secret_key(settings), salt="login-link")


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
