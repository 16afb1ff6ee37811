"""A control plane and a broker as real processes on loopback.

Owns: starting, finding, signalling and ending them, and asking them over HTTP.
A process is always ended by its own id, and by the system when the test run dies first.
Not here: tokens (`tokens`), the client under test (`faces`).
"""

import ctypes
import json
import os
import pathlib
import shutil
import signal
import subprocess
import urllib.error
import urllib.request

from certificates import write_authority_and_leaf
from waiting import until

ROOT = pathlib.Path(__file__).resolve().parents[3]
BIN_DIR = pathlib.Path(os.environ.get("FELIX_BIN_DIR") or ROOT / "target/ci")

BOOTSTRAP_TOKEN = "bootstrap-of-a-test-run"
TENANT = "t1"
OTHER_TENANT = "t2"
NAMESPACE = "default"

_PR_SET_PDEATHSIG = 1
# Found before any fork: between fork and exec only the call itself is safe, since other threads may hold locks.
_prctl = ctypes.CDLL(None).prctl


def _die_with_parent():
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def program(name):
    path = BIN_DIR / name
    assert path.exists(), f"{path} is missing: build the binaries first (FELIX_BIN_DIR says where they are)"
    return str(path)


def start(arguments, log, **more):
    """A child process, its standard error in the file `log`. It lives no longer than the thread that starts it."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FELIX_")}
    environment.update(more.pop("env", {}))
    with open(log, "ab") as errors:
        return subprocess.Popen(
            arguments,
            env=environment,
            stdin=more.pop("stdin", subprocess.DEVNULL),
            stdout=more.pop("stdout", subprocess.DEVNULL),
            stderr=errors,
            preexec_fn=_die_with_parent,
            **more,
        )


def end(process, within=15.0):
    """SIGTERM, and SIGKILL when that does not end it in time; the status."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(within)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(within)
    return process.returncode


def http(method, url, body=None, headers=None):
    """(status, document or None)."""
    request = urllib.request.Request(
        url,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"content-type": "application/json", **(headers or {})},
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            status, text = answer.status, answer.read()
    except urllib.error.HTTPError as refusal:
        status, text = refusal.code, refusal.read()
    return status, json.loads(text) if text else None


class ReadyFile:
    def __init__(self, path):
        self.path = pathlib.Path(path)

    def wait(self, process, log):
        def look():
            status = process.poll()
            assert status is None, f"ended with {status} before it was ready: {pathlib.Path(log).read_text()}"
            return self.path.exists() and json.loads(self.path.read_text())

        return until(f"{self.path} is there", look, within=30)


class ControlPlane:
    """felix-ctrl with two tenants and a namespace, able to mint development tokens."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.log = self.folder / "ctrl.log"
        ready = ReadyFile(self.folder / "ctrl.json")
        self.process = start(
            [
                program("felix-ctrl"),
                "--dev",
                f"--data-dir={self.folder / 'ctrl'}",
                "--bind=127.0.0.1:0",
                "--metrics-bind=127.0.0.1:0",
                "--bootstrap-enabled",
                "--bootstrap-bind=127.0.0.1:0",
                "--bootstrap-dev-tokens",
                f"--ready-file={ready.path}",
            ],
            self.log,
            env={"FELIX_BOOTSTRAP_TOKEN": BOOTSTRAP_TOKEN, "FELIX_SHARD_RECONCILE_INTERVAL_MS": "200"},
        )
        addresses = ready.wait(self.process, self.log)
        self.url = addresses["controlplane_url"].rstrip("/")
        self.bootstrap_url = addresses["bootstrap_url"].rstrip("/")
        self._admin = {}
        for tenant in (TENANT, OTHER_TENANT):
            self._make_tenant(tenant)

    def _make_tenant(self, tenant):
        self.bootstrap(tenant, "initialize", {"display_name": tenant})
        token = self.mint([f"tenant.manage:tenant:{tenant}"], tenant=tenant, audience="felix-controlplane", ttl=3600)
        self._admin[tenant] = {"authorization": f"Bearer {token}"}
        self.call("POST", "namespaces", {"namespace": NAMESPACE, "display_name": NAMESPACE}, tenant=tenant)

    def bootstrap(self, tenant, what, body):
        headers = {"x-felix-bootstrap-token": BOOTSTRAP_TOKEN}
        status, answer = http("POST", f"{self.bootstrap_url}/internal/bootstrap/tenants/{tenant}/{what}", body, headers)
        assert status == 200, (status, answer)
        return answer

    def mint(self, permissions, tenant=TENANT, principal="someone", audience="felix-broker", ttl=900):
        """A token signed with the tenant's key, good for `ttl` seconds."""
        body = {"principal": principal, "permissions": permissions, "ttl_seconds": ttl, "audience": audience}
        return self.bootstrap(tenant, "dev-token", body)["felix_token"]

    def call(self, method, path, body=None, tenant=TENANT):
        """A management call of the tenant's administrator; the answer must be a success."""
        status, answer = http(method, f"{self.url}/v1/tenants/{tenant}/{path}", body, self._admin[tenant])
        assert status < 300, (method, path, status, answer)
        return answer

    def node_credential(self):
        rights = ["node.manage:cluster:*", "node.view:cluster:*"]
        return self.mint(rights, audience="felix-controlplane", ttl=3600)

    def stop(self):
        return end(self.process)

    def discard(self):
        """Ends it and removes what it kept on the disk, but for its log."""
        self.stop()
        shutil.rmtree(self.folder / "ctrl", ignore_errors=True)


