//! Publish frames made once and sent many times. Scope: one per publishing stream.
//! Owns: the bytes in front of the records, the records themselves, the stamps that readers check.
//! Invariants: without stamps every batch shares one run of records, so a batch costs the generator its head alone.
//! Not here: when a batch is sent (`lane`).

use bytes::{BufMut, Bytes, BytesMut};
use felix_runtime::Tick;
use felix_wire::client::{AckMode, EncodeError, PublishHead, RECORD_PREFIX_LEN, encode_publish_head};
use felix_wire::frame::HEADER_LEN;
use felix_wire::id::RequestId;

/// Stream number, record number, the moment the batch was due.
pub const STAMP_BYTES: usize = 4 + 8 + 8;
/// Runs up to this size are copied behind their head: one piece is cheaper to send than two.
const JOIN_BYTES: usize = 1_024;
/// Heads are cut from blocks of this size.
const BLOCK_BYTES: usize = 64 << 10;

/// What readers find at the front of each record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Number of the publishing stream.
    pub lane: u32,
    /// Number of the record on that stream, from 0.
    pub number: u64,
    /// When its batch was due; by the clock of the generator's process.
    pub due: Tick,
}

impl Stamp {
    fn bytes(self) -> [u8; STAMP_BYTES] {
        let mut bytes = [0; STAMP_BYTES];
        let mut rest = bytes.as_mut_slice();
        rest.put_u32(self.lane);
        rest.put_u64(self.number);
        rest.put_u64(self.due.as_nanos());
        bytes
    }

    /// Reads the stamp of a record; `None` when the record is too short to have one.
    #[must_use]
    pub fn read(record: &[u8]) -> Option<Stamp> {
        let (lane, rest) = record.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (due, _) = rest.split_first_chunk()?;
        Some(Stamp {
            lane: u32::from_be_bytes(*lane),
            number: u64::from_be_bytes(*number),
            due: Tick(u64::from_be_bytes(*due)),
        })
    }
}

/// Where a stream's batches go and what they look like.
#[derive(Debug, Clone)]
pub struct FrameSpec<'a> {
    pub tenant: &'a str,
    pub namespace: &'a str,
    pub stream: &'a str,
    pub key: Option<&'a [u8]>,
    pub acked: bool,
    pub record_bytes: u32,
    pub batch_records: u32,
    /// Number of the publishing stream when its records are stamped.
    pub stamp_lane: Option<u32>,
}

/// The frames of one stream.
#[derive(Debug)]
pub struct Frames {
    head: Bytes,
    /// The same with room for a request id, for the last batch of a stream whose publishes are not answered.
    acked_head: Bytes,
    run: Bytes,
    stride: usize,
    batch_records: u32,
    stamp_lane: Option<u32>,
    block: BytesMut,
}

impl Frames {
    /// # Errors
    /// A name or key that no frame can carry.
    pub fn new(spec: &FrameSpec<'_>) -> Result<Frames, EncodeError> {
        let stride = RECORD_PREFIX_LEN + spec.record_bytes as usize;
        let mut run = BytesMut::with_capacity(stride * spec.batch_records as usize);
        let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
        for _ in 0..spec.batch_records {
            run.put_u32(spec.record_bytes);
            run.extend((0..spec.record_bytes).map(|_| noise.next()));
        }
        let head = |acked: bool| {
            let head = PublishHead {
                tenant: spec.tenant,
                namespace: spec.namespace,
                stream: spec.stream,
                key: spec.key,
                acked: acked.then_some((RequestId(0), AckMode::PerBatch)),
                producer: None,
            };
            let mut out = BytesMut::new();
            encode_publish_head(&head, spec.batch_records, run.len(), &mut out)?;
            // The encoder makes room for the run as well.
            Ok(Bytes::copy_from_slice(&out))
        };
        Ok(Frames {
            head: head(spec.acked)?,
            acked_head: head(true)?,
            run: run.freeze(),
            stride,
            batch_records: spec.batch_records,
            stamp_lane: spec.stamp_lane,
            block: BytesMut::new(),
        })
    }

