//! What clients asked of the keys of caches and of counters, and were told (reliability I17, I18). Scope: one per key.
//! Checked: the operations on a key have an order in which each one is answered as it was; one that was refused did nothing;
//! of one whose outcome nobody knows it is only known that it happened once or not at all. A value ends when its life does, as
//! far as clocks tell, and does not come back. Since the value of every key and counter is read when all is over, what was
//! answered is there: confirmed adds, and of others any, are in the sum.
//! Not here: the search for the order (`linear`).

use std::collections::BTreeMap;

use felix_runtime::clock::Tick;

use super::linear::{Span, Verdict, search};

/// Clocks of cores are whole milliseconds.
const CLOCK_MS: u64 = 1;

/// What came of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// It is on its way, or nobody will ever know.
    Open,
    /// Nothing happened.
    Refused,
    Told(Tick, T),
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<W, T> {
    pub call: Tick,
    pub what: W,
    pub outcome: Outcome<T>,
}

/// Asked of a key. A value is named by the number of the put that wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyAsk {
    Get,
    Put {
        ttl_ms: Option<u64>,
    },
    PutIfAbsent {
        ttl_ms: Option<u64>,
    },
    PutIf {
        version: u64,
        ttl_ms: Option<u64>,
    },
    Delete,
    DeleteIf {
        version: u64,
    },
    /// Nobody asks it: its cache is deleted.
    Wipe,
}

/// Told of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyTold {
    /// What it has, or had before its delete, and the version of that when it was told.
    Value(Option<usize>, Option<u64>),
    Written,
    Condition {
        applied: bool,
        version: Option<u64>,
    },
}

/// Asked of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumAsk {
    Get,
    Add(i64),
    /// Nobody asks it: its cache is deleted.
    Wipe,
}

/// Told of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumTold {
    Sum(Option<i64>),
    /// The sum would not fit: nothing was added.
    Overflow,
}

pub type KeyHistory = Vec<Entry<KeyAsk, KeyTold>>;
pub type SumHistory = Vec<Entry<SumAsk, SumTold>>;

impl KeyAsk {
    /// Whether it writes a value that ends by itself.
    pub fn ends(self) -> bool {
        self.life().is_some_and(|life| life.is_some())
    }

    /// The life of the value that it writes; none when it writes none.
    fn life(self) -> Option<Option<u64>> {
        match self {
            KeyAsk::Put { ttl_ms } | KeyAsk::PutIfAbsent { ttl_ms } | KeyAsk::PutIf { ttl_ms, .. } => {
                Some(ttl_ms)
            }
            KeyAsk::Get | KeyAsk::Delete | KeyAsk::DeleteIf { .. } | KeyAsk::Wipe => None,
        }
    }
}

/// Those that may have happened and what they say, with their numbers in the history.
fn placed<W: Copy, T: Copy>(history: &[Entry<W, T>], reads: impl Fn(&W) -> bool) -> (Vec<usize>, Vec<Span>) {
    let counts = |entry: &Entry<W, T>| match entry.outcome {
        Outcome::Open => !reads(&entry.what),
        Outcome::Refused => false,
        Outcome::Told(..) => true,
    };
    let kept: Vec<usize> = (0..history.len()).filter(|at| counts(&history[*at])).collect();
    let span = |at: &usize| match history[*at].outcome {
        Outcome::Told(ret, _) => Span { call: history[*at].call, ret: Some(ret) },
        _ => Span { call: history[*at].call, ret: None },
    };
    let spans = kept.iter().map(span).collect();
    (kept, spans)
}

fn verdict_of<W: std::fmt::Debug, T: std::fmt::Debug>(
    verdict: Verdict,
    kept: &[usize],
    history: &[Entry<W, T>],
) -> Result<(), String> {
    match verdict {
        Verdict::Orderly => Ok(()),
        Verdict::Undecided => Err(format!("no order was found among {} in time", kept.len())),
        Verdict::Disorderly { stuck } => {
            let named = |at: usize| format!("{}: {:?}", kept[at], history[kept[at]]);
            let stuck: Vec<String> = stuck.into_iter().map(named).collect();
            let all: Vec<String> =
                history.iter().enumerate().map(|(at, entry)| format!("  {at}: {entry:?}")).collect();
            Err(format!("no order explains [{}] of\n{}", stuck.join(", "), all.join("\n")))
        }
    }
}

