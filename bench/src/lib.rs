//! Measuring Felix, and starting it for whole-system tests. Scope: one process that is no part of a deployment.
//! Owns: the load generators (`load`, `requests`), what it is compared with (`sink`, `raw_disk`, `peers`), the table it is judged by (`gate`), hard use in equal cycles (`soak`), what is measured and how
//! (`measure`, `watch`), whole matrices of runs with their folders (`campaign`, `report`, `judge`, `sweep`), generators on
//! other machines (`agent`), what the machine gives (`preflight`), the processes of a cluster on loopback (`cluster`).
//! Invariants: load and sink speak the client protocol through `felix-wire` over the QUIC driver of `felix-runtime`, so
//! broker and sink are measured with the same client and the same transport; a result names its shape, machine and
//! commit.
//! Not here: tests of one crate (beside that crate).

pub mod agent;
pub mod campaign;
pub mod cluster;
pub mod compare;
pub mod compare_disk;
pub mod drift;
pub mod endpoint;
pub mod gate;
pub mod judge;
pub mod load;
pub mod machine;
pub mod measure;
pub mod peers;
pub mod preflight;
pub mod proc;
pub mod raw_disk;
pub mod report;
pub mod requests;
pub mod scrape;
pub mod shape;
pub mod sink;
pub mod soak;
pub mod sweep;
pub mod target;
pub mod volume;
pub mod watch;
