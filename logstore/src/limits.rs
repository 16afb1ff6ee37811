//! Every bound of the log, with its reason. Scope: constants.
//! Not here: sizes that are configuration (`engine::Config`, `log::LogConfig`).

use felix_runtime::file::BLOCK_BYTES;

/// The block as a length on disk.
pub const BLOCK: u64 = BLOCK_BYTES as u64;

/// Records of one batch, so that their count fits every place that adds one to it.
pub const BATCH_RECORDS_MAX: u32 = 65_536;

/// Bytes of one batch, its head included: what a reader must be ready to hold at once.
pub const BATCH_BYTES_MAX: u32 = 16 << 20;

/// Bytes up to which a batch grows by records that are appended one by one: whoever wants one of them reads all.
pub const GROWN_BYTES_MAX: usize = 4 << 10;

/// Batches begin on this many bytes, so that a search after damage need not look at every byte.
pub const BATCH_ALIGN: usize = 8;

/// The smallest segment; sizes double from here.
pub const SEGMENT_BYTES_MIN: u64 = 64 << 10;

/// The largest segment.
pub const SEGMENT_BYTES_MAX: u64 = 256 << 20;

/// Slots an engine needs: one open, one being spilled, one waiting, one ready.
pub const SLOTS_MIN: usize = 4;

/// The smallest slot.
pub const SLOT_BYTES_MIN: u64 = 1 << 20;

/// Part of a slot that the first round may take for the marks of all shards.
pub const MARKS_SHARE: u64 = 4;

/// Offsets from one ceiling to the next (streams that acknowledge before they sync).
pub const CEILING_STEP: u64 = 65_536;

/// A piece from here on is written straight to its segment instead of into the commit file.
pub const DIRECT_BYTES: usize = 64 << 10;

/// The same while spilling is behind.
pub const DIRECT_BYTES_BEHIND: usize = 16 << 10;

/// A piece of so many bytes need not wait until fewer than two others of its log are on their way.
pub const DEEP_BYTES: usize = 128 << 10;

/// What one piece takes at most, unless a single batch is larger.
pub const PIECE_BYTES_MAX: usize = 1 << 20;

/// How far behind an unreadable batch recovery looks for one that shows that it had been durable: a whole batch and more.
pub const EVIDENCE_SEARCH_BYTES: u64 = 20 << 20;

/// Bytes per entry of a sparse index.
pub const INDEX_SPACING: u64 = 64 << 10;

const _: () =
    assert!(BATCH_BYTES_MAX as u64 + BLOCK <= SEGMENT_BYTES_MAX, "a segment is never smaller than a batch");
const _: () = assert!(DIRECT_BYTES_BEHIND as u64 >= BLOCK, "a direct write is at least a block");
