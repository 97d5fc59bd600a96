"""Settings: read from three places, checked as a whole, secret where they must be."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from config.catalogue import BUILTIN_MODELS, EngineKind, ModelEntry, is_hub_name_or_folder
from config.settings import SettingsError, load_settings


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    """The file that is read when nothing else is said; the tests run in its folder."""
    return tmp_path / "gristmill.toml"


def problems(**overrides: object) -> list[str]:
    """The problems that a start would report, one a line."""
    with pytest.raises(SettingsError) as caught:
        load_settings(**overrides)
    return str(caught.value).splitlines()[1:]


def test_the_defaults_are_valid() -> None:
    settings = load_settings()
    assert settings.default_model in settings.catalogue
    assert settings.resolved_database_url().startswith("sqlite:///")
    assert settings.resolved_storage_url().startswith("file:///")


def test_an_unknown_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRISTMILL_CHUNK_REQUEST", "8")
    assert problems() == ["  GRISTMILL_CHUNK_REQUEST: no such setting"]


def test_an_unknown_name_in_the_file_is_refused(config_file: Path) -> None:
    config_file.write_text("chunk_request = 8\n", encoding="utf-8")
    assert [line for line in problems() if "chunk_request" in line]


def test_an_unknown_name_in_a_model_is_refused(config_file: Path) -> None:
    config_file.write_text('[models.mine]\nsource = "a/b"\nmax_len = 3\n', encoding="utf-8")
    assert [line for line in problems() if "models.mine.max_len" in line]


def test_all_problems_are_listed_at_once(monkeypatch: pytest.MonkeyPatch, config_file: Path) -> None:
    monkeypatch.setenv("GRISTMILL_NONSENSE", "1")
    monkeypatch.setenv("GRISTMILL_CHUNK_REQUESTS", "0")
    config_file.write_text('lease_s = -1\nlog_level = "LOUD"\n', encoding="utf-8")
    listed = "\n".join(problems())
    for name in ("GRISTMILL_NONSENSE", "chunk_requests", "lease_s", "log_level"):
        assert name in listed


def test_a_default_model_that_nobody_serves_is_a_problem() -> None:
    assert problems(default_model="nobody/serves-this") == [
        "  default_model: 'nobody/serves-this' is not in the catalogue"
    ]


def test_a_variable_that_is_not_the_json_it_should_be_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRISTMILL_MODELS", "not json")
    assert [line for line in problems() if "models" in line.lower()]


def test_arguments_win_over_variables_and_variables_over_the_file(
    monkeypatch: pytest.MonkeyPatch, config_file: Path
) -> None:
    config_file.write_text("chunk_requests = 1\nrunway_chunks = 1\nheld_chunks = 2\n", encoding="utf-8")
    monkeypatch.setenv("GRISTMILL_CHUNK_REQUESTS", "3")
    monkeypatch.setenv("GRISTMILL_RUNWAY_CHUNKS", "3")
    settings = load_settings(chunk_requests=4)
    assert (settings.chunk_requests, settings.runway_chunks, settings.held_chunks) == (4, 3, 2)


def test_the_file_may_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    named = tmp_path / "elsewhere.toml"
    named.write_text("chunk_requests = 7\n", encoding="utf-8")
    monkeypatch.setenv("GRISTMILL_CONFIG", str(named))
    assert load_settings().chunk_requests == 7


def test_a_named_file_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRISTMILL_CONFIG", "none.toml")
    with pytest.raises(SettingsError, match=r"none\.toml"):
        load_settings()


@pytest.mark.parametrize("content", [b"chunk_requests =", b"\xff"])
def test_a_file_that_cannot_be_read_is_an_error(config_file: Path, content: bytes) -> None:
    config_file.write_bytes(content)
    with pytest.raises(SettingsError, match=r"gristmill\.toml"):
        load_settings()


def test_models_come_from_the_file_beside_the_built_in_ones(
    monkeypatch: pytest.MonkeyPatch, config_file: Path
) -> None:
    config_file.write_text('[models.mine]\nsource = "a/b"\n[models.tiny]\nsource = "c/d"\n', encoding="utf-8")
    monkeypatch.setenv("GRISTMILL_MODELS__MINE__DEVICES", "2")
    catalogue = load_settings().catalogue
    assert set(catalogue) >= {*BUILTIN_MODELS, "mine"}
    assert catalogue["tiny"].source == "c/d", "an entry of the same name replaces the built-in one"
    assert (catalogue["mine"].source, catalogue["mine"].devices) == ("a/b", 2), "places are merged"


def test_secrets_are_masked_wherever_settings_are_shown() -> None:
    settings = load_settings(
        database_url="postgresql+psycopg://user:hush@host/db",
        redis_url="redis://:hush@host/0",
        storage_options={"aws_secret_access_key": "hush"},
        models={"far": {"source": "m", "engine": "openai", "base_url": "http://x/v1", "api_key": "hush"}},
    )
    for shown in (repr(settings), str(settings), settings.model_dump_json()):
        assert "hush" not in shown
    assert "hush" in settings.resolved_database_url()
    assert "hush" in settings.resolved_redis_url()


def test_problems_do_not_repeat_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRISTMILL_STORAGE_OPTIONS", '{"key": {"hush": 1}}')
    monkeypatch.setenv("GRISTMILL_LEASE_S", "hush")
    assert "hush" not in "\n".join(problems(database_url=["hush"]))


def test_settings_cannot_be_changed() -> None:
    settings = load_settings()
    with pytest.raises(ValidationError):
        settings.chunk_requests = 3


def test_no_broker_is_said_with_what_to_do() -> None:
    with pytest.raises(SettingsError, match="GRISTMILL_REDIS_URL"):
        load_settings().resolved_redis_url()


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        # What an engine cannot do without, and what it has no use for.
        ({"engine": "openai"}, "needs base_url"),
        ({"base_url": "http://x/v1"}, "belong to engine 'openai'"),
        ({"api_key": "k"}, "belong to engine 'openai'"),
        ({"engine": "simulated", "base_url": "http://x/v1"}, "belong to engine 'openai'"),
        ({"engine": "openai", "base_url": "http://x/v1", "engine_args": {"a": 1}}, "belong to engine 'vllm'"),
        ({"engine": "simulated", "engine_args": {"a": 1}}, "belong to engine 'vllm'"),
        # Values out of range.
        ({"engine": "tensorrt"}, "'vllm', 'openai' or 'simulated'"),
        ({"devices": 0}, "greater than or equal to 1"),
        ({"max_in_flight": 0}, "greater than or equal to 1"),
        ({"max_tokens_in_flight": 0}, "greater than or equal to 1"),
        ({"engine": "simulated", "simulation": {"latency_s": -1}}, "greater than or equal to 0"),
        ({"engine": "simulated", "simulation": {"unknown": 1}}, "Extra inputs"),
    ],
)
def test_a_model_that_cannot_work_is_refused(entry: dict[str, Any], fault: str) -> None:
    assert fault in "\n".join(problems(models={"mine": {"source": "a/b", **entry}}))


def test_a_model_needs_no_more_than_its_source() -> None:
    assert ModelEntry(source="a/b").engine is EngineKind.VLLM
    assert ModelEntry(source="a/b", engine=EngineKind.OPENAI, base_url="http://x/v1").devices == 1


def test_a_name_with_a_slash_can_be_served_without_an_entry() -> None:
    assert is_hub_name_or_folder("org/model")
    assert is_hub_name_or_folder("./folder")
    assert not is_hub_name_or_folder("model")


def test_a_lease_outlives_some_flushes_which_renew_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings(lease_s=3, flush_s=1).lease_s == 3
    with pytest.raises(SettingsError, match="lease_s: must be at least 3 times flush_s"):
        load_settings(lease_s=2.9, flush_s=1)
