//! What a machine gives before anything is measured on it. Scope: taken once per run; every result carries one.
//! Owns: the order of the looks, and which findings forbid a result.
//! Invariants: what cannot be read is absent, never a guess; each look ends by itself within seconds; what it makes on the
//! disk is removed. It needs the runtime and nothing of a broker, so that a doctor of an installation can use it.
//! Not here: the start-up checks that the broker makes too (`felix_runtime::probe`), measuring (`load`).

mod disk;
mod host;
mod noise;
mod path;

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use felix_runtime::probe::{self, Facts, Needs, Severity};
use felix_runtime::udp::BufferSizes;
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::raw_disk::RawError;

pub use disk::{DiskRow, Qualification, qualify, requalify};
pub use host::Host;
pub use noise::{CpuNoise, spin};
pub use path::{Echo, PathProbe, SizeProbe, probe as probe_path};

const OPEN_FILES: u64 = 4_096;
/// A CPU that others had for more than this share of a spin is no place to measure.
const NOISE_PERCENT_MAX: f64 = 2.0;

/// What is looked at.
#[derive(Debug, Clone)]
pub struct PreflightPlan {
    /// The CPUs of servers and load, each spun on.
    pub cpus: Vec<usize>,
    /// Of them, those of a server.
    pub server_cores: u16,
    /// The largest datagram that is going to be tried.
    pub mtu: u16,
    /// The address that servers are reached at.
    pub address: IpAddr,
    /// The folder that logs are going to be written in; without, no disk is looked at.
    pub disk: Option<PathBuf>,
    /// How long each CPU is spun on.
    pub spin: Duration,
    /// How long each row of the disk's table is measured.
    pub disk_row: Duration,
}

/// Why there is no preflight, and so no result.
#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    #[error("disk qualification: {0}")]
    Disk(#[from] RawError),
    #[error("{dir}: {error}")]
    Folder { dir: PathBuf, error: std::io::Error },
    #[error("{dir} lies on {kind}, which keeps its bytes in memory: name a folder on a disk")]
    InMemory { dir: PathBuf, kind: String },
    #[error("the path to {address}: {error}")]
    Path { address: IpAddr, error: std::io::Error },
    /// A broker would not start here.
    #[error("this machine is not fit for a broker: {}", .0.join("; "))]
    Unfit(Vec<String>),
}

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Weight {
    Note,
    Warning,
    Fatal,
}

/// One thing that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remark {
    pub weight: Weight,
    pub what: String,
    pub mend: String,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Preflight {
    pub taken_unix_s: f64,
    pub machine: Machine,
    pub host: Host,
    pub path: PathProbe,
    pub noise: Vec<CpuNoise>,
    pub disk: Option<Qualification>,
    pub remarks: Vec<Remark>,
}

impl Preflight {
    /// Looks. Takes a second, and some seconds more with a disk.
    ///
    /// # Errors
    /// The disk or the path could not be looked at, or a broker would not start here.
    pub fn take(plan: &PreflightPlan) -> Result<Preflight, PreflightError> {
        let needs = Needs {
            cores: plan.server_cores,
            cpus: plan.cpus.clone(),
            open_files: OPEN_FILES,
            udp_buffers: BufferSizes::default(),
            ipv6: plan.address.is_ipv6(),
        };
        let facts = Facts::read(needs.udp_buffers);
        let mut remarks: Vec<Remark> = probe::evaluate(&facts, &needs).into_iter().map(remark).collect();
        let fatal: Vec<String> =
            remarks.iter().filter(|r| r.weight == Weight::Fatal).map(Remark::line).collect();
        if !fatal.is_empty() {
            return Err(PreflightError::Unfit(fatal));
        }
        let path = path::local(plan.address, plan.mtu)
            .map_err(|error| PreflightError::Path { address: plan.address, error })?;
        let noise: Vec<CpuNoise> = plan.cpus.iter().map(|cpu| noise::spin(*cpu, plan.spin)).collect();
        let disk =
            plan.disk.as_deref().map(|dir| disk::qualify(dir, plan.cpus.first().copied(), plan.disk_row));
        let host = Host::look(&facts);
        remarks.extend(judge(&host, &path, &noise, plan.mtu));
        Ok(Preflight {
            taken_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
            machine: Machine::look(),
            host,
            path,
            noise,
            disk: disk.transpose()?,
            remarks,
        })
    }

    /// The largest share of a CPU that others had while it was spun on, percent.
    #[must_use]
    pub fn noise_percent(&self) -> f64 {
        self.noise.iter().map(|cpu| cpu.lost_percent).fold(0.0, f64::max)
    }
}

fn remark(finding: probe::Finding) -> Remark {
    let weight = match finding.severity {
        Severity::Note => Weight::Note,
        Severity::Warning => Weight::Warning,
        Severity::Fatal => Weight::Fatal,
    };
    Remark { weight, what: finding.what, mend: finding.mend }
}

