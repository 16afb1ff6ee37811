"""Consumer groups of durable streams: polls, acks, attempts, dead letters, members, the broker's death."""

import collections
import itertools
import threading
import time

import felix
import pytest

from conftest import ALL_RIGHTS, connect
from faces import SyncFace
from processes import NAMESPACE, TENANT
from waiting import Job, until

S = (TENANT, NAMESPACE)
SETTINGS = {
    "fsync": "on_commit",
    "segment_bytes": "1MiB",
    "commit_slot_bytes": "1MiB",
    "disk_low": "64MiB",
    "group_visibility_timeout_ms": 1500,
    "group_max_attempts": 3,
}
KILLS = 4


@pytest.fixture(scope="module")
def group_broker(make_broker):
    return make_broker(cores=3, settings=SETTINGS)


@pytest.fixture(scope="module")
def group_token(group_broker):
    return group_broker.plane.mint(ALL_RIGHTS, ttl=3600)


@pytest.fixture
def group_client(face, group_broker, group_token):
    return connect(face, group_broker, group_token)


_NUMBERS = itertools.count()


@pytest.fixture
def filled(group_broker, group_token):
    """Makes a durable stream with records that say their offset."""
    client = connect(SyncFace, group_broker, group_token)

    def make(count, shards=1):
        stream = group_broker.create_stream(f"g{next(_NUMBERS)}", shards, durable=True)
        for number in range(count):
            assert client.publish(*S, stream, b"%d" % number) == number
        return stream

    return make


def offsets(records):
    for record in records:
        assert record.payload == b"%d" % record.offset
    return [record.offset for record in records]


def refused(call):
    with pytest.raises(felix.FelixError) as caught:
        call()
    return caught.value


def test_records_are_handed_out_in_order_and_acked_ones_do_not_come_again(group_client, filled):
    client, stream = group_client, filled(10)
    first = client.group_poll(*S, stream, 0, "g", max_records=4, wait=0)
    assert offsets(first) == [0, 1, 2, 3] and [record.attempts for record in first] == [1] * 4
    assert offsets(client.group_poll(*S, stream, 0, "other", max_records=2, wait=0)) == [0, 1]
    assert offsets(client.group_poll(*S, stream, 0, "g", wait=0)) == [4, 5, 6, 7, 8, 9]
    for offset in [0, 1, 2, 5]:
        client.group_ack(*S, stream, 0, "g", offset)
        client.group_ack(*S, stream, 0, "g", offset)
    assert client.group_poll(*S, stream, 0, "g", wait=0) == []
    again = until("the claims have lapsed", lambda: client.group_poll(*S, stream, 0, "g", wait=0.5))
    assert set(offsets(again)) <= {3, 4, 6, 7, 8, 9} and {record.attempts for record in again} == {2}
    assert refused(lambda: client.group_ack(*S, stream, 0, "g", 10)).code == "invalid_request"
    assert offsets(client.group_poll(*S, stream, 0, "later", max_records=1, wait=0)) == [0]


def test_a_waiting_poll_gets_a_record_when_it_comes_and_nothing_at_its_time(group_client, face, group_broker, group_token, filled):
    stream = filled(0)
    poller = connect(face, group_broker, group_token)
    began = time.monotonic()
    assert poller.group_poll(*S, stream, 0, "g", wait=0.7) == []
    assert 0.6 < time.monotonic() - began < 5
    waiting = Job(lambda: poller.group_poll(*S, stream, 0, "g", wait=20))
    time.sleep(0.3)
    assert not waiting.done
    assert group_client.publish(*S, stream, b"0") == 0
    assert offsets(waiting.result(10)) == [0]


def test_a_record_that_fails_comes_again_until_it_is_a_dead_letter(group_client, filled):
    client, stream = group_client, filled(2)
    for attempt in (1, 2, 3):
        records = client.group_poll(*S, stream, 0, "g", wait=5)
        by_offset = {record.offset: record for record in records}
        assert by_offset[0].attempts == attempt
        if attempt == 1:
            client.group_ack(*S, stream, 0, "g", 1)
        client.group_nack(*S, stream, 0, "g", by_offset[0])
        assert refused(lambda: client.group_nack(*S, stream, 0, "g", by_offset[0])).code == "stale_claim"
    assert client.group_poll(*S, stream, 0, "g", wait=0) == []
    assert client.group_dead_letters(*S, stream, 0, "g") == [0]
    client.group_redrive(*S, stream, 0, "g", 0)
    assert client.group_dead_letters(*S, stream, 0, "g") == []
    [record] = client.group_poll(*S, stream, 0, "g", wait=5)
    assert (record.offset, record.attempts) == (0, 1)
    assert isinstance(refused(lambda: client.group_discard(*S, stream, 0, "g", 0)), felix.NotFoundError)
    client.group_ack(*S, stream, 0, "g", 0)


def test_a_member_takes_over_what_it_held_on_another_connection(face, group_broker, group_token, filled):
    stream = filled(6)
    before, after, other = (connect(face, group_broker, group_token) for _ in range(3))
    held = before.group_poll(*S, stream, 0, "g", max_records=3, wait=0, consumer="me")
    assert offsets(held) == [0, 1, 2]
    assert offsets(other.group_poll(*S, stream, 0, "g", max_records=1, wait=0, consumer="you")) == [3]
    taken = after.group_poll(*S, stream, 0, "g", max_records=9, wait=0, consumer="me", reclaim=True)
    assert offsets(taken)[:3] == [0, 1, 2] and set(offsets(taken)) == {0, 1, 2, 4, 5}
    assert refused(lambda: after.group_poll(*S, stream, 0, "g", wait=0, consumer="m" * 129)).code == "invalid_request"


