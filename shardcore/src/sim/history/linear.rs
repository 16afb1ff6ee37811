//! Whether the operations on one register have an order in which each of them makes sense: the search of Wing and Gong, with
//! operations whose outcome nobody knows. Scope: functions over one history.
//! Invariants: an operation stands somewhere between its call and its return; one without a return may stand anywhere behind
//! its call, or nowhere. Every order is tried that is not the same as one before; a search that would take too long says so.
//! Not here: what operations do (`register`).

use std::collections::HashSet;
use std::hash::Hash;

use felix_runtime::clock::Tick;

/// Places that one search may look at.
const LOOKS_MAX: usize = 2_000_000;

/// When an operation was under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub call: Tick,
    /// None when its outcome is not known.
    pub ret: Option<Tick>,
}

/// What a search came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is an order.
    Orderly,
    /// There is none. The first operations can be ordered up to these, of which none fits next.
    Disorderly { stuck: Vec<usize> },
    /// It was given up.
    Undecided,
}

/// Which operations have their place already.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Placed {
    words: Vec<u64>,
}

impl Placed {
    fn has(&self, at: usize) -> bool {
        self.words[at / 64] & (1 << (at % 64)) != 0
    }

    fn with(&self, at: usize) -> Placed {
        let mut words = self.words.clone();
        words[at / 64] |= 1 << (at % 64);
        Placed { words }
    }
}

/// Looks for an order of operations from `start` on. `steps` gives the states that an operation may lead to from a state;
/// none when it cannot have been answered as it was there.
pub fn search<S: Clone + Eq + Hash>(
    spans: &[Span],
    start: S,
    mut steps: impl FnMut(&S, usize) -> Vec<S>,
) -> Verdict {
    let owed = spans.iter().filter(|span| span.ret.is_some()).count();
    let mut stack = vec![(Placed { words: vec![0; spans.len().div_ceil(64)] }, start, 0)];
    let mut seen = HashSet::new();
    let mut furthest = (0, Vec::new());
    while let Some((placed, state, done)) = stack.pop() {
        if done == owed {
            return Verdict::Orderly;
        }
        if seen.len() >= LOOKS_MAX {
            return Verdict::Undecided;
        }
        if !seen.insert((placed.clone(), state.clone())) {
            continue;
        }
        let mut next = candidates(spans, &placed);
        if done >= furthest.0 {
            furthest = (done, next.iter().copied().filter(|at| spans[*at].ret.is_some()).collect());
        }
        // The last one pushed is tried first: the one that had to be done first, and those that need not be done last.
        next.sort_by_key(|at| std::cmp::Reverse(spans[*at].ret.unwrap_or(Tick::MAX)));
        for at in next {
            let open = spans[at].ret.is_none();
            for after in steps(&state, at) {
                // One that need not be done and changes nothing is not done.
                if !(open && after == state) {
                    stack.push((placed.with(at), after, done + usize::from(!open)));
                }
            }
        }
    }
    Verdict::Disorderly { stuck: furthest.1 }
}

/// The operations that may come next: those that began before any other one had to be over.
fn candidates(spans: &[Span], placed: &Placed) -> Vec<usize> {
    let left = || spans.iter().enumerate().filter(|(at, _)| !placed.has(*at));
    let first_end = left().filter_map(|(_, span)| span.ret).min().unwrap_or(Tick::MAX);
    left().filter(|(_, span)| span.call <= first_end).map(|(at, _)| at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    enum Op {
        Write(u32),
        Read(u32),
    }

    fn verdict(ops: &[(u64, Option<u64>, Op)]) -> Verdict {
        let span = |(call, ret, _): &(u64, Option<u64>, Op)| Span { call: Tick(*call), ret: ret.map(Tick) };
        let spans: Vec<Span> = ops.iter().map(span).collect();
        search(&spans, 0, |state, at| match ops[at].2 {
            Op::Write(value) => vec![value],
            Op::Read(value) if value == *state => vec![value],
            Op::Read(_) => Vec::new(),
        })
    }

    #[test]
    fn operations_at_once_have_any_order_and_others_their_own() {
        let at_once = [(0, Some(9), Op::Write(1)), (0, Some(9), Op::Write(2)), (10, Some(11), Op::Read(1))];
        assert_eq!(verdict(&at_once), Verdict::Orderly);
        let one_by_one =
            [(0, Some(4), Op::Write(1)), (5, Some(9), Op::Write(2)), (10, Some(11), Op::Read(1))];
        assert_eq!(verdict(&one_by_one), Verdict::Disorderly { stuck: vec![2] });
    }

    #[test]
    fn an_operation_whose_outcome_is_unknown_may_come_late_or_never_but_once() {
        let reads = |values: &[u32]| {
            let mut ops = vec![(0, Some(1), Op::Write(1)), (2, None, Op::Write(2))];
            let read = |(at, value): (usize, &u32)| {
                (10 + at as u64 * 10, Some(11 + at as u64 * 10), Op::Read(*value))
            };
            ops.extend(values.iter().enumerate().map(read));
            verdict(&ops)
        };
        assert_eq!(reads(&[1, 1]), Verdict::Orderly);
        assert_eq!(reads(&[1, 2]), Verdict::Orderly);
        assert_eq!(reads(&[2, 2]), Verdict::Orderly);
        assert!(matches!(reads(&[2, 1]), Verdict::Disorderly { .. }));
        assert!(matches!(reads(&[0]), Verdict::Disorderly { .. }));
    }

    #[test]
    fn a_value_that_was_read_is_not_gone_for_a_later_read() {
        let ops = [(0, Some(100), Op::Write(1)), (10, Some(20), Op::Read(1)), (30, Some(40), Op::Read(0))];
        assert!(matches!(verdict(&ops), Verdict::Disorderly { .. }));
    }
}
