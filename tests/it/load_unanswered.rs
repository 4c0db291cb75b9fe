//! `rolldrop load` in its own network namespace, whose packet filter drops, rejects and resets: the rows show the
//! kernel's error for each.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use nix::errno::Errno;
use rolldrop_record::parts::read_table;
use rolldrop_record::{Outcome, RequestRow};

const RULES: &str = "
table inet filter {
  chain input {
    type filter hook input priority 0
    tcp dport 81 drop
    tcp dport 82 reject with icmpx type host-unreachable
    tcp dport 83 reject with tcp reset
  }
}
";

/// Script that brings the network up, and then executes the load.
const SCRIPT: &str = r#"ip link set lo up && nft -f rules.nft && exec "$0" load "$@""#;

#[test]
fn unanswered_syns_have_distinct_outcomes() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("rules.nft"), RULES).expect("the rules");
    let expected = BTreeMap::from([
        ("http://127.0.0.1:81/", (Outcome::ConnectTimeout, None)),
        ("http://127.0.0.1:82/", (Outcome::ConnectUnreachable, Some(Errno::EHOSTUNREACH))),
        ("http://127.0.0.1:83/", (Outcome::ConnectRefused, Some(Errno::ECONNREFUSED))),
        // This address has no route.
        ("http://192.0.2.1/", (Outcome::ConnectUnreachable, Some(Errno::ENETUNREACH))),
    ]);
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "sh", "-c", SCRIPT, env!("CARGO_BIN_EXE_rolldrop")])
        .args(expected.keys())
        .args(["-n", "40", "-r", "100", "--connect-timeout", "300ms", "--out", "run", "--quiet"])
        .current_dir(dir.path())
        .env("PATH", path)
        .output()
        .expect("scripts/test installs util-linux");
    assert!(output.status.success(), "{output:?}");
    let rows = read_table::<RequestRow>(&dir.path().join("run")).expect("rows");
    assert_eq!(rows.len(), 40, "{output:?}");
    for row in rows.iter().filter(|row| row.outcome != Outcome::NotSent) {
        let (outcome, errno) = expected[&*row.target];
        let errno = errno.map(|errno| errno as i32);
        assert_eq!((row.outcome, row.errno, row.connected), (outcome, errno, None), "{row:?}");
        assert!(row.local_port.is_some() || errno == Some(Errno::ENETUNREACH as i32), "{row:?}");
    }
}
