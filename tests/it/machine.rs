//! Checks that the machine had enough CPU time for a test of measured figures.
//!
//! Most tests assert results that do not depend on speed: accounting, order, classes. A few assert measured figures,
//! which are wrong if other tests or programs use the machine's CPUs. Such a test runs in [`measured`] and asserts its
//! [`figure`]s there. A wrong figure is measured again, at most twice, once the other tests use little CPU time. If it
//! is still wrong, the test fails, unless other processes used the CPUs: then the test is reported as "machine
//! starved", is listed, and counts as passed. The evidence is the kernel's account of CPU time, not the failure; a
//! machine that no one else uses starves no test. `scripts/test` prints the list, and fails if it is too long.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::Write;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::Duration;

use crate::harness::process_tree;

/// A machine is starved if processes outside this test program, and the hypervisor, take more than this share of CPU
/// time.
const TAKEN: f64 = 0.25;

/// The machine counts as quiet if the tests take less than this share of CPU time between two readings.
const QUIET: f64 = 0.2;

/// Maximum number of measurements of a test's figures.
pub(crate) const MEASUREMENTS: usize = 3;

thread_local! {
    static MEASUREMENT: Cell<usize> = const { Cell::new(0) };
}

/// Returns the number of the current measurement in this thread's test, counted from 0.
pub(crate) fn measurement() -> usize {
    MEASUREMENT.get()
}

/// Environment variable that names the file to which starved tests are added.
const LIST: &str = "ROLLDROP_STARVED_TESTS";

/// Interval at which CPU time is read. If a process is killed together with its parent, its CPU time since the last
/// reading is lost.
const PERIOD: Duration = Duration::from_secs(2);

/// Ticks of all CPUs so far.
#[derive(Clone, Copy, Debug, Default)]
struct Ticks {
    all: u64,
    busy: u64,
    stolen: u64,
    /// Ticks used by this test program and the processes that it started.
    own: u64,
}

impl Ticks {
    fn now() -> Self {
        let stat = fs::read_to_string("/proc/stat").expect("/proc/stat");
        let line = stat.lines().next().expect("a line for all CPUs");
        let ticks: Vec<u64> =
            line.split_whitespace().skip(1).take(8).filter_map(|n| n.parse().ok()).collect();
        let [user, nice, system, idle, io_wait, irq, soft_irq, stolen] = ticks[..] else { panic!("{line}") };
        let busy = user + nice + system + irq + soft_irq;
        let own = process_tree(std::process::id()).iter().map(|process| process.ticks()).sum();
        Self { all: busy + idle + io_wait + stolen, busy, stolen, own }
    }
}

/// Ticks of all CPUs since the first reading, and the part of them that others took.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    all: u64,
    taken: u64,
}

impl Account {
    fn add(&mut self, before: Ticks, now: Ticks) {
        let own = now.own.saturating_sub(before.own);
        let others = now.busy.saturating_sub(before.busy).saturating_sub(own);
        self.all += now.all.saturating_sub(before.all);
        self.taken += others + now.stolen.saturating_sub(before.stolen);
    }

    fn share_since(self, then: Self) -> f64 {
        let all = self.all.saturating_sub(then.all);
        if all == 0 { 0.0 } else { (self.taken - then.taken) as f64 / all as f64 }
    }
}

/// Returns the account up to now.
fn account() -> Account {
    static STATE: Mutex<Option<(Ticks, Account)>> = Mutex::new(None);
    static READER: Once = Once::new();
    READER.call_once(|| {
        thread::spawn(|| {
            loop {
                thread::sleep(PERIOD);
                account();
            }
        });
    });
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Ticks::now();
    let (before, mut account) = state.unwrap_or((now, Account::default()));
    account.add(before, now);
    *state = Some((now, account));
    account
}

/// A measured period, which begins when this value is created.
pub(crate) struct Meanwhile {
    since: Account,
}

impl Meanwhile {
    pub(crate) fn begins() -> Self {
        Self { since: account() }
    }

    /// Returns the share of CPU time used by others.
    pub(crate) fn taken(&self) -> f64 {
        account().share_since(self.since)
    }
}

/// Returns true if others took so much CPU time that no figure counts.
fn is_starved(taken: f64) -> bool {
    taken > TAKEN
}

/// Panic payload that aborts a measurement because a figure is wrong.
struct Wrong {
    /// Share of CPU time used by others.
    taken: f64,
    at: &'static Location<'static>,
}

