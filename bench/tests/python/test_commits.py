"""Atomic commits of durable streams and the state they put: what calls answer, bad calls, the broker's death."""

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
GROUP_RIGHTS = [f"group.consume:group:{TENANT}/*/*/*", f"group.manage:group:{TENANT}/*/*/*"]
KILLS = 4

publish, enqueue, put, delete = (
    felix.CommitOp.publish,
    felix.CommitOp.enqueue,
    felix.CommitOp.put,
    felix.CommitOp.delete,
)


@pytest.fixture(scope="module")
def commit_broker(make_broker):
    return make_broker(cores=3)


@pytest.fixture(scope="module")
def commit_token(commit_broker):
    return commit_broker.plane.mint(ALL_RIGHTS, ttl=3600)


@pytest.fixture
def commit_client(face, commit_broker, commit_token):
    return connect(face, commit_broker, commit_token)


_NUMBERS = itertools.count()


@pytest.fixture
def log(commit_broker):
    """Makes a durable stream."""

    def make(shards=1):
        return commit_broker.create_stream(f"l{next(_NUMBERS)}", shards, durable=True)

    return make


def state(client, stream, entity, key):
    found = client.state_get(*S, stream, entity, key)
    return found.value, found.version, found.as_of


def refused(call, kind=felix.FelixError):
    with pytest.raises(kind) as caught:
        call()
    return caught.value


def test_a_commit_is_one_event_and_its_changes_at_one_offset(commit_client, log):
    client, stream = commit_client, log()
    assert state(client, stream, b"e", "k") == (None, None, None)
    subscription = client.subscribe(*S, stream)
    assert client.publish(*S, stream, b"before") == 0
    ops = [put(stream, "k", b"1"), publish(stream, b"event"), put(stream, "l", b""), put(stream, "k", b"2")]
    assert client.commit(*S, b"e", ops).offset == 1
    assert state(client, stream, b"e", "k") == (b"2", 1, 1), "changes apply in their order"
    assert state(client, stream, b"e", "l") == (b"", 1, 1)
    assert client.commit(*S, b"e", [publish(stream, b""), delete(stream, "k"), delete(stream, "none")]).offset == 2
    assert client.publish(*S, stream, b"after") == 3
    assert state(client, stream, b"e", "k") == (None, None, 2)
    assert state(client, stream, b"e", "l") == (b"", 1, 2)
    got = [subscription.next_event(10) for _ in range(4)]
    assert [(event.offset, event.payload) for event in got] == [(0, b"before"), (1, b"event"), (2, b""), (3, b"after")]


def test_a_commit_with_an_event_alone_is_a_record(commit_client, log):
    client, stream = commit_client, log()
    assert client.commit(*S, b"e", [publish(stream, b"event")]).offset == 0
    assert client.subscribe(*S, stream, start="earliest").next_event(10).payload == b"event"
    assert state(client, stream, b"e", "k") == (None, None, 0)


def test_an_enqueued_event_is_handed_to_groups(face, commit_broker, log):
    client = connect(face, commit_broker, commit_broker.plane.mint(ALL_RIGHTS + GROUP_RIGHTS, ttl=3600))
    stream = log()
    assert client.commit(*S, b"e", [enqueue(stream, b"work"), put(stream, "k", b"v")]).offset == 0
    (record,) = client.group_poll(*S, stream, 0, "g", wait=5.0)
    assert (record.offset, record.payload, record.attempts) == (0, b"work", 1)
    client.group_ack(*S, stream, 0, "g", 0)


def test_state_is_kept_by_the_shard_of_its_entity(commit_client, log):
    client, stream = commit_client, log(shards=4)
    entities = [b"entity-%d" % number for number in range(20)]
    for entity in entities:
        # The event is a record of the shard that a publish with that key goes to.
        offset = client.publish(*S, stream, b"before", key=entity)
        ops = [publish(stream, entity), put(stream, entity.decode(), entity)]
        assert client.commit(*S, entity, ops).offset == offset + 1
    for entity in entities:
        assert state(client, stream, entity, entity.decode())[0] == entity
    shards = {state(client, stream, entity, "none")[2] for entity in entities}
    assert len(shards) > 1, "they are in more than one shard"


def test_large_values_and_many_changes_are_read_as_they_were_put(commit_client, log):
    client, stream = commit_client, log()
    large = bytes(range(256)) * (6 << 12)
    many = [put(stream, f"k{number}", b"%d" % number) for number in range(5_000)]
    client.commit(*S, b"e", [publish(stream, b"x"), put(stream, "large", large)])
    client.commit(*S, b"e", [publish(stream, b"x"), *many])
    assert state(client, stream, b"e", "large") == (large, 0, 1)
    assert [state(client, stream, b"e", f"k{at}")[0] for at in (0, 2_500, 4_999)] == [b"0", b"2500", b"4999"]
    error = refused(lambda: client.commit(*S, b"e", [publish(stream, b"x"), put(stream, "k", b"v" * (11 << 20))]))
    assert error.code == "limit_exceeded"
    assert state(client, stream, b"e", "k") == (None, None, 1)


def test_ops_that_are_no_commit_are_refused_before_anything_is_sent(commit_client, log):
    client, stream, other = commit_client, log(), log()
    for ops in ([], [put(stream, "k", b"v")], [publish(stream, b"a"), enqueue(stream, b"b")]):
        refused(lambda: client.commit(*S, b"e", ops), felix.EventCountError)
    refused(lambda: client.commit(*S, b"e", [publish(stream, b"a"), put(other, "k", b"v")]), felix.NotOnOwningShardError)
    assert state(client, stream, b"e", "k") == (None, None, None)
    assert client.publish(*S, stream, b"first") == 0


