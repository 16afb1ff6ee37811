//! What the cores promise, seen from outside: real executors, real sockets.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use felix_runtime::Clock;
use felix_runtime::executor::{CoreIo, CoreJoin, CoreSpec, ExecutorError, Wake, spawn_core};
use felix_runtime::mailbox::{Credit, Full, Mailboxes, lane_from_core, lane_to_core, mesh};
use felix_runtime::udp::{BufferSizes, DEFAULT_PINNED_BYTES, PortSocket, ReusePortGroup};
use felix_runtime::waker::CoreWaker;

/// Nothing here takes this long unless a wake-up was lost.
const LONG: Duration = Duration::from_secs(60);

fn spec(index: u16, clock: Clock, waker: &CoreWaker, spin: Duration) -> CoreSpec {
    CoreSpec {
        index,
        cpu: None,
        spin,
        name: "felix-test".to_owned(),
        pinned_bytes: DEFAULT_PINNED_BYTES,
        clock,
        waker: waker.clone(),
    }
}

fn sockets(cores: u16) -> (Vec<PortSocket>, SocketAddr) {
    let group =
        ReusePortGroup::bind(([127, 0, 0, 1], 0).into(), cores, BufferSizes::default()).expect("a free port");
    (group.sockets, group.local_addr)
}

fn one_core<F, Fut, T>(spin: Duration, task: F) -> (CoreJoin<T>, SocketAddr, CoreWaker)
where
    F: FnOnce(CoreIo) -> Fut + Send + 'static,
    Fut: Future<Output = T> + 'static,
    T: Send + 'static,
{
    let (mut sockets, address) = sockets(1);
    let waker = CoreWaker::new();
    let join =
        spawn_core(spec(0, Clock::start(), &waker, spin), sockets.remove(0), task).expect("the core starts");
    (join, address, waker)
}

const SPINS: [Duration; 2] = [Duration::ZERO, Duration::from_micros(200)];

