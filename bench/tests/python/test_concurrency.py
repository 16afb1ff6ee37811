"""Many threads and tasks on one client, and the order that must hold through it.

The client drops live records of a stream without offsets, silently, once 256 wait for the application (client-protocol
11.4). So writers here stay at most `WINDOW` records ahead of the reader; what is missing then, the broker lost.
"""

import asyncio
import collections
import itertools
import threading
import time

import felix
import pytest

from conftest import Scoped, connect
from faces import SyncFace
from processes import NAMESPACE, TENANT
from waiting import Job, until

THREADS = 8
EACH = 150
WINDOW = 128


class Window:
    """Lets writers be `WINDOW` records ahead of a reader, and no more."""

    def __init__(self):
        self._free = threading.Semaphore(WINDOW)

    def take(self):
        assert self._free.acquire(timeout=30), "the reader stopped reading"

    def give(self):
        self._free.release()


def record(writer, number):
    return b"%d:%d" % (writer, number)


def by_writer(payloads):
    """The numbers of each writer, in the order of `payloads`."""
    seen = collections.defaultdict(list)
    for payload in payloads:
        writer, number = payload.split(b":")
        seen[int(writer)].append(int(number))
    return dict(seen)


def in_order(writers=THREADS, each=EACH):
    return {writer: list(range(each)) for writer in range(writers)}


def drain(subscription, count, window=None, within=30.0):
    """Payloads of the next `count` records of a plain or sharded subscription; each makes room in `window`."""
    end = time.monotonic() + within
    got = []
    while len(got) < count:
        item = subscription.next_event(max(0.0, end - time.monotonic()))
        assert item is not None, f"{len(got)} of {count} records came in {within} s"
        event = getattr(item, "event", item)
        assert isinstance(event, felix.Event), item
        got.append(event.payload)
        if window:
            window.give()
    return got


def run_threads(work, count=THREADS):
    jobs = [Job(lambda writer=writer: work(writer)) for writer in range(count)]
    for job in jobs:
        job.result(60)


@pytest.mark.parametrize("ack", ["none", "per_message", "per_batch"])
def test_threads_publishing_unkeyed_on_one_client_each_keep_their_order(client, stream, ack):
    subscription, window = client.subscribe(stream), Window()
    reading = Job(lambda: drain(subscription, THREADS * EACH, window))

    def publish(writer):
        for number in range(EACH):
            window.take()
            client.publish(stream, record(writer, number), ack=ack)

    run_threads(publish)
    assert by_writer(reading.result(40)) == in_order()


@pytest.mark.parametrize("ack", ["none", "per_message"])
def test_order_per_key_holds_over_four_shards_on_four_cores(client, broker, new_stream, ack):
    stream = new_stream(shards=4)
    subscription, window = client.subscribe_sharded(stream), Window()
    reading = Job(lambda: drain(subscription, THREADS * EACH, window))

    def publish(writer):
        for number in range(EACH):
            window.take()
            client.publish(stream, record(writer, number), key=b"key-%d" % writer, ack=ack)

    before = broker.metric("broker_cross_core_publishes_total")
    run_threads(publish)
    assert by_writer(reading.result(40)) == in_order()
    assert broker.metric("broker_cross_core_publishes_total") > before, "no publish crossed from one core to another"


def test_each_writer_with_many_keys_keeps_the_order_of_each_key(client, new_stream):
    stream = new_stream(shards=4)
    subscription, window = client.subscribe_sharded(stream, start="earliest"), Window()
    reading = Job(lambda: drain(subscription, 4 * 300, window))
    keys = 25

    def publish(writer):
        for number in range(300):
            key = b"%d-%d" % (writer, number % keys)
            window.take()
            client.publish(stream, key + b":%d" % number, key=key, ack="none" if writer % 2 else "per_message")

    run_threads(publish, count=4)
    seen = collections.defaultdict(list)
    for payload in reading.result(40):
        key, number = payload.split(b":")
        seen[key].append(int(number))
    assert len(seen) == 4 * keys
    for key, numbers in seen.items():
        assert numbers == sorted(numbers) and len(numbers) == 300 // keys, key


def test_many_tasks_publish_at_once_on_one_asyncio_client(broker, token, new_stream):
    stream = new_stream(shards=4)

    async def run():
        client = await felix.AsyncClient.connect(broker.addr, tenant_id=TENANT, token=token, ca_file=broker.ca_file)
        subscription = await client.subscribe_sharded(TENANT, NAMESPACE, stream)
        window, got = asyncio.Semaphore(WINDOW), []

        async def publish(number):
            await window.acquire()
            await client.publish(TENANT, NAMESPACE, stream, b"%d" % number, key=b"%d" % number)

        async def read():
            async for item in subscription:
                window.release()
                got.append(item.event.payload)
                if len(got) == 1_000:
                    return

        reading = asyncio.ensure_future(read())
        await asyncio.gather(*(publish(n) for n in range(1_000)))
        await reading
        return got

    got = Job(lambda: asyncio.run(asyncio.wait_for(run(), 40))).result(50)
    assert sorted(map(int, got)) == list(range(1_000))


def test_clients_on_all_cores_serve_every_shard(broker, token, new_stream):
    stream = new_stream(shards=8)
    clients = [Scoped(connect(SyncFace, broker, token)) for _ in range(8)]
    subscriptions = [client.subscribe_sharded(stream) for client in clients]
    for writer, client in enumerate(clients):
        for number in range(40):
            client.publish(stream, record(writer, number), key=b"%d" % number)
    expected = sorted(record(writer, number) for writer in range(8) for number in range(40))
    for subscription in subscriptions:
        assert sorted(drain(subscription, 320)) == expected


def test_a_reader_that_stalls_does_not_hold_up_the_one_beside_it(broker, token, new_stream):
    stream = new_stream()
    stalled = Scoped(connect(SyncFace, broker, token)).subscribe(stream)
    reading, writing = (Scoped(connect(SyncFace, broker, token)) for _ in range(2))
    good, window = reading.subscribe(stream), Window()
    count, payload = 1_500, bytes(8 << 10)
    got = Job(lambda: drain(good, count, window, within=60))
    for _ in range(count):
        window.take()
        writing.publish(stream, payload)
    assert len(got.result(60)) == count
    # What the stalled one may have lost is its own loss; it is alive and goes on with what comes now.
    assert stalled.next_event(5) is not None


def test_a_subscriber_on_the_client_that_stalls_does_not_hold_up_its_publishes(client, new_stream):
    stalled_stream, other = new_stream(), new_stream()
    stalled = client.subscribe(stalled_stream)
    good = client.subscribe(other)
    for number in range(1_000):
        client.publish(stalled_stream, bytes(16 << 10))
        client.publish(other, b"%d" % number)
        assert good.next_event(10).payload == b"%d" % number
    assert stalled.next_event(5) is not None


def test_subscriptions_come_and_go_while_records_flow(client, broker, stream):
    stop = threading.Event()
    numbers = itertools.count()

    def publish():
        while not stop.is_set():
            client.publish(stream, b"%d" % next(numbers))

    writing = Job(publish)
    for _ in range(30):
        subscription = client.subscribe(stream)
        first = int(subscription.next_event(10).payload)
        got = [int(subscription.next_event(10).payload) for _ in range(20)]
        assert got == list(range(first + 1, first + 21))
        subscription.close()
    stop.set()
    writing.result(20)
    until("the writer wrote", lambda: next(numbers) > 30 * 20)
