//! Writing planned seats. Scope: decisions over rows, no state of its own.
//! Owns: generations of assignments. Invariants: a seat is written only if the shard is still at the generation the plan
//! was made on, its stream is the same life, and the placement token is still the planner's; each write takes the next
//! generation, and a generation of one shard is never used twice, also over a deletion (I20).
//! Not here: where shards should go (`placement`), ending assignments (`catalog`).

use felix_wire::control::{Assignment, AssignmentChange, AssignmentOp, Cache, ResourceKind, Stream};

use crate::feed::Feed;
use crate::ledger::{Counter, Tx, WriteError};
use crate::placement::PlannedSeat;
use crate::row;
use crate::store::StoreError;

/// Seats written in one batch: bounds the batch, not the plan.
pub const SEATS_PER_WRITE_MAX: usize = 4_096;

/// The right to write plans, taken once per process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacementToken(u64);

/// What became of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    pub written: usize,
    /// Decided on a state that is over: decide again.
    pub stale: usize,
}

/// Why a plan was not written.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Another process places now.
    #[error("another process took over placement")]
    Fenced,
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl From<StoreError> for ApplyError {
    fn from(e: StoreError) -> ApplyError {
        ApplyError::Write(e.into())
    }
}

/// Takes placement over: plans made under any earlier token are refused from here on.
pub fn take_over(tx: &mut Tx<'_>) -> Result<PlacementToken, WriteError> {
    let next = tx.counter(Counter::PlacementToken)? + 1;
    tx.raise(Counter::PlacementToken, next)?;
    Ok(PlacementToken(next))
}

/// Writes the seats that are still wanted and skips the stale ones.
pub fn apply(tx: &mut Tx<'_>, token: PlacementToken, seats: &[PlannedSeat]) -> Result<Applied, ApplyError> {
    if tx.counter(Counter::PlacementToken)? != token.0 {
        return Err(ApplyError::Fenced);
    }
    let floor = tx.counter(Counter::GenerationFloor)?;
    let mut applied = Applied::default();
    for seat in seats {
        let key = row::assignment(&seat.key);
        let current: Option<Assignment> = tx.get(&key)?;
        let same_state = current.as_ref().map(|a| a.generation) == seat.replaces;
        if !same_state || incarnation_of(tx, seat)? != Some(seat.incarnation) {
            applied.stale += 1;
            continue;
        }
        assert!(!seat.replicas.contains(&seat.leader), "a leader does not follow itself");
        let assignment = Assignment {
            key: seat.key.clone(),
            leader: seat.leader.clone(),
            replicas: seat.replicas.clone(),
            generation: seat.replaces.unwrap_or(floor) + 1,
            state: seat.state,
            successor: None,
            joining: None,
            move_started_at_millis: None,
            move_reason: None,
            routing: seat.routing,
            incarnation: seat.incarnation,
        };
        tx.put(key, &assignment);
        let op = if current.is_some() { AssignmentOp::Updated } else { AssignmentOp::Assigned };
        tx.append(Feed::Assignments, |seq| AssignmentChange {
            seq,
            op,
            key: seat.key.clone(),
            generation: assignment.generation,
            incarnation: assignment.incarnation,
            assignment: Some(assignment),
        })?;
        applied.written += 1;
    }
    Ok(applied)
}

/// Incarnation of the life the seat's name has now.
fn incarnation_of(tx: &mut Tx<'_>, seat: &PlannedSeat) -> Result<Option<u64>, StoreError> {
    let key = &seat.key;
    Ok(match key.kind {
        ResourceKind::Stream => tx
            .get::<Stream>(&row::stream(&key.tenant_id, &key.namespace, &key.stream))?
            .map(|stream| stream.incarnation),
        ResourceKind::Cache => tx
            .get::<Cache>(&row::cache(&key.tenant_id, &key.namespace, &key.stream))?
            .map(|cache| cache.incarnation),
    })
}

#[cfg(test)]
mod tests;