#[test]
fn a_datagram_ends_the_wait() {
    for spin in SPINS {
        let (join, address, _) = one_core(spin, |mut io| async move {
            let mut got = Vec::new();
            while got.len() < 10 {
                assert_eq!(io.wait(Some(io.now() + LONG)), Wake::Datagram);
                io.udp.recv(usize::MAX, |datagram| got.push(datagram.data)).expect("the socket works");
            }
            got
        });
        let client = UdpSocket::bind("127.0.0.1:0").expect("a client port");
        for i in 0..10u8 {
            client.send_to(&[i], address).expect("sent");
        }
        let got = join.join().expect("the core ends");
        assert_eq!(got.iter().map(|data| data[0]).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    }
}

#[test]
fn a_quiet_wait_lasts_until_its_deadline() {
    for spin in SPINS {
        let (join, _, _) = one_core(spin, |mut io| async move {
            let mut late = Duration::ZERO;
            for _ in 0..20 {
                let until = io.now() + Duration::from_millis(2);
                assert_eq!(io.wait(Some(until)), Wake::Deadline);
                assert!(io.now() >= until, "a wait ended before its deadline");
                late = late.max(io.now().saturating_since(until));
            }
            late
        });
        let late = join.join().expect("the core ends");
        assert!(late < Duration::from_secs(5), "a deadline was {late:?} late");
    }
}

#[test]
fn a_deadline_that_has_passed_ends_the_wait_at_once() {
    let (join, _, _) = one_core(Duration::ZERO, |mut io| async move {
        let started = Instant::now();
        for _ in 0..1_000 {
            assert_eq!(io.wait(Some(io.now())), Wake::Deadline);
        }
        started.elapsed()
    });
    assert!(join.join().expect("the core ends") < Duration::from_secs(5));
}

#[test]
fn a_ring_from_another_thread_ends_the_wait() {
    for spin in SPINS {
        let (heard, mut hearing) = lane_from_core::<()>(1);
        let (join, _, waker) = one_core(spin, move |mut io| async move {
            for _ in 0..1_000 {
                assert_eq!(io.wait(Some(io.now() + LONG)), Wake::Rung);
                heard.try_send(()).expect("the other side waits for it");
            }
        });
        for _ in 0..1_000 {
            waker.wake();
            assert_eq!(futures::executor::block_on(hearing.recv()), Some(()));
        }
        join.join().expect("the core ends");
    }
}

#[test]
fn a_ring_before_the_wait_is_not_lost() {
    let (join, _, _) = one_core(Duration::ZERO, |mut io| async move {
        io.waker().wake();
        let first = io.wait(Some(io.now() + LONG));
        let second = io.wait(Some(io.now() + Duration::from_millis(1)));
        (first, second)
    });
    assert_eq!(join.join().expect("the core ends"), (Wake::Rung, Wake::Deadline));
}

#[test]
fn an_ordinary_thread_and_a_core_talk_both_ways() {
    let bell = CoreWaker::new();
    let (ask, mut asked) = lane_to_core::<u32>(8, &bell);
    let (answer, mut answers) = lane_from_core::<u32>(8);
    let (mut sockets, _) = sockets(1);
    let join =
        spawn_core(spec(0, Clock::start(), &bell, Duration::ZERO), sockets.remove(0), |mut io| async move {
            while !asked.is_closed() {
                while let Some(question) = asked.try_recv() {
                    answer.try_send(question * 2).expect("the asker reads each answer");
                }
                assert_ne!(io.wait(Some(io.now() + LONG)), Wake::Deadline);
            }
        })
        .expect("the core starts");
    for i in 0..1_000 {
        ask.try_send(i).expect("one question at a time");
        assert_eq!(futures::executor::block_on(answers.recv()), Some(i * 2));
    }
    drop(ask);
    join.join().expect("the core ends");
    assert_eq!(futures::executor::block_on(answers.recv()), None);
}

#[test]
fn a_panic_of_a_core_is_reported_by_its_join() {
    let (join, _, _) = one_core(Duration::ZERO, |io| async move {
        assert_eq!(io.index, 7, "no such core");
    });
    match join.join() {
        Err(ExecutorError::Panicked { core: 0, message }) => {
            assert!(message.contains("no such core"), "{message}")
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_core_on_a_processor_that_is_not_there_does_not_start() {
    let (mut sockets, _) = sockets(1);
    let spec = CoreSpec { cpu: Some(100_000), ..spec(0, Clock::start(), &CoreWaker::new(), Duration::ZERO) };
    let started = spawn_core(spec, sockets.remove(0), |_io| async {});
    assert!(matches!(started, Err(ExecutorError::Start { core: 0, .. })), "{started:?}");
}

#[derive(Debug)]
enum Message {
    Request(u64),
    Reply(u64),
}

/// Sends `total` requests to the other cores in turn, answers theirs, and stops when it has every answer and was
/// asked as often as it asked.
async fn ask_everybody(mut io: CoreIo, mut boxes: Mailboxes<Message>, total: u64) -> (u64, u64) {
    let (me, cores) = (boxes.core(), boxes.cores());
    let mut credits: Vec<Credit> = (0..cores).map(|_| Credit::new(32, u64::MAX)).collect();
    let mut expected = vec![std::collections::VecDeque::new(); usize::from(cores)];
    let (mut sent, mut answered, mut asked) = (0, 0, 0);
    while answered < total || asked < total {
        let mut progress = false;
        while let Some((from, message)) = boxes.recv() {
            progress = true;
            match message {
                Message::Request(number) => {
                    asked += 1;
                    boxes.try_send(from, Message::Reply(number)).expect("a reply always finds a slot");
                }
                Message::Reply(number) => {
                    answered += 1;
                    credits[usize::from(from)].give(1);
                    assert_eq!(
                        expected[usize::from(from)].pop_front(),
                        Some(number),
                        "answers come in order"
                    );
                }
            }
        }
        while sent < total {
            let to = (u64::from(me) + 1 + sent % u64::from(cores - 1)) % u64::from(cores);
            let to = u16::try_from(to).expect("a core");
            if !credits[usize::from(to)].take(1) {
                break;
            }
            boxes.try_send(to, Message::Request(sent)).expect("credit means a slot");
            expected[usize::from(to)].push_back(sent);
            sent += 1;
            progress = true;
        }
        boxes.flush();
        if !progress {
            let before = io.now();
            let wake = io.wait(Some(io.now() + LONG));
            let waited = io.now().saturating_since(before);
            assert!(wake != Wake::Deadline && waited < LONG / 2, "core {me}: {wake:?} after {waited:?}");
        }
    }
    (answered, asked)
}

#[test]
fn no_wake_up_is_lost_in_mailboxes_of_four_cores() {
    const CORES: u16 = 4;
    const PER_CORE: u64 = 30_000;
    for spin in [Duration::ZERO, Duration::from_micros(20)] {
        let clock = Clock::start();
        let wakers: Vec<CoreWaker> = (0..CORES).map(|_| CoreWaker::new()).collect();
        let (sockets, _) = sockets(CORES);
        let cores: Vec<_> = mesh::<Message>(&wakers, 64)
            .into_iter()
            .zip(sockets)
            .map(|(boxes, socket)| {
                let index = boxes.core();
                let spec = spec(index, clock, &wakers[usize::from(index)], spin);
                spawn_core(spec, socket, move |io| ask_everybody(io, boxes, PER_CORE))
                    .expect("the core starts")
            })
            .collect();
        for core in cores {
            assert_eq!(core.join().expect("the core ends"), (PER_CORE, PER_CORE));
        }
    }
}

#[test]
fn messages_refused_by_a_full_ring_arrive_when_they_are_sent_again() {
    const COUNT: u64 = 20_000;
    let clock = Clock::start();
    let wakers = [CoreWaker::new(), CoreWaker::new()];
    let (mut sockets, _) = sockets(2);
    let mut boxes = mesh::<u64>(&wakers, 8);
    let (mut second, mut first) = (boxes.pop().expect("core 1"), boxes.pop().expect("core 0"));
    let receiving = spawn_core(
        spec(1, clock, &wakers[1], Duration::ZERO),
        sockets.pop().expect("a socket"),
        move |mut io| async move {
            let mut got = 0;
            while got < COUNT {
                while let Some((from, message)) = second.recv() {
                    assert_eq!((from, message), (0, got));
                    got += 1;
                }
                if got < COUNT {
                    assert_ne!(io.wait(Some(io.now() + LONG)), Wake::Deadline, "a wake-up was lost at {got}");
                }
            }
            got
        },
    )
    .expect("the core starts");
    let sending = spawn_core(
        spec(0, clock, &wakers[0], Duration::ZERO),
        sockets.pop().expect("a socket"),
        move |mut io| async move {
            let mut refused = 0u64;
            for i in 0..COUNT {
                let mut message = i;
                while let Err(Full(back)) = first.try_send(1, message) {
                    message = back;
                    refused += 1;
                    io.wait(Some(io.now() + Duration::from_micros(20)));
                }
            }
            first.flush();
            refused
        },
    )
    .expect("the core starts");
    let refused = sending.join().expect("the sender ends");
    assert_eq!(receiving.join().expect("the receiver ends"), COUNT);
    assert!(refused > 0, "eight slots were never full");
}

#[test]
fn steered_datagrams_wake_the_core_they_name() {
    const CORES: u16 = 4;
    let clock = Clock::start();
    let (sockets, address) = sockets(CORES);
    let cores: Vec<_> = sockets
        .into_iter()
        .zip(0..CORES)
        .map(|(socket, index)| {
            let spec = spec(index, clock, &CoreWaker::new(), Duration::ZERO);
            spawn_core(spec, socket, |mut io| async move {
                let mut got = Vec::new();
                while got.len() < 16 {
                    assert_eq!(io.wait(Some(io.now() + LONG)), Wake::Datagram);
                    io.udp.recv(usize::MAX, |datagram| got.push(datagram.data[1])).expect("the socket works");
                }
                got
            })
            .expect("the core starts")
        })
        .collect();
    let client = UdpSocket::bind("127.0.0.1:0").expect("a client port");
    for cid_byte in 0..64u8 {
        client.send_to(&[0x40, cid_byte, 0, 0], address).expect("sent");
    }
    for (index, core) in cores.into_iter().enumerate() {
        let mut got = core.join().expect("the core ends");
        got.sort_unstable();
        assert_eq!(got, (0..64).filter(|byte| usize::from(byte % 4) == index).collect::<Vec<_>>());
    }
}
