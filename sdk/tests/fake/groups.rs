//! The groups of the test broker, over its stream: each shard of each group by itself.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use felix_sdk::{ErrorCode, Offset};
use felix_wire::client::{
    CacheOk, GroupDeadLetterList, GroupDeleted, GroupExtended, GroupInfo, GroupOffset, GroupPoll,
    GroupPosition, GroupRecord, GroupRecords, Message, StartPosition,
};
use quinn::SendStream;

use super::State;
use super::session::{No, Outcome, Session, write};

/// Claims hold so long unless a poll says otherwise.
const VISIBILITY: Duration = Duration::from_secs(30);
/// The last delivery of a record.
const ATTEMPTS_MAX: u32 = 3;
/// Between two looks of a poll that waits.
const LOOK: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub struct Held {
    pub until: Instant,
    pub attempts: u32,
    pub member: Option<String>,
}

/// One shard of one group.
#[derive(Debug, Default)]
pub struct Shard {
    pub next: u64,
    pub finished: BTreeSet<u64>,
    pub held: BTreeMap<u64, Held>,
    /// Attempts so far, and when it may go out.
    pub owed: BTreeMap<u64, (u32, Instant)>,
    pub dead: BTreeSet<u64>,
}

/// By group and shard, and what was asked.
#[derive(Debug, Default)]
pub struct Groups {
    pub shards: HashMap<(String, u32), Shard>,
    /// Records asked for by each poll.
    pub polls: Vec<u32>,
    pub reclaims: Vec<(u32, String)>,
    pub extensions: usize,
    /// Most claims at a time.
    pub held_most: usize,
    /// So many acks find their claim lost.
    pub stale_acks: usize,
    /// Acks in order.
    pub acked: Vec<(u32, u64)>,
    /// Acks of several records: shard, first, end.
    pub ranges: Vec<(u32, u64, u64)>,
}

impl Shard {
    fn lapse(&mut self, now: Instant) {
        let lapsed: Vec<u64> = self.held.iter().filter(|(_, h)| h.until <= now).map(|(o, _)| *o).collect();
        for offset in lapsed {
            let attempts = self.held.remove(&offset).expect("held").attempts;
            self.give_back(offset, attempts, now);
        }
    }

    fn give_back(&mut self, offset: u64, attempts: u32, at: Instant) {
        if attempts >= ATTEMPTS_MAX {
            self.finished.insert(offset);
            self.dead.insert(offset);
        } else {
            self.owed.insert(offset, (attempts, at));
        }
    }

    fn take(&mut self, tail: u64, now: Instant) -> Option<(u64, u32)> {
        let owed = self.owed.iter().find(|(_, (_, at))| *at <= now).map(|(offset, _)| *offset);
        if let Some(offset) = owed {
            let (attempts, _) = self.owed.remove(&offset).expect("owed");
            return Some((offset, attempts + 1));
        }
        let offset = self.next;
        (offset < tail).then(|| {
            self.next += 1;
            (offset, 1)
        })
    }

    fn committed(&self) -> u64 {
        (0..self.next).find(|offset| !self.finished.contains(offset)).unwrap_or(self.next)
    }
}

fn stale() -> No {
    No::Code(ErrorCode::StaleClaim, None)
}

