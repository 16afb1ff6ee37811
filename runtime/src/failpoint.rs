//! Places where a test ends this process as a power switch would. Scope: per process; builds with debug assertions only,
//! everywhere else nothing of it is there.
//! Owns: the one place that is armed, what the process is busy with, and how often the place was reached.
//! Invariants: without `FELIX_FAILPOINT` nothing happens; with `FELIX_FAILPOINT=NAME:N` the N-th time a thread reaches
//! NAME ends the process with SIGKILL, which no code of it sees. With `FELIX_FAILPOINT=list` each name is said on standard
//! error when it is first reached.
//! Not here: the names of disk operations (`file::watch`).

/// What the process is busy with: the first part of every name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Recovery,
    Run,
    Stop,
}

#[cfg(debug_assertions)]
pub use armed::{enter, hit, is_armed};

/// The process is busy with `phase` from now on.
#[cfg(not(debug_assertions))]
#[inline]
pub fn enter(_phase: Phase) {}

/// A thread has reached `place`.
#[cfg(not(debug_assertions))]
#[inline]
pub fn hit(_place: &str) {}

#[cfg(debug_assertions)]
mod armed {
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
    use std::sync::{Mutex, OnceLock};

    use super::Phase;

    const ENV: &str = "FELIX_FAILPOINT";

    enum Armed {
        Never,
        /// Names are said, nothing ends. Behind a lock, because any thread may be the first at a place; never in a shipped build.
        List(Mutex<BTreeSet<String>>),
        At {
            name: String,
            /// Times it is still to be reached.
            left: AtomicU64,
        },
    }

    // Process-wide, because what is armed is a process.
    static ARMED: OnceLock<Armed> = OnceLock::new();
    static PHASE: AtomicU8 = AtomicU8::new(0);

    fn armed() -> &'static Armed {
        ARMED.get_or_init(|| parse(std::env::var(ENV).ok().as_deref()))
    }

    fn parse(text: Option<&str>) -> Armed {
        match text {
            None => Armed::Never,
            Some("list") => Armed::List(Mutex::default()),
            Some(text) => {
                let (name, times) = text.rsplit_once(':').unwrap_or((text, "1"));
                let times = times.parse().unwrap_or(1);
                Armed::At { name: name.to_owned(), left: AtomicU64::new(times) }
            }
        }
    }

    /// The process is busy with `phase` from now on.
    pub fn enter(phase: Phase) {
        PHASE.store(phase as u8, Ordering::Relaxed);
    }

    /// Whether any place is.
    pub fn is_armed() -> bool {
        !matches!(armed(), Armed::Never)
    }

    /// A thread has reached `place`.
    pub fn hit(place: &str) {
        let phase = match PHASE.load(Ordering::Relaxed) {
            0 => "recovery",
            1 => "run",
            _ => "stop",
        };
        match armed() {
            Armed::Never => {}
            Armed::List(seen) => {
                let name = format!("{phase}.{place}");
                let mut seen = seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                if !seen.contains(&name) {
                    eprintln!("failpoint {name}");
                    seen.insert(name);
                }
            }
            Armed::At { name, left } => {
                let same = name.strip_prefix(phase).and_then(|rest| rest.strip_prefix('.')) == Some(place);
                if same && left.fetch_sub(1, Ordering::Relaxed) == 1 {
                    die();
                }
            }
        }
    }

    fn die() -> ! {
        // SAFETY: no memory is involved; the signal cannot be handled.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        // The signal may reach another thread first; this one does nothing any more.
        loop {
            std::hint::spin_loop();
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_place_is_named_with_how_often_it_is_passed() {
            let at = |text| match parse(Some(text)) {
                Armed::At { name, left } => (name, left.into_inner()),
                _ => panic!("{text} is a place"),
            };
            assert_eq!(at("run.before.sync.shards:3"), ("run.before.sync.shards".to_owned(), 3));
            assert_eq!(at("stop.turn"), ("stop.turn".to_owned(), 1));
            assert!(matches!(parse(None), Armed::Never) && matches!(parse(Some("list")), Armed::List(_)));
        }
    }
}