class Broker:
    """felix-broker on four cores, whatever the number of processors, following one control plane."""

    def __init__(self, plane, folder, cores=4, settings=(), relay=None, stored=True):
        self.plane = plane
        self.folder = pathlib.Path(folder)
        self.log = self.folder / "broker.log"
        self.ca_file = str(self.folder / "ca.pem")
        self._plane_url = relay(plane) if relay else plane.url
        self._cores = cores
        self._settings = [f"--{key.replace('_', '-')}={value}" for key, value in dict(settings).items()]
        self._data = [f"--data-dir={self.folder / 'data'}"] if stored else []
        self._shards = self._cache_shards = 0
        write_authority_and_leaf(self.folder)
        (self.folder / "node.token").write_text(plane.node_credential())
        self._bind = "127.0.0.1:0"
        self.start()

    def start(self):
        """Starts it, after an end on the same address."""
        ready = ReadyFile(self.folder / "broker.json")
        ready.path.unlink(missing_ok=True)
        self.process = start(
            [
                program("felix-broker"),
                f"--cores={','.join(str(core) for core in range(self._cores))}",
                "--pin=false",
                "--spin-us=0",
                f"--quic-bind={self._bind}",
                "--metrics-bind=127.0.0.1:0",
                f"--controlplane-url={self._plane_url}",
                "--controlplane-sync-interval-ms=100",
                "--node-id=node-1",
                f"--node-token-file={self.folder / 'node.token'}",
                *self._data,
                f"--ready-file={ready.path}",
                f"--tls-cert={self.folder / 'leaf.pem'}",
                f"--tls-key={self.folder / 'leaf.key'}",
                "--shutdown-predrain-ms=0",
                *self._settings,
            ],
            self.log,
            env={"FELIX_LOG_LEVEL": os.environ.get("BROKER_LOG_LEVEL", "info")},
        )
        addresses = ready.wait(self.process, self.log)
        self.addr = self._bind = addresses["broker_addr"]
        self.metrics_url = addresses["metrics_url"].rstrip("/")

    @property
    def port(self):
        return int(self.addr.rsplit(":", 1)[1])

    def create_stream(self, name, shards=1, routing=None, tenant=TENANT, durable=False, retention_bytes=None):
        """Creates the stream and waits until this broker serves every shard of it."""
        body = {
            "stream": name,
            "kind": "Stream",
            "shards": shards,
            "retention": {} if retention_bytes is None else {"max_size_bytes": retention_bytes},
            "consistency": "Leader",
            "delivery": "AtLeastOnce",
            "durable": durable,
        }
        if routing:
            body["routing"] = routing
        self.plane.call("POST", f"namespaces/{NAMESPACE}/streams", body, tenant=tenant)
        self._shards += shards
        self.serves_all()
        return name

    def create_cache(self, name, shards=1):
        """Creates the cache and waits until this broker serves every shard of it."""
        self.plane.call("POST", f"namespaces/{NAMESPACE}/caches", {"cache": name, "shards": shards})
        self._cache_shards += shards
        self.serves_caches()
        return name

    def delete_cache(self, name, shards=1):
        self.plane.call("DELETE", f"namespaces/{NAMESPACE}/caches/{name}")
        self._cache_shards -= shards
        self.serves_caches()

    def serves_caches(self):
        wanted = self._cache_shards
        until(f"{wanted} shards of caches are served", lambda: self.metric("cache_shards") == wanted)

    def delete_stream(self, name, shards=1):
        self.plane.call("DELETE", f"namespaces/{NAMESPACE}/streams/{name}")
        self._shards -= shards
        self.serves_all()

    def serves_all(self):
        until(f"{self._shards} shards are served", lambda: self.metric("shards") == self._shards)

    def metric(self, name):
        """Sum of one metric over all cores, by its name without `felix_`."""
        with urllib.request.urlopen(self.metrics_url + "/metrics", timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        wanted = (f"felix_{name}{{", f"felix_{name} ")
        values = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(wanted)]
        assert values, f"no metric felix_{name}"
        return sum(values)

    def resident_bytes(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS"))

    def kill(self):
        self.process.kill()
        self.process.wait(10)

    def stop(self):
        return end(self.process)

    def discard(self):
        """Ends it and removes what it kept on the disk, but for its log."""
        self.stop()
        shutil.rmtree(self.folder / "data", ignore_errors=True)
