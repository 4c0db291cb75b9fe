//! Requests answered by each pod, over time.

use foldhash::HashMap;

use super::by_time::{ByTime, Sum};
use crate::model::{PodTraffic, Traffic};
use crate::timeline::Timeline;

/// Maximum number of pods counted individually. Pods watched later are counted as unknown.
const PODS: usize = 1000;

/// Index for requests with an unknown pod.
pub(crate) const UNKNOWN: usize = 0;

/// Requests by pod; unknown pods come first.
#[derive(Debug, Default)]
struct AnswersByPod(Vec<u64>);

impl Sum for AnswersByPod {
    fn merge(&mut self, other: Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(other.0).for_each(|(count, its)| *count += its);
    }
}

/// Successful requests in the counted part, by intended send time and pod.
#[derive(Debug, Default)]
pub(crate) struct ByPod<'a> {
    /// Index of each pod name among the counts of a step.
    places: HashMap<&'a str, usize>,
    answered: ByTime<AnswersByPod>,
}

impl<'a> ByPod<'a> {
    pub(crate) fn of(timeline: &'a Timeline) -> Self {
        let mut places = HashMap::default();
        for pod in timeline.pods.iter().take(PODS) {
            let next = places.len() + 1;
            places.entry(pod.name.as_str()).or_insert(next);
        }
        Self { places, answered: ByTime::default() }
    }

    /// Returns the index of a pod.
    pub(crate) fn place(&self, pod: &str) -> usize {
        self.places.get(pod).copied().unwrap_or(UNKNOWN)
    }

    /// Adds a request whose intended send time is `since_ns` after the counted part began, answered by the pod with
    /// index `place`.
    pub(crate) fn add(&mut self, since_ns: i64, place: usize) {
        let counts = &mut self.answered.at(since_ns).0;
        if counts.len() <= place {
            counts.resize(place + 1, 0);
        }
        counts[place] += 1;
    }

    pub(crate) fn finish(self) -> Traffic {
        let (step_s, steps) = self.answered.finish();
        let of = |place: usize| -> Vec<u64> {
            steps.iter().map(|counts| counts.0.get(place).copied().unwrap_or(0)).collect()
        };
        let mut places: Vec<(&str, usize)> = self.places.into_iter().collect();
        places.sort_by_key(|(_, place)| *place);
        let pods = places
            .into_iter()
            .map(|(name, place)| PodTraffic { name: name.to_owned(), answered: of(place) })
            .filter(|pod| pod.answered.iter().any(|n| *n > 0));
        Traffic { step_s, pods: pods.collect(), unknown: of(UNKNOWN) }
    }
}

impl Sum for ByPod<'_> {
    fn merge(&mut self, other: Self) {
        self.answered.merge(other.answered);
    }
}
