//! Atomic commits to a stream, and the keyed state that they make. Scope: per handle.
//! Owns: the producers that number commits, so that one that is sent again is made once.
//! Not here: how a request gets there (`request`).

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use felix_wire::client::{Change as WireChange, Commit as WireCommit, Message, ShardKind, StateGet};
use felix_wire::features::Features;
use felix_wire::id::{Offset, RequestId, ShardIndex};
use felix_wire::limits::KEY_LEN_MAX;

use crate::client::Client;
use crate::error::Error;
use crate::name::StreamName;
use crate::request::{Ask, ConditionError, Numbers, Place, Repeat, RequestError, Written};

/// The keyed state of a stream. Clones share everything.
#[derive(Clone)]
pub struct State {
    place: Arc<Place>,
    numbers: Arc<Numbers>,
}

/// A value of keyed state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateEntry {
    /// The value; `None` when the key has none.
    pub value: Option<Bytes>,
    /// The offset of the commit that wrote it.
    pub version: Option<Offset>,
    /// The offset of the last commit that the answer reflects.
    pub as_of: Option<Offset>,
}

/// Where a commit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// The shard.
    pub shard: u32,
    /// The offset of its event, and the version of what it wrote.
    pub offset: Offset,
}

/// One change of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Change {
    Put(String, Bytes),
    Delete(String),
}

impl Client {
    /// The keyed state of a stream, which must be on disk. Nothing is asked yet.
    ///
    /// # Errors
    /// [`Error::Config`] when the name has no namespace and the client no default.
    pub fn state(&self, stream: impl Into<StreamName>) -> Result<State, Error> {
        let place = Place::new(self.shared.clone(), stream.into(), ShardKind::Stream)?;
        Ok(State { place, numbers: Arc::default() })
    }
}

impl State {
    /// A commit of one event and changes of state, all or nothing, on the shard of `entity_key`.
    pub fn commit(&self, entity_key: impl Into<Bytes>, event: impl Into<Bytes>) -> CommitBuilder {
        CommitBuilder {
            state: self.clone(),
            entity_key: entity_key.into(),
            event: event.into(),
            changes: Vec::new(),
            expected: None,
            shard: None,
        }
    }

    /// A value, on the shard of `entity_key`.
    ///
    /// # Errors
    /// As [`RequestError`] says; keys over 65,535 bytes are `Invalid`.
    pub async fn get(&self, entity_key: impl Into<Bytes>, key: &str) -> Result<StateEntry, RequestError> {
        let entity_key = entity_key.into();
        check(entity_key.len())?;
        check(key.len())?;
        let shard = self.place.shard_of(&entity_key).await?;
        let ask = Ask::new("state_get", Features::ATOMIC_COMMIT, shard, Repeat::Read);
        let message = |request_id| {
            let (tenant_id, namespace, stream) = self.names();
            let (entity_key, key) = (entity_key.clone(), Cow::Borrowed(key));
            Message::StateGet(StateGet {
                tenant_id,
                namespace,
                stream,
                entity_key,
                key,
                request_id,
                shard: None,
            })
        };
        let read = |answer: &Message<'_>| match answer {
            Message::StateValue(found) => {
                let entry = StateEntry {
                    value: found.value.clone(),
                    version: found.version.map(Offset),
                    as_of: found.as_of.map(Offset),
                };
                Some((Some(found.request_id), entry))
            }
            _ => None,
        };
        self.place.answer(ask, message, read).await
    }

    fn names(&self) -> (Cow<'_, str>, Cow<'_, str>, Cow<'_, str>) {
        let name = self.place.name();
        (self.place.tenant().into(), name.namespace().into(), name.stream().into())
    }
}

/// A commit that is being put together.
#[must_use = "a commit does nothing until `send`"]
pub struct CommitBuilder {
    state: State,
    entity_key: Bytes,
    event: Bytes,
    changes: Vec<Change>,
    expected: Option<Offset>,
    shard: Option<u32>,
}

