//! Plan and duration of a tuning: assumed before its first run, then based on that run's measurements.

use std::time::Duration;

use super::CONFIDENCE;
use super::step_runner::{Disrupt, FIRST_LOOK, StepPlan, StepRunner};
use super::subject::{Elsewhere, Subject};
use super::tuner::stream_aim::FIRST_LENGTHS;
use rolldrop_drive::run::{self, Naming, RunError};
use rolldrop_explain::RunResult;
use rolldrop_explain::model::figure_text::{counted, len};
use rolldrop_explain::model::{Mode, Termination};
use rolldrop_judge::tuning::{PodNaming, Purpose, Strategy, Units};

/// Duration beyond which a tuning asks for consent, even on the embedded cluster.
const LONG: Duration = Duration::from_secs(30 * 60);
/// Approximate time between consecutive pods in a rollout, on a real cluster and on the embedded one.
const EACH_POD: [Duration; 2] = [Duration::from_secs(4), Duration::from_millis(1500)];
/// Approximate time from a deletion, or from a rollout's last termination, to the next deletion or rollout.
const BETWEEN: Duration = Duration::from_secs(3);
/// Approximate overhead of a run, beyond its terminations.
const AROUND: Duration = Duration::from_secs(20);
/// Approximate duration of a look at the record, including the time to write its rows.
const LOOK: Duration = Duration::from_secs(8);
/// Time from the start of the load to the first rollout, in seconds.
const BEFORE_FIRST_S: f64 = 3.0;
/// Assumed choice of sleep, in seconds.
const ASSUMED_SLEEP_S: u64 = 2;
/// Approximate time in seconds, from a pod's termination, after which an unnamed pod is known to have left the rules.
const KNOWN_AFTER_S: f64 = 0.4;

/// Pace of rollouts or deletions: their duration, and the units they show.
#[derive(Clone, Debug)]
pub(super) struct RolloutPace {
    disrupt: Disrupt,
    /// Time from one rollout to the next, with the current sleep.
    each: Duration,
    around: Duration,
    set_s: u64,
    /// Number of pods in a rollout.
    pub(super) pods: usize,
    /// Number of times a rollout waits for pods to terminate.
    waits: u32,
    /// Times at which a rollout's pods begin to terminate, in seconds, sorted.
    ends_s: Vec<f64>,
    /// Number of units that a rollout with named pods shows, if that was observed.
    named: Option<usize>,
    /// True if each run changes the pod template and restores it.
    is_changed: bool,
}

/// Planned run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leg {
    pub(super) purpose: Purpose,
    sleep_s: u64,
    /// Number of rollouts or deletions for measuring windows.
    pub(super) times: usize,
    /// Number of pods that the rollouts or deletions terminate.
    pub(super) ended: usize,
    /// Total number of rollouts in the run.
    rollouts: usize,
    pub(super) takes: Duration,
}

impl RolloutPace {
    /// Returns the assumed pace, before anything is measured.
    pub(super) fn assumed(subject: &Subject, disrupt: Disrupt) -> Self {
        let [real, embedded] = EACH_POD;
        let each_pod = if subject.elsewhere.is_some() { real } else { embedded };
        let pods = usize::try_from(subject.rollout.pods).unwrap_or(usize::MAX).max(1);
        let (at_once, waits_for_each) = match subject.rollout.strategy {
            Strategy::Rolling { at_once } => (at_once, false),
            Strategy::Recreate => (subject.rollout.pods, false),
            Strategy::InPlace { at_once } => (at_once, true),
        };
        let steps = pods.div_ceil(usize::try_from(at_once).unwrap_or(usize::MAX).max(1));
        let times = u32::try_from(steps).unwrap_or(u32::MAX);
        let (each, waits) = match disrupt {
            Disrupt::RollingRestart => (each_pod * times + BETWEEN, if waits_for_each { times } else { 1 }),
            Disrupt::DeletePod => (each_pod + BETWEEN, 1),
        };
        Self {
            disrupt,
            each,
            around: AROUND,
            set_s: subject.settings().pre_stop_seconds,
            pods,
            waits,
            ends_s: (0..steps).map(|step| step as f64 * each_pod.as_secs_f64()).collect(),
            named: None,
            is_changed: !subject.is_own,
        }
    }

