//! The recording proxy as a process, among clients and apps that misbehave.

use std::process::Command;

#[test]
fn misbehaving_clients_and_apps_cost_the_proxy_no_row_and_leave_nothing_behind() {
    // The small form of a proof (docs/proofs.md).
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/proofs/soak");
    let arguments = ["--seconds", "10", "--clients", "32", "--rolldrop", env!("CARGO_BIN_EXE_rolldrop")];
    let done = Command::new("python3").arg(script).args(arguments).output().expect("python3 runs");
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
}
