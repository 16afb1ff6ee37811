"""Durable streams: offsets, where a subscription may start, retention, and the broker's death."""

import itertools
import time

import felix
import pytest

from conftest import ALL_RIGHTS, Scoped, background, connect
from faces import SyncFace
from test_publish import payloads
from waiting import Job, until

MIB = 1 << 20
# Files so small that they are rolled and used again all the time, and what is acknowledged is synced.
SMALL_FILES = {
    "fsync": "on_commit",
    "segment_bytes": "1MiB",
    "commit_slot_bytes": "1MiB",
    "retention_check_ms": 200,
    "disk_low": "64MiB",
    "log_memory": "32MiB",
    "sub_queue_policy": "block",
}
KILLS = 10


@pytest.fixture(scope="module")
def disk_broker(make_broker):
    return make_broker(cores=2, settings=SMALL_FILES)


@pytest.fixture(scope="module")
def disk_token(disk_broker):
    return disk_broker.plane.mint(ALL_RIGHTS, ttl=3600)


_NUMBERS = itertools.count()


@pytest.fixture
def new_durable(disk_broker):
    def make(shards=1, **options):
        return disk_broker.create_stream(f"d{next(_NUMBERS)}", shards, durable=True, **options)

    return make


@pytest.fixture
def disk_client(face, disk_broker, disk_token):
    return Scoped(connect(face, disk_broker, disk_token))


def events(subscription, count, within=15.0):
    got = []
    while len(got) < count:
        event = subscription.next_event(within)
        assert event is not None, f"{len(got)} of {count} events came"
        got.append((event.offset, event.payload))
    return got


def numbered(first, end):
    return [(number, b"%d" % number) for number in range(first, end)]


def fill(client, stream, count, first=0):
    for number in range(first, first + count):
        assert client.publish(stream, b"%d" % number) == number


@pytest.mark.parametrize("ack", ["per_message", "per_batch"])
@pytest.mark.parametrize("again", [False, True], ids=["once", "at_least_once"])
def test_an_acked_publish_says_its_offset_and_a_reader_finds_it_there(disk_client, new_durable, ack, again):
    stream = new_durable()
    for number in range(20):
        assert disk_client.publish(stream, b"%d" % number, ack=ack, at_least_once=again) == number
    assert events(disk_client.subscribe(stream, start="earliest"), 20) == numbered(0, 20)


def test_an_unacked_publish_has_no_offset_and_arrives(disk_client, new_durable):
    stream = new_durable()
    subscription = disk_client.subscribe(stream)
    assert disk_client.publish(stream, b"unacked", ack="none") is None
    assert payloads(subscription, 1) == [b"unacked"]
    assert disk_client.publish(stream, b"acked") == 1


def test_each_shard_counts_for_itself(disk_client, new_durable):
    stream = new_durable(shards=4)
    told = []
    for number in range(80):
        told.append((disk_client.publish(stream, b"%d" % number, key=b"%d" % number), b"%d" % number))
    subscription = disk_client.subscribe_sharded(stream, start="earliest")
    by_shard = {}
    for _ in told:
        item = subscription.next_event(15)
        by_shard.setdefault(item.shard, []).append((item.event.offset, item.event.payload))
    assert set(by_shard) == {0, 1, 2, 3}
    for got in by_shard.values():
        assert [offset for offset, _ in got] == list(range(len(got)))
    assert sorted(sum(by_shard.values(), [])) == sorted(told)


def test_latest_earliest_and_an_offset_start_where_they_say(disk_client, new_durable):
    stream = new_durable()
    fill(disk_client, stream, 30)
    latest, latest_too = disk_client.subscribe(stream), disk_client.subscribe(stream, start="latest")
    assert events(disk_client.subscribe(stream, start="earliest"), 30) == numbered(0, 30)
    assert events(disk_client.subscribe(stream, start=12), 18) == numbered(12, 30)
    at_the_end = disk_client.subscribe(stream, start=30)
    assert at_the_end.next_event(0.2) is None
    fill(disk_client, stream, 3, first=30)
    for subscription in (latest, latest_too, at_the_end):
        assert events(subscription, 3) == numbered(30, 33)


