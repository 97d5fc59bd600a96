"""The first moment of a SQLite file, when all processes of a mill open it at once."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier

from sqlalchemy import text

from tasks.database import Database

FILES = 40
AT_ONCE = 8


def test_all_who_open_a_new_file_together_get_in(tmp_path: Path) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for number in range(FILES):
            begin = Barrier(AT_ONCE)

            def journal_mode(url: str = f"sqlite:///{tmp_path}/{number}.db", begin: Barrier = begin) -> str:
                with closing(Database(url)) as database:
                    begin.wait()
                    with database.read() as session:
                        return session.execute(text("PRAGMA journal_mode")).scalar_one()

            modes = [pool.submit(journal_mode) for _ in range(AT_ONCE)]
            assert {mode.result() for mode in modes} == {"wal"}
