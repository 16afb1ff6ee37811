//! The broker as a process: how it ends, comes back, refuses to start, and changes its certificate.

mod support;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use serde_json::json;
use support::good::Good;
use support::plane::Plane;
use support::raw::{Event, Raw, application_close, publish};
use support::until;
use support::world::{Broker, NAMESPACE, NODE, TENANT, World, broker_command};

fn name(stream: &str) -> (&str, &str, &str) {
    (TENANT, NAMESPACE, stream)
}

/// Writes a self-signed leaf for localhost and its key; the certificate.
fn write_certificate(cert: &Path, key: &Path) -> String {
    let pair = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.is_ca = IsCa::ExplicitNoCa;
    params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    let made = params.self_signed(&pair).unwrap();
    std::fs::write(key, pair.serialize_pem()).unwrap();
    std::fs::write(cert, made.pem()).unwrap();
    made.pem()
}

/// A world whose broker has a certificate of its own on `bind`; the certificate and where its files are.
fn with_certificate(bind: &str) -> (World, tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let pem = write_certificate(&cert, &key);
    let flags = [
        format!("--tls-cert={}", cert.display()),
        format!("--tls-key={}", key.display()),
        format!("--quic-bind={bind}"),
    ];
    let world = World::start(&[&flags[0], &flags[1], &flags[2]]);
    std::fs::write(world.folder.path().join("broker.pem"), &pem).unwrap();
    (world, folder, pem)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_under_load_ends_in_time_and_delivers_what_was_acked() {
    // A reader that is slow for a moment holds publishers up, and misses nothing.
    let mut world = World::start(&["--shutdown-drain-timeout-ms=8000", "--sub-queue-policy=block"]);
    let reader = world.client_of("s").await;
    let (_, events) = reader.subscribe((TENANT, &world.token), (NAMESPACE, "s"), 0, json!("latest")).await;
    let mut events = events.unwrap();
    let reading = tokio::spawn(async move {
        let mut seen = 0_u64;
        while let Event::Batch(base, records) = events.next().await {
            assert_eq!(base, seen);
            seen += records.len() as u64;
        }
        (seen, reader.closed().await)
    });
    let mut writers = Vec::new();
    for _ in 0..3 {
        let client = world.client().await;
        let mut line = client.authed(TENANT, &world.token).await;
        writers.push(tokio::spawn(async move {
            // Sixteen in flight until nothing is answered any more.
            let (mut sent, mut acked) = (0, 0_u64);
            loop {
                while sent < acked + 16 {
                    sent += 1;
                    if line
                        .send
                        .write_all(&publish(name("s"), None, Some(sent), &[&[1; 1_000]]))
                        .await
                        .is_err()
                    {
                        break;
                    }
                }
                match line.frames.next().await {
                    Some(frame) if support::raw::Ack::of(&frame).code.is_none() => acked += 1,
                    Some(_) => {}
                    None => return (acked, client.closed().await),
                }
            }
        }));
    }
    let written = || world.broker.metric("felix_publish_written_total").unwrap();
    until("load", async || (written() > 3_000).then_some(())).await;
    let began = Instant::now();
    world.broker.signal("-TERM");
    let status = world.broker.ended();
    let took = began.elapsed();
    assert!(status.success(), "{status:?}: {}", world.broker.log());
    assert!(took < Duration::from_secs(9), "{took:?}");
    let mut acked = 0;
    for writer in writers {
        let (count, closed) = support::within("a writer", writer).await.unwrap();
        assert_eq!(application_close(&closed).map(|c| c.0), Some(0), "{closed:?}");
        acked += count;
    }
    let (seen, closed) = support::within("the reader", reading).await.unwrap();
    assert_eq!(application_close(&closed).map(|c| c.0), Some(0), "{closed:?}");
    assert!(acked > 3_000 && seen >= acked, "{acked} acked, {seen} delivered, after {took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_does_not_wait_for_clients_that_never_read() {
    let flags = [
        "--shutdown-drain-timeout-ms=4000",
        "--sub-queue-policy=block",
        "--replay-ring-max-records=16",
        "--subscriber-queue-capacity=4",
        "--publish-queue-wait-ms=60000",
    ];
    let mut world = World::start(&flags);
    let mut transport = support::raw::usual_transport();
    transport.stream_receive_window(2_048_u32.into()).receive_window(4_096_u32.into());
    let config = support::raw::client_config(&world.broker.certificate(), transport);
    let deaf = Raw::connect_with(world.broker.addr, config).await.unwrap();
    deaf.until_served(TENANT, &world.token, NAMESPACE, "s").await;
    let (_, _events) = deaf.subscribe((TENANT, &world.token), (NAMESPACE, "s"), 0, json!("latest")).await;
    // Publishes pile up behind the subscriber, acked ones and others.
    let client = world.client().await;
    let mut line = client.authed(TENANT, &world.token).await;
    let frame = publish(name("s"), None, Some(1), &[&[1; 20_000]]);
    let writing = tokio::spawn(async move { while line.send.write_all(&frame).await.is_ok() {} });
    let parked = || world.broker.metric("felix_broker_ingress_queue_depth");
    until("parked publishes", async || (parked()? > 20).then_some(())).await;
    let began = Instant::now();
    world.broker.signal("-TERM");
    let status = world.broker.ended();
    let took = began.elapsed();
    assert!(
        status.success() && took < Duration::from_secs(6),
        "{status:?} after {took:?}: {}",
        world.broker.log()
    );
    writing.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_broker_comes_back_on_its_port_and_old_connections_learn_of_it() {
    let mut world = World::start(&[]);
    let client = world.client_of("s").await;
    let mut line = client.authed(TENANT, &world.token).await;
    assert_eq!(line.publish(name("s"), 1, &[b"x"]).await.code, None);
    world.broker.signal("-KILL");
    world.broker.ended();
    let bind = format!("--quic-bind={}", world.broker.addr);
    let again = Broker::start(&world.folder, &world.plane.url, &world.plane.node_token(NODE), &[&bind]);
    assert_eq!(again.addr, world.broker.addr);
    world.broker = again;
    // A packet of the old connection is answered by a stateless reset, sooner than silence would end it.
    let asked = Instant::now();
    line.write(&publish(name("s"), None, Some(2), &[b"y"])).await;
    let closed = client.closed().await;
    assert!(matches!(closed, quinn::ConnectionError::Reset), "{closed:?} after {:?}", asked.elapsed());
    let client = world.client_of("s").await;
    let mut line = client.authed(TENANT, &world.token).await;
    assert_eq!(line.publish(name("s"), 3, &[b"z"]).await.code, None);
    let (answer, _) =
        client.subscribe((TENANT, &world.token), (NAMESPACE, "s"), 0, json!({"offset": 0})).await;
    assert_eq!(answer["type"], "subscribed", "offsets begin again: {answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_replaced_during_publishes_drops_no_connection() {
    let (world, folder, old) = with_certificate("127.0.0.1:0");
    let good = Good::start(&world, "good").await;
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let new = write_certificate(&cert, &key);
    let addr = world.broker.addr;
    until("the new certificate", async || Raw::connect(addr, &new).await.ok().map(drop)).await;
    assert!(Raw::connect(addr, &old).await.is_err(), "the old one is not shown any more");
    // One that does not fit its key is not taken.
    std::fs::write(&key, KeyPair::generate().unwrap().serialize_pem()).unwrap();
    until("a complaint", async || world.broker.log().contains("the old one stays").then_some(())).await;
    Raw::connect(addr, &new).await.expect("the last good one stays");
    let went = good.stop().await;
    assert!(went.records > 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_port_serves_ipv6_and_ipv4() {
    let (world, _folder, pem) = with_certificate("[::]:0");
    let port = world.broker.addr.port();
    let v4 = Raw::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), &pem).await.expect("IPv4");
    let v6 = Raw::connect(SocketAddr::from((Ipv6Addr::LOCALHOST, port)), &pem).await.expect("IPv6");
    v4.until_served(TENANT, &world.token, NAMESPACE, "s").await;
    let who = (TENANT, world.token.as_str());
    let (_, events) = v6.subscribe(who, (NAMESPACE, "s"), 0, json!("latest")).await;
    let mut by_v6 = events.unwrap();
    let (_, events) = v4.subscribe(who, (NAMESPACE, "s"), 0, json!("latest")).await;
    let mut by_v4 = events.unwrap();
    for (id, client) in [&v4, &v6, &v4].into_iter().enumerate() {
        let mut line = client.authed(TENANT, &world.token).await;
        assert_eq!(line.publish(name("s"), 1, &[&[id as u8; 5_000]]).await.code, None);
        assert_eq!(by_v6.records(id as u64, 1).await, by_v4.records(id as u64, 1).await);
    }
}

/// Runs a broker with no control plane to reach under `shell` (which ends in `exec "$@"`), until it ends or waits for
/// that; its status, none when it waited, and what it said.
fn fails(shell: &str, args: &[&str]) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    let broker = broker_command(&folder, "http://127.0.0.1:1", "any", args);
    let said_file = folder.path().join("said");
    let mut command = Command::new("sh");
    command.arg("-c").arg(shell).arg("sh").arg(broker.get_program()).args(broker.get_args());
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let mut child = command.stderr(std::fs::File::create(&said_file).unwrap()).spawn().unwrap();
    let said = || std::fs::read_to_string(&said_file).unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status.code();
        }
        if said().contains("reading the control plane fails") || Instant::now() > end {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    (status, said())
}

#[test]
fn too_little_locked_memory_is_said_in_one_line_with_its_remedy() {
    let (code, said) = fails("ulimit -l 64 && exec \"$@\"", &[]);
    assert_eq!(code, Some(1), "{said}");
    let lines: Vec<&str> = said.lines().filter(|l| l.contains("memlock")).collect();
    assert!(!lines.is_empty() && lines.iter().all(|l| l.contains("ulimit -l")), "{said}");
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn too_few_open_files_are_said_in_one_line_with_their_remedy() {
    let (_, said) = fails("ulimit -S -n 64 && exec \"$@\"", &[]);
    assert!(said.lines().any(|l| l.contains("open files limit is 64") && l.contains("ulimit -n")), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    let (code, said) = fails("ulimit -n 16 && exec \"$@\"", &[]);
    assert!(code.is_some_and(|c| c != 0), "{said}");
    assert!(said.contains("open files") && !said.contains("panicked"), "{said}");
}

/// Refuses io_uring_setup (system call 425 everywhere) to what it starts.
const WITHOUT_IO_URING: &str = r#"exec python3 -c '
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
code = struct.pack("HBBIHBBIHBBIHBBI", 0x20, 0, 0, 0, 0x15, 0, 1, 425, 0x06, 0, 0, 0x00050001, 0x06, 0, 0, 0x7fff0000)
buffer = ctypes.create_string_buffer(code)
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 4, ctypes.addressof(buffer)))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.c_void_p(ctypes.addressof(program)), 0, 0) == 0, ctypes.get_errno()
os.execv(sys.argv[1], sys.argv[1:])
' "$@""#;

#[test]
fn no_io_uring_is_said_in_one_line_with_its_remedy() {
    let (code, said) = fails(WITHOUT_IO_URING, &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.lines().any(|l| l.contains("io_uring is not available") && l.contains("seccomp")), "{said}");
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn a_data_folder_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "not a folder").unwrap();
    for path in [file.join("data"), Path::new("/proc/felix-data").to_owned()] {
        let flag = format!("--data-dir={}", path.display());
        let (code, said) = fails("exec \"$@\"", &[&flag]);
        assert_eq!(code, Some(1), "{said}");
        let named = said.lines().any(|l| l.contains("data_dir") && l.contains(path.to_str().unwrap()));
        assert!(named && !said.contains("panicked"), "{said}");
    }
}

#[test]
fn a_taken_port_is_named() {
    let holder = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let bind = holder.local_addr().unwrap().to_string();
    let (code, said) = fails("exec \"$@\"", &[&format!("--quic-bind={bind}")]);
    assert_eq!(code, Some(1), "{said}");
    let port = holder.local_addr().unwrap().port().to_string();
    assert!(said.contains("quic_bind") && said.contains(&port) && said.contains("in use"), "{said}");
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let bind = holder.local_addr().unwrap().to_string();
    let (code, said) = fails("exec \"$@\"", &[&format!("--metrics-bind={bind}")]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("metrics_bind") && said.contains(&bind) && said.contains("in use"), "{said}");
}

#[test]
fn a_control_plane_ends_when_told() {
    let folder = tempfile::tempdir().unwrap();
    let plane = Plane::start(folder.path());
    assert_eq!(plane.end(), Some(0));
}
