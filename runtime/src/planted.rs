//! Defects that tests of the simulator plant, to see that it finds them. Scope: per thread; builds with the feature `sim`
//! only, everywhere else nothing of it is there.
//! Owns: which defect is planted on this thread. Invariants: without `plant` none is; at most one is.
//! Not here: what finds them (`felix-sim`).

/// A mistake that somebody could make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defect {
    /// Commit rounds are acked when they are written, not when they are synced.
    AckBeforeSync,
    /// A segment counts as durable after a spill without a sync.
    SpillNotSynced,
    /// A write that failed, of a round or straight to a segment, counts as written.
    FailedWriteIgnored,
    /// Recovery does not look at the last round.
    LastRoundDropped,
    /// After a power loss offsets go on where the records end, whatever was seen above.
    CeilingIgnored,
    /// What producers have sent is not read from the log after a start.
    ProducersForgotten,
    /// Claimed records are served and acked before they are settled.
    UnsettledServed,
    /// A stream that comes back is given the log of its namesake.
    NamesakeLog,
    /// Offsets without records are passed over in silence.
    GapUntold,
    /// Requests about caches, counters and groups are answered when their change is on its way to the log.
    AnswerBeforeSettled,
    /// A log of a cache is read without its deletes.
    DeleteForgotten,
    /// Values of a cache that were read from its log do not end.
    LifeForgotten,
    /// A numbered add that comes again is added again.
    AddCountedTwice,
    /// A log of groups is read without what was acknowledged.
    AckForgotten,
    /// A record that is handed out is not held.
    ClaimNotHeld,
    /// A watch that falls behind goes on one change later.
    WatchGap,
    /// A watch begins without some of the current values.
    ValueNotListed,
    /// A log of groups is read without what moved them.
    SeekForgotten,
    /// Of a commit only the first change is taken.
    CommitHalf,
}

impl Defect {
    /// All of them.
    pub const ALL: [Defect; 19] = [
        Defect::AckBeforeSync,
        Defect::SpillNotSynced,
        Defect::FailedWriteIgnored,
        Defect::LastRoundDropped,
        Defect::CeilingIgnored,
        Defect::ProducersForgotten,
        Defect::UnsettledServed,
        Defect::NamesakeLog,
        Defect::GapUntold,
        Defect::AnswerBeforeSettled,
        Defect::DeleteForgotten,
        Defect::LifeForgotten,
        Defect::AddCountedTwice,
        Defect::AckForgotten,
        Defect::ClaimNotHeld,
        Defect::WatchGap,
        Defect::ValueNotListed,
        Defect::SeekForgotten,
        Defect::CommitHalf,
    ];
}

#[cfg(any(test, feature = "sim"))]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Defect>> = const { std::cell::Cell::new(None) };
}

/// Plants a defect on this thread, or none.
#[cfg(any(test, feature = "sim"))]
pub fn plant(defect: Option<Defect>) {
    PLANTED.set(defect);
}

/// Whether that defect is planted.
#[cfg(any(test, feature = "sim"))]
#[must_use]
pub fn is(defect: Defect) -> bool {
    PLANTED.get() == Some(defect)
}

/// Whether that defect is planted: never in this build.
#[cfg(not(any(test, feature = "sim")))]
#[inline]
#[must_use]
pub const fn is(_defect: Defect) -> bool {
    false
}
