"""`felix dev`, `felix pub` and `felix sub` with the published client beside them."""

import itertools
import json
import os
import pathlib
import shutil
import signal
import time
import urllib.request

import felix
import pytest

from conftest import Scoped, background
from faces import SyncFace
from processes import ReadyFile, end, program, start
from text import numbers_by_key, write_text
from waiting import Job, until

LINES = 1_000_000
# What the Python client beside `felix sub` is given: 1,000 records a second in each of four shards. It drops silently
# once 256 records of a shard wait for the application, so at this rate it survives a pause of a quarter of a second.
# Measured on two busy processors: a million lines at 10,000 a second arrive whole, at 20,000 some hundred are missing.
RATE = 4_000
RATED_LINES = 40_000


class Dev:
    """A running `felix dev`, and the `felix` commands against it."""

    def __init__(self, folder, *options):
        self.folder = pathlib.Path(folder)
        self._commands = itertools.count()
        self.log = self.folder / "dev.log"
        self.ready_file = self.folder / "ready.json"
        self.environment = {
            "FELIX_CONTEXT_DIR": str(self.folder / "context"),
            "FELIX_BIN_DIR": os.path.dirname(program("felix")),
        }
        arguments = [
            "dev",
            f"--data-dir={self.folder / 'data'}",
            "--cores=0,1,2,3",
            "--port=0",
            f"--ready-file={self.ready_file}",
        ]
        arguments += ["--set=pin=false", "--set=spin_us=0", *options]
        self.process = start([program("felix"), *arguments], self.log, env=self.environment)
        ReadyFile(self.ready_file).wait(self.process, self.log)

    @property
    def ready(self):
        return json.loads(self.ready_file.read_text())

    def command(self, *arguments, **more):
        """Starts `felix` with these arguments; the process, and the file with what it says beside its output."""
        log = self.folder / f"command-{next(self._commands)}.log"
        arguments = [program("felix"), *arguments, f"--dev={self.ready_file}"]
        return start(arguments, log, env=self.environment, **more), log

    def run(self, *arguments, within=60.0, **more):
        process, log = self.command(*arguments, **more)
        assert process.wait(within) == 0, log.read_text()

    def connect(self, face=SyncFace, **options):
        ready = self.ready
        options = options or {"token": pathlib.Path(ready["token_file"]).read_text().strip()}
        client = face.connect(ready["broker_addr"], tenant_id=ready["tenant"], ca_file=ready["ca_file"], **options)
        return Scoped(client, ready["tenant"], ready["namespace"])

    def metric(self, name):
        with urllib.request.urlopen(self.ready["metrics_url"].rstrip("/") + "/metrics", timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"felix_{name}{{"))

    def stop(self):
        """Ends it and removes what it kept on the disk, but for its log; the status."""
        status = end(self.process, within=30)
        shutil.rmtree(self.folder / "data", ignore_errors=True)
        return status


@pytest.fixture(scope="module")
def dev(tmp_path_factory):
    made = Dev(tmp_path_factory.mktemp("dev"))
    yield made
    assert made.stop() == 0


def subscribe_to_file(dev, stream, count, path):
    """`felix sub` writing to `path`; it is subscribed when this returns."""
    with open(path, "wb") as out:
        process, log = dev.command("sub", stream, "--count", str(count), stdout=out)
    until("it says that it is subscribed", lambda: f"reading `{stream}`" in log.read_text())
    return process


def test_the_ready_file_is_all_a_client_needs(dev, face):
    client = dev.connect(face)
    stream = dev.ready["stream"]
    subscription = client.subscribe(stream)
    client.publish(stream, b"hello")
    assert subscription.next_event(10).payload == b"hello"