    /// One batch: the frame in one or two pieces. `request` is its id when it is to be answered, `first` the number of
    /// its first record.
    pub fn batch(&mut self, request: Option<RequestId>, first: u64, due: Tick) -> [Bytes; 2] {
        let template = if request.is_some() { &self.acked_head } else { &self.head };
        let joined = self.stamp_lane.is_some() || self.run.len() <= JOIN_BYTES;
        let len = template.len() + if joined { self.run.len() } else { 0 };
        if self.block.capacity() < len {
            self.block = BytesMut::with_capacity(len.max(BLOCK_BYTES));
        }
        self.block.extend_from_slice(template);
        if let Some(RequestId(id)) = request {
            // The id is the first thing of an acked publish (client-protocol 10.2).
            self.block[HEADER_LEN..HEADER_LEN + 8].copy_from_slice(&id.to_be_bytes());
        }
        if !joined {
            return [self.block.split().freeze(), self.run.clone()];
        }
        let start = self.block.len();
        self.block.extend_from_slice(&self.run);
        if let Some(lane) = self.stamp_lane {
            for index in 0..self.batch_records {
                let stamp = Stamp { lane, number: first + u64::from(index), due };
                let at = start + self.stride * index as usize + RECORD_PREFIX_LEN;
                self.block[at..at + STAMP_BYTES].copy_from_slice(&stamp.bytes());
            }
        }
        [self.block.split().freeze(), Bytes::new()]
    }
}

/// Bytes without a pattern, the same ones every time.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u8 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 56) as u8
    }
}

#[cfg(test)]
mod tests {
    use felix_wire::client::BinaryPublish;
    use felix_wire::frame::FrameReader;

    use super::*;

    const SPEC: FrameSpec<'static> = FrameSpec {
        tenant: "t",
        namespace: "n",
        stream: "s",
        key: Some(b"k1"),
        acked: false,
        record_bytes: 100,
        batch_records: 3,
        stamp_lane: None,
    };

    fn decode(pieces: [Bytes; 2]) -> (u16, Bytes) {
        let mut reader = FrameReader::new(1 << 20);
        pieces.into_iter().for_each(|piece| reader.push(piece));
        let frame = reader.next().unwrap().expect("a whole frame");
        assert_eq!(reader.buffered_bytes(), 0, "nothing behind it");
        (frame.flags, frame.payload)
    }

    #[test]
    fn a_batch_is_the_frame_the_protocol_describes() {
        for (record_bytes, stamp_lane) in [(100, None), (4_096, None), (100, Some(3)), (4_096, Some(3))] {
            let mut frames = Frames::new(&FrameSpec { record_bytes, stamp_lane, ..SPEC }).unwrap();
            for request in [None, Some(RequestId(77)), None] {
                let (flags, payload) = decode(frames.batch(request, 30, Tick(9)));
                let publish = BinaryPublish::decode(flags, &payload).unwrap();
                assert_eq!((publish.tenant, publish.namespace, publish.stream), ("t", "n", "s"));
                assert_eq!((publish.key, publish.acked.map(|(id, _)| id)), (Some(&b"k1"[..]), request));
                assert_eq!(publish.records.count(), 3);
                assert_eq!(publish.records.payload_bytes(), 3 * record_bytes as usize);
                for (index, record) in publish.records.iter().enumerate() {
                    let stamp = Stamp { lane: 3, number: 30 + index as u64, due: Tick(9) };
                    assert!(stamp_lane.is_none() || Stamp::read(record) == Some(stamp));
                }
            }
        }
    }

    #[test]
    fn a_record_too_short_has_no_stamp() {
        assert_eq!(Stamp::read(&[0; STAMP_BYTES - 1]), None);
        assert!(Stamp::read(&[0; STAMP_BYTES]).is_some());
    }
}
