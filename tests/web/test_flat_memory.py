"""200 MB in and 200 MB out leave the memory of the web server as it was."""

import threading
from collections.abc import Iterator

import httpx
import psutil
import pytest

from tests.live import LiveMill, live_mill

FILE_BYTES = 200 << 20
MOST_GROWTH_BYTES = 40 << 20
BOUNDARY = "boundary-of-the-form"
BLOCK = (b'{"custom_id": "' + b"x" * 1000 + b'"}\n') * 256


@pytest.fixture(scope="module")
def mill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveMill]:
    with live_mill(tmp_path_factory.mktemp("live"), models=()) as running:
        yield running


class Highest:
    """The most memory that the processes of the web server had together."""

    def __init__(self, mill: LiveMill) -> None:
        server = psutil.Process(mill.web_pid)
        self._processes = [server, *server.children(recursive=True)]
        self.start_bytes = self.now_bytes()
        self.bytes = self.start_bytes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def now_bytes(self) -> int:
        return sum(process.memory_info().rss for process in self._processes)

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            self.bytes = max(self.bytes, self.now_bytes())

    def __enter__(self) -> "Highest":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def form() -> Iterator[bytes]:
    yield (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="big.jsonl"\r\n\r\n'
    ).encode()
    left = FILE_BYTES
    while left:
        yield BLOCK[:left]
        left -= len(BLOCK[:left])
    yield f"\r\n--{BOUNDARY}--\r\n".encode()


def test_an_upload_and_a_download_of_200_mb_are_streamed(mill: LiveMill) -> None:
    headers = {"Authorization": f"Bearer {mill.key()}"}
    with httpx.Client(base_url=mill.url, headers=headers, timeout=120) as client:
        # Whatever is made once is made before it is measured.
        small = client.post("/v1/files", data={"purpose": "batch"}, files={"file": b"x" * 9_000_000}).json()
        assert client.get(f"/v1/files/{small['id']}/content").content == b"x" * 9_000_000
        with Highest(mill) as memory:
            content_type = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
            file = client.post("/v1/files", content=form(), headers=content_type).json()
            assert file["bytes"] == FILE_BYTES
            received = 0
            with client.stream("GET", f"/v1/files/{file['id']}/content") as answer:
                for block in answer.iter_raw():
                    received += len(block)
            assert received == FILE_BYTES
    assert memory.bytes - memory.start_bytes < MOST_GROWTH_BYTES