    /// Returns the pace measured in the first run. `took` is the run's duration.
    pub(super) fn measured(self, before: &RunResult, took: Duration) -> Self {
        let in_mode = |t: &&Termination| t.mode == Mode::Rollout;
        let mut ends_s: Vec<f64> = before.terminations.iter().filter(in_mode).map(|t| t.t0_s).collect();
        ends_s.sort_by(f64::total_cmp);
        let units = Units::of(before);
        let times = match self.disrupt {
            Disrupt::RollingRestart => units.rollouts,
            Disrupt::DeletePod => before.terminations.len(),
        };
        if times == 0 {
            return self;
        }
        // Rollouts last until their last pod is gone; the wait afterwards happens once per run.
        let gone = |t: &Termination| t.t0_s + t.timeline.values().copied().fold(0.0, f64::max);
        let lasted =
            before.terminations.iter().map(gone).fold(BEFORE_FIRST_S + 1.0, f64::max) - BEFORE_FIRST_S;
        let each = Duration::from_secs_f64(lasted / times as f64) + BETWEEN;
        let around = took.saturating_sub(Duration::from_secs_f64(lasted));
        let is_rollout = self.disrupt == Disrupt::RollingRestart;
        // Behind a gateway, an app that exits immediately has windows without upper bounds, so none count as separate.
        // If the app's pods sleep, their windows have upper bounds.
        let is_bounded = |t: &Termination| t.windows.iter().all(|window| window.upper_s.is_some());
        let shows_units = is_rollout && before.terminations.iter().filter(in_mode).all(is_bounded);
        Self {
            each,
            around,
            ends_s: if is_rollout { ends_s } else { self.ends_s },
            named: shows_units.then_some((units.number / times).max(1)),
            ..self
        }
    }

    /// Returns the number of units that a rollout or deletion shows if its pods sleep for that long. Without names, a
    /// pod counts as separate if it begins to terminate after the previous pod is known to have left the rules, which
    /// is when that pod has exited.
    pub(super) fn units_of_each(&self, sleep_s: u64, names: PodNaming) -> usize {
        match (self.disrupt, names, self.named) {
            (Disrupt::DeletePod, ..) => 1,
            (_, PodNaming::Known, Some(named)) => named,
            (_, PodNaming::Known, None) => self.ends_s.len().max(1),
            (_, PodNaming::Unknown, _) => {
                let (mut number, mut known_s) = (0, f64::NEG_INFINITY);
                for at in &self.ends_s {
                    if *at > known_s {
                        number += 1;
                        known_s = at + sleep_s as f64 + KNOWN_AFTER_S;
                    }
                }
                number.max(1)
            }
        }
    }

    /// Returns the time between consecutive rollouts with that sleep.
    fn each_with(&self, sleep_s: u64) -> Duration {
        let longer = Duration::from_secs(sleep_s.saturating_sub(self.set_s)) * self.waits;
        let shorter = Duration::from_secs(self.set_s.saturating_sub(sleep_s)) * self.waits;
        (self.each + longer).saturating_sub(shorter)
    }

    /// Plans a run that needs this many units.
    pub(super) fn leg(&self, purpose: Purpose, (sleep_s, needed): (u64, usize), names: PodNaming) -> Leg {
        let times = needed.div_ceil(self.units_of_each(sleep_s, names));
        let each_ends = if self.disrupt == Disrupt::DeletePod { 1 } else { self.pods };
        let ended = times.saturating_mul(each_ends);
        let measured = self.each_with(sleep_s).saturating_mul(u32::try_from(times).unwrap_or(u32::MAX));
        let takes = measured + self.besides(purpose, sleep_s) + LOOK * looks(ended);
        let of_times = if self.disrupt == Disrupt::DeletePod { 0 } else { times };
        let rollouts = of_times + if self.changes(purpose) { 2 } else { 0 };
        Leg { purpose, sleep_s, times, ended, rollouts, takes }
    }

