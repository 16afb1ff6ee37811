"""Clients and brokers that die, stop, stall, end and come back."""

import contextlib
import pathlib
import signal
import subprocess
import sys
import threading
import time

import felix
import pytest

from conftest import ALL_RIGHTS, Scoped, background, connect
from faces import SyncFace
from processes import NAMESPACE, TENANT, end, start
from waiting import Job, until

SUBSCRIBER = pathlib.Path(__file__).with_name("subscriber.py")
# The idle timeout of both sides.
IDLE_S = 6.0
# The longest the client waits for the answer to a publish (30 s), and some air.
PUBLISH_S = 40.0


@pytest.fixture(scope="module")
def fragile(make_broker):
    """A broker that these tests kill and stop; each leaves it serving."""
    return make_broker()


class Subscriber:
    """`subscriber.py` as a process."""

    def __init__(self, broker, stream):
        arguments = [broker.addr, TENANT, broker.plane.mint(ALL_RIGHTS), broker.ca_file, NAMESPACE, stream]
        log = broker.folder / "subscriber.log"
        self.process = start([sys.executable, str(SUBSCRIBER), *arguments], log, stdout=subprocess.PIPE, text=True)
        self.lines = []
        threading.Thread(target=self._read, daemon=True).start()
        until("the subscriber is ready", lambda: self.lines or self.process.poll() is not None)
        assert self.lines == ["ready"], log.read_text()

    def _read(self):
        self.lines.extend(line.strip() for line in self.process.stdout)

    @contextlib.contextmanager
    def stopped(self):
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


@pytest.fixture
def subscriber():
    started = []

    def make(broker, stream):
        started.append(Subscriber(broker, stream))
        return started[-1]

    yield make
    for one in started:
        one.process.kill()
        end(one.process)


def new_client(broker, face=SyncFace):
    return Scoped(connect(face, broker, broker.plane.mint(ALL_RIGHTS)))


def is_stopped(pid):
    states = [
        path.read_text().rsplit(")", 1)[1].split()[0] for path in pathlib.Path(f"/proc/{pid}/task").glob("*/stat")
    ]
    return set(states) == {"T"}


def publish_until_it_works(client, stream, payload, within=30.0):
    """Publishes until an ack comes; refusals on the way are the client's errors, never hangs."""
    finish = time.monotonic() + within
    while True:
        began = time.monotonic()
        try:
            return client.publish(stream, payload)
        except felix.FelixError as error:
            assert time.monotonic() < finish, error
            time.sleep(max(0.0, 0.05 - (time.monotonic() - began)))


def test_a_client_killed_without_a_word_leaves_nothing_after_the_idle_timeout(fragile, subscriber):
    stream = fragile.create_stream("killed", shards=4)
    until("no connection is left of other tests", lambda: fragile.metric("connections") == 0)
    one = subscriber(fragile, stream)
    until("its subscriptions are counted", lambda: fragile.metric("sub_active") == 5)
    one.process.kill()
    killed = time.monotonic()
    until("its connection is gone", lambda: fragile.metric("connections") == 0, within=IDLE_S + 5)
    assert time.monotonic() - killed < IDLE_S + 5
    assert fragile.metric("sub_active") == 0
    assert fragile.metric("broker_ingress_queue_depth") == 0


def test_a_stopped_subscriber_does_not_hold_up_the_one_beside_it(fragile, subscriber):
    stream = fragile.create_stream("stopped")
    frozen, good = subscriber(fragile, stream), new_client(fragile).subscribe(stream)
    writer = new_client(fragile)
    payload = bytes(64 << 10)
    with frozen.stopped():
        # Far more than the windows and queues of the stopped one hold, in less than its idle timeout.
        ends = time.monotonic() + 4
        count = 0
        while time.monotonic() < ends and count < 3_000:
            writer.publish(stream, b"%08d" % count + payload)
            assert good.next_event(10).payload[:8] == b"%08d" % count
            count += 1
        assert count > 200
    writer.publish(stream, b"afterwards")
    assert good.next_event(10).payload == b"afterwards"


def test_a_stopped_subscriber_that_comes_back_in_time_gets_what_comes_then(fragile, subscriber):
    stream = fragile.create_stream("paused")
    one, writer = subscriber(fragile, stream), new_client(fragile)
    with one.stopped():
        for number in range(100):
            writer.publish(stream, b"while stopped %d" % number)

    def gets():
        writer.publish(stream, b"awake")
        return "awake" in one.lines

    until("it goes on", gets)
    during = [line for line in one.lines if line.startswith("while stopped")]
    assert during == [f"while stopped {number}" for number in range(100)]


