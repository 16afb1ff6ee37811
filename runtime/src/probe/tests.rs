use super::facts::{has_capability, limit, parse_cpu_max, parse_cpus};
use super::*;

const MIB: u64 = 1024 * 1024;

fn good() -> (Facts, Needs) {
    let buffers = BufferSizes { recv_bytes: 8 << 20, send_bytes: 8 << 20 };
    let facts = Facts {
        io_uring: Ok(()),
        memlock_bytes: Some(64 * MIB),
        cap_ipc_lock: false,
        open_files_soft: Some(4096),
        open_files_hard: Some(4096),
        udp_granted: Ok(buffers),
        cpus_allowed: vec![0, 1, 2, 3],
        cpu_quota: None,
        ipv6: true,
    };
    let needs =
        Needs { cores: 4, cpus: vec![0, 1, 2, 3], open_files: 1024, udp_buffers: buffers, ipv6: true };
    (facts, needs)
}

/// The one finding after `spoil`, checked to be printable on one line.
fn only(spoil: impl FnOnce(&mut Facts, &mut Needs)) -> Finding {
    let (mut facts, mut needs) = good();
    spoil(&mut facts, &mut needs);
    let mut findings = evaluate(&facts, &needs);
    assert_eq!(findings.len(), 1, "{findings:?}");
    let finding = findings.remove(0);
    assert!(!finding.mend.is_empty() && !finding.to_string().contains('\n'), "{finding}");
    finding
}

#[test]
fn a_machine_that_has_everything_gives_no_finding() {
    let (facts, needs) = good();
    assert_eq!(evaluate(&facts, &needs), []);
}

#[test]
fn what_nobody_could_read_is_not_complained_about() {
    let (mut facts, needs) = good();
    facts.memlock_bytes = None;
    facts.open_files_soft = None;
    facts.cpus_allowed = Vec::new();
    assert_eq!(evaluate(&facts, &needs), []);
}

#[test]
fn a_missing_io_uring_is_fatal_and_the_mend_depends_on_why() {
    let missing = only(|facts, _| facts.io_uring = Err(libc::ENOSYS));
    let forbidden = only(|facts, _| facts.io_uring = Err(libc::EPERM));
    assert_eq!((missing.severity, forbidden.severity), (Severity::Fatal, Severity::Fatal));
    assert!(missing.mend.contains("Linux") && forbidden.mend.contains("io_uring_disabled"));
}

#[test]
fn a_memlock_limit_executors_refuse_is_fatal() {
    let found = only(|facts, _| facts.memlock_bytes = Some(64 * 1024));
    assert_eq!(found.severity, Severity::Fatal);
    assert!(found.what.contains("65536"), "{found}");
}

#[test]
fn too_few_open_files_warn_and_far_too_few_are_fatal() {
    let few = only(|facts, _| facts.open_files_soft = Some(1024));
    assert_eq!(few.severity, Severity::Warning);
    assert!(few.mend.contains("ulimit -n 1088"), "{few}");
    let fatal = only(|facts, _| {
        facts.open_files_soft = Some(32);
        facts.open_files_hard = Some(64);
    });
    assert_eq!(fatal.severity, Severity::Fatal);
    assert!(fatal.mend.contains("hard is 64"), "{fatal}");
}

#[test]
fn short_udp_buffers_name_the_sysctl() {
    let receive = only(|facts, _| {
        facts.udp_granted = Ok(BufferSizes { recv_bytes: 212_992, send_bytes: 8 << 20 });
    });
    assert_eq!(receive.severity, Severity::Warning);
    assert!(
        receive.mend.contains("net.core.rmem_max=8388608") && receive.what.contains("212992"),
        "{receive}"
    );
    let send = only(|facts, _| {
        facts.udp_granted = Ok(BufferSizes { recv_bytes: 8 << 20, send_bytes: 4 << 20 });
    });
    assert_eq!(send.severity, Severity::Note);
    assert!(send.mend.contains("net.core.wmem_max"), "{send}");
    assert_eq!(only(|facts, _| facts.udp_granted = Err(libc::EPERM)).severity, Severity::Fatal);
}

#[test]
fn a_processor_outside_the_cpuset_is_fatal_and_named() {
    let found = only(|facts, _| facts.cpus_allowed = vec![0, 1, 2, 7]);
    assert_eq!(found.severity, Severity::Fatal);
    assert!(found.what.contains("processors 3,") && found.mend.contains("0,1,2,7"), "{found}");
}

#[test]
fn more_cores_than_processors_or_quota_is_a_warning() {
    let shared = only(|facts, needs| {
        needs.cpus = Vec::new();
        facts.cpus_allowed = vec![0, 1];
    });
    let stopped = only(|facts, _| facts.cpu_quota = Some(1.5));
    assert_eq!((shared.severity, stopped.severity), (Severity::Warning, Severity::Warning));
    assert!(stopped.what.contains("1.50"), "{stopped}");
}

#[test]
fn missing_ipv6_is_only_noted_and_only_when_wanted() {
    assert_eq!(only(|facts, _| facts.ipv6 = false).severity, Severity::Note);
    let (mut facts, mut needs) = good();
    facts.ipv6 = false;
    needs.ipv6 = false;
    assert_eq!(evaluate(&facts, &needs), []);
}

#[test]
fn the_worst_finding_comes_first() {
    let (mut facts, needs) = good();
    facts.ipv6 = false;
    facts.cpu_quota = Some(0.5);
    facts.io_uring = Err(libc::ENOMEM);
    let severities: Vec<_> = evaluate(&facts, &needs).into_iter().map(|finding| finding.severity).collect();
    assert_eq!(severities, [Severity::Fatal, Severity::Warning, Severity::Note]);
}

#[test]
fn the_kernels_own_words_are_understood() {
    let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                  Max open files            1024                 524288               files     \n\
                  Max locked memory         8388608              unlimited            bytes     \n";
    assert_eq!(limit(limits, "Max open files"), (Some(1024), Some(524_288)));
    assert_eq!(limit(limits, "Max locked memory"), (Some(8_388_608), None));
    assert_eq!(limit("", "Max open files"), (None, None));
    assert_eq!(parse_cpus("0-2,5,8-9\n"), [0, 1, 2, 5, 8, 9]);
    assert_eq!(parse_cpus("x,1-,4"), [4]);
    assert_eq!(parse_cpu_max("150000 100000\n"), Some(1.5));
    assert_eq!((parse_cpu_max("max 100000"), parse_cpu_max("1 0"), parse_cpu_max("")), (None, None, None));
    let status = "Name:\tx\nCapEff:\t0000000000004000\n";
    assert!(has_capability(status, 14) && !has_capability(status, 13) && !has_capability("", 14));
}

#[test]
fn this_machine_can_be_read() {
    let facts = Facts::read(BufferSizes { recv_bytes: 65_536, send_bytes: 65_536 });
    assert_eq!(facts.io_uring, Ok(()), "the other tests of this crate need it");
    assert!(!facts.cpus_allowed.is_empty() && facts.open_files_soft.is_some());
    let granted = facts.udp_granted.expect("a UDP socket");
    assert!(granted.recv_bytes >= 2_048 && granted.send_bytes >= 2_048, "{granted:?}");
}