def available(error, reason):
    """What a cursor error says is there."""
    assert error.code is None or isinstance(error.code, str)
    detail = error.detail or {}
    assert reason in f"{error} {detail}", f"{error} {detail}"
    return detail, str(error)


def test_an_offset_in_the_future_is_a_cursor_error_with_what_is_available(disk_client, new_durable):
    stream = new_durable()
    fill(disk_client, stream, 4)
    with pytest.raises(felix.CursorError) as caught:
        disk_client.subscribe(stream, start=5)
    assert "5" in str(caught.value) and "4" in str(caught.value), (str(caught.value), caught.value.detail)
    assert disk_client.publish(stream, b"4") == 4


def test_an_offset_below_retention_is_a_cursor_error_with_the_oldest_that_is_held(disk_client, new_durable):
    stream = new_durable(retention_bytes=2 * MIB)
    payload = bytes(range(256)) * 64
    count = 6 * MIB // len(payload)
    for number in range(count):
        assert disk_client.publish(stream, b"%08d" % number + payload) == number

    def oldest():
        first, _ = events(disk_client.subscribe(stream, start="earliest"), 1)[0]
        # At most what is to be kept, and the segment that is written.
        return first if (count - first) * len(payload) <= 4 * MIB else None

    first = until("retention removed the oldest segments", oldest)
    # Retention may go on between two calls: what is said to be available is taken at its word, or said anew.
    subscription = None
    while subscription is None:
        with pytest.raises(felix.CursorError) as caught:
            disk_client.subscribe(stream, start=0)
        words = str(caught.value)
        said = [int(word) for word in "".join(c if c.isdigit() else " " for c in words).split()]
        held = [offset for offset in said if offset >= first]
        assert 0 in said and held, (words, caught.value.detail)
        first = held[0]
        try:
            subscription = disk_client.subscribe(stream, start=first)
        except felix.CursorError:
            # It cannot go on for ever: what is kept does not move without publishes.
            assert first < count
    for number, (offset, got) in zip(range(first, count), events(subscription, count - first)):
        assert offset == number and got == b"%08d" % number + payload


def test_history_joins_what_is_live_while_a_publisher_runs(disk_broker, disk_token, disk_client, new_durable):
    stream, count = new_durable(), 800
    writer = Scoped(connect(SyncFace, disk_broker, disk_token))
    writing = Job(lambda: fill(writer, stream, count))
    subscriptions = {}
    while len(subscriptions) < 5:
        first = 50 * len(subscriptions)
        try:
            subscriptions[first] = disk_client.subscribe(stream, start=first or "earliest")
        except felix.CursorError:
            # It is not there yet.
            assert not writing.done
            time.sleep(0.01)
    for first, subscription in subscriptions.items():
        assert events(subscription, count - first, within=30) == numbered(first, count)
    writing.result(60)


class Reader:
    """Reads one shard from the start through deaths of the broker, going on after the last offset it has."""

    def __init__(self, client, stream):
        self.got = []
        self._client, self._stream = client, stream
        self._wanted = None
        self._job = Job(self._read)

    def _read(self):
        subscription = None
        while self._wanted is None or len(self.got) < self._wanted:
            try:
                if subscription is None:
                    subscription = self._client.subscribe(self._stream, start=len(self.got))
                event = subscription.next_event(0.2)
            except (felix.FelixError, StopIteration):
                subscription = None
                time.sleep(0.02)
                continue
            if event is None:
                if subscription.closed:
                    subscription = None
                continue
            assert event.offset == len(self.got), f"offset {event.offset} after {len(self.got)} records"
            self.got.append(event.payload)

    def result(self, count):
        self._wanted = count
        self._job.result(60)
        return self.got


