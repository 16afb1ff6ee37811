//! Publishes that the disk does not confirm.

use super::*;

/// Writes of slots take `stall` from now on.
fn stall_rounds(world: &mut World, stall: Duration) {
    world.disk.choose_faults(move |asked| {
        let slot = asked.path.is_some_and(|path| path.as_str().contains("slots/"));
        (slot && asked.kind == OpKind::Write).then_some(Fault::Stall(stall))
    });
}

#[test]
fn a_publish_whose_disk_does_not_answer_is_told_as_unknown_and_is_stored_all_the_same() {
    let mut world = World::new(Fsync::OnCommit);
    world.serve(0, LogSource::New);
    let number = Some((ProducerId(7), Sequence(0)));
    assert_eq!(world.stored(0, None), 0);
    stall_rounds(&mut world, Duration::from_secs(30));
    world.publish(0, 1, None);
    world.run(Duration::from_secs(31));
    assert_eq!(world.settled(), [(1, Some(1))], "a stall of half a minute ends well");
    world.run(Duration::from_secs(31));
    stall_rounds(&mut world, Duration::from_secs(100));
    world.publish(0, 2, None);
    world.publish(0, 3, number);
    world.run(Duration::from_secs(20));
    let again = |token| Job {
        token: JobToken(token),
        records: Records::from_payloads([3u64.to_be_bytes()]),
        producer: number,
    };
    world.send(0, again(4));
    world.run(Duration::from_secs(39));
    assert_eq!(world.settled(), []);
    world.run(Duration::from_secs(2));
    let answers = std::mem::take(&mut world.answers);
    let late = |token| {
        matches!(answers[token], ShardOutput::Unknown { token: JobToken(_), why: Doubt::Unconfirmed })
    };
    assert!(answers.len() == 2 && late(0) && late(1), "{answers:?}");
    let refusal = Refusal::outcome_unknown(Doubt::Unconfirmed);
    assert_eq!((refusal.code, refusal.reason), (ErrorCode::Unacknowledged, Some("disk_unanswered")));
    // The second copy of the numbered one came later.
    world.run(Duration::from_secs(20));
    assert_eq!(world.settled(), [(4, None)]);
    stall_rounds(&mut world, Duration::ZERO);
    world.run(Duration::from_secs(100));
    assert_eq!(world.settled(), [], "each was answered once");
    assert_eq!(world.read(0, 0), [0, 1, 2, 3]);
    world.send(0, again(5));
    world.publish(0, 6, None);
    world.run(Duration::from_millis(20));
    assert_eq!(world.settled(), [(5, Some(3)), (6, Some(4))], "the number is known");
}
