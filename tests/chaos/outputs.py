"""The files that clients read at the end, through the web server, against the rows that they are made of."""

from collections.abc import Iterator

import httpx

from tasks.ids import result_file_id
from tasks.tables import FINAL_STATUSES, JobKind, ResultSet
from tests.chaos.history import History

MOST_JOBS = 40
"""Jobs whose files are read, the last ones first."""


def wrong_outputs(url: str, key: str, history: History) -> Iterator[str]:
    """Each output and error file that is not its job's results in input order."""
    ended = [
        row
        for row in history.jobs.values()
        if row["status"] in FINAL_STATUSES and row["deleted_ms"] is None and row["kind"] != JobKind.SINGLE
    ]
    ended.sort(key=lambda row: row["created_ms"], reverse=True)
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=30) as http:
        for row in ended[:MOST_JOBS]:
            results = history.results.get(row["id"], [])
            for which in (ResultSet.OUTPUT, ResultSet.ERRORS):
                is_output = which is ResultSet.OUTPUT
                lines = [each.line for each in results if (each.result.status_code == 200) is is_output]
                if not lines:
                    continue
                answer = http.get(f"/v1/files/{result_file_id(row['id'], which)}/content")
                if answer.content != b"".join(lines):
                    found = answer.content.count(b"\n")
                    yield (
                        f"wrong_outputs: the {which} file of {row['id']} was answered {answer.status_code} "
                        f"with {found} lines; there are {len(lines)} results"
                    )