class Writer:
    """Publishes numbers, each until it is acknowledged or known to be lost, and remembers where they are."""

    def __init__(self, client, stream, at_least_once):
        self.acked, self.unknown, self.not_written = {}, set(), set()
        self._client, self._stream, self._again = client, stream, at_least_once
        self._ends = False
        self._job = Job(self._write)

    def _write(self):
        for number in itertools.count():
            if self._ends:
                return
            record = b"%s %d %s" % (b"again" if self._again else b"once", number, b"x" * (number % 3000))
            try:
                offset = self._client.publish(self._stream, record, at_least_once=self._again)
            except felix.OutcomeUnknownError:
                self.unknown.add(record)
            except felix.FelixError as error:
                # Only what the broker refused is known not to be there.
                (self.not_written if error.code else self.unknown).add(record)
                time.sleep(0.01)
            else:
                assert offset is not None and offset not in self.acked
                self.acked[offset] = record

    def end(self):
        self._ends = True
        self._job.result(60)


def test_what_was_acked_survives_ten_kills_and_a_reader_resumes_without_gap_or_repeat(make_broker, face):
    broker = make_broker(cores=2, settings=SMALL_FILES)
    token = broker.plane.mint(ALL_RIGHTS, ttl=3600)
    broker.create_stream("killed", durable=True)
    client = lambda: Scoped(connect(face, broker, token))
    writers = [Writer(client(), "killed", again) for again in (False, True)]
    reader = Reader(client(), "killed")
    for kill in range(KILLS):
        so_far = sum(len(writer.acked) for writer in writers)
        until("more is acknowledged", lambda: sum(len(w.acked) for w in writers) > so_far + 20 + 3 * kill, within=40)
        broker.kill()
        broker.start()
    so_far = sum(len(writer.acked) for writer in writers)
    until("the writers go on", lambda: sum(len(w.acked) for w in writers) > so_far + 20, within=40)
    for writer in writers:
        writer.end()
    end = client().publish("killed", b"the end", at_least_once=True)
    got = reader.result(end + 1)
    assert got[end] == b"the end"
    fresh = events(client().subscribe("killed", start="earliest"), end + 1, within=30)
    assert fresh == list(enumerate(got))
    for writer in writers:
        assert all(got[offset] == record for offset, record in writer.acked.items())
        assert not writer.not_written.intersection(got)
    once, again = writers
    sent_once = [record for record in got if record.startswith(b"once ")]
    assert len(sent_once) == len(set(sent_once)), "nothing was sent twice"
    assert set(sent_once) <= set(once.acked.values()) | once.unknown
    sent_again = {record for record in got if record.startswith(b"again ")}
    assert sent_again <= set(again.acked.values()) | again.unknown
    numbers = [int(record.split(b" ", 2)[1]) for record in sent_once]
    assert numbers == sorted(numbers), "in the order in which they were sent"


def publish_when_served(client, stream, record):
    """Publishes under the record as its key. A broker that has just started may not serve the shard yet: nothing is written then."""
    deadline = time.monotonic() + 15
    while True:
        try:
            return client.publish(stream, record, key=record)
        except (felix.ShardUnavailableError, felix.NotFoundError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


@background
def test_a_sharded_reader_resumes_from_its_positions_after_a_restart(make_broker):
    broker = make_broker(cores=2, settings=SMALL_FILES)
    token = broker.plane.mint(ALL_RIGHTS, ttl=3600)
    broker.create_stream("resumed", shards=4, durable=True)
    client = Scoped(connect(SyncFace, broker, token))
    sent = [b"%d" % number for number in range(400)]
    for record in sent[:200]:
        client.publish("resumed", record, key=record)
    subscription = client.subscribe_sharded("resumed", start="earliest")
    got = [subscription.next_event(15).event.payload for _ in range(120)]
    positions = subscription.positions()
    subscription.close()
    broker.kill()
    broker.start()
    client = Scoped(connect(SyncFace, broker, token))
    for record in sent[200:]:
        publish_when_served(client, "resumed", record)
    resumed = client.subscribe_sharded("resumed", start="earliest", resume=positions)
    got += [resumed.next_event(15).event.payload for _ in range(280)]
    assert sorted(got) == sorted(sent)
    assert resumed.next_event(0.2) is None
