"""Archives for tests to fetch, from a server on this machine."""

import hashlib
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def write_archive(path: Path, members: dict[str, bytes | tarfile.TarInfo]) -> str:
    """Writes a gzipped tar archive; gives its MD5."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            data = b"" if isinstance(content, tarfile.TarInfo) else content
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return md5(path)


def md5(path: Path) -> str:
    """A file's MD5, in hexadecimal."""
    return hashlib.md5(path.read_bytes()).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """Serves the files of a folder on this machine, or the first ``share`` of each; counts its ``answers``."""

    share = 1.0
    answers = 0

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder

    def url(self, name: str) -> str:
        """The address of a file of the folder."""
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers for the server."""

    server: Server

    def do_GET(self) -> None:
        """Sends the file."""
        self.server.answers += 1
        path = self.server.folder / self.path.lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: int(self.server.share * len(data))])

    def log_message(self, *args: Any) -> None:
        """Says nothing."""


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """Runs a server in a thread."""
    with Server(folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
