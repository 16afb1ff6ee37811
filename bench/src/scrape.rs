//! The metrics page of a broker. Scope: one reading at a time.
//! Owns: asking for the page and taking its numbers out of the text.
//! Invariants: a reading ends by a deadline and takes bounded memory; a line that is not understood is left out.
//! Not here: what the numbers mean (`watch`, `compare_disk`).

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::target::Ready;

/// For one reading.
const DEADLINE: Duration = Duration::from_secs(5);
/// A page of metrics is far smaller.
const PAGE_BYTES_MAX: u64 = 16 << 20;
/// What every name begins with.
const PREFIX: &str = "felix_";

/// Where a broker serves its metrics.
///
/// # Errors
/// The ready file names none.
pub fn address(ready: &Ready) -> io::Result<SocketAddr> {
    let url = ready.metrics_url.as_deref().and_then(|url| url.strip_prefix("http://"));
    url.and_then(|url| url.trim_end_matches('/').parse().ok())
        .ok_or_else(|| io::Error::other("no address of metrics"))
}

/// The page as it came, with its HTTP head.
///
/// # Errors
/// Nobody answers there within a few seconds.
pub fn text(address: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, DEADLINE)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.set_write_timeout(Some(DEADLINE))?;
    let question = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(question.as_bytes())?;
    let mut page = String::new();
    stream.take(PAGE_BYTES_MAX).read_to_string(&mut page)?;
    Ok(page)
}

/// Numbers of one reading, added up over all labels, and by core where the label says one. Names are without `felix_`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Page {
    pub totals: BTreeMap<String, f64>,
    /// By name, then by core.
    pub by_core: BTreeMap<String, BTreeMap<u32, f64>>,
}

impl Page {
    /// Reads the page of the broker at `address`.
    ///
    /// # Errors
    /// As `text`.
    pub fn read(address: SocketAddr) -> io::Result<Page> {
        Ok(Page::parse(&text(address)?))
    }

    /// Takes the numbers out of a page.
    #[must_use]
    pub fn parse(page: &str) -> Page {
        let mut found = Page::default();
        for line in page.lines() {
            let Some((series, value)) = line.strip_prefix(PREFIX).and_then(|line| line.rsplit_once(' '))
            else {
                continue;
            };
            let Ok(value) = value.parse::<f64>() else { continue };
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            *found.totals.entry(name.to_owned()).or_default() += value;
            let core = labels.strip_prefix("core=\"").and_then(|rest| rest.split('"').next()?.parse().ok());
            if let Some(core) = core {
                *found.by_core.entry(name.to_owned()).or_default().entry(core).or_default() += value;
            }
        }
        found
    }

    /// The sum over all labels; 0 for a number that is not there.
    #[must_use]
    pub fn total(&self, name: &str) -> f64 {
        self.totals.get(name).copied().unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_added_up_and_kept_by_core() {
        let page = "HTTP/1.1 200 OK\r\n\r\n# TYPE felix_publish_written counter
felix_publish_written_total{core=\"0\"} 10
felix_publish_written_total{core=\"1\"} 5
felix_tenant_published_messages_total{tenant=\"a\"} 7
felix_tenant_published_messages_total{tenant=\"b\"} 1
felix_ready_state 1
felix_odd one
# EOF
";
        let page = Page::parse(page);
        assert_eq!(page.total("publish_written_total"), 15.0);
        assert_eq!(page.total("tenant_published_messages_total"), 8.0);
        assert_eq!((page.total("ready_state"), page.total("odd"), page.total("absent")), (1.0, 0.0, 0.0));
        assert_eq!(page.by_core["publish_written_total"], BTreeMap::from([(0, 10.0), (1, 5.0)]));
    }
}
