//! The soak from the command line, as far as it does not run: beside other tests its cycles say nothing, and CI has a stage of
//! its own for them.

use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

/// It leads a process group, so it gets no scheduling weight of its own: other tests run beside it.
fn soak(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_felix-bench"));
    command.arg("soak").args(args).process_group(0).output().unwrap()
}

#[test]
fn a_soak_that_cannot_begin_says_why() {
    let too_few = soak(&["--cycles", "4"]);
    assert_eq!(too_few.status.code(), Some(2), "there are no two cycles after the third");
    let nowhere = soak(&["--dir", "/nowhere/at/all"]);
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nowhere.stderr).contains("/nowhere/at/all"));
}