/// Looks for an order of the operations on a counter.
///
/// # Errors
/// They have none, or none was found in time.
pub fn check_sums(history: &[Entry<SumAsk, SumTold>]) -> Result<(), String> {
    let (kept, spans) = placed(history, |what| *what == SumAsk::Get);
    let verdict = search(&spans, None, |state: &Option<i64>, at| {
        let entry = &history[kept[at]];
        let told = if let Outcome::Told(_, told) = entry.outcome { Some(told) } else { None };
        let after = match entry.what {
            SumAsk::Get => Some(*state),
            SumAsk::Wipe => Some(None),
            SumAsk::Add(delta) => state.unwrap_or(0).checked_add(delta).map(Some),
        };
        match (after, told) {
            (Some(after), None) => vec![after],
            (Some(after), Some(SumTold::Sum(sum))) if after == sum => vec![after],
            (None, None | Some(SumTold::Overflow)) => vec![*state],
            _ => Vec::new(),
        }
    });
    verdict_of(verdict, &kept, history)
}

/// What is known of versions: each write has one of its own.
#[derive(Default)]
struct Versions {
    of: BTreeMap<usize, u64>,
    owner: BTreeMap<u64, usize>,
    /// The cache has had several lives: each has versions of its own.
    again: bool,
}

impl Versions {
    fn learn(&mut self, put: usize, version: u64) -> Result<(), String> {
        let (of, owner) = (*self.of.entry(put).or_insert(version), *self.owner.entry(version).or_insert(put));
        if of == version && (owner == put || self.again) {
            return Ok(());
        }
        Err(format!("the value of put {put} has version {of} and {version}, which put {owner} has"))
    }

    fn gather(history: &[Entry<KeyAsk, KeyTold>]) -> Result<Versions, String> {
        let again = history.iter().any(|entry| entry.what == KeyAsk::Wipe);
        let mut versions = Versions { again, ..Versions::default() };
        for (at, entry) in history.iter().enumerate() {
            match entry.outcome {
                Outcome::Told(_, KeyTold::Value(Some(put), Some(version))) => versions.learn(put, version)?,
                Outcome::Told(_, KeyTold::Condition { applied: true, version: Some(version) }) => {
                    versions.learn(at, version)?;
                }
                _ => {}
            }
        }
        Ok(versions)
    }

    /// Whether the value of `put` may have that version.
    fn may_be(&self, put: usize, version: u64) -> bool {
        match self.of.get(&put) {
            Some(of) => *of == version,
            None => self.again || !self.owner.contains_key(&version),
        }
    }

    /// Whether it may have another one.
    fn may_differ(&self, put: usize, version: u64) -> bool {
        self.of.get(&put) != Some(&version)
    }
}

fn floor_ms(at: Tick) -> u64 {
    at.as_micros() / 1_000
}

/// The latest and the earliest that the state of a key may be when an operation is carried out: its value may still be there,
/// or may be over already.
fn states(
    history: &[Entry<KeyAsk, KeyTold>],
    held: Option<usize>,
    entry: &Entry<KeyAsk, KeyTold>,
) -> Vec<Option<usize>> {
    let Some(put) = held else { return vec![None] };
    let wrote = &history[put];
    let Some(Some(ttl_ms)) = wrote.what.life() else { return vec![held] };
    let ret = |entry: &Entry<KeyAsk, KeyTold>| match entry.outcome {
        Outcome::Told(at, _) => floor_ms(at),
        _ => u64::MAX / 2,
    };
    let over_earliest = floor_ms(wrote.call).saturating_sub(CLOCK_MS) + ttl_ms;
    let over_latest = ret(wrote) + ttl_ms;
    let mut states = Vec::new();
    if floor_ms(entry.call).saturating_sub(CLOCK_MS) < over_latest {
        states.push(held);
    }
    if ret(entry) >= over_earliest {
        states.push(None);
    }
    states
}

