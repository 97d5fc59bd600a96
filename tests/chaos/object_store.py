"""The object store of a mill under test, where it is no folder: an S3 server that can be made slow."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

FOLDER = "folder"
S3 = "s3"

BUCKET = "mill"

_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
"""Serves until its standard input closes, which it does whatever the harness dies of."""

LONGEST_STOP_S = 2.0
LONGEST_GO_S = 0.2


@dataclass(frozen=True)
class S3UnderTest:
    """A bucket of its own, in the memory of a process."""

    pid: int
    endpoint: str

    @property
    def settings(self) -> dict[str, object]:
        """What a mill must be told to use it."""
        options = {
            "aws_access_key_id": "key",
            "aws_secret_access_key": "secret",
            "aws_region": "us-east-1",
            "aws_endpoint": self.endpoint,
            "allow_http": "true",
        }
        return {"storage_url": f"s3://{BUCKET}", "storage_options": options}

    def be_slow(self, seconds: float, random: Random) -> None:
        """Answer only now and then: whoever asks waits, for a moment or for seconds."""
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                os.kill(self.pid, signal.SIGSTOP)
                time.sleep(random.uniform(0, LONGEST_STOP_S))
                os.kill(self.pid, signal.SIGCONT)
                time.sleep(random.uniform(0, LONGEST_GO_S))
        finally:
            os.kill(self.pid, signal.SIGCONT)


@contextlib.contextmanager
def object_store_under_test(kind: str) -> Iterator[S3UnderTest | None]:
    """An S3 server with an empty bucket; nothing for a folder, which needs no server."""
    if kind == FOLDER:
        yield None
        return
    command = [sys.executable, "-c", _SERVER]
    # It logs each request.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as server:
        assert server.stdout is not None
        endpoint = f"http://127.0.0.1:{int(server.stdout.readline())}"
        make_bucket = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")  # noqa: S310
        urllib.request.urlopen(make_bucket).close()  # noqa: S310
        yield S3UnderTest(server.pid, endpoint)
