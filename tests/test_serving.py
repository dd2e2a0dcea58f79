"""The server of docs/after_training.md, under load and with requests that it must refuse."""

import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
from base64 import b64encode
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from project.export import export, parse
from tests.conftest import make_folder

ROOT = Path(__file__).parents[1]
PREPARE, _, _, SERVE, _ = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "after_training.md").read_text(), re.S)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("litserve") is None, reason="LitServe is not installed; pip install litserve")
def test_the_server_is_right_under_load_and_refuses_what_is_broken(tiny_run, tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    export(parse([str(tiny_run / "checkpoints" / "best.ckpt"), f"--output={tmp_path / 'model.onnx'}"]))
    (tmp_path / "prepare.py").write_text(PREPARE)
    (tmp_path / "serve.py").write_text(SERVE.replace("port=8000", f"port={port}"))
    make_folder(tmp_path / "images", dict.fromkeys("abcdefgh", 6))
    photo = next((tmp_path / "images").rglob("*.jpg")).read_bytes()
    script, url = runpy.run_path(str(ROOT / "scripts" / "load_test.py")), f"http://127.0.0.1:{port}/predict"
    pipe: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen([sys.executable, "serve.py"], cwd=tmp_path, start_new_session=True, **pipe) as server:
        try:
            assert server.stdout is not None
            assert any("startup complete" in line for line in server.stdout)
            images = [b64encode(content).decode() for content in (photo, b"no image" * 99, photo[:500])]
            bodies = [json.dumps({"image": image}).encode() for image in (*images, "A" * 11_000_000)]
            answers = [script["ask"](url, body) for body in (*bodies, b"{")]
            assert [answer.status for answer in answers] == [200, 400, 400, 413, 422]
            assert sum(answers[0].content.values()) == pytest.approx(1, abs=1e-5)
            assert script["main"]([url, str(tmp_path / "images"), "--requests=300", "--concurrency=64"]) == 0
            assert "wrong    0" in capsys.readouterr().out
        finally:
            os.killpg(server.pid, signal.SIGKILL)  # its workers, too, which do not end with it
