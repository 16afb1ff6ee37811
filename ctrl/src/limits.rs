//! Every bound of the control plane, each with its reason.

use std::time::Duration;

/// Shards of one stream or cache: creating or deleting one writes a row and a change for each, in one batch.
pub const SHARDS_MAX: u32 = 16_384;
/// Copies of one shard, leader included.
pub const REPLICATION_MAX: u32 = 16;
/// Longest display name, region, zone, label, address or feature name, in bytes.
pub const TEXT_BYTES_MAX: usize = 512;
/// Labels of a node, and feature names it may report.
pub const NODE_ITEMS_MAX: usize = 64;
/// Entries of each list in a bootstrap request.
pub const BOOTSTRAP_ITEMS_MAX: usize = 1_024;
/// Permissions in one minted token: a token must fit the frame a broker reads before authentication (64 KiB).
pub const TOKEN_PERMISSIONS_MAX: usize = 256;
/// Longest life of a minted token.
pub const TOKEN_TTL_MAX: Duration = Duration::from_secs(30 * 24 * 3_600);
/// Longest token read from a request; hyper's own bound on a request head is larger.
pub const TOKEN_BYTES_MAX: usize = 64 << 10;
/// Largest request body. A batch of 256 resources is far below.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// Items of one batch creation (control-plane-api 4.4).
pub const BATCH_ITEMS_MAX: usize = 256;
/// Page sizes (control-plane-api 1.3).
pub const PAGE_ITEMS_MAX: usize = 10_000;
pub const PAGE_ITEMS_DEFAULT: usize = 1_000;
/// Connections open at one listener; one more waits to be accepted.
pub const CONNECTIONS_MAX: usize = 1_024;
/// From the first byte of a request head, or the end of the request before, to the end of the head.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// A request, from its head to its answer. Above the longest wait for a change.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(40);
const _: () = assert!(REQUEST_TIMEOUT.as_secs() > crate::feed::WAIT_MAX.as_secs());
