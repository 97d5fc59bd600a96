"""Killing parts of a run: what was finished stays, the rest is run, nothing twice."""

import os
import signal

from sqlalchemy import update

from tasks.tables import Job
from tests.command.conftest import REQUESTS, Commands, custom_ids, run_again, wait_until


def test_ctrl_c_keeps_what_is_finished_and_the_same_command_goes_on(commands: Commands) -> None:
    file = str(commands.write("prompts.jsonl", REQUESTS, "slow"))
    process = commands.start("run", file, "-o", "answers.jsonl")
    wait_until(lambda: len(commands.finished()) >= 20, "some results")
    process.send_signal(signal.SIGINT)
    status, output = commands.finish(process)
    assert status == 130, output
    assert "run the same command again" in output
    assert "Traceback" not in output
    assert commands.processes() == []
    # A drained worker records what was in its engine: nothing at all ran twice.
    run_again(commands, file)
    assert max(commands.starts_in_engine().values()) == 1


def test_a_killed_engine_worker_is_replaced_within_the_run(commands_on_any_database: Commands) -> None:
    commands = commands_on_any_database
    file = str(commands.write("prompts.jsonl", REQUESTS, "slow"))
    commands.environment["GRISTMILL_LEASE_S"] = "2"
    process = commands.start("run", file, "-o", "answers.jsonl")
    wait_until(lambda: len(commands.finished()) >= 20, "some results")
    before = commands.finished()
    worker = commands.worker()
    worker.kill()
    status, output = commands.finish(process)
    assert status == 0, output
    assert custom_ids(commands.folder / "answers.jsonl") == [f"r{n}" for n in range(REQUESTS)]
    starts = commands.starts_in_engine()
    assert {index for index in before if starts[index] > 1} == set()


def test_killing_the_whole_group_leaves_no_process_and_loses_nothing(
    commands_on_any_database: Commands,
) -> None:
    commands = commands_on_any_database
    file = str(commands.write("prompts.jsonl", REQUESTS, "slow"))
    commands.environment["GRISTMILL_LEASE_S"] = "2"
    process = commands.start("run", file, "-o", "answers.jsonl")
    wait_until(lambda: len(commands.finished()) >= 20, "some results")
    commands.kill_group(process)
    commands.wait_for_silence()
    run_again(commands, file)


def test_a_job_that_ended_before_its_output_was_written_is_delivered_without_an_engine(
    commands: Commands,
) -> None:
    file = str(commands.write("prompts.jsonl", 40, "slow"))
    process = commands.start("run", file, "-o", "answers.jsonl")
    wait_until(lambda: len(commands.finished()) >= 1, "a result")
    (key,) = [job.resume_key for job in commands.jobs()]
    assert commands.finish(process)[0] == 0
    (commands.folder / "answers.jsonl").unlink()
    # As if the process had died after the job's end and before its results were written.
    database = commands.database()
    with database.write() as session:
        session.execute(update(Job).values(resume_key=key))
    database.close()
    log = (commands.data_dir / "logs" / "engine.log").read_bytes()

    status, output = commands.call("run", file, "-o", "answers.jsonl")
    assert status == 0, output
    assert len(custom_ids(commands.folder / "answers.jsonl")) == 40
    assert (commands.data_dir / "logs" / "engine.log").read_bytes() == log
    assert len(commands.jobs()) == 1


def test_a_killed_redis_server_is_replaced_within_the_run(commands: Commands) -> None:
    file = str(commands.write("prompts.jsonl", REQUESTS, "slow"))
    commands.environment["GRISTMILL_CHUNK_REQUESTS"] = "16"
    process = commands.start("run", file, "-o", "answers.jsonl")
    wait_until(lambda: len(commands.finished()) >= 20, "some results")
    (server,) = [each for each in commands.processes() if "server" in each.name()]
    server.kill()
    status, output = commands.finish(process)
    assert status == 0, output
    assert "The engine worker ended" not in output, "a broker that is lost costs no engine"
    assert custom_ids(commands.folder / "answers.jsonl") == [f"r{n}" for n in range(REQUESTS)]
    assert max(commands.starts_in_engine().values()) == 1


def test_two_runs_do_not_share_a_data_folder(commands: Commands) -> None:
    file = str(commands.write("prompts.jsonl", REQUESTS, "slow"))
    first = commands.start("run", file)
    wait_until(lambda: len(commands.finished()) >= 1, "a result")
    status, output = commands.call("run", file)
    assert status == 2
    assert f"in use by process {first.pid}" in output
    os.kill(first.pid, signal.SIGINT)
    assert commands.finish(first)[0] == 130
