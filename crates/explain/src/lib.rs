//! Windows, attribution, causes, statistics and the recommendation.
//!
//! Pure: data in, data out. No clock, no I/O, no async. Each number is documented where it is computed. The modules, in
//! the order in which a run passes through them: `timeline` (events and requests on one clock; `pod_lives::t0` decides
//! when a deletion took effect, `drop_policy` which requests count as dropped), `route` (the time at which traffic to a
//! pod stopped), `attribute` (the termination and the cause of each loss), `count` (sums), `conclude` (validity,
//! findings, recommendation). `model` is the output of the crate, `math` holds the formulas.
//!
//! There are too many successful requests to hold in memory. One pass over them collects facts that only all requests
//! together show (`timeline::requests`), the arrivals at each pod, from which the windows follow
//! (`route::observations`), and the totals (`sums`). Later steps depend on all of these and read only some columns of
//! the rows: `route::facts` reads the columns needed to explain failures that involve a gateway, a source port or a
//! kept connection, if there are any, and `sums` reads the requests near a termination. If the first pass did not know
//! enough about the requests ([`Analysed::of`]), they are read again.
//!
//! One termination can be explained on its own ([`termination`]): the same passes read the same rows but hold only
//! those of a [`TimeSpan`] around it.

mod attribute;
pub mod conclude;
pub mod count;
pub mod gateway_traffic;
pub mod math;
pub mod model;
mod route;
pub mod timeline;

use conclude::explained::Explained;
pub use conclude::recommend::MAX_COARSENESS_S;
use count::sums::Sums;
use math::stats;
use model::Termination;
pub use model::{Analysis, RunResult};
use route::observations::ObservedTotals;
use route::window;
pub use timeline::TimeSpan;
pub use timeline::drop_policy::OutcomeClass;

use std::sync::Arc;

use crate::timeline::{Request, Requests, Timeline, Unread};
use rolldrop_record::parts::{PartError, Wanted};
use rolldrop_record::{RowSource, RunLog};

/// Returns how many independently ending windows are needed for the longest to cover the share `coverage` of all
/// windows at this confidence. Both arguments are in (0, 1). Source: Wilks 1941.
pub fn windows_needed(coverage: f64, confidence: f64) -> usize {
    stats::wilks_needed(coverage, confidence)
}

/// A run with its analysis.
#[derive(Debug)]
pub struct Analysed {
    /// Events of the run on one clock.
    pub timeline: Timeline,
    /// Requests of the run.
    pub requests: Requests,
    /// Conclusions about the run.
    pub analysis: Analysis,
}

impl Analysed {
    /// Analyses the records of a run.
    ///
    /// # Errors
    /// Fails if the rows cannot be read.
    pub fn of(log: RunLog, rows: impl RowSource + 'static) -> Result<Self, PartError> {
        Self::of_rows(log, Arc::new(rows))
    }

    // Not generic, so the code that reads all rows is compiled in this crate, with its optimisations.
    fn of_rows(log: RunLog, rows: Arc<dyn RowSource>) -> Result<Self, PartError> {
        let unread = Unread::of(log, TimeSpan::ALL);
        // If proxies recorded which pods answered, the pods are known only once the proxies' rows are joined with all
        // requests.
        let draft = if rows.has_served() { None } else { unread.draft() };
        let (requests, passed) = unread.read(
            rows,
            || draft.as_ref().map(Passed::new),
            |passed, r| passed.iter_mut().for_each(|passed| passed.add(r)),
            |passed, later| passed.iter_mut().zip(later).for_each(|(passed, later)| passed.merge(later)),
        )?;
        let timeline = unread.finish(draft.as_ref(), &requests)?;
        let passed = passed.filter(|passed| passed.holds(&timeline, &requests));
        let analysis = analyse(&timeline, &requests, passed)?;
        Ok(Self { timeline, requests, analysis })
    }
}

