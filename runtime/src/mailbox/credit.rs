//! How much one core may have unanswered at another.
//! Scope: one per ordered pair of cores, on the sending core. Owns: two counts.
//! Invariants: never more than the limit of requests is out; never more than the limit of bytes, except that one
//! request of any size passes when nothing is out; what is given back was taken.
//! Not here: the ring.

/// Counts the requests and bytes that are out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credit {
    requests_max: u32,
    bytes_max: u64,
    requests: u32,
    bytes: u64,
}

impl Credit {
    /// `requests_max` is at least 1.
    ///
    /// # Panics
    /// When no request could ever pass.
    pub fn new(requests_max: u32, bytes_max: u64) -> Credit {
        assert!(requests_max > 0, "a pair without credit could never say anything");
        Credit { requests_max, bytes_max, requests: 0, bytes: 0 }
    }

    /// Takes credit for one request of `bytes`. False when there is none; nothing is taken then.
    #[must_use = "without credit the request must not be sent"]
    pub fn take(&mut self, bytes: u64) -> bool {
        let fits = self.requests == 0
            || (self.requests < self.requests_max
                && self.bytes.checked_add(bytes).is_some_and(|sum| sum <= self.bytes_max));
        if fits {
            self.requests += 1;
            self.bytes += bytes;
        }
        fits
    }

    /// Gives back what one request of `bytes` took.
    ///
    /// # Panics
    /// When nothing like it is out.
    pub fn give(&mut self, bytes: u64) {
        assert!(self.requests > 0 && self.bytes >= bytes, "credit came back that was never taken");
        self.requests -= 1;
        self.bytes -= bytes;
    }

    /// Requests that are out.
    pub fn outstanding(&self) -> u32 {
        self.requests
    }

    /// Bytes that are out.
    pub fn outstanding_bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn takes_and_gives_follow_the_model(
            requests_max in 1u32..8,
            bytes_max in 0u64..100,
            steps in proptest::collection::vec((any::<bool>(), 0u64..150, any::<prop::sample::Index>()), 0..200),
        ) {
            let mut credit = Credit::new(requests_max, bytes_max);
            let mut out: Vec<u64> = Vec::new();
            for (take, bytes, which) in steps {
                if take {
                    let sum: u64 = out.iter().sum();
                    let expected = out.is_empty() || (out.len() < requests_max as usize && sum + bytes <= bytes_max);
                    prop_assert_eq!(credit.take(bytes), expected);
                    if expected {
                        out.push(bytes);
                    }
                } else if !out.is_empty() {
                    credit.give(out.swap_remove(which.index(out.len())));
                }
                prop_assert_eq!(credit.outstanding() as usize, out.len());
                prop_assert_eq!(credit.outstanding_bytes(), out.iter().sum::<u64>());
            }
        }
    }

    #[test]
    fn one_message_of_any_size_passes_when_nothing_is_out() {
        let mut credit = Credit::new(4, 10);
        assert!(credit.take(u64::MAX));
        assert!(!credit.take(0), "the pair is over its bytes until it is given back");
        credit.give(u64::MAX);
        assert!(credit.take(10) && !credit.take(1) && credit.take(0));
    }

    #[test]
    #[should_panic(expected = "never taken")]
    fn credit_from_nowhere_is_a_mistake() {
        Credit::new(1, 1).give(0);
    }
}
