//! First sleep of a search based only on lost requests, and on windows of pods that are not known by name.

use super::{LongestWindows, for_a_sleep};
use rolldrop_explain::math::stats;
use rolldrop_explain::model::RunResult;

/// Gap between the bounds of a window, in seconds, above which they only limit the search.
const LOOSE_S: f64 = 1.0;

/// Returns the first sleep to prove, in seconds, given a run in which pods slept for `set` seconds; `None` if the
/// windows show nothing and requests were lost, so only longer sleeps can be tried.
///
/// This sleep covers the largest upper bound. If that bound is far above the largest lower bound, the sleep may be far
/// too long, so the search begins midway between the two.
pub fn without_names(before: &RunResult, set: u64) -> Option<u64> {
    let seen = LongestWindows::of(before);
    let least = seen.least_s().max(set);
    if for_a_sleep(before) == 0 {
        return Some(least);
    }
    let lower_s = seen.longest_lower_seconds.unwrap_or(0.0);
    let covers = match seen.longest_upper_seconds {
        Some(upper_s) if upper_s - lower_s > LOOSE_S => upper_s.midpoint(lower_s),
        Some(upper_s) => upper_s,
        None => seen.longest_lower_seconds?,
    };
    Some(stats::ceil_seconds(covers).max(least).max(set + 1))
}
