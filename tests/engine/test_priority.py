"""Priorities inside a real engine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.vllm


def test_a_waiting_request_whose_priority_is_raised_runs_next(tmp_path: Path) -> None:
    program = Path(__file__).with_name("priority_program.py")
    answer = subprocess.run(
        [sys.executable, program, tmp_path],
        env={**os.environ, "PYTHONPATH": str(program.parents[2])},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    assert json.loads(answer.stdout.splitlines()[-1]) == ["holder", "raised", "first", "second"]
