"""A job brings its packages, from an index with a password: submitted, built on the node, imported, started warm, and refused."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from headway.contract.spec import JobSpec
from headway.contract.views.jobs import TERMINAL_STATES, JobState, JobView, Reason
from tests.e2e.conftest import Cluster
from tests.integration.wheels import make_wheel

pytestmark = pytest.mark.slow

USER, PASSWORD = "team", "index-password-7261"
SCRIPT = """
import hwtest_greeter, headway, torch
run = headway.init()
print("greeting", hwtest_greeter.GREETING, torch.ones(1).item(), flush=True)
"""


class Index:
    """A private package index: the simple pages of one folder of wheels, behind a password."""

    def __init__(self, wheels: Path) -> None:
        self.asked: list[str] = []
        wanted = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(handler) -> None:  # noqa: N805
                self.asked.append(handler.path)
                name = handler.path.strip("/").rpartition("/")[2]
                status, body = 200, b""
                if handler.headers["Authorization"] != wanted:
                    status = 401
                elif (wheels / name).is_file():
                    body = (wheels / name).read_bytes()
                else:
                    found = [path.name for path in wheels.glob(f"{name.replace('-', '_')}-*.whl")]
                    status = 200 if found else 404
                    body = "".join(f'<a href="/files/{one}">{one}</a>' for one in found).encode()
                handler.send_response(status)
                handler.send_header(
                    "Content-Type", "text/html" if b"<a" in body[:2] else "application/octet-stream"
                )
                handler.send_header("Content-Length", str(len(body)))
                handler.end_headers()
                handler.wfile.write(body)

            do_HEAD = do_GET  # noqa: N815

            def log_message(handler, *arguments: object) -> None:  # noqa: N805
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://{USER}:{PASSWORD}@127.0.0.1:{self.server.server_address[1]}/simple"


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    make_wheel(tmp_path / "wheels", "hwtest_greeter", "1.0", "GREETING = 'hello'\n")
    found = Index(tmp_path / "wheels")
    thread = threading.Thread(target=found.server.serve_forever, args=[0.05])
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


def ended(cluster: Cluster, folder: Path, name: str, requirements: str) -> JobView:
    work = folder / name
    work.mkdir()
    (work / "train.py").write_text(SCRIPT)
    (work / "requirements.txt").write_text(requirements)
    spec = {
        "name": name,
        "workdir": str(work),
        "run": "python train.py",
        "python": {"requirements": "requirements.txt"},
        "secrets": {"UV_DEFAULT_INDEX": "index-url"},
    }
    job = cluster.client.submit(JobSpec.model_validate(spec))
    cluster.until(lambda: cluster.client.job(job.id).state in TERMINAL_STATES, "its end")
    return cluster.client.job(job.id)


def test_job_imports_its_packages_and_a_missing_one_is_the_reason_of_its_end(
    cluster: Cluster, index: Index, tmp_path: Path
) -> None:
    cluster.client.set_secret("default", "index-url", index.url)
    first = ended(cluster, tmp_path, "brings", "hwtest_greeter\ntorch\n")
    assert first.state is JobState.SUCCEEDED, first.message
    cluster.until(lambda: "greeting hello 1.0" in cluster.headway("logs", "brings").stdout, "its output")
    log = cluster.headway("logs", "brings").stdout
    assert "hwtest-greeter==1.0" in log  # what uv printed
    assert PASSWORD not in log
    assert "torch==" not in log  # the index has none: it is that of the host

    # A node builds once; two nodes may each have built.
    ended(cluster, tmp_path, "again", "hwtest_greeter\ntorch\n")
    ended(cluster, tmp_path, "third", "hwtest_greeter\ntorch\n")
    built = [
        name
        for name in ("brings", "again", "third")
        if "Building the Python environment" in cluster.headway("logs", name).stdout
    ]
    nodes = cluster.stack.data.glob("agents/*/environments/*")
    assert len(built) == len(list(nodes)) <= 2

    failed = ended(cluster, tmp_path, "lacks", "hwtest_greeter==9\n")
    assert (failed.state, failed.reason) == (JobState.FAILED, Reason.START_FAILED)
    assert "hwtest-greeter==9" in failed.message
    assert PASSWORD not in failed.message
