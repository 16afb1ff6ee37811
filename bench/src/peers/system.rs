//! What can be measured beside the broker, and what an answer of each promises. Scope: a fixed table.
//! Invariants: every system has a promise and says what still differs from the broker's; names are unique.
//! Not here: running one (`runs`).

use serde::Serialize;

/// What is known when an answer has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Promise {
    /// The server read it and passed it on; nothing is kept.
    Read,
    /// It is in the server's memory.
    Memory,
    /// It was written to a file; a power cut loses what was not synced since.
    Written,
    /// It survives a power cut.
    Synced,
}

impl Promise {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Promise::Read => "read",
            Promise::Memory => "memory",
            Promise::Written => "written",
            Promise::Synced => "synced",
        }
    }

    /// The broker with the same promise, or the nearest that keeps more.
    #[must_use]
    pub fn counterpart(self) -> System {
        match self {
            Promise::Read | Promise::Memory => System::FelixMemory,
            Promise::Written => System::FelixPeriodic,
            Promise::Synced => System::FelixOnCommit,
        }
    }
}

/// One system under test, with its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    FelixMemory,
    FelixPeriodic,
    FelixOnCommit,
    Sink,
    NatsCore,
    NatsMemory,
    NatsFile,
    NatsAlways,
    RedisXadd,
    RedisXaddEverysec,
    RedisXaddAlways,
    RedisSet,
    RedisSetAlways,
    RedisGet,
    RedisBenchmarkSetAlways,
}

/// A row of the table.
#[derive(Debug, Clone, Copy)]
pub struct About {
    pub system: System,
    pub name: &'static str,
    pub promise: Promise,
    /// What an answer says, in words.
    pub says: &'static str,
    /// What still differs from the broker with the same promise.
    pub differs: &'static str,
}

/// Every system, in the order rounds run.
pub const SYSTEMS: &[About] = &[
    About {
        system: System::FelixMemory,
        name: "felix-memory",
        promise: Promise::Memory,
        says: "a batch is in the stream's memory, with its offsets, and readers see it",
        differs: "QUIC with TLS, as everything of Felix; 64 MiB or 1,024 records are kept for readers that come later",
    },
    About {
        system: System::FelixPeriodic,
        name: "felix-periodic",
        promise: Promise::Written,
        says: "a batch was written to the log; a sync follows every 250 ms",
        differs: "written past the page cache; every record has a checksum",
    },
    About {
        system: System::FelixOnCommit,
        name: "felix-on-commit",
        promise: Promise::Synced,
        says: "a batch was written to the log and synced",
        differs: "every record has a checksum",
    },
    About {
        system: System::Sink,
        name: "sink",
        promise: Promise::Read,
        says: "a batch was read and thrown away",
        differs: "the broker's driver, frames and answers without a stream",
    },
    About {
        system: System::NatsCore,
        name: "nats-core",
        promise: Promise::Read,
        says: "the last message of a batch came back to its publisher: the server passed on all before it",
        differs: "TCP without TLS; nothing is kept, nobody else subscribes; each record is a message",
    },
    About {
        system: System::NatsMemory,
        name: "nats-memory",
        promise: Promise::Memory,
        says: "every message of a batch was stored in memory by JetStream, one answer each",
        differs: "TCP without TLS; each record is a message with an answer of its own; 64 MiB are kept",
    },
    About {
        system: System::NatsFile,
        name: "nats-file",
        promise: Promise::Written,
        says: "every message of a batch was written by JetStream, one answer each; a sync follows every two minutes",
        differs: "TCP without TLS; each record is a message with an answer of its own; written to the page cache",
    },
    About {
        system: System::NatsAlways,
        name: "nats-always",
        promise: Promise::Synced,
        says: "every message of a batch was written and synced by JetStream (sync_interval: always), one answer each",
        differs: "TCP without TLS; each record is a message with an answer and a sync of its own",
    },
    About {
        system: System::RedisXadd,
        name: "redis-xadd",
        promise: Promise::Memory,
        says: "every entry of a batch is in a stream in memory, one answer each",
        differs: "TCP without TLS; each record is a command with an answer of its own; about 64 MiB are kept",
    },
    About {
        system: System::RedisXaddEverysec,
        name: "redis-xadd-everysec",
        promise: Promise::Written,
        says: "every entry of a batch is in a stream and its command in the append-only file; a sync follows every second",
        differs: "TCP without TLS; each record is a command with an answer of its own; written to the page cache",
    },
    About {
        system: System::RedisXaddAlways,
        name: "redis-xadd-always",
        promise: Promise::Synced,
        says: "every entry of a batch is in a stream and its command in the append-only file, synced",
        differs: "TCP without TLS; each record is a command with an answer of its own; one sync for what one turn read",
    },
    About {
        system: System::RedisSet,
        name: "redis-set",
        promise: Promise::Memory,
        says: "every value of a batch was stored over the last one of its key, one answer each",
        differs: "TCP without TLS; no stream: one key for each publishing stream, older values are gone",
    },
    About {
        system: System::RedisSetAlways,
        name: "redis-set-always",
        promise: Promise::Synced,
        says: "every value of a batch was stored over the last one of its key and its command synced",
        differs: "TCP without TLS; no stream: older values are only in the append-only file; one sync for what one turn read",
    },
    About {
        system: System::RedisGet,
        name: "redis-get",
        promise: Promise::Read,
        says: "every value of a batch was read from memory and sent",
        differs: "TCP without TLS; a read: the payload goes from the server to the client, so it stands beside no publish",
    },
    About {
        system: System::RedisBenchmarkSetAlways,
        name: "redis-benchmark-set-always",
        promise: Promise::Synced,
        says: "as redis-set-always",
        differs: "redis-benchmark is the load: it sends a whole pipeline and waits for all of it; its own latencies",
    },
];