    /// Plans a run without disruptions.
    fn undisturbed(&self, lasts: Duration) -> Leg {
        let takes = lasts + self.around;
        Leg { purpose: Purpose::Lengths, sleep_s: self.set_s, times: 0, ended: 0, rollouts: 0, takes }
    }

    /// Returns true if a run changes the pod template and restores it.
    fn changes(&self, purpose: Purpose) -> bool {
        self.is_changed && matches!(purpose, Purpose::Windows | Purpose::Proof)
    }

    /// Returns a run's overhead, beyond its rollouts and looks.
    fn besides(&self, purpose: Purpose, sleep_s: u64) -> Duration {
        let changes = match self.changes(purpose) {
            true => self.each_with(sleep_s) + self.each_with(self.set_s),
            false => Duration::ZERO,
        };
        self.around + changes
    }
}

/// Estimates the number of looks at a run until this many pods have terminated. Each round doubles that number.
fn looks(ended: usize) -> u32 {
    ended.div_ceil(FIRST_LOOK).next_power_of_two().ilog2() + 1
}

/// Sequence of runs, if the first proof succeeds.
#[derive(Clone, Debug)]
pub(super) struct ForecastPlan(pub(super) Vec<Leg>);

impl StepRunner<'_> {
    /// Plans the runs after the first. `names` and `sleep_s` reflect what is known after the first run.
    pub(super) fn plan_after(
        &self,
        pace: &RolloutPace,
        names: PodNaming,
        sleep_s: Option<u64>,
    ) -> ForecastPlan {
        let sleep_s = sleep_s.unwrap_or(ASSUMED_SLEEP_S.max(self.subject.settings().pre_stop_seconds));
        let proof = self.leg_of_proof(pace, names, (sleep_s, (1.0 - CONFIDENCE) / 2.0));
        if names == PodNaming::Unknown {
            return ForecastPlan(vec![proof]);
        }
        let first = self.subject.sleeps(self.request.max_sleep)[0];
        let windows = self.windows(self.subject.wide(first)).needed;
        let windows = pace.leg(Purpose::Windows, (first, windows), names);
        let lengths = self.request.max_cut.map(|_| pace.undisturbed(FIRST_LENGTHS));
        ForecastPlan([windows].into_iter().chain(lengths).chain([proof]).collect())
    }

    /// Plans a proof of this sleep with this error probability.
    pub(super) fn leg_of_proof(
        &self,
        pace: &RolloutPace,
        names: PodNaming,
        (sleep_s, error): (u64, f64),
    ) -> Leg {
        let needed = self.proof(self.subject.settings(), error).needed;
        pace.leg(Purpose::Proof, (sleep_s, needed), names)
    }

    /// Plans two proofs: one whose first look shows that this sleep is too short, then one of the next longer sleep.
    fn plan_if_too_short(&self, pace: &RolloutPace, names: PodNaming, sleep_s: u64) -> ForecastPlan {
        let seen = (FIRST_LOOK * pace.units_of_each(sleep_s, names)).div_ceil(pace.pods);
        let too_short = pace.leg(Purpose::Proof, (sleep_s, seen), names);
        let longer = self.leg_of_proof(pace, names, ((2 * sleep_s).max(1), (1.0 - CONFIDENCE) / 4.0));
        ForecastPlan(vec![too_short, longer])
    }
}

impl ForecastPlan {
    /// Returns the duration of all runs.
    fn takes(&self) -> Duration {
        self.0.iter().map(|leg| leg.takes).sum()
    }

    /// Describes the runs.
    fn in_words(&self, disrupt: Disrupt) -> String {
        let acts = |times: usize| match disrupt {
            Disrupt::RollingRestart => counted(len(times), "rollout"),
            Disrupt::DeletePod => counted(len(times), "deletion"),
        };
        let words = self.0.iter().map(|leg| match leg.purpose {
            Purpose::Windows => {
                format!("{} with a sleep of {} s, to measure windows", acts(leg.times), leg.sleep_s)
            }
            Purpose::Lengths => {
                format!("{} s without disruptions, to see how long streams last", leg.takes.as_secs())
            }
            _ => format!("{} with the chosen sleep, to prove it", acts(leg.times)),
        });
        words.collect::<Vec<_>>().join("; then ")
    }

