//! What the test broker remembers of producers, by the table of client-protocol 10.8.

use std::collections::HashMap;

use felix_sdk::Bytes;
use felix_wire::client::RefusalReason;
use felix_wire::id::Sequence;

/// Batches a shard remembers of one producer.
const REMEMBERED: usize = 64;

/// Offset and records.
type Batch = (u64, Vec<Bytes>);

/// By shard and producer: its batches, in order.
#[derive(Debug, Default)]
pub struct Producers(HashMap<(u32, u64), Vec<Batch>>);

impl Producers {
    /// Where a batch is that came before; `None` when it must be appended.
    pub fn find(
        &self,
        (shard, producer): (u32, u64),
        sequence: u64,
        records: &[Bytes],
    ) -> Result<Option<u64>, RefusalReason<'static>> {
        let Some(batches) = self.0.get(&(shard, producer)) else {
            return if sequence == 0 { Ok(None) } else { Err(RefusalReason::UnknownProducer) };
        };
        let expected = batches.len();
        match usize::try_from(sequence).expect("few batches") {
            at if at > expected => Err(RefusalReason::SequenceGap { expected: Sequence(expected as u64) }),
            at if at == expected => Ok(None),
            at if at + REMEMBERED < expected => Err(RefusalReason::SequenceExpired),
            at if batches[at].1 != records => Err(RefusalReason::SequenceReused),
            at => Ok(Some(batches[at].0)),
        }
    }

    pub fn appended(&mut self, (shard, producer): (u32, u64), base: u64, records: Vec<Bytes>) {
        self.0.entry((shard, producer)).or_default().push((base, records));
    }

    pub fn forget(&mut self) {
        self.0.clear();
    }
}
