"""`gristmill run` on simulated engines: what it prints, writes and returns."""

import csv
import json

from tests.command.conftest import Commands, custom_ids


def test_results_come_in_input_order_and_nothing_is_left_running(commands_on_any_database: Commands) -> None:
    commands = commands_on_any_database
    file = commands.write("prompts.jsonl", 700, "fast")
    status, output = commands.call("run", str(file), "-o", "out/answers.jsonl")
    assert status == 0, output
    assert custom_ids(commands.folder / "out" / "answers.jsonl") == [f"r{n}" for n in range(700)]
    assert "700 succeeded, 0 failed, of 700" in output
    assert commands.processes() == []


def test_requests_that_fail_are_in_the_results_and_in_the_exit_status(commands: Commands) -> None:
    file = commands.write("prompts.jsonl", 20, "fast")
    lines = file.read_text().splitlines()
    lines[7] = lines[7].replace("Say 7.", "SIMULATE-ERROR")
    file.write_text("\n".join(lines))
    status, output = commands.call("run", str(file), "-o", "answers.jsonl")
    assert status == 1, output
    results = [json.loads(line) for line in (commands.folder / "answers.jsonl").read_text().splitlines()]
    assert [result["response"]["status_code"] for result in results] == [200] * 7 + [400] + [200] * 12


def test_a_request_that_kills_the_engine_fails_alone(commands: Commands) -> None:
    file = commands.write("prompts.jsonl", 501, "fast")
    lines = file.read_text().splitlines()
    lines[341] = lines[341].replace("Say 341.", "SIMULATE-DEATH")
    file.write_text("\n".join(lines))
    status, output = commands.call("run", str(file), "-o", "answers.jsonl")
    assert status == 1, output
    results = [json.loads(line) for line in (commands.folder / "answers.jsonl").read_text().splitlines()]
    failed = {result["custom_id"]: result["error"] for result in results if result["error"]}
    assert set(failed) == {"r341"}
    assert failed["r341"]["code"] == "engine_crash"
    assert len(results) == 501
    log = (commands.data_dir / "logs" / "engine.log").read_text()
    assert 1 <= log.count("engine_restarted") <= 4
    assert "starting another" not in output, "the engine is started again in its process"


def test_a_faulty_file_is_refused_with_every_line_named_before_an_engine_starts(commands: Commands) -> None:
    file = commands.write("prompts.jsonl", 3, "fast")
    file.write_text(file.read_text() + "{oops\n" + '{"custom_id": "x"}\n')
    status, output = commands.call("run", str(file))
    assert status == 2
    assert "invalid_json_line" in output
    assert "missing_required_parameter" in output
    assert not (commands.data_dir / "logs" / "engine.log").exists()


def test_the_output_name_chooses_the_format(commands: Commands) -> None:
    file = commands.write("prompts.jsonl", 5, "fast")
    status, output = commands.call("run", str(file), "-o", "answers.csv")
    assert status == 0, output
    with (commands.folder / "answers.csv").open() as opened:
        rows = list(csv.DictReader(opened))
    assert [row["text"] for row in rows] == ["simulated answer"] * 5


def test_mistakes_get_one_line_that_says_what_to_do(commands: Commands) -> None:
    file = commands.write("prompts.jsonl", 1, "fast")
    for arguments, hint in (
        (("-m", "nope"), "no model 'nope' in the catalogue"),
        (("-o", "answers.xlsx"), "use one of .jsonl, .csv, .parquet"),
        (("-o", "prompts.jsonl/answers.jsonl"), "the results cannot be written to"),
        (("--endpoint", "/v1/unknown"), "known: /v1/chat/completions"),
    ):
        status, output = commands.call("run", str(file), *arguments)
        assert status == 2
        assert hint in output
        assert "Traceback" not in output


def test_a_line_without_model_runs_on_the_one_that_is_named(commands: Commands) -> None:
    file = commands.write("prompts.jsonl", 2, "fast")
    file.write_text(file.read_text().replace('"model": "fast", ', ""))
    status, output = commands.call("run", str(file), "-m", "fast")
    assert status == 0, output


def test_a_line_that_names_another_model_never_runs_on_this_one(commands: Commands) -> None:
    file = commands.write("prompts.jsonl", 2, "slow")
    status, output = commands.call("run", str(file), "-m", "fast")
    assert status == 2
    assert "model_mismatch" in output


def test_repeating_a_finished_run_is_a_new_job(commands: Commands) -> None:
    file = commands.write("prompts.jsonl", 2, "fast")
    commands.call("run", str(file))
    commands.call("run", str(file))
    assert [job.status for job in commands.jobs()] == ["completed", "completed"]


def test_models_and_doctor_answer_without_services(commands: Commands) -> None:
    status, output = commands.call("models")
    assert status == 0
    assert "tiny" in output
    # Others on this machine may have the usual ports.
    commands.environment |= {"GRISTMILL_WEB_PORT": "0", "GRISTMILL_FLOWER_PORT": "0"}
    status, output = commands.call("doctor")
    assert status == 0, output
    assert "ok   engine: vLLM" in output