def test_what_cannot_be_is_refused_and_the_client_goes_on(face, group_broker, group_client, filled):
    client, stream = group_client, filled(1)
    in_memory = group_broker.create_stream(f"m{next(_NUMBERS)}")
    for _ in range(2):
        assert isinstance(refused(lambda: client.group_poll(*S, "nowhere", 0, "g", wait=0)), felix.NotFoundError)
        for call in [
            lambda: client.group_poll(*S, in_memory, 0, "g", wait=0),
            lambda: client.group_poll(*S, stream, 7, "g", wait=0),
            lambda: client.group_poll(*S, stream, 0, "", wait=0),
            lambda: client.group_poll(*S, stream, 0, "a\nb", wait=0),
            lambda: client.group_poll(*S, stream, 0, "g" * 70_000, wait=0),
            lambda: client.group_poll(*S, stream, 0, "g", max_records=0, wait=0),
            lambda: client.group_ack(*S, stream, 0, "g", 5),
        ]:
            assert refused(call).code == "invalid_request"
    narrow = connect(face, group_broker, group_broker.plane.mint([f"group.consume:group:{TENANT}/{NAMESPACE}/{stream}/mine"], ttl=600))
    with pytest.raises(felix.AuthError):
        narrow.group_poll(*S, stream, 0, "yours", wait=0)
    assert offsets(narrow.group_poll(*S, stream, 0, "mine", wait=0)) == [0]
    odd = "gr\u00fcppe / 7 *"
    assert offsets(client.group_poll(*S, stream, 0, odd, wait=0)) == [0]
    client.group_ack(*S, stream, 0, odd, 0)


def test_large_records_come_in_answers_that_can_be_read(group_client, filled, group_broker):
    stream = filled(0)
    sizes = [3 << 20, 3 << 20, 10, 8 << 20, 10]
    for size in sizes:
        group_client.publish(*S, stream, b"x" * size)
    got = []
    while len(got) < len(sizes):
        records = group_client.group_poll(*S, stream, 0, "g", wait=5)
        assert records and sum(len(record.payload) for record in records) <= 8 << 20
        for record in records:
            if record.offset not in got:
                assert len(record.payload) == sizes[record.offset]
                got.append(record.offset)
            group_client.group_ack(*S, stream, 0, "g", record.offset)
    assert sorted(got) == [0, 1, 2, 3, 4]


class Worker:
    """Polls and acks until it is told to end, through deaths of the broker."""

    def __init__(self, client, stream, shard):
        self.handled, self.acked = [], set()
        self._client, self._stream, self._shard = client, stream, shard
        self._ends = threading.Event()
        self._job = Job(self._work)

    def _work(self):
        while not self._ends.is_set():
            try:
                records = self._client.group_poll(*S, self._stream, self._shard, "g", max_records=20, wait=0.5)
            except felix.FelixError:
                time.sleep(0.02)
                continue
            for record in records:
                self.handled.append(record.payload)
                try:
                    self._client.group_ack(*S, self._stream, self._shard, "g", record.offset)
                    self.acked.add(record.offset)
                except felix.FelixError:
                    time.sleep(0.01)

    def end(self):
        self._ends.set()
        self._job.result(60)


def test_every_record_is_handled_and_acked_ones_stay_acked_through_kills(make_broker, face):
    broker = make_broker(cores=2, settings={**SETTINGS, "group_max_attempts": 1000})
    token = broker.plane.mint(ALL_RIGHTS, ttl=3600)
    stream = broker.create_stream("killed", durable=True)
    writer = connect(SyncFace, broker, token)
    workers = [Worker(connect(kind, broker, token), stream, 0) for kind in (SyncFace, face)]
    published = 0
    for _ in range(KILLS):
        for _ in range(60):
            writer.publish(*S, stream, b"%d" % published, at_least_once=True)
            published += 1
        so_far = sum(len(worker.acked) for worker in workers)
        until("more is acked", lambda: sum(len(w.acked) for w in workers) > so_far, within=40)
        broker.kill()
        broker.start()

    def handled():
        return {payload for worker in workers for payload in worker.handled}

    wanted = {b"%d" % number for number in range(published)}
    until("everything was handled", lambda: wanted <= handled(), within=60)
    until("nothing is owed", lambda: _rests(writer, stream), within=40)
    for worker in workers:
        worker.end()
    acked = [offset for worker in workers for offset in worker.acked]
    twice = [offset for offset, count in collections.Counter(acked).items() if count > 1]
    broker.kill()
    broker.start()
    client = connect(face, broker, token)
    until("the shard is served", lambda: _polls(client, stream) is not None, within=30)
    again = {record.offset for record in _polls(client, stream)}
    assert not again.intersection(acked), (sorted(again), twice)


def _polls(client, stream):
    try:
        return client.group_poll(*S, stream, 0, "g", wait=0)
    except felix.FelixError:
        return None


def _rests(client, stream):
    return _polls(client, stream) == []
