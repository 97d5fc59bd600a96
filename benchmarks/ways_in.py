"""The web server under many clients at once: the simulated engine, everything else as `gristmill up` runs it.

    python benchmarks/ways_in.py --clients 50 --seconds 60

Prints requests/s, errors and latencies of each route, and the 95th percentile of all reads together.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import httpx

START_S = 60
STOP_S = 60


@click.command()
@click.option("--clients", default=50, show_default=True)
@click.option("--seconds", default=60, show_default=True)
def main(clients: int, seconds: int) -> None:
    """Start everything, let the clients at it, and report."""
    with TemporaryDirectory(prefix="gristmill-bench-") as folder:
        port = free_port()
        environment = settings(Path(folder), port)
        with subprocess.Popen(
            [sys.executable, "-m", "gristmill", "up", "--model", "simulated"],
            env=environment,
            stdout=subprocess.DEVNULL,
        ) as up:
            try:
                wait_until_ready(up, f"http://127.0.0.1:{port}")
                statistics = run_clients(environment, port, clients, seconds)
            finally:
                up.terminate()
                up.wait(STOP_S)
    report(statistics, seconds)


def settings(folder: Path, port: int) -> dict[str, str]:
    """The environment of all processes: one simulated model, ports of its own."""
    models = {"simulated": {"source": "simulated", "engine": "simulated"}}
    return {
        **os.environ,
        "GRISTMILL_DATA_DIR": str(folder),
        "GRISTMILL_MODELS": json.dumps(models),
        "GRISTMILL_WEB_PORT": str(port),
        "GRISTMILL_FLOWER_PORT": str(free_port()),
    }


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_ready(up: "subprocess.Popen[bytes]", url: str) -> None:
    """Until the web server answers."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and up.poll() is None:
        try:
            if httpx.get(f"{url}/healthz").is_success:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    sys.exit("gristmill up did not start")


def run_clients(
    environment: dict[str, str], port: int, clients: int, seconds: int
) -> list[dict[str, object]]:
    """Locust's statistics, one entry for each route."""
    command = [sys.executable, "-m", "gristmill", "keys", "create", "--name", "benchmark", "--quiet"]
    key = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()
    users = Path(__file__).with_name("web_users.py")
    arguments = ["--headless", "--json", "--users", str(clients), "--spawn-rate", str(clients)]
    arguments += ["--run-time", f"{seconds}s", "--host", f"http://127.0.0.1:{port}"]
    locust = subprocess.run(
        [sys.executable, "-m", "locust", "--locustfile", str(users), *arguments],
        env={**environment, "BENCHMARK_KEY": key},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    statistics: list[dict[str, object]] = json.loads(locust.stdout)
    return statistics


def report(statistics: list[dict[str, object]], seconds: int) -> None:
    """One line a route, then the reads together."""
    reads: Counter[int] = Counter()
    total = failed = 0
    for route in sorted(statistics, key=lambda route: str(route["name"])):
        times = Counter({int(ms): int(count) for ms, count in dict(route["response_times"]).items()})  # type: ignore[call-overload]
        count, failures = int(str(route["num_requests"])), int(str(route["num_failures"]))
        total, failed = total + count, failed + failures
        if route["method"] == "GET":
            reads += times
        print(
            f"{route['name']!s:32} {count:6,} requests  {failures:4,} errors  "
            f"p50 {percentile(times, 0.5):5} ms  p95 {percentile(times, 0.95):5} ms"
        )
    print(f"all: {total:,} requests, {total / seconds:,.1f}/s, {failed:,} errors")
    print(f"reads: p50 {percentile(reads, 0.5)} ms, p95 {percentile(reads, 0.95)} ms")


def percentile(times: Counter[int], share: float) -> int:
    """The time in ms that this share of the requests did not exceed."""
    seen = 0
    for ms in sorted(times):
        seen += times[ms]
        if seen >= share * times.total():
            return ms
    return 0


if __name__ == "__main__":
    main()
