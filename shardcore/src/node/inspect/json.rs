//! A report for programs. Scope: functions.
//! Invariants: field names and codes never change; offsets and counts are numbers, hashes and epochs hexadecimal text.
//! Not here: what is in the report.

use std::path::Path;

use felix_logstore::inspect::{BatchRow, Finding, Report, SegmentRow, ShardRow, SlotRow};
use serde_json::{Value, json};

use super::{LogOf, Names, kind_name, log_role_name, policy_name, role_name, severity_name, state_name};
use crate::snapshot::{LogRole, StreamName};

/// One object, with a line end.
pub(super) fn render(dir: &Path, (report, names): (&Report, &Names), with_batches: bool) -> String {
    let mut object = json!({
        "directory": dir.display().to_string(),
        "sound": report.is_sound(),
        "damage_count": report.damage,
        "note_count": report.notes,
        "run": report.run,
        "slots": report.slots.iter().map(slot).collect::<Vec<_>>(),
        "shards": report.shards.iter().map(|row| shard(row, names)).collect::<Vec<_>>(),
        "pool": { "files": report.pool_files, "bytes": report.pool_bytes },
        "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
    });
    if with_batches {
        object["batches"] = report.batches.iter().map(batch).collect();
    }
    format!("{object:#}\n")
}

fn slot(row: &SlotRow) -> Value {
    json!({
        "file": row.file,
        "bytes": row.bytes,
        "run": row.head.map(|head| head.run.0),
        "core": row.head.and_then(|head| head.core).map(|core| core.0),
        "use": row.head.map(|head| head.number),
        "epoch": row.head.map(|head| format!("{:016x}", head.epoch.0)),
        "rounds": row.rounds,
        "first_round": row.first_round,
        "last_round": row.last_round,
        "live_rounds": row.live_rounds,
        "marks": row.marks,
        "pieces": row.pieces,
        "clean": row.clean,
    })
}

fn shard(row: &ShardRow, names: &Names) -> Value {
    let of = names.get(&row.key.name);
    let named = |roles: [LogRole; 2], what: &str| {
        let LogOf { name: StreamName { tenant, namespace, stream }, shard, .. } =
            of.filter(|of| roles.contains(&of.role))?;
        Some(json!({ "tenant": **tenant, "namespace": **namespace, what: **stream, "shard": shard.0 }))
    };
    json!({
        "stream": named([LogRole::Records, LogRole::Groups], "stream"),
        "cache": named([LogRole::Cache, LogRole::Counters], "cache"),
        "log": of.map(|of| log_role_name(of.role)),
        "shard": row.key.to_string(),
        "hash": format!("{:032x}", row.key.name),
        "incarnation": row.key.incarnation.0,
        "state": state_name(row.state),
        "fsync": policy_name(row.policy),
        "lineage": row.lineage.0,
        "start": row.start.0,
        "end": row.end.0,
        "batches": row.batches,
        "records": row.records,
        "bytes": row.bytes,
        "segment_count": row.segment_count(),
        "segments": row.segments.iter().map(segment).collect::<Vec<_>>(),
    })
}

fn segment(row: &SegmentRow) -> Value {
    json!({
        "segment": format!("{:016x}", row.seq.0),
        "role": role_name(row.role),
        "base": row.base.0,
        "end": row.end.0,
        "end_byte": row.end_byte,
        "bytes": row.bytes,
        "lineage": row.lineage.0,
        "batches": row.batches,
        "records": row.records,
        "newest_ms": row.newest_ms,
        "damage_count": row.damage,
    })
}

fn batch(row: &BatchRow) -> Value {
    json!({
        "shard": row.key.to_string(),
        "segment": format!("{:016x}", row.segment.0),
        "byte": row.byte,
        "bytes": row.bytes,
        "kind": kind_name(row.kind),
        "base": row.base.0,
        "count": row.count,
        "generation": row.generation.0,
        "lineage": row.lineage.0,
        "durable_end": row.durable_end.0,
        "timestamp_ms": row.timestamp_ms,
        "producer": row.producer.map(|(producer, _)| producer.0),
        "sequence": row.producer.map(|(_, sequence)| sequence.0),
    })
}

fn finding(found: &Finding) -> Value {
    let offsets = found.what.offsets();
    json!({
        "severity": severity_name(found.severity),
        "code": found.what.code(),
        "shard": found.shard.map(|key| key.to_string()),
        "segment": found.segment.map(|seq| format!("{:016x}", seq.0)),
        "file": found.file,
        "byte": found.byte,
        "from_offset": offsets.map(|(from, _)| from.0),
        "to_offset": offsets.map(|(_, to)| to.0),
        "message": found.what.to_string(),
    })
}
