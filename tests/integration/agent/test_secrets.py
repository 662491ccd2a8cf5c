"""Secrets on their way through a real agent: to the ranks, and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.agent.looking import wait_until
from tests.integration.agent.stub import AgentProcess, StubService

VALUE = "swordfish-0123456789"
OTHER = "barracuda-9876543210"
SHOW = (
    "import json, os, sys\n"
    "value = os.environ['KEY']\n"
    "print('length', len(value), 'value', value, flush=True)\n"
    "for one in value: print(one, end='', flush=True)\n"
    "print(flush=True)\n"
    "where = os.environ['HEADWAY_CONTROL'] + '/rank-0.jsonl'\n"
    "said = dict(type='metrics', rank=0, generation=1, at_s=1.0, epoch=0, samples=1, values={value: 1.0, 'loss': 2.0})\n"
    "open(where, 'a').write(json.dumps(said) + '\\n')\n"
    "print('tokens', [name for name in os.environ if 'TOKEN' in name], flush=True)\n"
)
FAIL = SHOW + "sys.exit('failed with ' + value)\n"


def holders(value: str) -> set[str]:
    """Where the value is seen by whoever may look at processes."""
    found: set[str] = set()
    for process in Path("/proc").iterdir():
        for name in ("cmdline", "environ"):
            try:
                seen = (process / name).read_bytes()
            except OSError:
                continue
            if value.encode() in seen:
                found.add(f"a rank's {name}" if b"RANK=" in seen else name)
    return found


def files_with(folder: Path, value: str) -> set[str]:
    return {
        path.name
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and value.encode() in path.read_bytes()
    }


@pytest.mark.slow
@pytest.mark.parametrize(("run", "how"), [("python show.py", "zygote"), ("true; python show.py", "spawn")])
def test_ranks_find_their_secrets_and_nobody_else_reads_them(
    stub: StubService, make_agent: Callable[..., AgentProcess], tmp_path: Path, run: str, how: str
) -> None:
    stub.secrets["jsecrets01"] = {"KEY": VALUE}
    agent = make_agent()
    agent.start()
    stub.wait_for(lambda: stub.reports)
    script = (
        SHOW
        + "import time; open('up', 'w').close(); sys.stdin.read(); import threading; threading.Event().wait()\n"
    )
    stub.run("jsecrets01", run, bundle=stub.add_bundle({"show.py": script}), secrets=["KEY"], ranks=2)
    assert stub.started("jsecrets01").how == how
    log = stub.wait_log("jsecrets01", "tokens []")
    hidden = "*" * len(VALUE)
    assert log == f"length {len(VALUE)} value {hidden}\n{hidden}\ntokens []\n"
    assert holders(VALUE) <= {"a rank's environ"}
    # The ranks' own output is the only file that has it, and only the host's users of the job read that.
    assert files_with(tmp_path / "state", VALUE) <= {"rank-0.log", "rank-1.log", "rank-0.jsonl"}
    stub.wait_for(lambda: stub.messages("jsecrets01"))
    (said,) = stub.messages("jsecrets01")[:1]
    assert said["values"] == {hidden: 1.0, "loss": 2.0}
    assert VALUE not in agent.log()


@pytest.mark.slow
def test_a_rank_does_not_find_the_secrets_of_another_job_in_its_memory(shared: StubService) -> None:
    """Ranks are forks of one launcher: what that had read, each of them would have."""
    shared.secrets["jsecrets02"] = {"KEY": OTHER}
    shared.secrets["jsecrets03"] = {"KEY": VALUE}
    first = shared.add_bundle({"show.py": SHOW})
    shared.run("jsecrets02", "python show.py", bundle=first, secrets=["KEY"])
    shared.exits("jsecrets02")
    half = len(OTHER) // 2
    look = (
        "import os\n"
        f"wanted = ({OTHER[:half]!r}.encode(), {OTHER[half:]!r}.encode())\n"
        "found = 0\n"
        "with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb') as memory:\n"
        "    for line in maps:\n"
        "        where, rights = line.split()[:2]\n"
        "        begin, end = (int(one, 16) for one in where.split('-'))\n"
        "        if 'r' not in rights or line.split()[4] != '0' or '[v' in line:\n"
        "            continue\n"
        "        try:\n"
        "            memory.seek(begin); data = memory.read(end - begin)\n"
        "        except (OSError, ValueError):\n"
        "            continue\n"
        "        at = data.find(wanted[0])\n"
        "        while at >= 0:\n"
        f"            found += data[at + {half}:at + {len(OTHER)}] == wanted[1]\n"
        "            at = data.find(wanted[0], at + 1)\n"
        "print('found', found, 'descriptors', [one for one in os.listdir('/proc/self/fd') if 'memfd' in "
        "(os.readlink('/proc/self/fd/' + one) if os.path.lexists('/proc/self/fd/' + one) else '')], flush=True)\n"
    )
    shared.run("jsecrets03", "python look.py", bundle=shared.add_bundle({"look.py": look}), secrets=["KEY"])
    assert "found 0 descriptors []" in shared.wait_log("jsecrets03", "found")


def test_the_last_lines_of_a_failure_are_without_secrets(shared: StubService) -> None:
    shared.secrets["jsecrets04"] = {"KEY": VALUE}
    shared.run("jsecrets04", "python show.py", bundle=shared.add_bundle({"show.py": FAIL}), secrets=["KEY"])
    ended = shared.exits("jsecrets04")[0]
    assert ended.exit_code == 1
    assert ended.log_tail[-1] == "failed with " + "*" * len(VALUE)
    assert VALUE not in json.dumps([one.model_dump(mode="json") for one in shared.entries])


def test_a_secret_that_is_gone_ends_the_start_with_a_sentence(shared: StubService) -> None:
    shared.run("jsecrets05", "python show.py", bundle=shared.add_bundle({"show.py": SHOW}), secrets=["KEY"])
    failed = shared.start_failed("jsecrets05")
    assert not failed.retryable
    assert "The job's secrets could not be used." in failed.message
    assert "has no secret named key any more" in failed.message


@pytest.mark.slow
def test_an_agent_that_takes_over_hides_what_ranks_of_the_one_before_print(
    stub: StubService, make_agent: Callable[..., AgentProcess]
) -> None:
    stub.secrets["jsecrets06"] = {"KEY": VALUE}
    agent = make_agent()
    agent.start()
    stub.wait_for(lambda: stub.reports)
    script = (
        "import os, sys, threading\n"
        "print('ready', flush=True)\n"
        "while not os.path.exists('go'): threading.Event().wait(0.02)\n"
        "print(os.environ['KEY'], 'printed', flush=True)\n"
        "open('done', 'w').close()\n"
    )
    stub.run("jsecrets06", "python show.py", bundle=stub.add_bundle({"show.py": script}), secrets=["KEY"])
    stub.wait_log("jsecrets06", "ready")
    agent.kill()
    work = agent.state / "runs" / "jsecrets06" / "work"
    (work / "go").touch()
    wait_until((work / "done").exists)
    agent.start()
    assert f"{'*' * len(VALUE)} printed" in stub.wait_log("jsecrets06", "printed")
    assert len(stub.secret_requests) == 2
