"""`gristmill backup`, `restore` and `purge`, as commands."""

import shutil

from tests.command.conftest import REQUESTS, Commands, custom_ids, run_again, wait_until


def test_a_run_goes_on_elsewhere_from_a_backup_that_was_taken_while_it_ran(commands: Commands) -> None:
    commands.environment["GRISTMILL_CHUNK_REQUESTS"] = "32"
    file = str(commands.write("prompts.jsonl", REQUESTS, "slow"))
    process = commands.start("run", file, "-o", "first.jsonl")
    wait_until(lambda: len(commands.finished()) >= 40, "some results")
    status, output = commands.call("backup", "saved")
    assert status == 0, output
    assert "saved: 1 jobs" in output
    commands.kill_group(process)
    commands.wait_for_silence()
    log = (commands.data_dir / "logs" / "engine.log").read_text()
    shutil.rmtree(commands.data_dir)

    status, output = commands.call("restore", "saved")
    assert status == 0, output
    assert "Restored 1 jobs" in output
    kept = commands.finished()
    assert 40 <= len(kept) < REQUESTS
    (commands.data_dir / "logs").mkdir()
    # The engine's log is the witness of what ran before the backup, too.
    (commands.data_dir / "logs" / "engine.log").write_text(log)
    run_again(commands, file)
    status, output = commands.call("restore", "saved")
    assert status == 2
    assert "The database is not empty" in output


def test_a_dry_run_says_what_the_rules_would_remove_and_removes_nothing(commands: Commands) -> None:
    file = str(commands.write("prompts.jsonl", 5, "fast"))
    status, output = commands.call("run", file, "-o", "answers.jsonl")
    assert status == 0, output
    assert custom_ids(commands.folder / "answers.jsonl") == [f"r{n}" for n in range(5)]
    commands.environment["GRISTMILL_JOB_EXPIRES_S"] = "0.001"
    status, output = commands.call("purge", "--dry-run")
    assert status == 0, output
    assert "1 jobs with 5 results" in output
    assert "Nothing was removed" in output
    assert len(commands.jobs()) == 1
    status, output = commands.call("purge")
    assert status == 0, output
    assert "jobs removed: 1" in output
    assert commands.jobs() == []
