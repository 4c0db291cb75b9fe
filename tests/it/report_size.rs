//! Memory use of a report: answered requests are only aggregated, while lost ones are kept in memory.
//! `scripts/proofs/report` is the long form (docs/performance.md).

use std::path::Path;
use std::time::Duration;

use rolldrop_explain::RunResult;

use crate::harness::Rolldrop;
use crate::hostile::memory_kib_if_alive;
use crate::synthetic::{PER_SECOND, Synthetic};

/// Number of requests per lost request.
const ONE_LOST_OF: u64 = 1000;
/// Maximum memory growth for 100,000 more requests; kept in memory, they would take 70,000 KiB.
const MOST_GROWTH_KIB: u64 = 24 * 1024;
/// Maximum memory growth for 100,000 more lost requests.
const MOST_GROWTH_OF_LOST_KIB: u64 = 80_000;

#[test]
fn report_memory_is_independent_of_request_count() {
    if let Some(run) = std::env::var_os("REPORT_RUN") {
        let number = |name| std::env::var(name).map_or(1, |text| text.parse().expect("a number"));
        let [workers, seconds, deletions] =
            ["REPORT_WORKERS", "REPORT_SECONDS", "REPORT_DELETIONS"].map(number);
        return Synthetic { workers, seconds, deletions, one_lost_of: ONE_LOST_OF }.write(Path::new(&run));
    }
    grows_by_less_than(MOST_GROWTH_KIB, ONE_LOST_OF);
}

#[test]
fn lost_request_costs_under_one_kilobyte() {
    grows_by_less_than(MOST_GROWTH_OF_LOST_KIB, 1);
}

/// Compares the memory use of reports on 20,000 and on 120,000 requests.
fn grows_by_less_than(most_kib: u64, one_lost_of: u64) {
    let [few, many] = [2, 12].map(|seconds| peak_kib(seconds, one_lost_of));
    println!("{few} KiB for 20,000 requests, {many} KiB for 120,000; one in {one_lost_of} lost");
    assert!(many < few + most_kib, "{few} KiB for 20,000 requests, {many} KiB for 120,000");
}

/// Returns the peak memory of a report on a run of this many seconds, in KiB.
fn peak_kib(seconds: u64, one_lost_of: u64) -> u64 {
    let dir = tempfile::tempdir().expect("a directory");
    let run = dir.path().join("run");
    Synthetic { workers: 1, seconds, deletions: 1, one_lost_of }.write(&run);
    let peak_kib = report(&run);
    let result = std::fs::read_to_string(run.join("result.json")).expect("a result");
    let result: RunResult = serde_json::from_str(&result).expect("a result");
    let (all, lost) = (seconds * PER_SECOND, seconds * PER_SECOND / one_lost_of);
    assert_eq!((result.requests.total, result.requests.dropped), (all, lost));
    peak_kib
}

/// Makes the report, and returns the peak memory in KiB.
fn report(run: &Path) -> u64 {
    let (mut child, _dir) = Rolldrop::new(["report".as_ref(), run.as_os_str()]).start();
    let mut peak_kib = 0;
    while child.try_wait().expect("a child").is_none() {
        peak_kib = memory_kib_if_alive(child.id(), "VmHWM").unwrap_or(0).max(peak_kib);
        std::thread::sleep(Duration::from_millis(2));
    }
    peak_kib
}
