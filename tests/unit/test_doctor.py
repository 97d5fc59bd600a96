"""What `gristmill doctor` finds without an engine."""

import socket
from pathlib import Path
from typing import Any

from config.settings import load_settings
from workers.data_folder import DataFolder
from workers.doctor import Finding, examine
from workers.up_state import UpState, write_state


def ports(folder: Path, **settings: Any) -> Finding:
    found = examine(load_settings(data_dir=folder, **settings))
    return next(finding for finding in found if finding.name == "ports")


def test_a_port_that_is_taken_is_named_with_its_setting(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert ports(tmp_path, web_port=0, flower_port=0).ok
        finding = ports(tmp_path, web_port=0, flower_port=port)
    assert not finding.ok
    assert f"port {port} of 127.0.0.1 cannot be used" in finding.detail
    assert "GRISTMILL_FLOWER_PORT" in finding.detail


def test_ports_of_a_running_mill_of_this_folder_are_well(tmp_path: Path) -> None:
    with socket.socket() as ours, DataFolder(tmp_path):
        ours.bind(("127.0.0.1", 0))
        ours.listen()
        port = ours.getsockname()[1]
        pid = int((tmp_path / "lock").read_text())
        url = f"http://127.0.0.1:{port}"
        write_state(tmp_path, UpState(pid, "tiny", url, None, "SQLite", "embedded", {}))
        finding = ports(tmp_path, web_port=port, flower_port=0)
    assert finding.ok
    assert f"in use by process {pid}" in finding.detail
    # It has ended: what it left in the folder counts no longer.
    with socket.socket() as theirs:
        theirs.bind(("127.0.0.1", port))
        theirs.listen()
        assert not ports(tmp_path, web_port=port, flower_port=0).ok
