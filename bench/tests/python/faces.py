"""The published client in both of its forms behind one way of calling it, so that each test runs on both.

The asyncio form runs on an event loop of its own thread. Every call has a deadline.
"""

import asyncio
import concurrent.futures
import threading

import felix

from waiting import in_time

CALL_S = 45.0


class SyncFace:
    """`felix.Client`."""

    name = "sync"

    def __init__(self, inner):
        self._inner = inner

    @classmethod
    def connect(cls, addrs, **options):
        return cls(in_time(lambda: felix.Client(addrs, **options), CALL_S))

    def with_identity(self, *arguments, **options):
        return SyncFace(self._inner.with_identity(*arguments, **options))

    def __getattr__(self, call):
        method = getattr(self._inner, call)
        return lambda *arguments, **options: in_time(lambda: method(*arguments, **options), CALL_S)


class _Loop:
    """One event loop on one thread, for all asyncio clients of the run."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def run(self, make):
        """Awaits what `make` returns, which is called on the loop."""

        async def call():
            return await make()

        future = asyncio.run_coroutine_threadsafe(call(), self.loop)
        try:
            return future.result(CALL_S)
        except concurrent.futures.TimeoutError:
            raise AssertionError(f"a call hung for more than {CALL_S} s") from None


_LOOP = _Loop()


class AsyncFace:
    """`felix.AsyncClient`."""

    name = "async"

    def __init__(self, inner):
        self._inner = inner

    @classmethod
    def connect(cls, addrs, **options):
        provider = options.get("token_provider")
        if provider is not None:
            options["token_provider"] = _awaitable(provider)
        return cls(_LOOP.run(lambda: felix.AsyncClient.connect(addrs, **options)))

    def with_identity(self, *arguments, **options):
        return AsyncFace(_LOOP.run(lambda: self._inner.with_identity(*arguments, **options)))

    def subscribe(self, *arguments, **options):
        return AsyncSubscription(_LOOP.run(lambda: self._inner.subscribe(*arguments, **options)))

    def subscribe_sharded(self, *arguments, **options):
        return AsyncSubscription(_LOOP.run(lambda: self._inner.subscribe_sharded(*arguments, **options)))

    def watch_cache(self, *arguments, **options):
        return AsyncWatch(_LOOP.run(lambda: self._inner.watch_cache(*arguments, **options)))

    def __getattr__(self, call):
        method = getattr(self._inner, call)
        return lambda *arguments, **options: _LOOP.run(lambda: method(*arguments, **options))


class AsyncWatch:
    """A cache watch of the asyncio client, called like the other one."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def recv(self, timeout=None):
        return _LOOP.run(lambda: self._inner.recv(timeout))

    def close(self):
        return _LOOP.run(self._inner.close)


class AsyncSubscription:
    """A subscription of the asyncio client, called like the other one."""

    def __init__(self, inner):
        self._inner = inner

    @property
    def shards(self):
        return self._inner.shards

    @property
    def closed(self):
        async def ask():
            return await self._inner.closed

        return _LOOP.run(ask)

    def next_event(self, timeout=None):
        return _LOOP.run(lambda: self._inner.next_event(timeout))

    def positions(self):
        return _LOOP.run(self._inner.positions)

    def close(self):
        return _LOOP.run(self._inner.close)


def _awaitable(provider):
    async def call():
        return await asyncio.get_running_loop().run_in_executor(None, provider)

    return call


FACES = {face.name: face for face in (SyncFace, AsyncFace)}