impl CommitBuilder {
    /// Sets a key. Changes apply in the order in which they are added.
    pub fn put(mut self, key: impl Into<String>, value: impl Into<Bytes>) -> Self {
        self.changes.push(Change::Put(key.into(), value.into()));
        self
    }

    /// Removes a key.
    pub fn delete(mut self, key: impl Into<String>) -> Self {
        self.changes.push(Change::Delete(key.into()));
        self
    }

    /// Only when the shard's next offset is this one.
    pub fn expect_offset(mut self, offset: Offset) -> Self {
        self.expected = Some(offset);
        self
    }

    /// On this shard, whatever the entity's key is.
    pub fn shard(mut self, shard: u32) -> Self {
        self.shard = Some(shard);
        self
    }

    /// Commits. At a broker that takes numbered commits one whose answer is lost is sent again and made once; elsewhere its
    /// outcome is unknown.
    ///
    /// # Errors
    /// [`ConditionError::OffsetMismatch`] when the shard's next offset is another one, else as [`RequestError`] says; keys
    /// over 65,535 bytes and a shard that is not there are `Invalid`.
    pub async fn send(self) -> Result<Committed, ConditionError> {
        check(self.entity_key.len())?;
        for change in &self.changes {
            let (Change::Put(key, _) | Change::Delete(key)) = change;
            check(key.len())?;
        }
        let place = &self.state.place;
        let shard = match self.shard {
            None => place.shard_of(&self.entity_key).await?,
            Some(shard) => checked_shard(place, shard).await?,
        };
        let mut needs = Features::ATOMIC_COMMIT;
        if self.expected.is_some() {
            needs = needs.union(Features::PUBLISH_CONDITIONAL);
        }
        if self.shard.is_some() {
            needs = needs.union(Features::EXPLICIT_SHARD);
        }
        let ask = Ask::new("commit", needs, shard, Repeat::Twice);
        let message = |request_id, number: Option<_>| {
            let (tenant_id, namespace, stream) = self.state.names();
            let (producer_id, sequence) = number.unzip();
            Message::Commit(WireCommit {
                tenant_id,
                namespace,
                stream,
                entity_key: self.entity_key.clone(),
                event: self.event.clone(),
                changes: self.changes.iter().map(wire_change).collect(),
                request_id,
                expected_offset: self.expected,
                shard: self.shard.map(ShardIndex),
                producer_id,
                sequence,
            })
        };
        match self.state.numbers.write(place, ask, message, committed).await? {
            Written::Answer(offset) => Ok(Committed { shard, offset }),
            Written::OffsetMismatch(tail) => Err(ConditionError::OffsetMismatch { tail }),
        }
    }
}

fn wire_change(change: &Change) -> WireChange<'_> {
    match change {
        Change::Put(key, value) => WireChange::Put { key: Cow::Borrowed(key), value: value.clone() },
        Change::Delete(key) => WireChange::Delete { key: Cow::Borrowed(key) },
    }
}

fn committed(answer: &Message<'_>) -> Option<(Option<RequestId>, Offset)> {
    match answer {
        Message::CommitOk(ok) => Some((Some(ok.request_id), ok.offset)),
        _ => None,
    }
}

/// # Errors
/// `Invalid` for a shard that is not there.
pub(crate) async fn checked_shard(place: &Place, shard: u32) -> Result<u32, RequestError> {
    let shards = place.shard_count().await?;
    if shard >= shards {
        return Err(RequestError::invalid(format!(
            "the stream has {shards} shards, there is no shard {shard}"
        )));
    }
    Ok(shard)
}

/// # Errors
/// `Invalid` for a key that no shard takes.
pub(crate) fn check(key_bytes: usize) -> Result<(), RequestError> {
    if key_bytes > KEY_LEN_MAX {
        return Err(RequestError::invalid(format!(
            "a key of {key_bytes} bytes is longer than {KEY_LEN_MAX}"
        )));
    }
    Ok(())
}
