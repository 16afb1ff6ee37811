use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use super::wait::HEARTBEAT;
use super::*;
use crate::udp::{BufferSizes, DEFAULT_PINNED_BYTES, ReusePortGroup};

fn core(spin: Duration) -> (CoreSpec, PortSocket) {
    let group =
        ReusePortGroup::bind(([127, 0, 0, 1], 0).into(), 1, BufferSizes::default()).expect("a free port");
    let spec = CoreSpec {
        index: 0,
        cpu: None,
        spin,
        name: "test-core".to_owned(),
        io_memory_bytes: 64 * 1024,
        pinned_bytes: DEFAULT_PINNED_BYTES,
        clock: Clock::start(),
        waker: CoreWaker::new(),
    };
    (spec, group.sockets.into_iter().next().expect("one socket"))
}

#[test]
fn other_tasks_of_a_busy_core_are_served_while_it_yields_if_needed() {
    let (spec, socket) = core(Duration::ZERO);
    let join = spawn_core(spec, socket, |mut io| async move {
        io.set_disk_in_flight(true);
        let served = Rc::new(Cell::new(0u32));
        let count = served.clone();
        let other = glommio::spawn_local(async move {
            loop {
                glommio::timer::Timer::new(Duration::from_micros(50)).await;
                count.set(count.get() + 1);
            }
        })
        .detach();
        let started = Instant::now();
        while started.elapsed() < Duration::from_millis(200) {
            io.yield_if_needed().await;
        }
        other.cancel();
        served.get()
    });
    let served = join.expect("the core starts").join().expect("the core ends");
    // Every 250 us on an idle machine; a busy one takes the processor away for a while.
    assert!(served > 50, "a task was served {served} times in 200 ms");
}

#[test]
fn a_watch_that_outlives_its_wait_is_not_a_busy_loop() {
    let (spec, socket) = core(Duration::ZERO);
    let join = spawn_core(spec, socket, |mut io| async move {
        io.set_disk_in_flight(true);
        let to = io.udp.local_addr();
        let client = std::net::UdpSocket::bind("127.0.0.1:0").expect("a client port");
        let mut wakes = 0u32;
        for _ in 0..20u32 {
            // Ends by the deadline and leaves the watch in place; the datagram then is read without it.
            io.wait(Some(io.now() + Duration::from_millis(1))).await;
            client.send_to(b"x", to).expect("sent");
            while io.udp.recv(usize::MAX, |_| ()).expect("the socket works").datagrams == 0 {}
            let until = io.now() + Duration::from_millis(5);
            while io.now() < until {
                io.wait(Some(until)).await;
                wakes += 1;
            }
        }
        wakes
    });
    let wakes = join.expect("the core starts").join().expect("the core ends");
    // Each round: the heartbeats of 5 ms, the deadline, and the stale watch once.
    let heartbeats = Duration::from_millis(5).div_duration_f64(HEARTBEAT) as u32;
    assert!(wakes <= 20 * (heartbeats + 3), "{wakes} wakes for 20 datagrams");
}

#[test]
fn room_after_a_blocked_send_ends_the_wait() {
    let (spec, socket) = core(Duration::ZERO);
    let join = spawn_core(spec, socket, |mut io| async move {
        io.udp.pretend_blocked();
        io.wait(None).await
    });
    assert_eq!(join.expect("the core starts").join().expect("the core ends"), Wake::Writable);
}

#[test]
fn a_wait_beside_disk_operations_hears_every_ring() {
    let (spec, socket) = core(Duration::ZERO);
    let bell = spec.waker.clone();
    let (heard, mut hearing) = crate::mailbox::lane_from_core::<()>(1);
    let join = spawn_core(spec, socket, move |mut io| async move {
        io.set_disk_in_flight(true);
        let mut slowest = Duration::ZERO;
        for _ in 0..5_000 {
            let before = io.now();
            while io.wait(None).await != Wake::Rung {}
            slowest = slowest.max(io.now().saturating_since(before));
            heard.try_send(()).expect("the other side waits for it");
        }
        slowest
    });
    let join = join.expect("the core starts");
    for _ in 0..5_000 {
        bell.wake();
        assert_eq!(futures::executor::block_on(hearing.recv()), Some(()));
    }
    let slowest = join.join().expect("the core ends");
    assert!(slowest < Duration::from_secs(2), "a ring was heard after {slowest:?}");
}

#[test]
fn a_core_may_wait_beside_its_disks_for_ever_without_a_datagram() {
    let (spec, socket) = core(Duration::ZERO);
    let join = spawn_core(spec, socket, |mut io| async move {
        io.set_disk_in_flight(true);
        // The executor counts the wakers of a task with 15 bits.
        for _ in 0..40_000 {
            io.wait(Some(io.now() + Duration::from_micros(1))).await;
        }
        let client = std::net::UdpSocket::bind("127.0.0.1:0").expect("a client port");
        client.send_to(b"x", io.udp.local_addr()).expect("sent");
        io.wait(None).await
    });
    assert_eq!(join.expect("the core starts").join().expect("the core ends"), Wake::Datagram);
}

#[test]
fn a_loop_that_only_waits_lets_other_tasks_go_on_beside_a_datagram_nobody_reads() {
    let (spec, socket) = core(Duration::ZERO);
    let join = spawn_core(spec, socket, |mut io| async move {
        io.set_disk_in_flight(true);
        let client = std::net::UdpSocket::bind("127.0.0.1:0").expect("a client port");
        client.send_to(b"x", io.udp.local_addr()).expect("sent");
        let done = Rc::new(Cell::new(false));
        let end = done.clone();
        glommio::spawn_local(async move {
            for _ in 0..10 {
                glommio::timer::Timer::new(Duration::from_micros(50)).await;
            }
            end.set(true);
        })
        .detach();
        let started = Instant::now();
        while !done.get() && started.elapsed() < Duration::from_secs(10) {
            io.wait(Some(io.now() + Duration::from_millis(100))).await;
        }
        done.get()
    });
    assert!(join.expect("the core starts").join().expect("the core ends"), "a task was never served");
}
