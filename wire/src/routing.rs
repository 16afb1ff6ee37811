//! From a routing key to the shard of its stream or cache (client-protocol 9). Pure; client and broker must agree
//! on every bit.
//! Not here: which node or core owns the shard.

use serde::{Deserialize, Serialize};

use crate::id::ShardIndex;

/// How a key hash becomes a shard. Fixed when a stream is created; caches always use `Modulo`.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyMapping {
    /// Hash modulo the number of shards.
    #[default]
    Modulo,
    /// Jump consistent hash: widening moves only the keys it must.
    JumpHash,
}

impl KeyMapping {
    /// True for the mapping that messages leave out.
    #[must_use]
    pub fn is_modulo(&self) -> bool {
        *self == Self::Modulo
    }
}

/// 64-bit FNV-1a of the key, finished with two multiply-xorshift rounds. No seed.
#[must_use]
pub fn key_hash(key: &[u8]) -> u64 {
    let mut h: u64 = 0xcbf2_9ce4_8422_2325;
    for &byte in key {
        h = (h ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    h = (h ^ (h >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    h = (h ^ (h >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    h ^ (h >> 31)
}

/// The shard of a record with this key among `shards`. Without a key, and with 0 or 1 shards, it is shard 0.
/// The empty key is a key. The result is below `max(shards, 1)`.
#[must_use]
pub fn shard_for(key: Option<&[u8]>, shards: u32, mapping: KeyMapping) -> ShardIndex {
    let Some(key) = key else { return ShardIndex(0) };
    if shards <= 1 {
        return ShardIndex(0);
    }
    let hash = key_hash(key);
    match mapping {
        // The remainder is below `shards`, so it fits.
        KeyMapping::Modulo => ShardIndex((hash % u64::from(shards)) as u32),
        KeyMapping::JumpHash => ShardIndex(jump(hash, shards)),
    }
}

/// Jump consistent hash of `h` over `shards` > 1 buckets, with the doubles the protocol prescribes.
fn jump(mut h: u64, shards: u32) -> u32 {
    let width = i64::from(shards);
    let mut bucket = 0_i64;
    let mut next = 0_i64;
    while next < width {
        bucket = next;
        h = h.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        let step = 2_147_483_648.0_f64 / ((h >> 33) + 1) as f64;
        next = ((bucket + 1) as f64 * step) as i64;
    }
    // `bucket` is below `width`, which came from a u32.
    bucket as u32
}
