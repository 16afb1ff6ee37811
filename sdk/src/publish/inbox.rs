//! Where the publisher's handles and the task of one lane meet. Scope: per publisher and shard.
//! Owns: what was handed over and not yet taken: items, flushes, the request to retire, the outcome of a look.
//! Invariants: whoever waits on something put in here is told, also when the task ends; items are taken in the
//! order they came.
//! Not here: the task itself (`driver`).

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use tokio::sync::{Notify, oneshot};

use crate::error::{Error, PublishError};
use crate::publish::item::Item;

/// What a look at the route found, for the lanes that waited for it.
#[derive(Debug, Clone)]
pub(crate) enum Look {
    /// The same shards as before; owners may have changed.
    SameShards,
    /// Nobody could be asked.
    Failed(Error),
    /// The stream is gone.
    Gone(PublishError),
}

/// What a lane does with new items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Open,
    /// Collects; nothing is sent before the lanes of the old table have ended.
    Held,
    Retired,
}

/// What came of a push.
pub(crate) enum Pushed {
    Taken {
        /// The lane has no task yet.
        start: bool,
    },
    Closed,
    Retired(Item),
}

/// Between the publisher's handles and the task of one lane.
pub(crate) struct Inbox {
    state: Mutex<InboxState>,
    /// Wakes the lane's task.
    pub(crate) bell: Notify,
}

struct InboxState {
    mode: Mode,
    started: bool,
    closed: bool,
    items: VecDeque<Item>,
    flushes: Vec<oneshot::Sender<()>>,
    retiring: Option<oneshot::Sender<VecDeque<Item>>>,
    look: Option<Look>,
}

/// What a lane's task takes from its inbox in one go.
pub(crate) struct Mail {
    pub(crate) items: VecDeque<Item>,
    pub(crate) flushes: Vec<oneshot::Sender<()>>,
    pub(crate) retiring: Option<oneshot::Sender<VecDeque<Item>>>,
    pub(crate) look: Option<Look>,
    pub(crate) closed: bool,
}

impl Inbox {
    pub(crate) fn new(mode: Mode) -> Self {
        let state = InboxState {
            mode,
            started: false,
            closed: false,
            items: VecDeque::new(),
            flushes: Vec::new(),
            retiring: None,
            look: None,
        };
        Self { state: Mutex::new(state), bell: Notify::new() }
    }

    /// Everything that has come since the last call.
    pub(crate) fn take(&self) -> Mail {
        let mut state = self.lock();
        Mail {
            items: std::mem::take(&mut state.items),
            flushes: std::mem::take(&mut state.flushes),
            retiring: state.retiring.take(),
            look: state.look.take(),
            closed: state.closed,
        }
    }

    /// Forgets the outcome of an earlier look.
    pub(crate) fn clear_look(&self) {
        self.lock().look = None;
    }

    pub(crate) fn push(&self, item: Item) -> Pushed {
        let mut state = self.lock();
        match state.mode {
            Mode::Retired => return Pushed::Retired(item),
            _ if state.closed => return Pushed::Closed,
            Mode::Held => {
                state.items.push_back(item);
                return Pushed::Taken { start: false };
            }
            Mode::Open => {}
        }
        state.items.push_back(item);
        let ring = state.items.len() == 1;
        let start = !std::mem::replace(&mut state.started, true);
        drop(state);
        if ring {
            self.bell.notify_one();
        }
        Pushed::Taken { start }
    }

    /// `None` when there is nothing to wait for.
    pub(crate) fn request_flush(&self) -> Option<oneshot::Receiver<()>> {
        let mut state = self.lock();
        if state.mode == Mode::Retired || (!state.started && state.mode == Mode::Open) {
            return None;
        }
        let (done, wait) = oneshot::channel();
        state.flushes.push(done);
        drop(state);
        self.bell.notify_one();
        Some(wait)
    }

    /// Asks the lane to end; what it still has comes by the receiver.
    pub(crate) fn retire(&self) -> oneshot::Receiver<VecDeque<Item>> {
        let (done, wait) = oneshot::channel();
        let mut state = self.lock();
        state.mode = Mode::Retired;
        if state.started {
            state.retiring = Some(done);
        } else {
            drop(done.send(std::mem::take(&mut state.items)));
        }
        drop(state);
        self.bell.notify_one();
        wait
    }

    /// Opens a held lane with `first` before what it has collected; true when its task must be started.
    pub(crate) fn release(&self, first: VecDeque<Item>) -> bool {
        let mut state = self.lock();
        let later = std::mem::replace(&mut state.items, first);
        state.items.extend(later);
        state.mode = Mode::Open;
        let needed = !state.items.is_empty() || !state.flushes.is_empty();
        needed && !std::mem::replace(&mut state.started, true)
    }

    /// The lane's task is ending: whoever waits for it is told.
    pub(crate) fn ended(&self) {
        let mut state = self.lock();
        state.started = false;
        state.flushes.clear();
        if let Some(done) = state.retiring.take() {
            drop(done.send(std::mem::take(&mut state.items)));
        }
    }

    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.bell.notify_one();
    }

    pub(crate) fn set_look(&self, look: Look) {
        self.lock().look = Some(look);
        self.bell.notify_one();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, InboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