/// What an operation makes of a key that has the value of put `held`. None when it was not answered so there.
fn step(
    versions: &Versions,
    (number, entry): (usize, &Entry<KeyAsk, KeyTold>),
    held: Option<usize>,
) -> Vec<Option<usize>> {
    let told = if let Outcome::Told(_, told) = entry.outcome { Some(told) } else { None };
    // Whether the condition can hold, and can fail, in that state.
    let (holds, fails) = match entry.what {
        KeyAsk::Get | KeyAsk::Put { .. } | KeyAsk::Delete | KeyAsk::Wipe => (true, false),
        KeyAsk::PutIfAbsent { .. } => (held.is_none(), held.is_some()),
        KeyAsk::PutIf { version, .. } | KeyAsk::DeleteIf { version } => match held {
            Some(put) => (versions.may_be(put, version), versions.may_differ(put, version)),
            None => (false, true),
        },
    };
    let after = match entry.what {
        KeyAsk::Get => held,
        KeyAsk::Put { .. } | KeyAsk::PutIfAbsent { .. } | KeyAsk::PutIf { .. } => Some(number),
        KeyAsk::Delete | KeyAsk::DeleteIf { .. } | KeyAsk::Wipe => None,
    };
    let now_is = |version: Option<u64>| match (held, version) {
        (Some(put), Some(version)) => versions.may_be(put, version),
        (held, version) => held.is_none() && version.is_none(),
    };
    match told {
        None if holds => vec![after],
        Some(KeyTold::Value(value, _)) if value == held => vec![after],
        Some(KeyTold::Written) => vec![after],
        Some(KeyTold::Condition { applied: true, .. }) if holds => vec![after],
        Some(KeyTold::Condition { applied: false, version }) if fails && now_is(version) => vec![held],
        _ => Vec::new(),
    }
}

