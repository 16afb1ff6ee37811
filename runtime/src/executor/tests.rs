use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use super::*;
use crate::file::ring::Answering;
use crate::udp::{BufferSizes, DEFAULT_PINNED_BYTES, ReusePortGroup};

fn core(spin: Duration) -> (CoreSpec, PortSocket) {
    let group =
        ReusePortGroup::bind(([127, 0, 0, 1], 0).into(), 1, BufferSizes::default()).expect("a free port");
    let spec = CoreSpec {
        index: 0,
        cpu: None,
        spin,
        name: "test-core".to_owned(),
        pinned_bytes: DEFAULT_PINNED_BYTES,
        clock: Clock::start(),
        waker: CoreWaker::new(),
    };
    (spec, group.sockets.into_iter().next().expect("one socket"))
}

/// Disks that always have work, and an answer when somebody has sent a byte.
struct Busy(std::net::UdpSocket);

impl Busy {
    fn new() -> Busy {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
        socket.set_nonblocking(true).expect("a socket can");
        Busy(socket)
    }
}

impl Answering for Busy {
    fn has_answers(&self) -> bool {
        self.0.peek(&mut [0]).is_ok()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn is_busy(&self) -> bool {
        true
    }
}

#[test]
fn room_after_a_blocked_send_ends_the_wait() {
    let (spec, socket) = core(Duration::ZERO);
    let join = spawn_core(spec, socket, |mut io| async move {
        io.udp.pretend_blocked();
        io.wait(None)
    });
    assert_eq!(join.expect("the core starts").join().expect("the core ends"), Wake::Writable);
}

#[test]
fn an_answer_of_a_disk_ends_the_wait_before_and_while_the_core_sleeps() {
    let (spec, socket) = core(Duration::from_secs(60));
    let join = spawn_core(spec, socket, |mut io| async move {
        let disks = Rc::new(Busy::new());
        let to = disks.0.local_addr().expect("bound");
        io.hear(disks.clone());
        let client = std::net::UdpSocket::bind("127.0.0.1:0").expect("a client port");
        client.send_to(b"x", to).expect("sent");
        let first = io.wait(None);
        let second = io.wait(None);
        disks.0.recv(&mut [0]).expect("one byte");
        let later = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            client.send_to(b"x", to).expect("sent");
        });
        let third = io.wait(None);
        later.join().expect("it sent");
        disks.0.recv(&mut [0]).expect("one byte");
        let until = io.now() + Duration::from_millis(5);
        [first, second, third, io.wait(Some(until))]
    });
    let wakes = join.expect("the core starts").join().expect("the core ends");
    assert_eq!(wakes, [Wake::Answer, Wake::Answer, Wake::Answer, Wake::Deadline]);
}

#[test]
fn a_wait_beside_disk_operations_hears_every_ring() {
    let (spec, socket) = core(Duration::ZERO);
    let bell = spec.waker.clone();
    let (heard, mut hearing) = crate::mailbox::lane_from_core::<()>(1);
    let join = spawn_core(spec, socket, move |mut io| async move {
        io.hear(Rc::new(Busy::new()));
        let mut slowest = Duration::ZERO;
        for _ in 0..5_000 {
            let before = io.now();
            while io.wait(None) != Wake::Rung {}
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
