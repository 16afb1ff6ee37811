//! The failpoints at which the kill tests end the broker. The names are made in `felix_runtime::failpoint`.

/// A failpoint.
pub struct Place {
    pub name: &'static str,
    /// It is reached at least this often while a stream is written for two seconds, or while the broker starts or stops.
    pub times: u64,
}

const fn place(name: &'static str, times: u64) -> Place {
    Place { name, times }
}

pub const PLACES: &[Place] = &[place("run.before.write-sync.slots", 60)];