impl System {
    #[must_use]
    pub fn about(self) -> &'static About {
        let found = SYSTEMS.iter().find(|about| about.system == self);
        found.expect("the test `every_system_is_in_the_table_once`")
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        self.about().name
    }

    /// The broker it stands beside. None for the broker itself, and for what the broker's own loads do not do: a value that is
    /// read from memory is no publish.
    #[must_use]
    pub fn counterpart(self) -> Option<System> {
        let compared = self.is_peer() && self != System::RedisGet;
        compared.then(|| self.about().promise.counterpart())
    }

    /// Part of what the broker is compared with, not of the broker.
    #[must_use]
    pub fn is_peer(self) -> bool {
        !matches!(self, System::FelixMemory | System::FelixPeriodic | System::FelixOnCommit)
    }
}

/// A name that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("nothing is called {0}; there are {known}, and nats, redis, felix for all of their kind", known = SYSTEMS.iter().map(|about| about.name).collect::<Vec<_>>().join(", "))]
pub struct UnknownSystem(pub String);

/// The systems that `names` mean: each a name or the first part of some. None named: all. The brokers they are compared with
/// are among them.
///
/// # Errors
/// A name means nothing.
pub fn select(names: &[String]) -> Result<Vec<System>, UnknownSystem> {
    let means = |name: &str, about: &About| {
        about.name == name || about.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('-'))
    };
    for name in names {
        if !SYSTEMS.iter().any(|about| means(name, about)) {
            return Err(UnknownSystem(name.clone()));
        }
    }
    let named = |about: &About| names.is_empty() || names.iter().any(|name| means(name, about));
    let needed: Vec<System> =
        SYSTEMS.iter().filter(|about| named(about)).filter_map(|about| about.system.counterpart()).collect();
    let wanted = |about: &&About| named(about) || needed.contains(&about.system);
    Ok(SYSTEMS.iter().filter(wanted).map(|about| about.system).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_system_is_in_the_table_once() {
        let mut names: Vec<&str> = SYSTEMS.iter().map(|about| about.name).collect();
        for about in SYSTEMS {
            // The name of the result is the name on the command line.
            assert_eq!(serde_json::to_value(about.system).unwrap(), about.name);
            assert_eq!(about.system.about().name, about.name);
            assert!(!about.says.is_empty() && !about.differs.is_empty());
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), SYSTEMS.len());
        assert_eq!(
            SYSTEMS.len(),
            System::RedisBenchmarkSetAlways as usize + 1,
            "the last one of the enumeration"
        );
    }

    #[test]
    fn a_counterpart_promises_no_less() {
        for about in SYSTEMS {
            let Some(counterpart) = about.system.counterpart() else {
                assert!(!about.system.is_peer() || about.system == System::RedisGet);
                continue;
            };
            assert!(!counterpart.is_peer());
            let rank = |promise: Promise| promise as u8;
            assert!(rank(counterpart.about().promise) >= rank(about.promise), "{}", about.name);
        }
        assert!(
            SYSTEMS.iter().filter(|about| about.differs.contains("TCP without TLS")).count() >= 10,
            "said wherever it is so"
        );
    }

    #[test]
    fn a_group_means_all_of_its_kind_and_their_brokers() {
        let names = |of: &[&str]| -> Vec<&str> {
            let of: Vec<String> = of.iter().map(|name| (*name).to_owned()).collect();
            select(&of).unwrap().into_iter().map(System::name).collect()
        };
        assert_eq!(
            names(&["nats"]),
            [
                "felix-memory",
                "felix-periodic",
                "felix-on-commit",
                "nats-core",
                "nats-memory",
                "nats-file",
                "nats-always"
            ]
        );
        assert_eq!(names(&["redis-get"]), ["redis-get"]);
        assert_eq!(names(&["redis-set-always"]), ["felix-on-commit", "redis-set-always"]);
        assert_eq!(
            names(&["redis-xadd"]),
            [
                "felix-memory",
                "felix-periodic",
                "felix-on-commit",
                "redis-xadd",
                "redis-xadd-everysec",
                "redis-xadd-always"
            ]
        );
        assert_eq!(names(&[]).len(), SYSTEMS.len());
        assert_eq!(select(&["nat".to_owned()]), Err(UnknownSystem("nat".to_owned())));
        assert!(UnknownSystem("nat".to_owned()).to_string().contains("nats-core, nats-memory"));
    }
}
