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


@pytest.fixture(scope="session")
def make_broker(make_folder):
    """Starts brokers, each with a control plane of its own; all end with the run. Logs stay in pytest's folder."""
    started = []

    def make(**options):
        folder = make_folder("broker")
        plane = ControlPlane(folder)
        started.append(plane)
        broker = Broker(plane, folder, **options)
        started.append(broker)
        return broker

    yield make
    for process in reversed(started):
        process.stop()


def background(body):
    """Makes a test of a body that waits most of its time. The body starts with the run, on a thread of its own, and
    gets `make_broker` or `make_folder`, as it names it; the test comes last and is what became of the body."""

    def test(_background):
        _background[body.__name__].result(_TEST_S - 10)

    test.body = body
    test.__doc__ = body.__doc__
    return test


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: hasattr(item.function, "body"))


@pytest.fixture(scope="session", autouse=True)
def _background(request, make_broker, make_folder):
    given = {"make_broker": make_broker, "make_folder": make_folder}
    bodies = [item.function.body for item in request.session.items if hasattr(item.function, "body")]

    def started(body):
        wanted = [given[name] for name in inspect.signature(body).parameters]
        return Job(lambda: body(*wanted))

    return {body.__name__: started(body) for body in bodies}


@pytest.fixture(scope="session")
def broker(make_broker):
    """The broker that tests share; they leave it running."""
    return make_broker()


@pytest.fixture(scope="session")
def quiet_broker(make_broker):
    """A broker on which only one test at a time has connections, so that its gauges can be read."""
    return make_broker()


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
