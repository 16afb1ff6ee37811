"""Fixtures: one broker for the run, brokers of a test's own, and the client in both forms."""

import faulthandler
import inspect
import itertools
import threading

import pytest

from faces import FACES
from processes import NAMESPACE, TENANT, Broker, ControlPlane
from waiting import Job

# A test that takes longer than this has hung where nothing can interrupt it; the run ends and shows where.
_TEST_S = 150

ALL_RIGHTS = [f"stream.publish:stream:{TENANT}/*/*", f"stream.subscribe:stream:{TENANT}/*/*"]


@pytest.fixture(autouse=True)
def _deadline():
    faulthandler.dump_traceback_later(_TEST_S, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session")
def make_folder(tmp_path_factory):
    """Makes folders, from any thread."""
    tmp_path_factory.getbasetemp()
    lock = threading.Lock()

    def make(name):
        with lock:
            return tmp_path_factory.mktemp(name)

    return make


class Brokers:
    """Starts brokers, each with a control plane of its own, and ends them together. What one of them kept on the disk is
    removed then: logs are made ahead, and the brokers of a whole run need more than a small machine has."""

    def __init__(self, make_folder):
        self._make_folder = make_folder
        self._started = []

    def __call__(self, **options):
        folder = self._make_folder("broker")
        plane = ControlPlane(folder)
        self._started.append(plane)
        broker = Broker(plane, folder, **options)
        self._started.append(broker)
        return broker

    def end(self):
        for process in reversed(self._started):
            process.discard()
        self._started.clear()


@pytest.fixture(scope="session")
def lasting_brokers(make_folder):
    """Starts the brokers that end with the run."""
    brokers = Brokers(make_folder)
    yield brokers
    brokers.end()


@pytest.fixture(scope="module")
def make_broker(make_folder):
    """Starts brokers that end with the tests of the file. What they told about themselves stays in pytest's folder."""
    brokers = Brokers(make_folder)
    yield brokers
    brokers.end()


def background(body):
    """Makes a test of a body that waits most of its time. The body starts with the run, on a thread of its own, and
    gets `make_broker` or `make_folder`, as it names it; its brokers end with it. The test comes last and is what became
    of the body."""

    def test(_background):
        _background[body.__name__].result(_TEST_S - 10)

    test.body = body
    test.__doc__ = body.__doc__
    return test


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: hasattr(item.function, "body"))


@pytest.fixture(scope="session", autouse=True)
def _background(request, make_folder):
    bodies = [item.function.body for item in request.session.items if hasattr(item.function, "body")]

    def run(body):
        brokers = Brokers(make_folder)
        given = {"make_broker": brokers, "make_folder": make_folder}
        try:
            body(*(given[name] for name in inspect.signature(body).parameters))
        finally:
            brokers.end()

    return {body.__name__: Job(lambda body=body: run(body)) for body in bodies}


@pytest.fixture(scope="session")
def broker(lasting_brokers):
    """The broker that tests share; they leave it running."""
    return lasting_brokers()


@pytest.fixture(scope="session")
def quiet_broker(lasting_brokers):
    """A broker on which only one test at a time has connections, so that its gauges can be read."""
    return lasting_brokers()


@pytest.fixture(scope="session")
def token(broker):
    """A token with every right on the streams of the tenant."""
    return broker.plane.mint(ALL_RIGHTS, ttl=3600)


@pytest.fixture(params=sorted(FACES))
def face(request):
    return FACES[request.param]


_NUMBERS = itertools.count()


@pytest.fixture
def new_stream(broker):
    """Makes a stream of the shared broker with a name of its own."""

    def make(shards=1, **options):
        return broker.create_stream(f"s{next(_NUMBERS)}", shards, **options)

    return make


@pytest.fixture
def stream(new_stream):
    return new_stream()


@pytest.fixture
def client(face, broker, token):
    return Scoped(connect(face, broker, token))


def connect(face, broker, token, **options):
    return face.connect(broker.addr, tenant_id=TENANT, token=token, ca_file=broker.ca_file, **options)


class Scoped:
    """A client whose stream calls are about one tenant and namespace."""

    _SCOPED = {"publish", "subscribe", "subscribe_sharded", "stream_shards"}

    def __init__(self, inner, tenant=TENANT, namespace=NAMESPACE):
        self.inner = inner
        self._scope = tenant, namespace

    def __getattr__(self, call):
        method = getattr(self.inner, call)
        if call not in self._SCOPED:
            return method
        return lambda *arguments, **options: method(*self._scope, *arguments, **options)
