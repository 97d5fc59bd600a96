"""A start that fails before anything is shown."""

from tests.command.conftest import Commands


def test_a_redis_that_cannot_start_is_told_and_the_first_key_is_not_lost(commands: Commands) -> None:
    commands.environment["GRISTMILL_FLOWER_PORT"] = "0"
    in_the_way = commands.data_dir / "redis" / "appendonlydir"
    in_the_way.parent.mkdir(parents=True)
    in_the_way.write_text("not a folder")
    status, output = commands.call("up", "--model", "fast", "--port", "0")
    assert status == 2, output
    assert "the embedded Redis server did not start" in output
    assert str(commands.data_dir / "logs" / "redis.log") in output.replace("\n", "")
    assert "Traceback" not in output
    # No key was made that nobody has seen: the start that works shows the first one.
    assert "key_" not in commands.call("keys", "list")[1]