def test_with_the_policy_block_a_stopped_subscriber_makes_publishes_fail_in_time_and_then_work_again(
    make_broker, subscriber
):
    broker = make_broker(settings={"sub_queue_policy": "block", "replay_ring_max_bytes": "1MiB"})
    stalled, other = broker.create_stream("stalled"), broker.create_stream("other")
    one, client = subscriber(broker, stalled), new_client(broker)
    payload = bytes(64 << 10)
    with one.stopped():
        waits = []

        def stall():
            for _ in range(3_000):
                began = time.monotonic()
                try:
                    client.publish(stalled, payload)
                except felix.OverloadedError as error:
                    waits.append(time.monotonic() - began)
                    return error
            return None

        refused = Job(stall).result(40)
        assert refused is not None, "the ring never filled"
        assert (refused.code, refused.retry) == ("overloaded", "retry_after")
        assert refused.detail["reason"] == "publish_queue_full"
        assert waits[0] < 5
        began = time.monotonic()
        client.publish(other, b"x")
        assert time.monotonic() - began < 2, "another stream waited for the stalled one"
    until("the stalled stream moves again", lambda: publish_until_it_works(client, stalled, b"y") is None)


def test_a_client_goes_on_after_its_broker_was_killed_and_came_back(fragile, face):
    stream = fragile.create_stream(f"restarted-{face.name}", shards=4)
    client = new_client(fragile, face)
    plain, sharded = client.subscribe(stream), client.subscribe_sharded(stream)
    client.publish(stream, b"before", key=b"k")
    assert sharded.next_event(10).event.payload == b"before"
    fragile.kill()
    fragile.start()
    fragile.serves_all()
    publish_until_it_works(client, stream, b"back")
    # Without offsets there is no place to resume at, so the client says that the plain subscription is over.
    with pytest.raises(felix.ConnectionError):
        while plain.next_event(10) is not None:
            pass
    seen = set()

    def sharded_goes_on():
        client.publish(stream, b"after")
        item = sharded.next_event(0.2)
        seen.add(type(item))
        return isinstance(item, felix.ShardRecord) and item.event.payload == b"after"

    until("the sharded subscription goes on by itself", sharded_goes_on, within=30)
    assert {felix.ShardLost, felix.ShardRecovered} <= seen
    again = client.subscribe(stream)
    client.publish(stream, b"again")
    assert again.next_event(10).payload == b"again"


@background
def test_a_publish_to_a_stopped_broker_ends_with_an_error_in_time(make_broker):
    broker = make_broker()
    stream = broker.create_stream("frozen")
    client = new_client(broker)
    client.publish(stream, b"before")
    broker.process.send_signal(signal.SIGSTOP)
    until("every thread of the broker has stopped", lambda: is_stopped(broker.process.pid))
    try:
        publishing = [Job(lambda: client.publish(stream, b"x")) for _ in range(4)]
        for job in publishing:
            with pytest.raises(felix.FelixError):
                job.result(PUBLISH_S)
    finally:
        broker.process.send_signal(signal.SIGCONT)
    publish_until_it_works(client, stream, b"after")


@background
def test_a_drain_under_load_loses_no_acked_record_of_a_connected_subscriber(make_broker):
    broker = make_broker()
    stream = broker.create_stream("drained", shards=4)
    reader, writer = new_client(broker), new_client(broker)
    subscription = reader.subscribe_sharded(stream)
    acked, got, errors = [], set(), []
    window = threading.Semaphore(100)

    def write(name):
        for number in range(1_000_000):
            if not window.acquire(timeout=20):
                return
            payload = b"%d-%d" % (name, number)
            try:
                writer.publish(stream, payload, key=b"%d" % (number % 16))
            except felix.FelixError as error:
                errors.append(error)
                return
            acked.append(payload)

    writers = [Job(lambda name=name: write(name)) for name in range(4)]

    def read():
        while True:
            item = subscription.next_event(0.2)
            if isinstance(item, felix.ShardRecord):
                got.add(item.event.payload)
                window.release()
            elif item is None and broker.process.poll() is not None:
                return

    reading = Job(read)
    until("it is busy", lambda: len(got) > 500)
    began = time.monotonic()
    broker.process.terminate()
    assert broker.process.wait(25) == 0
    took = time.monotonic() - began
    for job in writers:
        job.result(60)
    reading.result(20)
    assert took < 10, f"the drain took {took:.1f} s"
    missing = [payload for payload in acked if payload not in got]
    assert not missing, f"{len(missing)} of {len(acked)} acked records are missing, such as {missing[:5]}"
    assert len(errors) == 4
    # A record in flight when the connection closed may or may not have been written; nothing says that it was.
    assert all(
        isinstance(e, (felix.ConnectionError, felix.OutcomeUnknownError, felix.ShardUnavailableError)) for e in errors
    ), errors
