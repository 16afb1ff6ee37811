"""Tokens that live ten seconds, under clients that live a minute: nothing fails and nothing is lost.

Each client here has a connection of its own, because a newer token on any stream of a connection extends the identity
for all of it: one only publishes, one only has a plain subscription and one only a sharded one, and these two open no
stream by themselves for as long as nothing ends.
"""

import threading
import time

import felix

from conftest import ALL_RIGHTS, Scoped, background
from faces import AsyncFace, SyncFace
from processes import TENANT
from waiting import Job

TOKEN_S = 10
RUN_S = 60
PAUSE_S = 0.02
SHARDS = 4


class Provider:
    """Mints tokens of `TOKEN_S` seconds and counts them."""

    def __init__(self, broker):
        self.broker, self.calls = broker, 0

    def __call__(self):
        self.calls += 1
        return self.broker.plane.mint(ALL_RIGHTS, ttl=TOKEN_S)


def connect(face, broker):
    provider = Provider(broker)
    client = face.connect(broker.addr, tenant_id=TENANT, token_provider=provider, ca_file=broker.ca_file)
    return Scoped(client), provider


class Reader:
    """Reads numbers of a subscription on a thread until it has the last one of every writer."""

    def __init__(self, name, subscription, expected):
        self.name, self._subscription, self._expected = name, subscription, expected
        self.moves = 0
        self._got = []
        self.job = Job(self._read)

    def _read(self):
        while not self._expected.is_complete(len(self._got)):
            item = self._subscription.next_event(0.5)
            if isinstance(item, felix.ShardMoved):
                self.moves += 1
            elif item is not None:
                event = getattr(item, "event", item)
                assert isinstance(event, felix.Event), f"{self.name}: {item}"
                self._got.append(int(event.payload))
        return self._got


class Expected:
    """How many records there will be; known once the writer stopped."""

    def __init__(self):
        self.count = None

    def is_complete(self, got):
        return self.count is not None and got >= self.count


def write(client, stream, expected, keyed):
    ends = time.monotonic() + RUN_S
    number = 0
    pause = threading.Event()
    while time.monotonic() < ends:
        client.publish(stream, b"%d" % number, key=b"%d" % number if keyed else None)
        number += 1
        pause.wait(PAUSE_S)
    expected.count = number
    return number


@background
def test_short_tokens_with_a_provider_keep_publishes_and_subscriptions_alive_without_a_lost_record(make_broker):
    broker = make_broker()
    single, wide = broker.create_stream("single"), broker.create_stream("wide", shards=SHARDS)
    singles, wides = Expected(), Expected()
    clients = {}

    def client(name, face):
        made, clients[name] = connect(face, broker)
        return made

    readers = [
        Reader("plain, sync", client("plain, sync", SyncFace).subscribe(single), singles),
        Reader("plain, async", client("plain, async", AsyncFace).subscribe(single), singles),
        Reader("sharded, sync", client("sharded, sync", SyncFace).subscribe_sharded(wide), wides),
        Reader("sharded, async", client("sharded, async", AsyncFace).subscribe_sharded(wide), wides),
    ]
    both = client("publishes and subscribes", AsyncFace)
    readers.append(Reader("beside a publisher", both.subscribe(single), singles))
    writers = [
        Job(lambda: write(both, single, singles, keyed=False)),
        Job(lambda: write(client("publishes", SyncFace), wide, wides, keyed=True)),
    ]
    for job in writers:
        assert job.result(RUN_S + 20) > 100
    for reader in readers:
        got = reader.job.result(20)
        expected = singles.count if "sharded" not in reader.name else wides.count
        assert sorted(got) == list(range(expected)), reader.name
        if "sharded" in reader.name:
            assert reader.moves >= SHARDS * (RUN_S // TOKEN_S - 3), "its events did not end with their token"
        else:
            assert got == sorted(got), reader.name
    for name, provider in clients.items():
        assert provider.calls >= RUN_S // TOKEN_S - 1, f"{name} asked {provider.calls} times"
    assert broker.metric("subscribe_dropped_total") == 0
