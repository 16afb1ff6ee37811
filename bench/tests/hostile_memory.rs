//! Clients that try to make the broker remember too much (reliability I23). Each holds on to what it can while its
//! memory is looked at.

mod support;

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use quinn::congestion::{Controller, ControllerFactory};
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, EndpointConfig, Runtime, TokioRuntime, UdpPoller, VarInt};
use serde_json::json;
use support::good::Good;
use support::raw::{Line, Raw, auth, client_config, frame, publish, usual_transport};
use support::world::{NAMESPACE, TENANT, World};
use support::{until, within};

/// Holds for a while what a busy machine and the allocator add, in MiB.
const SLACK_MIB: u64 = 48;

/// A socket that, once told to, loses the first large datagram it is given and everything after the burst, and hears
/// nothing any more.
#[derive(Debug)]
struct Leaky {
    inner: Arc<dyn AsyncUdpSocket>,
    leaking: AtomicBool,
    sent: AtomicUsize,
}

/// Datagrams of stream data; what is shorter is an acknowledgement.
const LARGE_BYTES: usize = 900;
const STRANGERS: u64 = 1_000;
/// Enough datagrams for the window before authentication, and no more: then they would fill the hole.
const BURST: usize = 230;

impl AsyncUdpSocket for Leaky {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.inner).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit) -> io::Result<()> {
        if self.leaking.load(Ordering::Relaxed) && transmit.contents.len() >= LARGE_BYTES {
            let number = self.sent.fetch_add(1, Ordering::Relaxed);
            if number == 0 || number >= BURST {
                return Ok(());
            }
        }
        self.inner.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context,
        bufs: &mut [io::IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        match self.inner.poll_recv(cx, bufs, meta) {
            Poll::Ready(Ok(_)) if self.leaking.load(Ordering::Relaxed) => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            other => other,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }
}

/// No congestion control: everything at once.
#[derive(Clone)]
struct Unbridled;

impl Controller for Unbridled {
    fn on_congestion_event(&mut self, _: Instant, _: Instant, _: bool, _: u64) {}

    fn on_mtu_update(&mut self, _: u16) {}

