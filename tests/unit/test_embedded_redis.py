"""The Redis-protocol server that comes along."""

from pathlib import Path

import pytest
import redis

from workers.embedded_redis import EmbeddedRedis


def client(server: EmbeddedRedis) -> redis.Redis:
    return redis.Redis(unix_socket_path=server.url.removeprefix("redis+socket://"))


def test_what_it_was_given_survives_a_restart(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path / "redis")
    for expected in (None, b"kept"):
        server.start(tmp_path / "redis.log")
        with client(server) as connection:
            assert connection.get("key") == expected
            connection.set("key", "kept")
        server.stop()
        assert server.child is not None
        assert not server.child.is_running


def test_a_folder_with_a_long_path_gets_its_socket_elsewhere(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path / ("long-" * 20))
    server.start(tmp_path / "redis.log")
    with client(server) as connection:
        assert connection.ping()
    socket = Path(server.url.removeprefix("redis+socket://"))
    assert socket.is_socket()
    server.stop()
    assert not socket.parent.exists()


def test_looking_for_a_server_that_is_not_there_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses_s: list[float] = []
    monkeypatch.setattr("redis.retry.sleep", pauses_s.append)
    assert not EmbeddedRedis(tmp_path / "redis")._answers()
    assert pauses_s == [], "every start would take that much longer"
