//! The bytes of one simulated file. Scope: one version of one file.
//! Invariants: bytes never written read as zero; nothing is kept behind the length; a clone costs no copy of the bytes.
//! Not here: which version is durable.

use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) const PAGE_BYTES: usize = 4096;

type Page = [u8; PAGE_BYTES];

/// Pages by number; those of zeros may be missing.
#[derive(Debug, Clone, Default)]
pub(super) struct Content {
    len: u64,
    pages: BTreeMap<u64, Arc<Page>>,
}

impl Content {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Stores `bytes` from `at` and makes the file at least that long.
    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) {
        self.len = self.len.max(at + bytes.len() as u64);
        let mut left = bytes;
        let mut at = at;
        while !left.is_empty() {
            let (number, inside) = (at / PAGE_BYTES as u64, (at % PAGE_BYTES as u64) as usize);
            let (now, later) = left.split_at(left.len().min(PAGE_BYTES - inside));
            let page = self.pages.entry(number).or_insert_with(|| Arc::new([0; PAGE_BYTES]));
            Arc::make_mut(page)[inside..inside + now.len()].copy_from_slice(now);
            at += now.len() as u64;
            left = later;
        }
    }

    /// Cuts the file or lengthens it with zeros.
    pub(super) fn set_len(&mut self, len: u64) {
        if len < self.len {
            let (last, inside) = (len / PAGE_BYTES as u64, (len % PAGE_BYTES as u64) as usize);
            self.pages.split_off(&(last + u64::from(inside > 0)));
            if inside > 0
                && let Some(page) = self.pages.get_mut(&last)
            {
                Arc::make_mut(page)[inside..].fill(0);
            }
        }
        self.len = len;
    }

    /// At most `max` bytes from `at`; fewer at the end of the file.
    pub(super) fn read(&self, at: u64, max: usize) -> Vec<u8> {
        let count = usize::try_from(self.len.saturating_sub(at)).unwrap_or(usize::MAX).min(max);
        let mut out = vec![0; count];
        let mut done = 0;
        while done < count {
            let from = at + done as u64;
            let (number, inside) = (from / PAGE_BYTES as u64, (from % PAGE_BYTES as u64) as usize);
            let now = (count - done).min(PAGE_BYTES - inside);
            if let Some(page) = self.pages.get(&number) {
                out[done..done + now].copy_from_slice(&page[inside..inside + now]);
            }
            done += now;
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::SimRng;

    #[test]
    fn content_is_what_a_plain_array_would_be() {
        let mut rng = SimRng::new(1);
        let mut content = Content::default();
        let mut model: Vec<u8> = Vec::new();
        let mut old = Vec::new();
        for _ in 0..2_000 {
            let at = rng.below(20_000) as usize;
            if rng.chance(200_000) {
                content.set_len(at as u64);
                model.resize(at, 0);
            } else {
                let mut bytes = vec![0; rng.below(9_000) as usize];
                rng.fill(&mut bytes);
                content.write(at as u64, &bytes);
                model.resize(model.len().max(at + bytes.len()), 0);
                model[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            assert_eq!(content.len(), model.len() as u64);
            let from = rng.below(25_000) as usize;
            let max = rng.below(10_000) as usize;
            let expected =
                &model[from.min(model.len())..(from + max).min(model.len()).max(from.min(model.len()))];
            assert_eq!(content.read(from as u64, max), expected);
            if rng.chance(10_000) {
                old.push((content.clone(), model.clone()));
            }
        }
        assert!(!old.is_empty());
        for (content, model) in old {
            assert_eq!(content.read(0, usize::MAX), model, "a clone changes no more");
        }
    }
}