/// What the broker does not ask, and a measurement should.
fn judge(host: &Host, path: &PathProbe, noise: &[CpuNoise], mtu: u16) -> Vec<Remark> {
    let mut remarks = Vec::new();
    let mut say = |what: String, mend: &str| {
        remarks.push(Remark { weight: Weight::Warning, what, mend: mend.to_owned() });
    };
    if let Some(governor) = host.governors.iter().find(|name| *name != "performance") {
        say(
            format!("the frequency governor is {governor}"),
            "measure with `performance`: echo it to each CPU's cpufreq/scaling_governor",
        );
    }
    if let Some(source) = &host.clock_source
        && !matches!(source.as_str(), "tsc" | "kvm-clock" | "arch_sys_counter")
    {
        say(
            format!("the clock source is {source}: reading it is a system call"),
            "boot with a stable TSC, or accept that latencies hold it",
        );
    }
    if path.largest < mtu {
        say(
            format!("datagrams of {mtu} bytes do not arrive, the largest that do have {}", path.largest),
            "raise the MTU of the interfaces on the way, or lower the shape's mtu",
        );
    }
    if !path.gso || !path.gro {
        let missing = if path.gso { "GRO" } else { "GSO" };
        say(format!("{missing} does not work here"), "use a kernel from 5.0 on, and look at `ethtool -k`");
    }
    for cpu in noise.iter().filter(|cpu| cpu.lost_percent > NOISE_PERCENT_MAX || !cpu.pinned) {
        let what = if cpu.pinned {
            format!(
                "others had {:.1} % of CPU {} (worst gap {:.0} us)",
                cpu.lost_percent, cpu.cpu, cpu.worst_gap_us
            )
        } else {
            format!("a thread cannot be kept on CPU {}", cpu.cpu)
        };
        say(what, "stop what else runs, or choose another CPU");
    }
    remarks
}

impl Remark {
    /// What is wrong and how to mend it.
    #[must_use]
    pub fn line(&self) -> String {
        format!("{}; {}", self.what, self.mend)
    }
}

impl fmt::Display for Preflight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let machine = &self.machine;
        writeln!(
            f,
            "machine    {} x {}, kernel {}, commit {}, {} build",
            machine.cpus, machine.cpu, machine.kernel, machine.commit, machine.build
        )?;
        write!(f, "{}", self.host)?;
        write!(f, "{}", self.path)?;
        for cpu in &self.noise {
            writeln!(
                f,
                "noise      CPU {}: {:.2} % had by others, worst gap {:.0} us",
                cpu.cpu, cpu.lost_percent, cpu.worst_gap_us
            )?;
        }
        if let Some(disk) = &self.disk {
            write!(f, "{disk}")?;
        }
        for remark in &self.remarks {
            writeln!(f, "{:<10} {}", format!("{:?}", remark.weight).to_lowercase(), remark.line())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(disk: Option<PathBuf>) -> PreflightPlan {
        PreflightPlan {
            cpus: vec![0],
            server_cores: 1,
            mtu: 3_872,
            address: IpAddr::from([127, 0, 0, 1]),
            disk,
            spin: Duration::from_millis(5),
            disk_row: Duration::from_millis(5),
        }
    }

    #[test]
    fn a_preflight_comes_back_from_json_as_it_was() {
        let taken = Preflight::take(&plan(None)).unwrap();
        assert_eq!((taken.noise.len(), taken.path.largest >= 3_872), (1, true), "{taken}");
        let text = serde_json::to_string(&taken).unwrap();
        let again: Preflight = serde_json::from_str(&text).unwrap();
        assert_eq!(again.remarks, taken.remarks);
        assert_eq!(again.path, taken.path);
    }

    #[test]
    fn a_disk_in_memory_is_refused() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let error = Preflight::take(&plan(Some(folder.path().to_owned()))).unwrap_err();
        assert!(matches!(error, PreflightError::InMemory { .. }), "{error}");
        let error = Preflight::take(&plan(Some(folder.path().join("nothing")))).unwrap_err();
        assert!(matches!(error, PreflightError::Folder { .. }), "{error}");
    }

    #[test]
    fn what_bends_a_measurement_is_said() {
        let noise = |lost_percent, pinned| CpuNoise {
            cpu: 3,
            pinned,
            seconds: 0.3,
            lost_percent,
            worst_gap_us: 900.0,
        };
        let path = PathProbe { largest: 1_452, gso: true, gro: false, ..PathProbe::default() };
        let host = Host {
            governors: vec!["powersave".into()],
            clock_source: Some("hpet".into()),
            ..Host::default()
        };
        let said: Vec<String> =
            judge(&host, &path, &[noise(9.0, true), noise(0.0, false), noise(0.1, true)], 3_872)
                .iter()
                .map(Remark::line)
                .collect();
        for (line, part) in said.iter().zip(["powersave", "hpet", "1452", "GRO", "9.0 % of CPU 3", "be kept"])
        {
            assert!(line.contains(part), "{line} does not say {part}");
        }
        assert_eq!(said.len(), 6);
        let fine = PathProbe { largest: 9_000, gso: true, gro: true, ..PathProbe::default() };
        assert!(judge(&Host::default(), &fine, &[noise(0.1, true)], 3_872).is_empty());
    }
}
