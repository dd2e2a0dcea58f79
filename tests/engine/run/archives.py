"""Archives for tests to fetch, from a server on this machine."""

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def write_archive(path: Path, members: dict[str, bytes]) -> str:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return md5(path)


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves the files of a folder on this machine, or the first ``share`` of each; counts its ``answers``."""

    share = 1.0
    answers = 0

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
        self.folder = folder

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(SimpleHTTPRequestHandler):
    server: Server

    def copyfile(self, source: Any, outputfile: Any) -> None:
        self.server.answers += 1
        data = source.read()
        outputfile.write(data[: int(self.server.share * len(data))])

    def log_message(self, *args: Any) -> None:
        """Says nothing."""


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    with Server(folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
