//! One reader: a connection that subscribes to every shard of the run and checks what comes. Scope: one per connection.
//! Owns: the subscribing streams, the event streams, the next record that each of them expects of each publishing stream.
//! Invariants: every record of the run is counted as delivered, missing or repeated; shards are subscribed to one after
//! the other, so a connection that has not authenticated holds one stream.
//! Not here: the stamps' layout (`frames`).

use std::collections::HashMap;

use bytes::{Bytes, BytesMut};
use felix_runtime::Tick;
use felix_runtime::quic::{ConnKey, Quic, ReadOutcome, StreamId};
use felix_wire::client::{EventBatch, Message, StartPosition, Subscribe};
use felix_wire::flags::Flags;
use felix_wire::frame::FrameReader;
use felix_wire::id::ShardIndex;
use felix_wire::limits::FRAME_PAYLOAD_MAX;

use super::LoadError;
use super::ask::unexpected;
use super::frames::Stamp;
use super::window::Window;
use crate::target::Target;

/// Bytes of events taken at once.
const READ_BYTES: usize = 1 << 20;

/// What a reader saw in the whole run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReaderCounts {
    pub delivered: u64,
    pub missing: u64,
    pub repeated: u64,
    /// Event streams that ended.
    pub ended: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Reader {
    pub key: ConnKey,
    shards: u32,
    /// Subscriptions to have, the same number to each shard.
    wanted: u32,
    /// Those that are there; below `wanted` while the run is being set up.
    subscribed: u32,
    /// The stream that asks for the next one.
    asking: Option<(StreamId, FrameReader)>,
    events: HashMap<StreamId, Events, foldhash::fast::RandomState>,
    lanes: usize,
    chunks: Vec<Bytes>,
    pub counts: ReaderCounts,
}

/// What comes of one subscription.
#[derive(Debug)]
struct Events {
    frames: FrameReader,
    /// By publishing stream: number of the next record.
    next: Vec<u64>,
}

impl Reader {
    /// A reader of `shards` shards that `lanes` streams publish to, which subscribes to each of them `subscriptions` times.
    #[must_use]
    pub fn new(key: ConnKey, shards: u32, subscriptions: u32, lanes: u32) -> Reader {
        Reader {
            key,
            shards,
            wanted: shards * subscriptions,
            subscribed: 0,
            asking: None,
            events: HashMap::default(),
            lanes: lanes as usize,
            chunks: Vec::new(),
            counts: ReaderCounts::default(),
        }
    }

    #[must_use]
    pub fn is_subscribed(&self) -> bool {
        self.subscribed == self.wanted
    }

    /// Records that were delivered or passed over.
    #[must_use]
    pub fn accounted(&self) -> u64 {
        self.counts.delivered + self.counts.missing
    }

    /// Opens a stream for the next shard if one is due and allowed; again when more streams are allowed.
    pub fn ask_next(&mut self, quic: &mut Quic, auth: &Bytes) {
        if self.asking.is_some() || self.is_subscribed() {
            return;
        }
        let Some(stream) = quic.open_bi(self.key) else { return };
        let mut auth = auth.clone();
        // A fresh stream has room for one small frame.
        quic.write(self.key, stream, &mut auth);
        self.asking = Some((stream, FrameReader::new(FRAME_PAYLOAD_MAX)));
    }

    /// Reads a stream of this connection.
    ///
    /// # Errors
    /// A subscription was refused, or what came is no event of this run.
    pub fn read(
        &mut self,
        stream: StreamId,
        (quic, now): (&mut Quic, Tick),
        (target, auth): (&Target, &Bytes),
        window: &mut Window,
    ) -> Result<(), LoadError> {
        if self.asking.as_ref().is_some_and(|(asking, _)| *asking == stream) {
            return self.read_answers(quic, target, auth);
        }
        if stream.dir() == felix_runtime::quic::Dir::Bi {
            // The answered question's end.
            while let ReadOutcome::Data(_) = quic.read(self.key, stream, READ_BYTES) {}
            return Ok(());
        }
        self.read_events(stream, quic, now, window)
    }

    fn read_answers(&mut self, quic: &mut Quic, target: &Target, auth: &Bytes) -> Result<(), LoadError> {
        while let Some((stream, reader)) = &mut self.asking {
            let stream = *stream;
            if let Some(frame) = reader.next().map_err(|error| LoadError::Protocol(error.to_string()))? {
                match Message::decode(&frame.payload)
                    .map_err(|error| LoadError::Protocol(error.to_string()))?
                {
                    Message::AuthOk(_) | Message::Ok => {
                        let mut question =
                            subscribe_frame(target, self.subscribed % self.shards, StartPosition::Latest);
                        quic.write(self.key, stream, &mut question);
                        quic.finish(self.key, stream);
                    }
                    Message::Subscribed(_) => {
                        self.subscribed += 1;
                        self.asking = None;
                        self.ask_next(quic, auth);
                    }
                    other => return Err(unexpected("subscribe", &other)),
                }
                continue;
            }
            match quic.read(self.key, stream, READ_BYTES) {
                ReadOutcome::Data(chunk) => reader.push(chunk),
                ReadOutcome::Blocked => return Ok(()),
                end => return Err(LoadError::Closed(format!("a subscription was not answered: {end:?}"))),
            }
        }
        Ok(())
    }

