//! The endpoint-propagation window of one pod towards one consumer.

use super::evidence::{Tail, silence_s};
use super::model::{Window, WindowBasis};
use crate::record::run_info::{Balances, Target};
use crate::timeline::PodEnd;

/// Computes the window: lower from t0 latest, upper from t0 earliest.
///
/// `alpha` is the chance that the upper bound is too small, already shared
/// between the terminations of the mode.
pub(super) fn window(end: &PodEnd, target: &Target, tail: &Tail, alpha: f64) -> Window {
    let uncertainty_s = tail.uncertainty_ns as f64 / 1e9;
    let certain = tail.last_certain.filter(|at| *at > end.t0.latest);
    let lower_s = certain.map(|at| (at.seconds_since(end.t0.latest) - uncertainty_s).max(0.0));
    let lower_basis = certain.map(|at| match tail.last_named {
        Some(named) if named >= at => WindowBasis::Named,
        _ => WindowBasis::Failures,
    });
    let last = tail.last_possible.map_or(end.t0.latest, |at| at.max(end.t0.latest));
    let what = match target.balances {
        Balances::Connections => "new connections",
        Balances::Requests => "requests",
    };
    let (upper_s, censored) = if tail.rate > 0.0 {
        let silence = silence_s(tail.rate, alpha);
        let upper_s = last.seconds_since(end.t0.earliest) + silence + uncertainty_s;
        let observed_s = tail.observed_until.map_or(0.0, |at| at.seconds_since(last));
        let exit = end.stages.app_exited.or(end.stages.containers_terminated);
        let cut = exit.filter(|exit| {
            target.balances == Balances::Requests
                && exit.seconds_since(last) < silence
                && *exit >= end.t0.latest
        });
        if observed_s < silence {
            let why = format!(
                "the load ended {observed_s:.3} s after the last of the pod's {what}; it takes {silence:.3} s of silence to be sure that no more would have come"
            );
            (None, Some(why))
        } else if let Some(exit) = cut {
            let why = format!(
                "the pod exited {:.3} s after t0 while {what} still came, and a consumer that retries hides later ones",
                exit.seconds_since(end.t0.latest)
            );
            (None, Some(why))
        } else {
            (Some(upper_s), None)
        }
    } else {
        let why = format!(
            "fewer than two {what} of this client are known to have reached the pod before t0, so their absence says nothing"
        );
        (None, Some(why))
    };
    Window {
        consumer: target.consumer.clone(),
        lower_s,
        upper_s,
        lower_basis,
        // The rate at which the pod got connections is known where they are named.
        upper_basis: upper_s.map(|_| WindowBasis::Named),
        censored,
        rate_before: tail.rate,
        late_arrivals: tail.late,
    }
}