    /// Describes the number of rollouts and the duration.
    fn amount(&self, is_own: bool) -> String {
        let changes =
            if is_own { "" } else { ", including those that change the pod template and change it back" };
        let minutes = counted(self.takes().as_secs().div_ceil(60).max(1), "minute");
        format!(
            "about {} and {minutes}{changes}",
            counted(len(self.0.iter().map(|leg| leg.rollouts).sum()), "rollout")
        )
    }
}

/// Prints the plan and returns its duration.
pub(super) fn say(steps: &StepRunner<'_>, is_verifying: bool) -> Duration {
    let (subject, viewer, disrupt) = (steps.subject, &steps.operator.viewer, steps.disrupt());
    let set = subject.settings();
    viewer.say(&format!(
        "tuning {}, container {}: it has a preStop sleep of {} s and a grace period of {} s",
        subject.workload(),
        subject.sleepers.containers.join(" and "),
        set.pre_stop_seconds,
        set.termination_grace_period_seconds,
    ));
    subject.cautions.iter().for_each(|caution| viewer.warn(caution));
    let pace = RolloutPace::assumed(subject, disrupt);
    let (named, unnamed) =
        (steps.plan_after(&pace, PodNaming::Known, None), steps.plan_after(&pace, PodNaming::Unknown, None));
    if is_verifying {
        let proof = steps.leg_of_proof(&pace, PodNaming::Unknown, (ASSUMED_SLEEP_S, 1.0 - CONFIDENCE));
        let plan = ForecastPlan(vec![proof]);
        viewer.say(&format!("{}; {}", plan.in_words(disrupt), plan.amount(subject.is_own)));
        return plan.takes();
    }
    let first = steps.before();
    let before = pace.leg(Purpose::Before, (set.pre_stop_seconds, first.needed), PodNaming::Unknown);
    if steps.has_names() {
        viewer.say(&format!("first, a run with the current settings; then {}", named.in_words(disrupt)));
    } else {
        viewer.say(&format!(
            "first, a run with the current settings. If that shows which pods answer, {}; otherwise {}",
            named.in_words(disrupt),
            unnamed.in_words(disrupt)
        ));
    }
    let too_short = steps.plan_if_too_short(&pace, PodNaming::Unknown, ASSUMED_SLEEP_S);
    let longest = if steps.has_names() || named.takes() >= too_short.takes() { named } else { too_short };
    let plan = ForecastPlan([vec![before], longest.0].concat());
    viewer.say(&format!(
        "up to {}; the first run measures the actual pace. If a sleep still loses requests, a longer one is tried. No \
         run makes more than {}",
        plan.amount(subject.is_own),
        steps.most_in_words(&steps.proof(set, (1.0 - CONFIDENCE) / 2.0)),
    ));
    plan.takes()
}

/// Prints the remaining plan at the measured pace, both for a first proof that succeeds and for one that fails.
pub(super) fn say_again(
    steps: &StepRunner<'_>,
    plan: &ForecastPlan,
    (pace, names): (&RolloutPace, PodNaming),
) {
    let is_own = steps.subject.is_own;
    let mut said =
        format!("next, {}; {} at the measured pace", plan.in_words(steps.disrupt()), plan.amount(is_own));
    if let ([proof], PodNaming::Unknown) = (&plan.0[..], names) {
        let longer = steps.plan_if_too_short(pace, names, proof.sleep_s);
        said += &format!("; if a sleep of {} s is too short, {}", proof.sleep_s, longer.amount(is_own));
    }
    steps.operator.viewer.say(&said);
}

/// Continues only with consent.
pub(super) async fn ask(steps: &StepRunner<'_>, takes: Duration) -> Result<(), RunError> {
    let (subject, viewer) = (steps.subject, &steps.operator.viewer);
    let elsewhere = &subject.elsewhere;
    if let Some(Elsewhere { title, flag, naming }) = elsewhere {
        if *naming == Naming::Current {
            let why = format!(
                "this would change a cluster that you did not name: add {flag} if it is the right one"
            );
            return Err(RunError::Refused(why));
        }
        viewer.note(&format!("on {title}: each run changes {} and changes it back", subject.workload()));
    }
    if steps.request.options.yes || (elsewhere.is_none() && takes <= LONG) {
        return Ok(());
    }
    run::confirm(steps.operator).await
}