    fn read_events(
        &mut self,
        stream: StreamId,
        quic: &mut Quic,
        now: Tick,
        window: &mut Window,
    ) -> Result<(), LoadError> {
        loop {
            let (_, end) = quic.read_into(self.key, stream, READ_BYTES, &mut self.chunks);
            let lanes = self.lanes;
            let events = self.events.entry(stream).or_insert_with(|| Events {
                frames: FrameReader::new(FRAME_PAYLOAD_MAX),
                next: vec![0; lanes],
            });
            self.chunks.drain(..).for_each(|chunk| events.frames.push(chunk));
            while let Some(frame) =
                events.frames.next().map_err(|error| LoadError::Protocol(error.to_string()))?
            {
                if Flags(frame.flags).intersects(Flags::EVENT_BATCH | Flags::EVENT_BATCH_SHARED) {
                    let batch = EventBatch::decode(frame.flags, &frame.payload)
                        .map_err(|error| LoadError::Protocol(error.to_string()))?;
                    count(&batch, &mut events.next, &mut self.counts, (now, window))?;
                } else if !matches!(Message::decode(&frame.payload), Ok(Message::EventStreamHello(_))) {
                    self.counts.ended += 1;
                }
            }
            match end {
                None => {}
                Some(ReadOutcome::Blocked) => return Ok(()),
                Some(_) => {
                    self.events.remove(&stream);
                    return Ok(());
                }
            }
        }
    }
}

/// Compares a batch with what was expected.
fn count(
    batch: &EventBatch,
    next: &mut [u64],
    counts: &mut ReaderCounts,
    (now, window): (Tick, &mut Window),
) -> Result<(), LoadError> {
    for event in batch.iter() {
        let stamp = Stamp::read(&event.payload);
        let slot = stamp.and_then(|stamp| next.get_mut(stamp.lane as usize).map(|next| (stamp, next)));
        let Some((stamp, next)) = slot else {
            return Err(LoadError::Protocol("a record that this run did not publish".to_owned()));
        };
        if stamp.number < *next {
            counts.repeated += 1;
            continue;
        }
        counts.missing += stamp.number - *next;
        counts.delivered += 1;
        *next = stamp.number + 1;
        if window.is_open() {
            window.latencies.delivery.record(now.saturating_since(stamp.due));
        }
    }
    Ok(())
}

/// The request for one shard from `start` on.
pub(super) fn subscribe_frame(target: &Target, shard: u32, start: StartPosition) -> Bytes {
    let mut out = BytesMut::new();
    Message::Subscribe(Subscribe {
        tenant_id: target.tenant.as_str().into(),
        namespace: target.namespace.as_str().into(),
        stream: target.stream.as_str().into(),
        subscription_id: None,
        start: Some(start),
        shard: (shard > 0).then_some(ShardIndex(shard)),
        queue_capacity: None,
    })
    .encode_frame(&mut out);
    out.freeze()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn stamped(lane: u32, numbers: &[u64]) -> EventBatch {
        let records = numbers.iter().map(|number| {
            let mut record = lane.to_be_bytes().to_vec();
            record.extend_from_slice(&number.to_be_bytes());
            record.extend_from_slice(&7_u64.to_be_bytes());
            record
        });
        EventBatch::new(felix_wire::client::Records::from_payloads(records))
    }

    #[test]
    fn gaps_and_repetitions_are_counted_by_number() {
        let mut window = Window::new(Tick::ZERO, Duration::ZERO, Duration::from_secs(1), None);
        let (mut next, mut counts) = (vec![0; 2], ReaderCounts::default());
        for (lane, numbers) in [(0, &[0, 1, 2][..]), (1, &[0]), (0, &[5, 6]), (0, &[6, 7]), (1, &[1])] {
            count(&stamped(lane, numbers), &mut next, &mut counts, (Tick(9), &mut window)).unwrap();
        }
        assert_eq!(counts, ReaderCounts { delivered: 8, missing: 2, repeated: 1, ended: 0 });
        assert_eq!(next, [8, 2]);
    }

    #[test]
    fn a_record_of_somebody_else_fails_the_run() {
        let mut window = Window::new(Tick::ZERO, Duration::ZERO, Duration::from_secs(1), None);
        let mut counts = ReaderCounts::default();
        let foreign = stamped(2, &[0]);
        assert!(count(&foreign, &mut [0, 0], &mut counts, (Tick(9), &mut window)).is_err());
    }
}