/// Asserts a figure that was measured while others used this share of CPU time.
#[track_caller]
pub(crate) fn figure(taken: f64, holds: bool, what: impl FnOnce() -> String) {
    if !holds {
        let at = Location::caller();
        println!(
            "{}\n(a figure at {at} is wrong; others used {:.0} % of the CPU time)",
            what(),
            taken * 100.0
        );
        resume_unwind(Box::new(Wrong { taken, at }));
    }
}

/// Runs a test of measured figures, and repeats it if one was wrong.
pub(crate) fn measured(test: impl Fn()) {
    if let Some(wrong) = measured_again(test, wait_until_quiet) {
        assert!(is_starved(wrong.taken), "the figure at {} was wrong {MEASUREMENTS} times", wrong.at);
        list(&wrong);
    }
}

/// Returns the last wrong figure if every measurement had one.
fn measured_again(test: impl Fn(), wait: impl Fn()) -> Option<Wrong> {
    let once = || -> Option<Wrong> {
        let end = catch_unwind(AssertUnwindSafe(&test)).err()?;
        Some(*end.downcast().unwrap_or_else(|panic| resume_unwind(panic)))
    };
    MEASUREMENT.set(0);
    let mut wrong = once()?;
    for measurement in 1..MEASUREMENTS {
        wait();
        MEASUREMENT.set(measurement);
        wrong = once()?;
    }
    Some(wrong)
}

/// Waits until the tests use little CPU time. They eventually do, because a waiting test uses none. Tests wait one after
/// the other: if all saw the same quiet moment, none would have a quiet machine.
pub(crate) fn wait_until_quiet() {
    static NEXT: Mutex<()> = Mutex::new(());
    let _next = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let before = Ticks::now();
        thread::sleep(PERIOD);
        let now = Ticks::now();
        let (own, all) = (now.own.saturating_sub(before.own), now.all - before.all);
        if own as f64 <= all as f64 * QUIET {
            return;
        }
    }
}

/// Adds a test to the list of starved tests.
fn list(starved: &Wrong) {
    let (thread, Wrong { taken, at }) = (thread::current(), starved);
    let name = thread.name().unwrap_or("a test");
    let line = format!("{name}: others used {:.0} % of the CPU time ({at})\n", taken * 100.0);
    // Written without a print macro, because the output of a passing test is not shown.
    let _ = std::io::stderr().write_all(format!("machine starved: {line}").as_bytes());
    if let Some(path) = std::env::var_os(LIST) {
        let mut file =
            File::options().append(true).create(true).open(path).expect("the list of starved tests");
        file.write_all(line.as_bytes()).expect("the list of starved tests");
    }
}

#[test]
fn cpu_share_of_others_excludes_tests() {
    let ticks = |all, busy, stolen, own| Ticks { all, busy, stolen, own };
    let taken = |before, now| {
        let mut account = Account::default();
        account.add(before, now);
        account.share_since(Account::default())
    };
    // CPU time of the tests themselves does not count as taken by others.
    assert_eq!(taken(ticks(0, 0, 0, 0), ticks(200, 200, 0, 200)), 0.0);
    assert_eq!(taken(ticks(0, 0, 0, 0), ticks(200, 100, 50, 50)), 0.5);
    // The account of a process killed with its parent is lost.
    assert_eq!(taken(ticks(100, 100, 0, 90), ticks(300, 200, 0, 50)), 0.5);
    assert_eq!(taken(ticks(0, 0, 0, 0), ticks(0, 0, 0, 0)), 0.0);
}

#[test]
fn wrong_figure_fails_unless_starved() {
    // Measures a figure that is right only at the given measurement. Returns the number of measurements, and whether
    // the test fails.
    let of = |right_at: usize, taken: f64| {
        let count = Cell::new(0);
        let test = || {
            count.set(count.get() + 1);
            figure(taken, count.get() == right_at, || "a figure".to_owned());
        };
        let wrong = measured_again(test, || {});
        (count.get(), wrong.is_some_and(|wrong| !is_starved(wrong.taken)))
    };
    assert_eq!(of(1, 0.0), (1, false));
    assert_eq!(of(1, 0.9), (1, false));
    assert_eq!(of(3, 0.0), (3, false));
    assert_eq!(of(4, 0.0), (3, true));
    assert_eq!(of(4, 0.9), (3, false));
}

#[test]
fn plain_assertion_fails_without_retry() {
    let count = Cell::new(0);
    let test = || {
        count.set(count.get() + 1);
        panic!("another order");
    };
    assert!(catch_unwind(AssertUnwindSafe(|| measured(test))).is_err());
    assert_eq!(count.get(), 1);
}
