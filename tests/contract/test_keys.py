"""Keys: shown once, kept as hashes, ended at once; and links that log in."""

import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from itsdangerous import URLSafeTimedSerializer
from sqlalchemy import select

from config.settings import load_settings
from tasks import keys
from tasks.backends import Backends
from tasks.errors import NotFound, UserError
from tasks.keys import (
    authenticate,
    create_key,
    key_id_of_login_token,
    list_keys,
    login_token,
    revoke_key,
    secret_key,
    valid_key,
)
from tasks.secret_file import secret_in_file
from tasks.tables import Audit, Key, Role


def test_a_secret_opens_until_it_is_revoked_and_is_nowhere_stored(backends: Backends) -> None:
    database = backends.database
    new = create_key(database, tenant="local", name="nightly", role=Role.SUBMIT)
    found = authenticate(database, new.secret)
    assert found is not None
    assert found.id == new.key.id
    with database.read() as session:
        stored = [*session.scalars(select(Key)), *session.scalars(select(Audit))]
    assert not any(new.secret[12:] in str(vars(row)) for row in stored)
    assert new.secret.startswith(new.key.prefix)

    assert revoke_key(database, new.key.id).revoked_ms is not None
    revoked_ms = list_keys(database)[0].revoked_ms
    assert revoke_key(database, new.key.id).revoked_ms == revoked_ms
    assert authenticate(database, new.secret) is None
    assert valid_key(database, new.key.id) is None
    with pytest.raises(NotFound):
        revoke_key(database, "key_none")


def test_what_is_not_the_whole_secret_opens_nothing(backends: Backends) -> None:
    new = create_key(backends.database, tenant="local", name="x", role=Role.READ)
    for wrong in (
        "",
        new.key.prefix,
        new.secret[:-1],
        new.secret + "x",
        new.secret[:-1] + "é",
        new.secret.upper(),
        new.secret + "\x00",
        new.key.prefix + "\x00" * len(new.secret),
        new.key.id,
        "gm-\x00",
        "gm-\ud800",
        "gm-é",
        "x" * 10_000,
    ):
        assert authenticate(backends.database, wrong) is None
    assert authenticate(backends.database, new.secret) is not None


@pytest.mark.parametrize("name", ["", "  ", "x" * 101, "a\nb", "a\x00b"])
def test_names_are_short_and_printable(sqlite_backends: Backends, name: str) -> None:
    for field, values in (("name", {"name": name, "tenant": "t"}), ("tenant", {"name": "n", "tenant": name})):
        with pytest.raises(UserError) as refused:
            create_key(sqlite_backends.database, role=Role.READ, **values)
        assert refused.value.param == field


def test_the_secret_of_sessions_is_made_once_and_for_its_owner(tmp_path: Path) -> None:
    settings = load_settings(data_dir=tmp_path / "new")
    made: set[str] = set()
    threads = [threading.Thread(target=lambda: made.add(secret_key(settings))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    (file,) = (tmp_path / "new").iterdir()
    assert file.stat().st_mode & 0o077 == 0
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0
    assert made == {file.read_text()}
    assert len(file.read_text()) >= 64
    assert secret_key(load_settings(data_dir=tmp_path, secret_key="set")) == "set"


def test_processes_that_start_together_agree_on_the_secret_of_sessions(tmp_path: Path) -> None:
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        made = set(pool.map(secret_in_file, [tmp_path] * 16, ["secret"] * 16, [48] * 16))
    assert made == {(tmp_path / "secret").read_text()}
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_an_empty_secret_signs_nothing(tmp_path: Path) -> None:
    empty = load_settings(data_dir=tmp_path, secret_key="")
    assert len(secret_key(empty)) >= 64
    forged = URLSafeTimedSerializer("", salt="login-link").dumps("key_1")
    assert key_id_of_login_token(empty, forged) is None


def test_a_login_link_is_signed_and_ages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings(data_dir=tmp_path)
    token = login_token(settings, "key_1")
    assert key_id_of_login_token(settings, token) == "key_1"
    assert key_id_of_login_token(settings, token[:-2] + "xx") is None
    assert key_id_of_login_token(settings, "") is None
    of_sessions = URLSafeTimedSerializer(secret_key(settings), salt="cookie-session").dumps("key_1")
    assert key_id_of_login_token(settings, of_sessions) is None
    assert key_id_of_login_token(load_settings(data_dir=tmp_path, secret_key="other"), token) is None
    monkeypatch.setattr(keys, "LOGIN_LINK_S", -1)
    assert key_id_of_login_token(settings, token) is None