/// Explains one pod's termination from the requests in a span, as the analysis of the whole run does. Returns `None` if
/// the pod was not terminating in that span.
///
/// The span must begin some time before t0 and end some time after the pod was gone and losses had stopped, because
/// several pods terminating at the same time may explain a loss, and only connections routed elsewhere show that a
/// window had ended. With 10 s on both sides, every termination of the recorded runs comes out the same as in the
/// analysis of the whole run.
///
/// `rows` may cover the span or any longer time. Rows outside the span are not held; they only add to totals, such as
/// the connection rate before t0. The events may be those of the whole run, or begin with lists of the existing
/// objects. Consumers are as described in `log`; if `log` does not describe one behind a URL, its kind is inferred from
/// the responses in the span.
///
/// `together` is the number of terminations whose upper bounds hold simultaneously, with one error probability for all
/// of them. In a run these are all terminations of one mode.
///
/// # Errors
/// Fails if the rows cannot be read.
pub fn termination(
    log: RunLog,
    rows: Arc<dyn RowSource>,
    uid: &str,
    span: TimeSpan,
    together: usize,
) -> Result<Option<Termination>, PartError> {
    explain_span(Unread::of(log, span), rows, together, |explained| {
        explained.terminations.into_iter().find(|termination| termination.uid == uid)
    })
}

/// Explains the terminations in a span, and passes on what `take` needs.
fn explain_span<T>(
    unread: Unread,
    rows: Arc<dyn RowSource>,
    together: usize,
    take: impl FnOnce(Explained<'_>) -> T,
) -> Result<T, PartError> {
    let (timeline, requests) = unread.build(rows)?;
    let passed = Passed::of(&timeline, &requests)?;
    let modes = window::modes(&timeline.ends);
    let alpha = vec![window::alpha(&timeline, together); modes.len()];
    let totals = (passed.observed, passed.sums);
    Ok(take(Explained::of(&timeline, &requests, totals, (&modes, &alpha))?))
}

/// Totals over requests that are not held in memory: plainly successful ones, and ones outside the span.
struct Passed<'a> {
    /// Timeline as known while the rows are read.
    timeline: &'a Timeline,
    observed: ObservedTotals<'a>,
    sums: Sums<'a>,
}

impl<'a> Passed<'a> {
    /// Computes the totals from rows that have already been read once.
    fn of(timeline: &'a Timeline, requests: &Requests) -> Result<Self, PartError> {
        requests.unheld(Wanted::All, || Self::new(timeline), Self::add, Self::merge)
    }

    fn new(timeline: &'a Timeline) -> Self {
        Self { timeline, observed: ObservedTotals::new(timeline), sums: Sums::new(timeline) }
    }

    fn add(&mut self, r: &Request) {
        self.observed.unheld(self.timeline, r);
        if self.timeline.span.has(&r.row) {
            self.sums.add(self.timeline, r.pod(), r);
        }
    }

    /// Adds the totals over later requests.
    fn merge(&mut self, later: Self) {
        self.observed.merge(later.observed);
        self.sums.merge(later.sums);
    }

    /// Returns true if the totals are still correct now that all requests are known.
    fn holds(&self, timeline: &Timeline, requests: &Requests) -> bool {
        let [then, now] = [self.timeline, timeline].map(|timeline| &timeline.info.targets);
        let balances_the_same = then.iter().zip(now).all(|(then, now)| then.balances == now.balances);
        requests.agreement.is_relied_on && balances_the_same
    }
}

/// Analyses one run. Its rows are read again if `passed` is `None`.
fn analyse<'a>(
    timeline: &'a Timeline,
    requests: &'a Requests,
    passed: Option<Passed<'a>>,
) -> Result<Analysis, PartError> {
    let passed = passed.map_or_else(|| Passed::of(timeline, requests), Ok)?;
    let modes = window::modes(&timeline.ends);
    let alpha = window::alphas(timeline, &modes);
    let totals = (passed.observed, passed.sums);
    let explained = Explained::of(timeline, requests, totals, (&modes, &alpha))?;
    Ok(conclude::analysis(timeline, explained))
}

#[cfg(test)]
mod tests;
