//! Terminations that did not happen: each pod is assumed to end at evenly spaced instants of the steady record.

use super::cut_statistics::{Cuts, Hits};
use super::needs::PodNeeds;
use super::{Estimate, SteadyRecord, StreamBudget};
use rolldrop_explain::math::stats;
use rolldrop_explain::model::SpanEnd;

/// Number of instants over all pods. With three pods, a record of an hour has about ten per pod per second, and a
/// record of a day one per 2.6 s. That is fine enough, because streams outlast a budget by more than 2.6 s.
const INSTANTS: usize = 100_000;
/// Minimum number of instants per pod.
const LEAST_PER_POD: usize = 100;

/// Virtual terminations of a steady record.
#[derive(Clone, Debug)]
pub struct VirtualTerminations {
    /// Streams of each pod by start, in seconds since the period began.
    pub(super) pods: Vec<Vec<OpenSpan>>,
    /// Length of the period in seconds.
    pub(super) length_s: f64,
    /// Seconds between instants.
    pub(super) step_s: f64,
    /// Number of instants per pod.
    pub(super) per_pod: usize,
    /// Propagation windows, each as a lower and an upper bound in seconds; at least one. Instants use them in turn.
    pub(super) windows_s: Vec<(f64, f64)>,
    /// Number of streams that were open in the period.
    pub(crate) streams: usize,
    rate_per_pod: f64,
}

/// Time during which a stream was open, in seconds since the period began.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenSpan {
    pub(super) start_s: f64,
    pub(super) end_s: f64,
    pub(super) ended: SpanEnd,
}

/// Assumption about undecided streams, for which it is unknown whether they would have outlasted a budget: those that
/// were cut in the record, and those that arrived when the pod may no longer have received streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Undecided {
    /// Cut streams would have ended at the time of the cut, and pods received streams only while that is certain.
    Saved,
    /// Cut streams would have outlasted the budget, and pods received streams for as long as is possible.
    Cut,
}

impl VirtualTerminations {
    /// Prepares a record. `None` if there is nothing to go on: no time, no pod, or no stream.
    pub fn of(record: &SteadyRecord<'_>) -> Option<Self> {
        let length_s = record.to.seconds_since(record.from);
        let mut pods: Vec<Vec<OpenSpan>> = vec![Vec::new(); record.pods];
        for span in record.spans {
            let [start_s, end_s] = [span.start, span.end].map(|stamp| stamp.seconds_since(record.from));
            // The period ends with the first termination, so streams that ended later say nothing about steady streams.
            let ended = if end_s > length_s { SpanEnd::Censored } else { span.ended };
            let is_in_period = end_s > 0.0 && start_s < length_s;
            if let Some(pod) = pods.get_mut(span.pod).filter(|_| is_in_period) {
                pod.push(OpenSpan { start_s, end_s: end_s.min(length_s), ended });
            }
        }
        let streams: usize = pods.iter().map(Vec::len).sum();
        if length_s <= 0.0 || streams == 0 {
            return None;
        }
        pods.iter_mut().for_each(|pod| pod.sort_by(|a, b| a.start_s.total_cmp(&b.start_s)));
        let per_pod = (INSTANTS / pods.len()).max(LEAST_PER_POD);
        let started = pods.iter().flatten().filter(|open| open.start_s >= 0.0).count();
        let windows_s = if record.windows_s.is_empty() { &[(0.0, 0.0)] } else { record.windows_s };
        Some(Self {
            length_s,
            step_s: length_s / per_pod as f64,
            per_pod,
            windows_s: windows_s.to_vec(),
            streams,
            rate_per_pod: started as f64 / (pods.len() as f64 * length_s),
            pods,
        })
    }

    /// Returns the streams that began per pod per second; all predictions apply to this rate.
    pub fn rate_per_pod(&self) -> f64 {
        self.rate_per_pod
    }

    /// Returns the mean number of streams open on a pod.
    pub fn open_per_pod(&self) -> f64 {
        let open_s = self.pods.iter().flatten().map(|open| open.end_s - open.start_s.max(0.0));
        open_s.sum::<f64>() / (self.pods.len() as f64 * self.length_s)
    }

    /// Returns the streams that terminations with this budget would cut; unknown if fewer than 30 streams outlast it.
    pub fn cuts(&self, budget: StreamBudget) -> Estimate<Cuts> {
        let known = self.hits(budget, Undecided::Saved);
        let is_cut = |open: &OpenSpan| open.ended == SpanEnd::Censored && open.end_s < self.length_s;
        let is_undecided = self.windows_s.iter().any(|(lower, upper)| lower < upper)
            || self.pods.iter().flatten().any(is_cut);
        let most = is_undecided.then(|| self.hits(budget, Undecided::Cut));
        Cuts::of(&known, most.as_ref().unwrap_or(&known), self.streams)
    }

    /// Returns the time from t0 until each pod's last stream ends, if pods accept streams for this long after t0.
    pub fn needs(&self, accepts_s: f64) -> PodNeeds<'_> {
        PodNeeds::of(self, accepts_s)
    }

    /// Returns the time of an instant, in seconds since the period began.
    pub(super) fn at(&self, instant: usize) -> f64 {
        (instant as f64 + 0.5) * self.step_s
    }

    /// Returns the number of instants per pod after which the record continues for `seconds`. Only these instants show
    /// which streams last that long.
    pub(super) fn followed(&self, seconds: f64) -> usize {
        stats::index(((self.length_s - seconds) / self.step_s + 0.5).floor()).min(self.per_pod)
    }

    /// Counts the streams that outlast the budget, by instant and by stream.
    fn hits(&self, budget: StreamBudget, undecided: Undecided) -> Hits {
        let instants = self.followed(budget.seconds);
        // A stream that arrived after the budget would find no pod.
        let accepts_s = budget.accepts_s.min(budget.seconds);
        let window = |&(lower, upper): &(f64, f64)| match undecided {
            Undecided::Saved => lower.min(accepts_s),
            Undecided::Cut => upper.min(accepts_s),
        };
        let windows: Vec<f64> = self.windows_s.iter().map(window).collect();
        let longest = windows.iter().copied().fold(0.0, f64::max);
        let mut hits = Hits::new(self.pods.len() * instants, instants as f64 * self.step_s);
        for (pod, streams) in self.pods.iter().enumerate() {
            for open in streams {
                let until_s = match (open.ended, undecided) {
                    (SpanEnd::Censored, Undecided::Cut) => open.end_s,
                    _ => open.end_s - budget.seconds,
                };
                let first = stats::index(((open.start_s - longest) / self.step_s - 0.5).ceil());
                let cut = (first..instants)
                    .take_while(|i| self.at(*i) < until_s)
                    .filter(|i| self.at(*i) >= open.start_s - windows[i % windows.len()]);
                hits.add(open.start_s, cut.map(|i| pod * instants + i));
            }
        }
        hits
    }
}
