//! A log in memory, for the tests of projections: batches with offsets, pages, a start that moves.

use felix_logstore::checksum::Epoch;
use felix_logstore::id::Lineage;
use felix_logstore::record::{Batch, BatchHead, BatchKind, Encoder};
use felix_wire::id::{Generation, Offset, ProducerId, Sequence};

#[derive(Debug, Clone, Default)]
pub struct TestLog {
    pub batches: Vec<Batch>,
    pub start: Offset,
    pub end: Offset,
}

impl TestLog {
    /// Appends a batch; gives its first offset.
    pub fn append(&mut self, payloads: &[Vec<u8>], now_ms: u64) -> Offset {
        self.append_as(BatchKind::Data, payloads, now_ms, None)
    }

    pub fn append_as(
        &mut self,
        kind: BatchKind,
        payloads: &[Vec<u8>],
        now_ms: u64,
        producer: Option<(ProducerId, Sequence)>,
    ) -> Offset {
        let base = self.end;
        let head = BatchHead {
            kind,
            base,
            count: payloads.len() as u32,
            generation: Generation(1),
            lineage: Lineage(1),
            durable_end: base,
            timestamp_ms: now_ms,
            producer,
        };
        let mut encoder = Encoder::new(head, Epoch(7), payloads.iter().map(Vec::len).sum());
        payloads.iter().for_each(|payload| encoder.push(now_ms, payload));
        self.batches.push(encoder.finish());
        self.end = Offset(base.0 + payloads.len() as u64);
        base
    }

    /// Up to `count` batches from the one that holds `from`, and where they end. None below the start.
    pub fn page(&self, from: Offset, count: usize) -> Option<(Vec<Batch>, Offset)> {
        (from >= self.start).then(|| {
            let behind = self.batches.iter().filter(|batch| batch.head().end() > from);
            let batches: Vec<Batch> = behind.take(count).cloned().collect();
            let end = batches.last().map_or(self.end, |batch| batch.head().end());
            (batches, end)
        })
    }

    /// The payload of one record.
    pub fn record(&self, at: Offset) -> Option<bytes::Bytes> {
        let mut records = self.batches.iter().flat_map(Batch::records);
        records.find(|record| record.offset == at).map(|record| record.payload)
    }

    /// Whole batches below `start` go.
    pub fn trim(&mut self, start: Offset) {
        self.start = self.start.max(start);
        self.batches.retain(|batch| batch.head().end() > start);
    }

    pub fn bytes(&self) -> u64 {
        self.batches.iter().map(|batch| batch.bytes().len() as u64).sum()
    }

    /// The log as if it ended at `end`; batches that reach above it are not there.
    pub fn prefix(&self, end: Offset) -> TestLog {
        let mut log = self.clone();
        log.batches.retain(|batch| batch.head().end() <= end);
        log.end = log.batches.last().map_or(log.start, |batch| batch.head().end());
        log
    }
}