/// Progress of a run, as of its last look.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunPosition {
    /// Time since the run's load began.
    pub(super) elapsed: Duration,
    /// Approximate number of units so far, including those from interrupted parts.
    pub(super) units: usize,
    /// Number of these that the run itself has shown.
    pub(super) own: usize,
}

impl RolloutPace {
    /// Returns the remaining time of a run.
    pub(super) fn left(&self, plan: StepPlan, names: PodNaming, position: RunPosition) -> Duration {
        let sleep_s = plan.settings.pre_stop_seconds;
        let missing = plan.needed.saturating_sub(position.units);
        let leg = self.leg(plan.purpose, (sleep_s, plan.needed), names);
        let rollouts = leg.takes.saturating_sub(self.besides(plan.purpose, sleep_s));
        let expected = rollouts.mul_f64(missing as f64 / plan.needed.max(1) as f64);
        // The further this run has progressed, the more its own pace counts.
        let seen = position.elapsed.div_f64(position.own.max(1) as f64).mul_f64(missing as f64);
        let done = position.own.min(plan.needed) as f64 / plan.needed.max(1) as f64;
        let after = self.besides(plan.purpose, sleep_s) / 2;
        expected.mul_f64(1.0 - done) + seen.mul_f64(done) + after
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use rolldrop_explain::Analysed;
    use rolldrop_record::RunDir;

    fn pace(ends_s: &[f64]) -> RolloutPace {
        RolloutPace {
            disrupt: Disrupt::RollingRestart,
            each: Duration::from_secs(10),
            around: Duration::from_secs(20),
            set_s: 0,
            pods: ends_s.len(),
            waits: 1,
            ends_s: ends_s.to_vec(),
            named: None,
            is_changed: true,
        }
    }

    #[test]
    fn staggered_terminations_count_separately() {
        let apart = pace(&[0.0, 3.0, 6.0]);
        let units = |sleep_s| apart.units_of_each(sleep_s, PodNaming::Unknown);
        assert_eq!([units(2), units(4), units(9)], [3, 2, 1]);
        assert_eq!(apart.units_of_each(9, PodNaming::Known), 3, "names show when each left the rules");
        assert_eq!(pace(&[0.0, 0.1, 0.2]).units_of_each(0, PodNaming::Unknown), 1);
        let deleted = RolloutPace { disrupt: Disrupt::DeletePod, ..apart.clone() };
        assert_eq!(deleted.units_of_each(0, PodNaming::Known), 1);
    }

    #[test]
    fn windows_without_upper_bound_predict_no_units() {
        let run = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/reference/runs/gw-tr-1/run");
        let (log, rows) = RunDir::open(Path::new(run)).unwrap().recorded().unwrap();
        let before = Analysed::of(log, rows).unwrap().analysis.result;
        assert!(before.terminations.iter().all(|t| t.windows[0].upper_s.is_none()), "{before:?}");
        let measured = pace(&[0.0; 3]).measured(&before, Duration::from_secs(60));
        assert_eq!(measured.units_of_each(10, PodNaming::Known), before.terminations.len());
    }

    #[test]
    fn leg_plans_rollouts_for_needed_units() {
        let apart = pace(&[0.0, 3.0, 6.0]);
        let leg = apart.leg(Purpose::Proof, (2, 36), PodNaming::Unknown);
        assert_eq!((leg.times, leg.ended, leg.rollouts), (12, 36, 14));
        // 12 rollouts of 12 s, two of 12 and 10 s for the template, 20 s overhead, three looks.
        assert_eq!(leg.takes, Duration::from_secs(12 * 12 + 22 + 20 + 3 * 8));
        let together = pace(&[0.0, 0.1, 0.2]).leg(Purpose::Proof, (2, 36), PodNaming::Unknown);
        assert_eq!(together.times, 36);
    }

    #[test]
    fn terminated_pods_double_between_looks() {
        assert_eq!([1, 10, 11, 36, 100].map(looks), [1, 1, 2, 3, 5]);
    }
}