/// Looks for an order of the operations on a key.
///
/// # Errors
/// They have none, or none was found in time, or versions are not what they must be.
pub fn check_key(history: &[Entry<KeyAsk, KeyTold>]) -> Result<(), String> {
    let versions = Versions::gather(history)?;
    let (kept, spans) = placed(history, |what| *what == KeyAsk::Get);
    let verdict = search(&spans, None, |held: &Option<usize>, at| {
        let entry = &history[kept[at]];
        let found = states(history, *held, entry).into_iter();
        found.flat_map(|held| step(&versions, (kept[at], entry), held)).collect()
    });
    verdict_of(verdict, &kept, history)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn key(ops: &[(u64, u64, KeyAsk, Option<KeyTold>)]) -> Result<(), String> {
        let entry = |(call, ret, what, told): &(u64, u64, KeyAsk, Option<KeyTold>)| {
            let outcome = told.map_or(Outcome::Open, |told| Outcome::Told(Tick(*ret), told));
            Entry { call: Tick(*call), what: *what, outcome }
        };
        check_key(&ops.iter().map(entry).collect::<Vec<_>>())
    }

    const PUT: KeyAsk = KeyAsk::Put { ttl_ms: None };
    const GOT_NONE: Option<KeyTold> = Some(KeyTold::Value(None, None));

    fn got(put: usize) -> Option<KeyTold> {
        Some(KeyTold::Value(Some(put), Some(put as u64 + 100)))
    }

    #[test]
    fn a_deleted_value_that_comes_back_has_no_order() {
        let deleted = Some(KeyTold::Value(Some(0), None));
        let ops = [
            (0, 1, PUT, Some(KeyTold::Written)),
            (2, 3, KeyAsk::Delete, deleted),
            (4, 5, KeyAsk::Get, GOT_NONE),
        ];
        assert_eq!(key(&ops), Ok(()));
        let mut back = ops.to_vec();
        back.push((6, 7, KeyAsk::Get, got(0)));
        assert!(key(&back).is_err());
    }

    #[test]
    fn a_put_that_was_answered_and_is_gone_has_no_order_and_one_that_was_not_has() {
        let ops = |told| [(0, 1, PUT, told), (2, 3, KeyAsk::Get, GOT_NONE)];
        assert!(key(&ops(Some(KeyTold::Written))).is_err());
        assert_eq!(key(&ops(None)), Ok(()));
    }

    #[test]
    fn a_value_ends_with_its_life_and_stays_away() {
        let put = KeyAsk::Put { ttl_ms: Some(5_000) };
        let ops =
            |at: u64, told| key(&[(0, 1, put, Some(KeyTold::Written)), (at, at + 1, KeyAsk::Get, told)]);
        assert!(ops(S, GOT_NONE).is_err(), "before its time");
        assert_eq!((ops(S, got(0)), ops(20 * S, GOT_NONE)), (Ok(()), Ok(())));
        assert!(ops(20 * S, got(0)).is_err(), "after its time");
        let again = [
            (0, 1, put, Some(KeyTold::Written)),
            (4 * S, 4 * S + 1, KeyAsk::Get, GOT_NONE),
            (5 * S, 5 * S + 1, KeyAsk::Get, got(0)),
        ];
        assert!(key(&again).is_err(), "it was over");
    }

    #[test]
    fn conditions_hold_for_the_version_that_is_there() {
        let told = |applied, version| Some(KeyTold::Condition { applied, version });
        let put_if = KeyAsk::PutIf { version: 100, ttl_ms: None };
        let begin = [(0, 1, PUT, Some(KeyTold::Written)), (2, 3, KeyAsk::Get, got(0))];
        let with = |ops: &[(u64, u64, KeyAsk, Option<KeyTold>)]| key(&[&begin, ops].concat());
        assert_eq!(with(&[(4, 5, put_if, told(true, Some(102)))]), Ok(()));
        assert!(with(&[(4, 5, put_if, told(false, Some(100)))]).is_err());
        assert!(with(&[(4, 5, KeyAsk::PutIfAbsent { ttl_ms: None }, told(true, Some(102)))]).is_err());
        let twice = [(4, 5, put_if, told(true, Some(102))), (6, 7, put_if, told(true, Some(103)))];
        assert!(with(&twice).is_err(), "one version is replaced once");
        assert_eq!(with(&[(4, 5, KeyAsk::DeleteIf { version: 100 }, told(true, None))]), Ok(()));
    }

    fn sums(ops: &[(u64, SumAsk, Option<SumTold>)]) -> Result<(), String> {
        let entry = |(at, what, told): &(u64, SumAsk, Option<SumTold>)| {
            let outcome = told.map_or(Outcome::Open, |told| Outcome::Told(Tick(at + 1), told));
            Entry { call: Tick(*at), what: *what, outcome }
        };
        check_sums(&ops.iter().map(entry).collect::<Vec<_>>())
    }

    #[test]
    fn a_sum_has_every_confirmed_add_once_and_any_of_the_others() {
        let sum = |sum| Some(SumTold::Sum(Some(sum)));
        let begin = [(0, SumAsk::Add(5), sum(5)), (10, SumAsk::Add(2), None)];
        let with = |told| sums(&[&begin[..], &[(20, SumAsk::Get, told)]].concat());
        assert_eq!((with(sum(5)), with(sum(7))), (Ok(()), Ok(())));
        for wrong in [sum(2), sum(9), sum(10), Some(SumTold::Sum(None))] {
            assert!(with(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn an_add_that_does_not_fit_changes_nothing() {
        let sum = |sum| Some(SumTold::Sum(Some(sum)));
        let add = |delta, told| [(0, SumAsk::Add(1), sum(1)), (10, SumAsk::Add(delta), told)];
        assert_eq!(sums(&add(i64::MAX, Some(SumTold::Overflow))), Ok(()));
        assert!(sums(&add(i64::MAX - 1, Some(SumTold::Overflow))).is_err());
        let after = [&add(i64::MAX, Some(SumTold::Overflow))[..], &[(20, SumAsk::Get, sum(1))]].concat();
        assert_eq!(sums(&after), Ok(()));
    }
}