    fn window(&self) -> u64 {
        1 << 30
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        1 << 30
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any> {
        self
    }
}

impl ControllerFactory for Unbridled {
    fn build(self: Arc<Self>, _: Instant, _: u16) -> Box<dyn Controller> {
        Box::new(Unbridled)
    }
}

/// Connects through a leaky socket that does not leak yet.
async fn leaky(addr: SocketAddr, certificate: &str) -> (quinn::Connection, quinn::Endpoint, Arc<Leaky>) {
    let inner = TokioRuntime.wrap_udp_socket(std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
    let socket = Arc::new(Leaky { inner, leaking: AtomicBool::new(false), sent: AtomicUsize::new(0) });
    let shared: Arc<dyn AsyncUdpSocket> = Arc::clone(&socket) as _;
    let endpoint = quinn::Endpoint::new_with_abstract_socket(
        EndpointConfig::default(),
        None,
        shared,
        Arc::new(TokioRuntime),
    )
    .unwrap();
    let mut transport = usual_transport();
    transport.congestion_controller_factory(Arc::new(Unbridled)).mtu_discovery_config(None);
    transport.max_idle_timeout(Some(Duration::from_secs(60).try_into().unwrap()));
    let connecting = endpoint.connect_with(client_config(certificate, transport), addr, "localhost").unwrap();
    let conn = within("a handshake", connecting).await.expect("a connection");
    (conn, endpoint, socket)
}

/// Buffers for the disks of two cores, which `memory` does not count: twice 32 MiB of `log_memory` and 32 MiB, for each.
const LOG_BUFFERS_MIB: u64 = 2 * 2 * (32 + 32);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_strangers_that_leave_a_hole_at_offset_zero_stay_inside_their_windows() {
    let world = World::start(&["--memory=1GiB", "--auth-timeout-ms=60000", "--max-idle-timeout-ms=60000"]);
    let good = Good::start(&world, "good").await;
    let before = world.broker.memory_mib();
    let certificate = world.broker.certificate();
    let mut strangers = Vec::new();
    for _ in 0..STRANGERS {
        strangers.push(leaky(world.broker.addr, &certificate).await);
    }
    let connected = world.broker.memory_mib();
    let mut held = Vec::new();
    for (conn, endpoint, socket) in strangers {
        let (mut send, recv) = within("a stream", conn.open_bi()).await.unwrap();
        socket.leaking.store(true, Ordering::Relaxed);
        let sent = Arc::clone(&socket);
        let writing = tokio::spawn(async move { send.write_all(&[0x46; 300 << 10]).await.map(|()| send) });
        until("the burst", async || (sent.sent.load(Ordering::Relaxed) >= BURST - 15).then_some(())).await;
        held.push((conn, endpoint, recv, writing));
    }
    let during = world.broker.memory_mib();
    eprintln!("memory {before} -> {connected} -> {during} MiB");
    assert!(connected < before + STRANGERS * 120 / 1_024, "memory of strangers {before} -> {connected} MiB");
    assert!(during > connected + 100, "the attack does not work: {connected} -> {during} MiB");
    assert!(
        during < connected + STRANGERS * 256 / 1_024 + 64 + SLACK_MIB,
        "memory {connected} -> {during} MiB"
    );
    let went = good.stop().await;
    assert!(went.p99 < Duration::from_secs(1), "{went:?}");
    world.client().await.authed(TENANT, &world.token).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_with_half_a_frame_on_every_stream_hold_one_frame_each() {
    const CONNECTIONS: u64 = 200;
    let world = World::start(&["--auth-timeout-ms=60000"]);
    let before = world.broker.memory_mib();
    let mut held = Vec::new();
    let almost = frame(0, &vec![b' '; 64 << 10]);
    for _ in 0..CONNECTIONS {
        let client = world.client().await;
        for _ in 0..16 {
            let line = client.open().await;
            let bytes = almost[..almost.len() - 1].to_vec();
            held.push((client.clone(), tokio::spawn(write_and_hold(line, bytes))));
        }
    }
    let peak = peak_memory(&world).await;
    eprintln!("memory {before} -> {peak} MiB");
    // For each connection: itself, its window, the frame under way and the piece that was read last.
    assert!(
        peak < before + CONNECTIONS * (100 + 256 + 64 + 64) / 1_024 + SLACK_MIB,
        "memory {before} -> {peak} MiB"
    );
    for (_, task) in &held {
        task.abort();
    }
}

/// Writes, and keeps both halves for ever.
async fn write_and_hold(mut line: Line, bytes: Vec<u8>) {
    let _ = line.send.write_all(&bytes).await;
    std::future::pending::<()>().await;
    drop(line);
}

/// The largest of its memory until it has not grown for a second.
async fn peak_memory(world: &World) -> u64 {
    let mut peak = world.broker.memory_mib();
    let mut since = Instant::now();
    until("a steady state", async || {
        let now = world.broker.memory_mib();
        if now > peak + 1 {
            (peak, since) = (now, Instant::now());
        }
        (since.elapsed() > Duration::from_secs(1)).then_some(())
    })
    .await;
    peak
}

/// A client that takes next to nothing of what it is sent.
async fn deaf(world: &World) -> Raw {
    let mut transport = usual_transport();
    transport.stream_receive_window(VarInt::from_u32(2_048)).receive_window(VarInt::from_u32(4_096));
    let config = client_config(&world.broker.certificate(), transport);
    Raw::connect_with(world.broker.addr, config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_nobody_reads_do_not_pile_up() {
    unread_answers(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_nobody_wants_are_not_kept() {
    unread_answers(true).await;
}

/// One connection asks for a hundred megabytes of answers, and reads none; or has said that it wants none.
async fn unread_answers(stopped: bool) {
    let world = World::start(&[]);
    world.stream("wide", 4_096);
    world.client_of("wide").await;
    let good = Good::start(&world, "good").await;
    let before = world.broker.memory_mib();
    let client = deaf(&world).await;
    let hello = frame(0, &serde_json::to_vec(&auth(TENANT, &world.token)).unwrap());
    let ask = json!({"type": "shard_owners", "tenant_id": TENANT, "namespace": NAMESPACE, "name": "wide",
        "kind": "stream", "request_id": 1});
    let ask = frame(0, &serde_json::to_vec(&ask).unwrap());
    // The first stream authenticates the connection; the others send auth and many questions, and read nothing.
    client.authed(TENANT, &world.token).await;
    let mut held = Vec::new();
    for _ in 0..600 {
        let mut line = client.open().await;
        let mut bytes = hello.clone();
        for _ in 0..20 {
            bytes.extend_from_slice(&ask);
        }
        if stopped {
            line.frames.recv.stop(0_u32.into()).unwrap();
        }
        held.push(tokio::spawn(write_and_hold(line, bytes)));
    }
    let peak = peak_memory(&world).await;
    eprintln!("memory {before} -> {peak} MiB");
    assert!(peak < before + SLACK_MIB, "memory {before} -> {peak} MiB");
    let went = good.stop().await;
    assert!(went.p99 < Duration::from_secs(1), "{went:?}");
    for task in held {
        task.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscribers_that_never_read_share_what_they_hold() {
    let world = World::start(&[]);
    let who = (TENANT, world.token.as_str());
    let reader = world.client_of("s").await;
    let (_, events) = reader.subscribe(who, (NAMESPACE, "s"), 0, json!("latest")).await;
    let mut events = events.unwrap();
    let before = world.broker.memory_mib();
    let mut held = Vec::new();
    for _ in 0..40 {
        let client = deaf(&world).await;
        let (_, events) = client.subscribe(who, (NAMESPACE, "s"), 0, json!("latest")).await;
        held.push((client, events.unwrap()));
    }
    let mut line = reader.authed(TENANT, &world.token).await;
    let record = vec![5; 64 << 10];
    for id in 0..1_000 {
        assert_eq!(line.publish((TENANT, NAMESPACE, "s"), id + 1, &[&record]).await.code, None);
        events.records(id, 1).await;
    }
    let peak = peak_memory(&world).await;
    eprintln!("memory {before} -> {peak} MiB");
    // The ring, the newest frames that the queues share, and what each connection has on its way.
    assert!(peak < before + 64 + 32 + 40 + SLACK_MIB, "memory {before} -> {peak} MiB");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_cannot_exist_are_not_remembered() {
    let world = World::start(&[]);
    let before = world.broker.memory_mib();
    let client = world.client().await;
    client.authed(TENANT, &world.token).await;
    let mut held = Vec::new();
    for _ in 0..300 {
        let mut line = client.authed(TENANT, &world.token).await;
        let width = json!({"type": "publish_width", "tenant_id": TENANT, "namespace": NAMESPACE,
            "stream": "n".repeat(1 << 20), "shards": 4});
        line.send(&width).await;
        line.send(
            &json!({"type": "publish", "tenant_id": TENANT, "namespace": NAMESPACE, "stream": "missing",
            "payload": "", "request_id": 1, "ack": "per_message"}),
        )
        .await;
        assert_eq!(line.json().await["code"], "not_found");
        held.push(line);
    }
    let peak = peak_memory(&world).await;
    assert!(peak < before + SLACK_MIB, "memory {before} -> {peak} MiB");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_opened_and_abandoned_without_end_leave_nothing() {
    let world = World::start(&[]);
    let good = Good::start(&world, "good").await;
    let client = world.client().await;
    client.authed(TENANT, &world.token).await;
    let before = world.broker.memory_mib();
    for i in 0..20_000_u32 {
        let (mut send, mut recv) = within("a stream", client.conn.open_bi()).await.unwrap();
        let _ = send.write_all(b"FLX1").await;
        match i % 3 {
            0 => drop(send.reset(1_u32.into())),
            1 => drop(recv.stop(1_u32.into())),
            _ => drop(send.finish()),
        }
        if i % 3 == 1 {
            let _ = send.reset(1_u32.into());
        }
    }
    let peak = peak_memory(&world).await;
    assert!(peak < before + SLACK_MIB, "memory {before} -> {peak} MiB");
    let went = good.stop().await;
    assert!(went.p99 < Duration::from_secs(1), "{went:?}");
    client.authed(TENANT, &world.token).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_frames_of_many_connections_stay_inside_the_budget() {
    let world = World::start(&["--memory=512MiB"]);
    let good = Good::start(&world, "good").await;
    let before = world.broker.memory_mib();
    let mut almost = publish((TENANT, NAMESPACE, "s"), None, Some(1), &[&vec![7; 15 << 20]]).to_vec();
    almost.pop();
    let mut held = Vec::new();
    for _ in 0..60 {
        let client = world.client().await;
        let line = client.authed(TENANT, &world.token).await;
        held.push((client, tokio::spawn(write_and_hold(line, almost.clone()))));
    }
    let peak = peak_memory(&world).await;
    eprintln!("memory {before} -> {peak} MiB");
    assert!(peak < 512 + LOG_BUFFERS_MIB, "memory {before} -> {peak} MiB");
    // A large frame that does arrive is still taken.
    let client = world.client_of("s").await;
    let mut line = client.authed(TENANT, &world.token).await;
    let ack = line.publish((TENANT, NAMESPACE, "s"), 1, &[&vec![7; 10 << 20]]).await;
    assert_eq!(ack.code, None, "{ack:?}");
    let went = good.stop().await;
    assert!(went.p99 < Duration::from_secs(1), "{went:?}");
    for (_, task) in held {
        task.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_of_subscribers_on_many_streams_stay_inside_the_budget() {
    const STREAMS: usize = 60;
    let world = World::start(&["--memory=512MiB"]);
    let names: Vec<String> = (0..STREAMS).map(|i| format!("deaf-{i}")).collect();
    for name in &names {
        world.stream(name, 1);
    }
    let who = (TENANT, world.token.as_str());
    let mut held = Vec::new();
    for name in &names {
        let client = deaf(&world).await;
        client.until_served(TENANT, &world.token, NAMESPACE, name).await;
        held.push((client.subscribe(who, (NAMESPACE, name), 0, json!("latest")).await.1, client));
    }
    let publisher = world.client_of("s").await;
    let mut events = publisher.subscribe(who, (NAMESPACE, "s"), 0, json!("latest")).await.1.unwrap();
    let before = world.broker.memory_mib();
    let mut line = publisher.authed(TENANT, &world.token).await;
    let record = vec![5; 128 << 10];
    let mut peak = before;
    for round in 0..160 {
        for name in &names {
            assert_eq!(line.publish((TENANT, NAMESPACE, name), 1, &[&record]).await.code, None);
        }
        // One that reads gets everything all the while.
        assert_eq!(line.publish((TENANT, NAMESPACE, "s"), 1, &[&record]).await.code, None);
        events.records(round, 1).await;
        peak = peak.max(world.broker.memory_mib());
    }
    eprintln!("memory {before} -> {peak} MiB");
    assert!(peak < 512 + LOG_BUFFERS_MIB, "memory {before} -> {peak} MiB");
}
