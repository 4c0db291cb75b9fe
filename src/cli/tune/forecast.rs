//! What a tuning will do and how long that takes, before it does anything.

use std::time::Duration;

use anyhow::bail;

use super::CONFIDENCE;
use super::steps::{Disrupt, Steps};
use super::subject::{Elsewhere, Subject};
use crate::cli::run::{self, Naming};
use rolldrop_analysis::figures::{counted, len, percent};
use rolldrop_analysis::tune::{Names, Rollout, Strategy};

/// A tuning that takes longer asks first, also on the embedded cluster.
const LONG: Duration = Duration::from_secs(30 * 60);
/// From one pod of a rollout to the next, about: on a real cluster, and on the embedded one.
const EACH_POD: [Duration; 2] = [Duration::from_secs(4), Duration::from_millis(1500)];
/// From the end of the last pod to the next that is ended, about.
const BETWEEN: Duration = Duration::from_secs(3);
/// What a run takes besides its terminations, about.
const AROUND: Duration = Duration::from_secs(15);

/// Says what will be done, and how long that takes.
pub(super) fn say(steps: &Steps<'_>) -> Duration {
    let (subject, progress) = (steps.subject, steps.progress);
    let set = subject.settings();
    let first = subject.sleeps(steps.args.max_sleep)[0];
    let disrupt = steps.args.disrupt.unwrap_or_default();
    let windows = steps.windows(subject.wide(first), disrupt).needed;
    let proof = steps.proof(set, (1.0 - CONFIDENCE) / 2.0, Names::Known).needed;
    let takes = takes(subject, disrupt, windows, first) + takes(subject, disrupt, proof, 2) + AROUND;
    let rollouts = rollouts(subject.rollout(), disrupt, windows + proof) + subject.rollouts_of_changes();
    progress.say(&format!(
        "tuning {}, container {}: a preStop sleep of {} s and a grace period of {} s are set",
        subject.workload(),
        subject.containers().join(" and "),
        set.pre_stop_seconds,
        set.termination_grace_period_seconds,
    ));
    subject.cautions().iter().for_each(|caution| progress.warn(caution));
    progress.say(&format!(
        "first as it is; then {} with a sleep of {first} s, which show windows that cover {} of all; then {} with the \
         chosen sleep",
        counted(len(windows), "termination"),
        percent(steps.args.coverage.share()),
        counted(len(proof), "termination"),
    ));
    progress.say(&format!(
        "about {} and {:.0} minutes{}",
        counted(rollouts, "rollout"),
        (takes.as_secs_f64() / 60.0).ceil(),
        if subject.is_own() { "" } else { ", with those that change the pods' template and change it back" },
    ));
    takes
}

/// Goes on only with consent.
pub(super) async fn ask(steps: &Steps<'_>, takes: Duration) -> anyhow::Result<()> {
    let (subject, progress) = (steps.subject, steps.progress);
    let elsewhere = subject.elsewhere();
    if let Some(Elsewhere { title, flag, naming }) = elsewhere {
        if *naming == Naming::Current {
            bail!("this would change a cluster that is not named: add {flag} if it is the right one");
        }
        progress.note(&format!("on {title}: each run changes {} and changes it back", subject.workload()));
    }
    if steps.args.measure.yes || (elsewhere.is_none() && takes <= LONG) {
        return Ok(());
    }
    run::confirm(steps.progress, steps.interrupts).await
}

/// How long a run takes in which so many pods end, about.
pub(super) fn takes(subject: &Subject, disrupt: Disrupt, ended: usize, sleep_s: u64) -> Duration {
    let [real, embedded] = EACH_POD;
    let each_pod = if subject.elsewhere().is_some() { real } else { embedded };
    let sleep = Duration::from_secs(sleep_s);
    let changes = if subject.is_own() { Duration::ZERO } else { (each_pod + sleep) * 2 };
    let (times, each) = match disrupt {
        Disrupt::RollingRestart => {
            let pods = u32::try_from(subject.rollout().pods).unwrap_or(u32::MAX);
            (rollouts(subject.rollout(), disrupt, ended), each_pod.saturating_mul(pods))
        }
        Disrupt::DeletePod => (len(ended), each_pod),
    };
    (each + BETWEEN + sleep).saturating_mul(u32::try_from(times).unwrap_or(u32::MAX)) + AROUND + changes
}

/// How many rollouts end so many pods apart from each other; a deletion is none.
fn rollouts(rollout: Rollout, disrupt: Disrupt, ended: usize) -> u64 {
    let each = match (disrupt, rollout.strategy) {
        (Disrupt::DeletePod, _) => return 0,
        (_, Strategy::Rolling { .. }) => rollout.pods,
        (_, Strategy::Recreate) => 1,
        (_, Strategy::InPlace { at_once }) => rollout.pods.div_ceil(at_once.max(1)),
    };
    len(ended).div_ceil(each.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollout_shows_as_many_windows_as_it_has_steps() {
        let of = |strategy| rollouts(Rollout { pods: 6, strategy }, Disrupt::RollingRestart, 29);
        assert_eq!(of(Strategy::Rolling { at_once: 1 }), 5);
        assert_eq!(of(Strategy::Recreate), 29);
        assert_eq!(of(Strategy::InPlace { at_once: 2 }), 10);
        let deleted = Rollout { pods: 6, strategy: Strategy::Rolling { at_once: 1 } };
        assert_eq!(rollouts(deleted, Disrupt::DeletePod, 29), 0);
    }
}
