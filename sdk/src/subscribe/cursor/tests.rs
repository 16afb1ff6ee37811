use felix_wire::id::SubscriptionId;

use super::*;

const SHARD: u32 = 2;

fn answer(start: Option<u64>, boot: Option<u64>) -> Subscribed {
    Subscribed {
        subscription_id: SubscriptionId(1),
        start_offset: start.map(Offset),
        live_offset: start.map(Offset),
        queue_capacity: None,
        boot,
    }
}

fn gap(from: Option<u64>, to: Option<u64>) -> Gap {
    Gap { shard: SHARD, from: from.map(Offset), to: to.map(Offset) }
}

fn at(offset: u64) -> Option<Offset> {
    Some(Offset(offset))
}

fn clean() -> Take {
    Take::Deliver { duplicates: 0, gap: None }
}

#[test]
fn a_durable_subscription_goes_on_after_its_last_event() {
    let mut cursor = Cursor::new(SHARD, StartPosition::Latest);
    assert_eq!(cursor.request(), StartPosition::Latest);
    assert_eq!(cursor.subscribed(&answer(Some(5), None)), Joined::Read { gap: None });
    // Lost before any event: the start offset says where it was.
    cursor.lost();
    assert_eq!(cursor.request(), StartPosition::Offset(Offset(5)));
    cursor.subscribed(&answer(Some(5), None));
    assert_eq!(cursor.batch(at(5), 0, 3), clean());
    cursor.lost();
    assert_eq!(cursor.request(), StartPosition::Offset(Offset(8)));
    assert_eq!(cursor.position(), Some(Position { next: Offset(8), boot: None }));
}

#[test]
fn events_that_come_twice_are_handed_on_once() {
    let mut cursor = Cursor::new(SHARD, StartPosition::Offset(Offset(10)));
    cursor.subscribed(&answer(Some(10), None));
    cursor.batch(at(10), 0, 5);
    cursor.lost();
    cursor.subscribed(&answer(Some(13), None));
    assert_eq!(cursor.batch(at(13), 0, 4), Take::Deliver { duplicates: 2, gap: None });
    assert_eq!(cursor.batch(at(11), 0, 2), Take::Deliver { duplicates: 2, gap: None });
    assert_eq!(cursor.position().unwrap().next, Offset(17));
}

#[test]
fn declared_empty_offsets_are_no_gap() {
    let mut cursor = Cursor::new(SHARD, StartPosition::Earliest);
    cursor.subscribed(&answer(Some(0), None));
    cursor.batch(at(0), 0, 2);
    assert_eq!(cursor.batch(at(5), 3, 1), clean());
}

#[test]
fn a_jump_on_a_log_is_read_again_and_told_when_it_is_still_there() {
    let mut cursor = Cursor::new(SHARD, StartPosition::Earliest);
    cursor.subscribed(&answer(Some(0), None));
    cursor.batch(at(0), 0, 2);
    assert_eq!(cursor.batch(at(7), 0, 1), Take::ReadAgain);
    assert_eq!(cursor.request(), StartPosition::Offset(Offset(2)));
    cursor.subscribed(&answer(Some(2), None));
    assert_eq!(cursor.batch(at(4), 0, 1), Take::Deliver { duplicates: 0, gap: Some(gap(Some(2), Some(4))) });
    assert_eq!(cursor.batch(at(5), 0, 1), clean());
}

#[test]
fn a_jump_in_memory_is_told_at_once() {
    let mut cursor = Cursor::new(SHARD, StartPosition::Latest);
    cursor.subscribed(&answer(None, Some(9)));
    assert_eq!(cursor.batch(at(100), 0, 1), clean());
    assert_eq!(
        cursor.batch(at(105), 0, 2),
        Take::Deliver { duplicates: 0, gap: Some(gap(Some(101), Some(105))) }
    );
}