def test_a_million_lines_of_text_published_by_key_over_four_shards_arrive_complete_and_in_order(dev, tmp_path):
    dev.run("stream", "create", "million", "--shards", "4")
    expected = write_text(tmp_path / "lines", LINES)
    reading = subscribe_to_file(dev, "million", LINES, tmp_path / "got")
    dev.run("pub", "million", str(tmp_path / "lines"), "--key-column", "1")
    assert reading.wait(60) == 0
    with open(tmp_path / "got", "rb") as got:
        assert numbers_by_key(got) == expected
    assert (tmp_path / "got").stat().st_size == (tmp_path / "lines").stat().st_size


def test_the_python_client_beside_it_loses_nothing_at_the_stated_rate(dev, tmp_path):
    dev.run("stream", "create", "rated", "--shards", "4")
    expected = write_text(tmp_path / "lines", RATED_LINES)
    reading = subscribe_to_file(dev, "rated", RATED_LINES, tmp_path / "got")
    subscription = dev.connect().subscribe_sharded("rated")

    def read():
        got = []
        while len(got) < RATED_LINES:
            item = subscription.next_event(10)
            assert isinstance(item, felix.ShardRecord), f"{item} after {len(got)} records"
            got.append(item.event.payload)
        return got

    beside = Job(read)
    dev.run("pub", "rated", str(tmp_path / "lines"), "--key-column", "1", "--rate", str(RATE))
    assert numbers_by_key(beside.result(30)) == expected
    assert reading.wait(30) == 0
    with open(tmp_path / "got", "rb") as got:
        assert numbers_by_key(got) == expected
    assert dev.metric("subscribe_dropped_total") == 0


def test_what_the_python_client_publishes_arrives_at_felix_sub(dev, tmp_path):
    dev.run("stream", "create", "from-python", "--shards", "4")
    expected = write_text(tmp_path / "lines", 4_000)
    reading = subscribe_to_file(dev, "from-python", 4_000, tmp_path / "got")
    client = dev.connect()
    with open(tmp_path / "lines", "rb") as lines:
        for number, line in enumerate(lines):
            client.publish(
                "from-python", line.rstrip(b"\n"), key=line.split(b"\t")[0], ack="none" if number % 2 else "per_message"
            )
    assert reading.wait(30) == 0
    with open(tmp_path / "got", "rb") as got:
        assert sorted(sum(numbers_by_key(got).values(), [])) == list(range(4_000))
    assert set(expected) == set(numbers_by_key((tmp_path / "got").read_bytes().splitlines()))


def test_a_broker_that_dies_comes_back_under_its_address_and_the_client_goes_on(dev, face):
    stream = dev.ready["stream"]
    client = dev.connect(face)
    client.publish(stream, b"before")
    before = dev.ready
    os.kill(before["pids"]["broker"], signal.SIGKILL)
    until("the ready file names another broker", lambda: dev.ready["pids"]["broker"] != before["pids"]["broker"])
    assert dev.ready["broker_addr"] == before["broker_addr"]

    def works():
        try:
            client.publish(stream, b"after")
            return True
        except felix.FelixError:
            return False

    until("a publish works again", works, within=40)
    subscription = client.subscribe(stream)
    client.publish(stream, b"and on")
    assert subscription.next_event(10).payload == b"and on"


@background
def test_felix_dev_and_a_client_that_reads_its_token_file_outlive_two_token_lifetimes(make_folder):
    dev = Dev(make_folder("dev"), "--token-ttl=8s")
    read_token = lambda: pathlib.Path(dev.ready["token_file"]).read_text().strip()
    client = dev.connect(token_provider=read_token)
    stream = dev.ready["stream"]
    subscription = client.subscribe(stream)
    tokens, ends, number = {read_token()}, time.monotonic() + 25, 0
    while time.monotonic() < ends:
        client.publish(stream, b"%d" % number)
        assert subscription.next_event(10).payload == b"%d" % number
        tokens.add(read_token())
        number += 1
        subscription.next_event(0.02)
    assert len(tokens) >= 4
    client.publish(stream, b"last")
    assert dev.stop() == 0