impl Session {
    /// A poll waits until there is something.
    pub async fn poll(&self, poll: &GroupPoll<'_>, send: &mut SendStream) -> Outcome<()> {
        let until = Instant::now() + Duration::from_millis(poll.wait_ms);
        self.state.change(|s| s.groups.polls.push(poll.max_records));
        let mut first = true;
        loop {
            let records = self.state.change(|s| claim(s, poll, std::mem::take(&mut first)));
            if !records.is_empty() || Instant::now() >= until {
                let answer = GroupRecords { records, request_id: poll.request_id };
                return write(send, &Message::GroupRecords(answer)).await;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

fn claim(s: &mut State, poll: &GroupPoll<'_>, first: bool) -> Vec<GroupRecord<'static>> {
    let now = Instant::now();
    let index = poll.shard.get();
    let log = s.records[index as usize].clone();
    let shard = s.groups.shards.entry((poll.group.to_string(), index)).or_default();
    shard.lapse(now);
    let member = poll.consumer.as_ref().map(ToString::to_string);
    if poll.reclaim && first {
        let name = member.clone().expect("only members reclaim");
        let theirs: Vec<u64> =
            shard.held.iter().filter(|(_, h)| h.member == member).map(|(offset, _)| *offset).collect();
        for offset in theirs {
            let attempts = shard.held.remove(&offset).expect("held").attempts;
            shard.give_back(offset, attempts, now);
        }
        s.groups.reclaims.push((index, name));
    }
    let visibility = match poll.visibility_ms {
        0 => VISIBILITY,
        millis => Duration::from_millis(millis),
    };
    let shard = s.groups.shards.entry((poll.group.to_string(), index)).or_default();
    let mut records = Vec::new();
    while records.len() < poll.max_records as usize
        && let Some((offset, attempts)) = shard.take(log.len() as u64, now)
    {
        shard.held.insert(offset, Held { until: now + visibility, attempts, member: member.clone() });
        records.push(GroupRecord {
            offset: Offset(offset),
            payload: log[offset as usize].clone(),
            attempts,
            skipped_before: None,
            publisher: None,
            timestamp_micros: Some(1_000_000 + offset),
        });
    }
    let held = s.groups.shards.values().map(|shard| shard.held.len()).sum();
    s.groups.held_most = s.groups.held_most.max(held);
    records
}

/// What a group request is answered with; `None` for any other, and for polls.
pub fn answer(s: &mut State, message: &Message<'_>) -> Option<Result<Message<'static>, No>> {
    let (group, index) = match message {
        Message::GroupAck(m)
        | Message::GroupDeadLetter(m)
        | Message::GroupDiscard(m)
        | Message::GroupRedrive(m) => (m.group.to_string(), m.shard.get()),
        Message::GroupNack(m) => (m.group.to_string(), m.shard.get()),
        Message::GroupExtend(m) => (m.group.to_string(), m.shard.get()),
        Message::GroupSeek(m) => (m.group.to_string(), m.shard.get()),
        Message::GroupDeadLetters(m) | Message::GroupDescribe(m) | Message::GroupDelete(m) => {
            (m.group.to_string(), m.shard.get())
        }
        _ => return None,
    };
    let tail = s.records[index as usize].len() as u64;
    let now = Instant::now();
    if let Message::GroupDelete(m) = message {
        let existed = s.groups.shards.remove(&(group, index)).is_some();
        return Some(Ok(Message::GroupDeleted(GroupDeleted { existed, request_id: m.request_id })));
    }
    let known = s.groups.shards.contains_key(&(group.clone(), index));
    if let Message::GroupExtend(_) = message {
        s.groups.extensions += 1;
    }
    let mut lost = false;
    if let Message::GroupAck(m @ GroupOffset { count: Some(_), .. }) = message {
        return Some(ack_range(s, &group, m));
    }
    if let Message::GroupAck(m) = message {
        lost = s.groups.stale_acks > 0;
        s.groups.stale_acks -= usize::from(lost);
        s.groups.acked.push((index, m.offset.get()));
    }
    let shard = s.groups.shards.entry((group, index)).or_default();
    shard.lapse(now);
    if let (true, Message::GroupAck(m)) = (lost, message)
        && let Some(held) = shard.held.remove(&m.offset.get())
    {
        shard.owed.insert(m.offset.get(), (held.attempts, now));
        return Some(Err(stale()));
    }
    let request_id = super::requests::request_id(message)?;
    Some(match message {
        Message::GroupSeek(m) => Ok(seek(shard, (m.start, m.if_new && known), tail, m.request_id)),
        Message::GroupDescribe(_) => Ok(Message::GroupInfo(GroupInfo {
            committed: known.then(|| Offset(shard.committed())),
            tail: Offset(tail),
            in_flight: shard.held.len() as u64,
            owed: shard.owed.len() as u64,
            dead_letters: shard.dead.len() as u64,
            request_id,
        })),
        Message::GroupDeadLetters(_) => {
            let offsets = shard.dead.iter().map(|offset| Offset(*offset)).collect();
            Ok(Message::GroupDeadLetterList(GroupDeadLetterList { offsets, request_id }))
        }
        Message::GroupExtend(m) => extend(shard, m.offset.get(), m.attempts, m.extend_ms)
            .map(|visible_ms| Message::GroupExtended(GroupExtended { visible_ms, request_id })),
        settled => settle(shard, settled, tail).map(|()| Message::CacheOk(CacheOk { request_id })),
    })
}

/// All of them or none.
fn ack_range(s: &mut State, group: &str, m: &GroupOffset<'_>) -> Result<Message<'static>, No> {
    let offsets = m.offset.get()..m.offset.get() + u64::from(m.count.unwrap_or(0));
    let shard = s.groups.shards.entry((group.to_owned(), m.shard.get())).or_default();
    shard.lapse(Instant::now());
    let known = |offset: u64| shard.held.contains_key(&offset) || shard.finished.contains(&offset);
    if s.groups.stale_acks > 0 || !offsets.clone().all(known) {
        return Err(stale());
    }
    s.groups.ranges.push((m.shard.get(), offsets.start, offsets.end));
    for offset in offsets {
        shard.held.remove(&offset);
        shard.finished.insert(offset);
        s.groups.acked.push((m.shard.get(), offset));
    }
    Ok(Message::CacheOk(CacheOk { request_id: m.request_id }))
}

fn seek(
    shard: &mut Shard,
    (start, stays): (StartPosition, bool),
    tail: u64,
    request_id: felix_wire::id::RequestId,
) -> Message<'static> {
    if !stays {
        let offset = match start {
            StartPosition::Earliest => 0,
            StartPosition::Latest => tail,
            StartPosition::Offset(offset) => offset.get(),
        };
        let dead = std::mem::take(&mut shard.dead);
        *shard = Shard { next: offset, finished: (0..offset).collect(), dead, ..Shard::default() };
    }
    let offset = Offset(shard.committed());
    Message::GroupPosition(GroupPosition { offset, moved: !stays, request_id })
}

fn extend(shard: &mut Shard, offset: u64, attempts: u32, millis: u64) -> Result<u64, No> {
    let held = shard.held.get_mut(&offset).filter(|held| held.attempts == attempts).ok_or_else(stale)?;
    let millis = millis.min(12 * 3_600_000);
    held.until = Instant::now() + Duration::from_millis(millis);
    Ok(millis)
}

fn settle(shard: &mut Shard, message: &Message<'_>, tail: u64) -> Result<(), No> {
    match message {
        Message::GroupAck(m) => {
            let offset = m.offset.get();
            if offset >= tail {
                return Err(No::Code(ErrorCode::InvalidRequest, None));
            }
            let known = shard.held.remove(&offset).is_some() || shard.owed.remove(&offset).is_some();
            if !known && !shard.finished.contains(&offset) {
                return Err(stale());
            }
            shard.finished.insert(offset);
            Ok(())
        }
        Message::GroupNack(m) => {
            let offset = m.offset.get();
            let held = shard.held.get(&offset).ok_or_else(stale)?;
            if m.attempts != 0 && m.attempts != held.attempts {
                return Err(stale());
            }
            let attempts = shard.held.remove(&offset).expect("held").attempts;
            shard.give_back(offset, attempts, Instant::now() + Duration::from_millis(m.delay_ms));
            Ok(())
        }
        Message::GroupDeadLetter(m) => {
            shard.held.remove(&m.offset.get());
            shard.finished.insert(m.offset.get());
            shard.dead.insert(m.offset.get());
            Ok(())
        }
        Message::GroupDiscard(m) | Message::GroupRedrive(m) => {
            if !shard.dead.remove(&m.offset.get()) {
                return Err(No::Code(ErrorCode::NotFound, None));
            }
            if matches!(message, Message::GroupRedrive(_)) {
                shard.owed.insert(m.offset.get(), (0, Instant::now()));
            }
            Ok(())
        }
        _ => Err(No::Code(ErrorCode::InvalidRequest, None)),
    }
}