def test_what_is_not_there_or_not_allowed_is_told_and_the_client_goes_on(face, commit_broker, commit_client, log):
    client, stream = commit_client, log()
    memory = commit_broker.create_stream(f"m{next(_NUMBERS)}", 1)
    reader = connect(face, commit_broker, commit_broker.plane.mint(ALL_RIGHTS[1:], ttl=3600))
    writer = connect(face, commit_broker, commit_broker.plane.mint(ALL_RIGHTS[:1], ttl=3600))
    commit = lambda client, stream: client.commit(*S, b"e", [publish(stream, b"x"), put(stream, "k", b"v")])
    for _ in range(2):
        error = refused(lambda: commit(client, memory))
        assert error.code == "invalid_request" and "durable" in str(error)
        assert refused(lambda: client.state_get(*S, memory, b"e", "k")).code == "invalid_request"
        refused(lambda: commit(client, "nowhere"), felix.NotFoundError)
        refused(lambda: client.state_get(*S, "nowhere", b"e", "k"), felix.NotFoundError)
        refused(lambda: client.commit("other", NAMESPACE, b"e", [publish(stream, b"x")]), felix.AuthError)
        assert refused(lambda: commit(reader, stream), felix.AuthError).code == "forbidden"
        assert refused(lambda: writer.state_get(*S, stream, b"e", "k"), felix.AuthError).code == "forbidden"
        refused(lambda: client.commit(*S, b"e", [publish(stream, b"x"), put(stream, "k" * 65_536, b"v")]))
    assert state(client, stream, b"e", "k") == (None, None, None)
    assert commit(writer, stream).offset == 0
    assert state(reader, stream, b"e", "k") == (b"v", 0, 0)


def test_many_clients_commit_together_and_readers_never_see_half_of_one(face, commit_broker, commit_token, log):
    stream = log(shards=2)
    ends = threading.Event()

    def write(client, entity):
        for number in range(60):
            value = b"%d" % number
            client.commit(*S, entity, [publish(stream, value), put(stream, f"{entity}-a", value), put(stream, f"{entity}-b", value)])

    def read(client, entity):
        seen = 0
        while not ends.is_set():
            first = client.state_get(*S, stream, entity, f"{entity}-a")
            second = client.state_get(*S, stream, entity, f"{entity}-b")
            if first.value is None:
                continue
            # The second is read later: it is of the same commit or of one after it, and never of none.
            assert second.value is not None and int(second.value) >= int(first.value)
            assert second.version >= first.version and first.version <= first.as_of
            seen += 1
        assert seen

    entities = [b"a", b"b", b"c"]
    connected = lambda: connect(face, commit_broker, commit_token)
    readers = [Job(lambda entity=entity, client=connected(): read(client, entity)) for entity in entities]
    writers = [Job(lambda entity=entity, client=connected(): write(client, entity)) for entity in entities]
    for writer in writers:
        writer.result(60)
    ends.set()
    for reader in readers:
        reader.result(60)


class Writer:
    """Commits in one thread, and knows what must be there."""

    def __init__(self, client, stream, entity):
        self.offsets, self.unknown, self.entity = {}, set(), entity
        self._client, self._stream = client, stream
        self._ends = threading.Event()
        self._job = Job(self._run)

    def _run(self):
        for number in itertools.count():
            if self._ends.is_set():
                return
            event = b"%s %d" % (self.entity, number)
            ops = [publish(self._stream, event)]
            ops += [put(self._stream, f"{self.entity.decode()}-{half}", event) for half in "ab"]
            try:
                self.offsets[number] = self._client.commit(*S, self.entity, ops).offset
            except felix.FelixError:
                self.unknown.add(number)
                time.sleep(0.02)

    def end(self):
        self._ends.set()
        self._job.result(60)


def test_commits_that_were_answered_survive_kills_whole_and_at_their_offsets(make_broker, face):
    settings = {"fsync": "on_commit", "segment_bytes": "1MiB", "commit_slot_bytes": "1MiB", "disk_low": "64MiB"}
    broker = make_broker(cores=2, settings=settings)
    token = broker.plane.mint(ALL_RIGHTS, ttl=3600)
    stream = broker.create_stream("killed", 1, durable=True)
    writers = [Writer(connect(kind, broker, token), stream, b"w%d" % at) for at, kind in enumerate([SyncFace, face])]
    for _ in range(KILLS):
        so_far = [len(writer.offsets) for writer in writers]
        more = lambda: all(len(w.offsets) > s + 20 for w, s in zip(writers, so_far))
        until("more is answered", more, within=40)
        broker.kill()
        broker.start()
    for writer in writers:
        writer.end()
    broker.kill()
    broker.start()
    client = connect(face, broker, token)
    found, subscription = {}, client.subscribe(*S, stream, start="earliest")
    last = max(max(writer.offsets.values()) for writer in writers)
    while not found or max(found) < last:
        event = subscription.next_event(20)
        assert event is not None and event.offset not in found
        found[event.offset] = event.payload
    while (event := subscription.next_event(1)) is not None:
        found[event.offset] = event.payload
    events = list(found.values())
    for writer in writers:
        for number, offset in writer.offsets.items():
            assert found[offset] == b"%s %d" % (writer.entity, number)
        mine = [event for event in events if event.startswith(writer.entity)]
        assert len(mine) == len(set(mine)), "none is there twice"
        maybe = {int(event.split()[1]) for event in mine}
        assert set(writer.offsets) <= maybe <= set(writer.offsets) | writer.unknown
        # Both halves are of the last commit that is there.
        newest = max(offset for offset, event in found.items() if event.startswith(writer.entity))
        for half in "ab":
            value, version, as_of = state(client, stream, writer.entity, f"{writer.entity.decode()}-{half}")
            assert (value, version) == (found[newest], newest) and as_of == max(found)