#[test]
fn a_stream_in_memory_is_resumed_only_in_the_same_life() {
    let mut cursor = Cursor::new(SHARD, StartPosition::Earliest);
    cursor.subscribed(&answer(Some(0), Some(1)));
    cursor.batch(at(0), 0, 10);
    cursor.lost();
    assert_eq!(cursor.request(), StartPosition::Offset(Offset(10)));
    assert_eq!(cursor.subscribed(&answer(Some(10), Some(1))), Joined::Read { gap: None });
    assert_eq!(cursor.batch(at(10), 0, 1), clean());
    cursor.lost();
    // The broker was restarted: its offset 11 is another record.
    assert_eq!(cursor.subscribed(&answer(Some(11), Some(2))), Joined::Again { gap: gap(None, None) });
    assert_eq!(cursor.request(), StartPosition::Earliest);
    assert_eq!(cursor.subscribed(&answer(Some(0), Some(2))), Joined::Read { gap: None });
    assert_eq!(cursor.batch(at(0), 0, 1), clean());
    assert_eq!(cursor.position(), Some(Position { next: Offset(1), boot: Some(2) }));
}

#[test]
fn an_offset_a_ring_has_dropped_is_told_as_a_gap_and_one_it_never_had_starts_over() {
    let mut cursor = Cursor::new(SHARD, StartPosition::Earliest);
    cursor.subscribed(&answer(Some(0), Some(1)));
    cursor.batch(at(0), 0, 10);
    cursor.lost();
    let too_old = SubscribeCursorError {
        reason: CursorErrorReason::TooOld,
        requested: Offset(10),
        available: Offset(50),
    };
    let asked = cursor.request();
    assert_eq!(cursor.missed(&too_old), Missed::Again);
    assert_eq!(cursor.missed_gap(asked), gap(Some(10), Some(50)));
    assert_eq!(cursor.request(), StartPosition::Offset(Offset(50)));
    cursor.subscribed(&answer(Some(50), Some(1)));
    cursor.lost();
    let asked = cursor.request();
    let ahead = SubscribeCursorError {
        reason: CursorErrorReason::InFuture,
        requested: Offset(50),
        available: Offset(0),
    };
    assert_eq!(cursor.missed(&ahead), Missed::Again);
    assert_eq!(cursor.missed_gap(asked), gap(Some(50), None));
    assert_eq!(cursor.request(), StartPosition::Earliest);
}

#[test]
fn a_cursor_error_on_a_log_ends_the_shard() {
    let error = SubscribeCursorError {
        reason: CursorErrorReason::TooOld,
        requested: Offset(1),
        available: Offset(5),
    };
    let mut cursor = Cursor::new(SHARD, StartPosition::Offset(Offset(1)));
    assert_eq!(cursor.missed(&error), Missed::Fail);
    let mut resumed = Cursor::new(SHARD, StartPosition::Earliest);
    resumed.subscribed(&answer(Some(0), None));
    resumed.batch(at(0), 0, 1);
    assert_eq!(resumed.missed(&error), Missed::Fail);
}

#[test]
fn a_position_of_another_life_is_not_taken_for_one_of_this() {
    let saved = Position { next: Offset(40), boot: Some(1) };
    let mut cursor = Cursor::at(SHARD, saved);
    assert_eq!(cursor.request(), StartPosition::Offset(Offset(40)));
    assert_eq!(cursor.subscribed(&answer(Some(40), Some(2))), Joined::Again { gap: gap(None, None) });
    let mut same = Cursor::at(SHARD, saved);
    assert_eq!(same.subscribed(&answer(Some(40), Some(1))), Joined::Read { gap: None });
}

#[test]
fn without_numbers_a_lost_connection_is_an_unknown_gap() {
    let mut cursor = Cursor::new(SHARD, StartPosition::Latest);
    assert_eq!(cursor.subscribed(&answer(None, None)), Joined::Read { gap: None });
    assert_eq!(cursor.batch(None, 0, 3), clean());
    cursor.lost();
    assert_eq!(cursor.request(), StartPosition::Latest);
    assert_eq!(cursor.subscribed(&answer(None, None)), Joined::Read { gap: Some(gap(None, None)) });
    assert_eq!(cursor.position(), None);
}

#[test]
fn a_named_resume_offset_counts_only_while_none_is_known() {
    let mut cursor = Cursor::new(SHARD, StartPosition::Latest);
    cursor.subscribed(&answer(None, None));
    cursor.resume_from(at(7));
    assert_eq!(cursor.request(), StartPosition::Offset(Offset(7)));
    cursor.resume_from(at(99));
    assert_eq!(cursor.request(), StartPosition::Offset(Offset(7)), "what was not delivered is asked for");
}
