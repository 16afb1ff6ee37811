use std::sync::Arc;
use std::thread;

use futures::executor::block_on;

use super::*;

fn bells(cores: usize) -> Vec<CoreWaker> {
    (0..cores).map(|_| CoreWaker::new()).collect()
}

#[test]
fn a_full_ring_hands_the_message_back_and_loses_nothing() {
    let bells = bells(2);
    let mut boxes = mesh::<u32>(&bells, 4);
    for i in 0..4 {
        assert_eq!(boxes[0].try_send(1, i), Ok(()));
    }
    assert_eq!(boxes[0].try_send(1, 4), Err(Full(4)));
    assert!(bells[1].take(), "the receiver of a full ring is woken without a flush");
    assert_eq!(boxes[0].pending_to(1), 4);
    assert_eq!(boxes[1].recv(), Some((0, 0)));
    assert_eq!(boxes[0].try_send(1, 4), Ok(()));
    let rest: Vec<_> = std::iter::from_fn(|| boxes[1].recv()).collect();
    assert_eq!(rest, [(0, 1), (0, 2), (0, 3), (0, 4)]);
}

#[test]
fn a_batch_rings_once_and_only_where_something_was_sent() {
    let bells = bells(3);
    let mut boxes = mesh::<u32>(&bells, 8);
    for i in 0..5 {
        boxes[0].try_send(2, i).expect("room");
    }
    assert!(bells.iter().all(|bell| !bell.take()), "nothing rings before the flush");
    boxes[0].flush();
    assert_eq!(bells.iter().map(CoreWaker::take).collect::<Vec<_>>(), [false, false, true]);
    boxes[0].flush();
    assert!(bells.iter().all(|bell| !bell.take()), "an empty flush rings nobody");
}

#[test]
fn receiving_takes_one_from_each_sender_in_turn() {
    let mut boxes = mesh::<u32>(&bells(4), 16);
    for sender in [0u16, 1, 3] {
        for i in 0..10 {
            boxes[usize::from(sender)].try_send(2, i).expect("room");
        }
    }
    let got: Vec<_> = std::iter::from_fn(|| boxes[2].recv()).collect();
    assert_eq!(got.len(), 30);
    for (i, three) in got.chunks(3).enumerate() {
        assert_eq!(three, [(0, i as u32), (1, i as u32), (3, i as u32)]);
    }
}

#[test]
fn a_core_can_send_to_itself() {
    let bells = bells(1);
    let mut boxes = mesh::<&str>(&bells, 2);
    boxes[0].try_send(0, "note").expect("room");
    boxes[0].flush();
    assert!(bells[0].take());
    assert_eq!((boxes[0].core(), boxes[0].cores(), boxes[0].recv()), (0, 1, Some((0, "note"))));
}

#[test]
fn messages_of_one_pair_stay_in_order_across_threads() {
    const COUNT: u64 = 100_000;
    let mut boxes = mesh::<u64>(&bells(2), 64);
    let mut receiver = boxes.pop().expect("core 1");
    let mut sender = boxes.pop().expect("core 0");
    let sending = thread::spawn(move || {
        for i in 0..COUNT {
            let mut message = i;
            while let Err(Full(back)) = sender.try_send(1, message) {
                message = back;
                thread::yield_now();
            }
        }
    });
    let mut next = 0;
    while next < COUNT {
        match receiver.recv() {
            Some((from, message)) => {
                assert_eq!((from, message), (0, next));
                next += 1;
            }
            None => thread::yield_now(),
        }
    }
    sending.join().expect("the sender ends");
    assert_eq!(receiver.recv(), None);
}

#[test]
fn a_lane_to_a_core_rings_it_and_says_when_it_is_full() {
    let bell = CoreWaker::new();
    let (sender, mut receiver) = lane_to_core::<u32>(2, &bell);
    assert_eq!((sender.try_send(1), sender.try_send(2)), (Ok(()), Ok(())));
    assert_eq!(sender.clone().try_send(3), Err(LaneError::Full(3)));
    assert!(bell.take());
    assert_eq!((receiver.try_recv(), receiver.try_recv(), receiver.try_recv()), (Some(1), Some(2), None));
    assert!(!receiver.is_closed());
    drop(sender);
    assert!(bell.take() && receiver.is_closed());
}

#[test]
fn a_lane_without_a_receiver_hands_messages_back() {
    let (sender, receiver) = lane_from_core::<Arc<()>>(2);
    let message = Arc::new(());
    assert_eq!(sender.try_send(message.clone()), Ok(()));
    drop(receiver);
    assert_eq!(Arc::strong_count(&message), 1, "what was queued is dropped with the receiver");
    assert!(matches!(sender.try_send(message), Err(LaneError::Closed(_))));
}

#[test]
fn a_waiting_task_gets_every_message_and_then_the_end() {
    const COUNT: u64 = 50_000;
    let (sender, mut receiver) = lane_from_core::<u64>(32);
    let senders: Vec<_> = (0..2)
        .map(|_| {
            let sender = sender.clone();
            thread::spawn(move || {
                for i in 0..COUNT {
                    let mut message = i;
                    while let Err(LaneError::Full(back)) = sender.try_send(message) {
                        message = back;
                        thread::yield_now();
                    }
                }
            })
        })
        .collect();
    drop(sender);
    let (count, sum) = block_on(async {
        let (mut count, mut sum) = (0, 0);
        while let Some(message) = receiver.recv().await {
            count += 1;
            sum += message;
        }
        (count, sum)
    });
    for sender in senders {
        sender.join().expect("the sender ends");
    }
    assert_eq!((count, sum), (2 * COUNT, COUNT * (COUNT - 1)));
}
