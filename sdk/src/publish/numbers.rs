//! The numbers an idempotent producer gives to the frames of one shard, without any I/O. Scope: per lane.
//! Owns: the producer, its next number, and the frames that must be sent again exactly as they were.
//! Invariants: a number names one set of records for good, unless it is certain that nothing was ever written under it;
//! frames come back in the order of their numbers; not more frames are open than the shard remembers.
//! Not here: when frames are sent, and what an answer means (`lane`).

use std::collections::VecDeque;

use felix_wire::id::{Offset, ProducerId, Sequence};

use crate::limits::PRODUCER_BATCHES_MAX;
use crate::publish::item::Items;

/// The records of one frame and what is known about them.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) items: Items,
    /// Its place among the producer's frames; `None` for a frame without a producer.
    pub(crate) number: Option<Sequence>,
    /// An earlier copy, whose answer is missing, may have been written.
    pub(crate) maybe_written: bool,
}

impl Batch {
    pub(crate) fn new(items: Items, number: Option<Sequence>) -> Self {
        Self { items, number, maybe_written: false }
    }
}

/// What a lane's frames are numbered with.
#[derive(Debug)]
pub(crate) enum Numbers {
    /// Nothing: frames go without.
    Plain,
    /// A producer that is not there yet; nothing is sent before.
    Wanted,
    /// This one.
    Of(Numbering),
}

impl Numbers {
    pub(crate) fn numbering(&self) -> Option<&Numbering> {
        match self {
            Self::Of(numbering) => Some(numbering),
            Self::Plain | Self::Wanted => None,
        }
    }

    pub(crate) fn numbering_mut(&mut self) -> Option<&mut Numbering> {
        match self {
            Self::Of(numbering) => Some(numbering),
            Self::Plain | Self::Wanted => None,
        }
    }

    /// Something is to be sent again.
    pub(crate) fn has_again(&self) -> bool {
        self.numbering().is_some_and(|numbering| !numbering.again.is_empty())
    }
}

/// Where a frame is.
#[derive(Debug, Clone, Copy)]
struct Stored {
    number: Sequence,
    base: u64,
    end: u64,
}

/// One producer on one shard.
#[derive(Debug)]
pub(crate) struct Numbering {
    producer: ProducerId,
    next: Sequence,
    /// Sent before everything else, in order.
    again: VecDeque<Batch>,
    /// The lowest number under which nothing was ever written and nothing will be: what was behind it was not written
    /// either, and gets new numbers.
    hole: Option<Sequence>,
    /// The highest number that was acknowledged with an offset.
    stored: Option<Stored>,
}

impl Numbering {
    pub(crate) fn new(producer: ProducerId) -> Self {
        Self { producer, next: Sequence(0), again: VecDeque::new(), hole: None, stored: None }
    }

    pub(crate) fn producer(&self) -> ProducerId {
        self.producer
    }

    /// The number of a frame that was never sent.
    pub(crate) fn take_number(&mut self) -> Sequence {
        let number = self.next;
        self.next = Sequence(number.get() + 1);
        number
    }

    /// A frame may be sent while `oldest` is the oldest number without an answer.
    pub(crate) fn has_room(&self, oldest: Option<Sequence>) -> bool {
        if self.hole.is_some() {
            return false;
        }
        let newest = self.again.front().and_then(|batch| batch.number).unwrap_or(self.next);
        oldest.is_none_or(|oldest| newest.get().saturating_sub(oldest.get()) < PRODUCER_BATCHES_MAX)
    }

    /// The next frame to send again.
    pub(crate) fn take_again(&mut self) -> Option<Batch> {
        self.again.pop_front()
    }

    pub(crate) fn first_again(&self) -> Option<&Batch> {
        self.again.front()
    }

    /// Frames to send again whose numbers are all lower than those of the frames that wait for it already.
    pub(crate) fn bring_back(&mut self, batches: Vec<Batch>) {
        for batch in batches.into_iter().rev() {
            self.again.push_front(batch);
        }
    }

    /// Nothing was or will be written under `number`.
    pub(crate) fn give_up(&mut self, number: Sequence) {
        self.hole = Some(self.hole.map_or(number, |hole| hole.min(number)));
    }

    /// Once no frame is on its way: the frames behind a number that was given up, which are to be numbered anew.
    pub(crate) fn close_hole(&mut self) -> VecDeque<Batch> {
        let Some(hole) = self.hole.take() else { return VecDeque::new() };
        self.next = hole;
        let kept = self.again.iter().take_while(|batch| batch.number < Some(hole)).count();
        self.again.split_off(kept)
    }

    /// A frame was refused because the shard expects another number. Whether that follows from an earlier frame of ours
    /// that was not taken; `oldest` is the oldest number that is still with us.
    pub(crate) fn follows_from_ours(&self, expected: Sequence, oldest: Option<Sequence>) -> bool {
        let lowest = [self.hole, oldest, self.first_again().and_then(|batch| batch.number)];
        lowest.into_iter().flatten().min().is_some_and(|lowest| lowest <= expected)
    }

    /// Frame `number` cannot be at `base`: frames lie in the order of their numbers, whenever they are acknowledged.
    pub(crate) fn is_out_of_order(&self, number: Sequence, base: Offset, records: u64) -> bool {
        self.stored.is_some_and(|stored| {
            let end = base.get().saturating_add(records);
            if number > stored.number { base.get() < stored.end } else { end > stored.base }
        })
    }

    pub(crate) fn stored(&mut self, number: Sequence, base: Offset, records: u64) {
        if self.stored.is_none_or(|stored| stored.number < number) {
            let end = base.get().saturating_add(records);
            self.stored = Some(Stored { number, base: base.get(), end });
        }
    }

    /// Every frame that waits to be sent again, in order; the producer is of no use any more.
    pub(crate) fn into_again(self) -> VecDeque<Batch> {
        self.again
    }

    /// The position of the first frame to be sent again for which `doomed` holds.
    pub(crate) fn find_again(&self, doomed: impl Fn(&Batch) -> bool) -> Option<&Batch> {
        self.again.iter().find(|batch| doomed(batch))
    }
}
