"""Loads a server, such as the example serve.py: is each answer right under load?

It also prints requests a second and latencies.
"""

import argparse
import base64
import json
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import quantiles
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from lightkeeper.cli import run_command
from lightkeeper.exact import UserError

PATIENCE = 120.0  # seconds


class Answer(NamedTuple):
    """A server's answer to one request: status of HTTP, the JSON that it sent or None, and the time that it took."""

    status: int
    content: Any
    seconds: float


def ask(url: str, body: bytes) -> Answer:
    """Sends one request and waits for the answer."""
    start = time.perf_counter()
    try:
        with urlopen(
            Request(url, body, {"Content-Type": "application/json"}), timeout=PATIENCE
        ) as response:
            return Answer(response.status, json.load(response), time.perf_counter() - start)
    except HTTPError as error:
        return Answer(error.code, None, time.perf_counter() - start)
    except (URLError, ValueError) as error:
        raise UserError(f"'{url}' does not answer ({error}); start serve.py first") from error


def body_of(path: Path) -> bytes:
    """The request for an image file."""
    return json.dumps({"image": base64.b64encode(path.read_bytes()).decode()}).encode()


def load(
    url: str, files: list[Path], requests: int, concurrency: int
) -> tuple[list[Answer], int, float]:
    """Asks for each file alone, then for all of them over and over, many at once.

    Returns:
        The answers under load, how many of those with status 200 are not what the file alone got, and the seconds.
    """
    bodies = [body_of(file) for file in files]
    alone = [ask(url, body).content for body in bodies]
    with ThreadPoolExecutor(concurrency) as threads:
        start = time.perf_counter()
        found = list(
            threads.map(lambda number: ask(url, bodies[number % len(bodies)]), range(requests))
        )
        seconds = time.perf_counter() - start
    wrong = sum(
        answer.status == 200 and answer.content != alone[number % len(alone)]
        for number, answer in enumerate(found)
    )
    return found, wrong, seconds


def main(args: list[str]) -> int:
    """Runs the script; the exit code is 1 where an answer was wrong or none was given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("folder", type=Path, help="Images, in the folder or in those within.")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--concurrency", type=int, default=32)
    options = parser.parse_args(args)
    files = [
        file
        for file in sorted(options.folder.rglob("*"))
        if file.suffix.lower() in (".jpg", ".jpeg", ".png")
    ]
    if not files:
        raise UserError(f"there are no images in '{options.folder}'")
    found, wrong, seconds = load(options.url, files[:50], options.requests, options.concurrency)
    statuses = Counter(answer.status for answer in found)
    served = sorted(answer.seconds for answer in found if answer.status == 200)
    print(f"{options.requests} requests, {options.concurrency} at a time, {len(files[:50])} images")
    print(
        "answers  "
        + ", ".join(f"{count} with status {status}" for status, count in sorted(statuses.items()))
    )
    print(f"wrong    {wrong}")
    if len(served) > 1:
        cuts = quantiles(served, n=100, method="inclusive")
        print(f"rate     {len(served) / seconds:.1f} answers a second")
        print(f"latency  p50 {1000 * cuts[49]:.0f} ms, p99 {1000 * cuts[98]:.0f} ms")
    return int(wrong > 0 or not served)


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
