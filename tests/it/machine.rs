//! Whether the machine had room for a test of a measured figure.
//!
//! Most tests assert what does not depend on speed: accounting, order, classes. A few assert a figure that was
//! measured, and a figure is wrong on a machine whose processors others use. Such a test runs in [`measured`] and
//! asserts its [`figure`]s there. Where one is wrong, the test fails, unless others had the processors while it was
//! measured: then the test ends as "machine starved", is listed, and counts as passed. The evidence is the kernel's
//! account of processor time, not the failure: a machine that nobody else uses starves no test. `scripts/test` prints
//! the list, and fails if it is too long.

use std::any::Any;
use std::fs::{self, File};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::Duration;

use crate::harness::process_tree;

/// A machine is starved when processes that are not of this test program, and the hypervisor, take more of its
/// processors' time than this.
const TAKEN: f64 = 0.25;

/// Names the file to which starved tests are added.
const LIST: &str = "ROLLDROP_STARVED_TESTS";

/// How often processor time is read. The account of a process that is killed with its parent is lost from one
/// reading to the next.
const PERIOD: Duration = Duration::from_secs(2);

/// Ticks of all processors so far.
#[derive(Clone, Copy, Debug, Default)]
struct Ticks {
    all: u64,
    busy: u64,
    stolen: u64,
    /// Those in which this test program ran, and what it has started.
    own: u64,
}

impl Ticks {
    fn now() -> Self {
        let stat = fs::read_to_string("/proc/stat").expect("/proc/stat");
        let line = stat.lines().next().expect("a line for all processors");
        let ticks: Vec<u64> =
            line.split_whitespace().skip(1).take(8).filter_map(|n| n.parse().ok()).collect();
        let [user, nice, system, idle, io_wait, irq, soft_irq, stolen] = ticks[..] else { panic!("{line}") };
        let busy = user + nice + system + irq + soft_irq;
        let own = process_tree(std::process::id()).iter().map(|process| process.ticks()).sum();
        Self { all: busy + idle + io_wait + stolen, busy, stolen, own }
    }
}

/// Ticks of all processors since the first reading, and those of them that others took.
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

/// The account until now.
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

/// A time in which something is measured, from its creation on.
pub(crate) struct Meanwhile {
    since: Account,
}

impl Meanwhile {
    pub(crate) fn begins() -> Self {
        Self { since: account() }
    }

    /// The share of the processors' time that others have had.
    pub(crate) fn taken(&self) -> f64 {
        account().share_since(self.since)
    }
}

/// Ends a test that the machine has starved.
struct Starved {
    why: String,
}

/// What becomes of a test.
#[derive(Debug, PartialEq)]
enum Verdict {
    GoesOn,
    Fails,
    IsStarved,
}

/// Whether others took so much of the processors' time that no figure counts.
pub(crate) fn is_starved(taken: f64) -> bool {
    taken > TAKEN
}

fn verdict(holds: bool, taken: f64) -> Verdict {
    match (holds, is_starved(taken)) {
        (true, _) => Verdict::GoesOn,
        (false, true) => Verdict::IsStarved,
        (false, false) => Verdict::Fails,
    }
}

/// Asserts a figure that was measured while others had this share of the processors' time.
#[track_caller]
pub(crate) fn figure(taken: f64, holds: bool, what: impl FnOnce() -> String) {
    match verdict(holds, taken) {
        Verdict::GoesOn => {}
        Verdict::Fails => panic!("{}\n(others had {:.0} % of the processors' time)", what(), taken * 100.0),
        Verdict::IsStarved => {
            println!("{}", what());
            let at = std::panic::Location::caller();
            let why = format!("others had {:.0} % of the processors' time ({at})", taken * 100.0);
            resume_unwind(Box::new(Starved { why }));
        }
    }
}

/// Runs a test of measured figures.
pub(crate) fn measured(test: impl FnOnce()) {
    if let Err(end) = catch_unwind(AssertUnwindSafe(test)) {
        list(*end.downcast::<Starved>().unwrap_or_else(|panic: Box<dyn Any + Send>| resume_unwind(panic)));
    }
}

/// Adds a test to those that the machine has starved.
fn list(starved: Starved) {
    let thread = thread::current();
    let line = format!("{}: {}\n", thread.name().unwrap_or("a test"), starved.why);
    // Not by a macro: the output of a test that passes is not shown.
    let _ = std::io::stderr().write_all(format!("machine starved: {line}").as_bytes());
    if let Some(path) = std::env::var_os(LIST) {
        let mut file =
            File::options().append(true).create(true).open(path).expect("the list of starved tests");
        file.write_all(line.as_bytes()).expect("the list of starved tests");
    }
}

#[test]
fn a_wrong_figure_fails_a_test_unless_others_have_the_processors() {
    assert_eq!(verdict(true, 0.0), Verdict::GoesOn);
    assert_eq!(verdict(true, 0.9), Verdict::GoesOn);
    assert_eq!(verdict(false, 0.1), Verdict::Fails);
    assert_eq!(verdict(false, 0.6), Verdict::IsStarved);
    let ticks = |all, busy, stolen, own| Ticks { all, busy, stolen, own };
    let taken = |before, now| {
        let mut account = Account::default();
        account.add(before, now);
        account.share_since(Account::default())
    };
    // What the tests themselves use is taken by nobody else.
    assert_eq!(taken(ticks(0, 0, 0, 0), ticks(200, 200, 0, 200)), 0.0);
    assert_eq!(taken(ticks(0, 0, 0, 0), ticks(200, 100, 50, 50)), 0.5);
    // A process that was killed with its parent takes its account along.
    assert_eq!(taken(ticks(100, 100, 0, 90), ticks(300, 200, 0, 50)), 0.5);
    assert_eq!(taken(ticks(0, 0, 0, 0), ticks(0, 0, 0, 0)), 0.0);
}

#[test]
fn an_assertion_that_does_not_depend_on_speed_fails_on_a_starved_machine_too() {
    let fails = |test: fn()| catch_unwind(|| measured(test)).is_err();
    assert!(fails(|| panic!("another order")));
    assert!(fails(|| figure(0.0, false, || "a figure on a machine of its own".to_owned())));
    assert!(!fails(|| figure(0.9, true, String::new)));
}
