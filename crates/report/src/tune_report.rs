//! Renders a tuning as text, JSON, Markdown and one chart.

pub mod decision_words;

use std::collections::BTreeMap;

use super::format::{count, counted, len, list, percent, percent_down, seconds_unit};
use super::markdown::{escape, section, table};
use super::summary::{Paint, TextPage, columns};
use super::words::sentence;
use super::{Chart, ReportFile, TextOptions};
use rolldrop_explain::model::Verdict;
use rolldrop_judge::prediction::OnSigterm;
use rolldrop_judge::tuning::{
    ChosenSettings, ChosenStreams, ConsumerSleep, CoverageUnit, LongestWindows, LostOtherwise, LostTo,
    PodSettings, Price, Purpose, Tuning, TuningOutcome, TuningStep, Units, parts,
};

const COLUMNS: [&str; 7] =
    ["run", "preStop sleep", "grace period", "rollouts", "terminations", "requests", "lost"];
/// Maximum number of lost requests that are listed individually.
const MOST_LISTED: usize = 20;

/// Renders `tune.json`, as `docs/tune.schema.json` describes it.
pub(super) fn json(tuning: &Tuning) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(tuning).expect("plain data with names as keys");
    bytes.push(b'\n');
    bytes
}

/// Returns the result in one sentence, with the mode in which it was measured.
pub(super) fn headline(tuning: &Tuning) -> String {
    let before = before(tuning);
    match (&tuning.outcome, shown(tuning)) {
        (TuningOutcome::Proven, Some(ProvenSettings { choice, proof, .. })) => format!(
            "A preStop sleep of {} s and a grace period of {} s lose {}{before}.",
            choice.settings.pre_stop_seconds,
            choice.settings.termination_grace_period_seconds,
            none_lost(&proof),
        ),
        (TuningOutcome::AlreadyRight, Some(ProvenSettings { choice, proof, .. })) => {
            let PodSettings { pre_stop_seconds, termination_grace_period_seconds, .. } = tuning.before;
            let right = match choice.streams {
                Some(_) => {
                    format!("and grace period of {termination_grace_period_seconds} s are right: they")
                }
                None => "is right: it".to_owned(),
            };
            format!("The current preStop sleep of {pre_stop_seconds} s {right} lost {}.", none_lost(&proof))
        }
        (TuningOutcome::NotForASleep, _) => {
            let lost = || tuning.lost_before.iter().flatten();
            let causes: Vec<&str> = lost().map(|lost| lost.cause.as_str()).collect();
            let causes = list(&causes);
            if lost().any(|lost| lost.cause.is_cut_stream()) {
                return format!(
                    "A preStop sleep that outlasts the window saves none of the requests that are lost here ({causes}): \
                     use --grace, which chooses settings for streams."
                );
            }
            format!("No preStop sleep saves the requests that are lost here ({causes}).")
        }
        (TuningOutcome::NotShown { why }, _) => format!("Not shown: {}.", why.join("; ")),
        (TuningOutcome::NoLonger { why }, _) => {
            format!("The chosen settings no longer hold: {}.", why.join("; "))
        }
        (TuningOutcome::Partial { why }, _) => format!("This tuning is partial: {}.", why.join("; ")),
        _ => "The runs are incomplete.".to_owned(),
    }
}

/// Describes the loss with the settings before; empty if no run was made with them.
fn before(tuning: &Tuning) -> String {
    let mut runs = tuning.steps.iter().filter(|step| step.purpose == Purpose::Before);
    match runs.clone().rfind(|step| !matches!(step.verdict, Verdict::Invalid { .. })) {
        Some(step) => format!("; before, the loss was {}", lost(step)),
        None => runs.next().map(|_| "; the loss before is unknown".to_owned()).unwrap_or_default(),
    }
}

/// Returns the number of requests that a run lost, and the number of units in which it lost them.
fn lost(step: &TuningStep) -> String {
    format!("{} of {} in {}", count(step.lost), counted(step.requests, "request"), mode(step))
}

fn none_lost(step: &TuningStep) -> String {
    match (step.lost, cut_streams(step)) {
        (0, _) => lost(step).replacen("0 of", "none of", 1),
        (_, 0) => format!("{}, none of which a sleep would have saved", lost(step)),
        (all, cut) if all == cut => format!("{}, all of them streams that were cut", lost(step)),
        (_, cut) => format!(
            "{}, {} of them streams that were cut; no sleep would have saved the others",
            lost(step),
            count(cut)
        ),
    }
}

fn cut_streams(step: &TuningStep) -> u64 {
    step.streams.map_or(0, |streams| streams.cut)
}

/// Describes how pods ended in a run.
fn mode(step: &TuningStep) -> String {
    match step.unit {
        CoverageUnit::Deletions => {
            format!(
                "{}, one pod at a time, which says nothing about rollouts",
                counted(len(step.terminations), "deletion")
            )
        }
        CoverageUnit::Ends | CoverageUnit::Rollouts => format!(
            "{} ({})",
            counted(len(step.rollouts), "rollout"),
            counted(len(step.terminations), "termination")
        ),
    }
}

/// Describes what the last proof shows.
fn basis(step: &TuningStep) -> String {
    let (of, scope) = match step.unit {
        CoverageUnit::Ends => ("pods that end in rollouts", ""),
        CoverageUnit::Rollouts => ("rollouts", ""),
        CoverageUnit::Deletions => ("one-at-a-time pod deletions", " This says nothing about rollouts."),
    };
    let aside = if cut_streams(step) > 0 { ", apart from the cut streams" } else { "" };
    format!(
        "With {} confidence, at least {} of future {of} like these lose nothing that a sleep can save{aside} ({}).{scope}",
        percent(step.confidence),
        percent_down(step.coverage),
        decision_words::units(Units::of_step(step)),
    )
}

/// Describes what the chosen settings do to streams: what is predicted, and what the proof saw.
fn streams(chosen: &ChosenStreams, proof: &TuningStep) -> String {
    let setting = match chosen.on_sigterm {
        OnSigterm::Drains => "The app finishes its streams after SIGTERM: a grace period",
        OnSigterm::Cuts => "The app cuts its streams at SIGTERM, so no grace period helps: a preStop sleep",
    };
    let seen = proof.streams.unwrap_or_default();
    let price = chosen.pod_seconds_each_rollout.map(|seconds| {
        format!(" The pods of a rollout spend {seconds:.0} pod-seconds terminating in total.")
    });
    format!(
        "{setting} of {} s or more cuts {:.2} streams per termination on average ({:.2} to {:.2}, 95 % confidence; at \
         most {} allowed), at {:.2} streams per pod per second, as predicted from {} without disruptions. The proof cut {} of \
         the {} that its {} encountered; the prediction explains up to {}.{}",
        chosen.least_seconds,
        chosen.cut.estimate,
        chosen.cut.lower,
        chosen.cut.upper,
        chosen.max_cut,
        chosen.rate_per_pod,
        counted(len(chosen.recorded), "stream"),
        count(seen.cut),
        count(seen.alive),
        counted(len(proof.terminations), "termination"),
        count(chosen.most_cut(proof.terminations)),
        price.unwrap_or_default(),
    )
}

/// Describes the longest windows seen.
fn seen(seen: &LongestWindows) -> Option<String> {
    let of = counted(len(seen.windows), "window");
    let text = match (seen.longest_lower_seconds, seen.longest_upper_seconds) {
        (Some(lower), Some(upper)) if upper >= lower => format!(
            "Of {of}, {} have an upper bound; the longest lasted at least {} and at most {}",
            count(len(seen.bounded)),
            seconds_unit(lower),
            seconds_unit(upper)
        ),
        (Some(lower), _) => format!("Of {of}, one lasted at least {}", seconds_unit(lower)),
        (None, Some(upper)) => format!(
            "Of {of}, {} have an upper bound, at most {}",
            count(len(seen.bounded)),
            seconds_unit(upper)
        ),
        (None, None) => return None,
    };
    Some(text)
}

/// Returns the sleep that the windows support, for a tuning that proved nothing.
fn supported(tuning: &Tuning) -> Option<String> {
    let text = seen(&tuning.seen)?;
    let supports = match tuning.seen.covers_s() {
        Some(sleep_s) => format!("these windows suggest a sleep of {sleep_s} s, which is not proven"),
        None => format!("a sleep has to last at least {} s", tuning.seen.least_s()),
    };
    let is_shown = tuning.outcome.is_shown();
    Some(if is_shown { format!("{text}.") } else { format!("{text}: {supports}.") })
}

/// Settings that are proven to work, with their proof.
pub(super) struct ProvenSettings<'a> {
    choice: &'a ChosenSettings,
    /// Combined figures of all runs of the proof.
    pub(super) proof: TuningStep,
    /// Runs of the proof: the interrupted parts and the last run.
    runs: Vec<&'a TuningStep>,
}

/// Returns the chosen settings with their proof, if they are proven to work.
pub(super) fn shown(tuning: &Tuning) -> Option<ProvenSettings<'_>> {
    let choice = tuning.chosen.as_ref().filter(|_| tuning.outcome.is_shown())?;
    let is_its = |step: &&TuningStep| step.purpose == Purpose::Proof && step.settings == choice.settings;
    let last = tuning.steps.iter().rfind(is_its)?;
    let mut runs: Vec<&TuningStep> = parts(&tuning.steps, choice.settings).collect();
    let proof = last.with_parts(&runs);
    runs.push(last);
    Some(ProvenSettings { choice, proof, runs })
}

fn price(price: &Price) -> String {
    let more = |seconds: i64| match seconds {
        0 => "as long as before".to_owned(),
        1.. => format!("{seconds} s longer"),
        _ => format!("{} s shorter", -seconds),
    };
    format!(
        "Each pod takes {} to end, and a rollout {}; up to {} may be terminating at the same time.",
        more(price.seconds_each_pod),
        more(price.seconds_each_rollout),
        counted(price.terminating_at_once, "pod"),
    )
}

/// Returns the recommended fields as lines of YAML, with the container that each is for if `are_named`.
fn yaml(tuning: &Tuning, settings: PodSettings, are_named: bool) -> Vec<String> {
    let mut whose: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (container, fields) in &tuning.container_fields {
        fields.iter().for_each(|line| whose.entry(line).or_default().push(container));
    }
    let are_named = are_named || whose.values().any(|of| of.len() < tuning.containers.len());
    let of_container = |(line, of): (&str, Vec<&str>)| match are_named {
        true => format!("{line}   # container {}", list(&of)),
        false => line.to_owned(),
    };
    let mut lines: Vec<String> = whose.into_iter().map(of_container).collect();
    lines.push(format!("terminationGracePeriodSeconds: {}", settings.termination_grace_period_seconds));
    if settings.min_ready_seconds != tuning.before.min_ready_seconds {
        lines.push(format!("minReadySeconds: {}   # of the workload", settings.min_ready_seconds));
    }
    lines
}

fn purpose(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Before => "as it was",
        Purpose::Windows => "whole windows",
        Purpose::Lengths => "without disruptions",
        Purpose::Proof => "proof",
    }
}

fn row(step: &TuningStep) -> [String; 7] {
    let verdict = match step.verdict {
        Verdict::Valid => "",
        Verdict::Invalid { .. } => " (invalid)",
        Verdict::Partial { .. } => " (partial)",
    };
    [
        format!("{}{verdict}", purpose(step.purpose)),
        format!("{} s", step.settings.pre_stop_seconds),
        format!("{} s", step.settings.termination_grace_period_seconds),
        count(len(step.rollouts)),
        count(len(step.terminations)),
        count(step.requests),
        count(step.lost),
    ]
}

/// Returns the reasons why runs could not be trusted, one sentence each.
fn untrusted(tuning: &Tuning) -> Vec<String> {
    let of = |step: &TuningStep| match &step.verdict {
        Verdict::Valid => None,
        Verdict::Invalid { why } => Some(format!("{} is not valid: {}", step.run, why.join("; "))),
        Verdict::Partial { why } => Some(format!("{} is partial: {}", step.run, why.join("; "))),
    };
    tuning.steps.iter().filter_map(of).collect()
}

/// Lists each request that the runs of the proof lost and that no sleep could have saved.
fn otherwise(runs: &[&TuningStep]) -> Vec<String> {
    let one = |(run, lost): (&str, &LostOtherwise)| {
        let pod = match (&lost.pod, lost.after_deletion_seconds) {
            (Some(pod), Some(after)) => format!(", {} after the deletion of {pod}", seconds_unit(after)),
            _ => ", not explained by any terminating pod".to_owned(),
        };
        format!(
            "{} ({}) at {} of the run{pod}: request {} from {} in {run}",
            lost.cause.as_str(),
            lost.outcome.as_str(),
            seconds_unit(lost.begun_seconds),
            lost.seq,
            lost.source
        )
    };
    let all = runs.iter().flat_map(|step| step.lost_otherwise.iter().map(|lost| (step.run.as_str(), lost)));
    let mut lines: Vec<String> = all.clone().take(MOST_LISTED).map(one).collect();
    if let Some(more @ 1..) = all.count().checked_sub(MOST_LISTED) {
        let names: Vec<String> = runs.iter().map(|step| format!("{}/lost.csv", step.run)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        lines.push(format!("and {} more, in {}", count(len(more)), list(&names)));
    }
    lines
}

fn cause(lost: &LostTo) -> String {
    let helps = match (lost.helped_by_sleep, lost.remedy.as_str()) {
        (true, _) => "a sleep saves them".to_owned(),
        (false, "") => "a sleep that outlasts the window does not save them".to_owned(),
        (false, remedy) => format!("a sleep that outlasts the window does not save them; {remedy}"),
    };
    format!("{}: {}, {helps}", lost.cause.as_str(), counted(lost.requests, "request"))
}

/// Lists the losses with the settings before, by cause. Says so if a run was made with them, but shows nothing.
fn lost_before(tuning: &Tuning) -> Vec<String> {
    match &tuning.lost_before {
        Some(lost) => lost.iter().map(cause).collect(),
        None if before(tuning).is_empty() => Vec::new(),
        None => vec!["unknown, because the run with the settings before is invalid".to_owned()],
    }
}

pub(super) fn text(tuning: &Tuning, options: &TextOptions) -> String {
    let mut page = TextPage::new(options);
    let paint = match tuning.outcome {
        TuningOutcome::Proven | TuningOutcome::AlreadyRight => Paint::Good,
        TuningOutcome::NotForASleep | TuningOutcome::NoLonger { .. } => Paint::Bad,
        TuningOutcome::NotShown { .. } | TuningOutcome::Partial { .. } => Paint::Caution,
    };
    page.paragraph("", 0, Some(paint), &headline(tuning));
    if let Some(ProvenSettings { choice, proof, .. }) = shown(tuning) {
        for line in yaml(tuning, choice.settings, false) {
            page.line(&format!("  {line}"));
        }
        page.paragraph("", 0, None, &basis(&proof));
        if let Some(chosen) = &choice.streams {
            page.paragraph("", 0, None, &streams(chosen, &proof));
        }
    }
    if let Some(choice) = &tuning.chosen {
        for consumer in &choice.consumers {
            page.paragraph("", 2, None, &in_words(consumer));
        }
    }
    if let Some(text) = supported(tuning) {
        page.paragraph("", 0, None, &text);
    }
    if let (Some(cost), Some(_)) = (&tuning.price, shown(tuning)) {
        page.paragraph("", 0, None, &price(cost));
        for limit in &tuning.limits {
            page.paragraph("", 0, None, &sentence(limit));
        }
    }
    page.heading("RUNS", "");
    let header: [String; 7] = std::array::from_fn(|i| COLUMNS[i].to_owned());
    let rows: Vec<[String; 7]> = std::iter::once(header).chain(tuning.steps.iter().map(row)).collect();
    for line in columns(&rows, &[1, 2, 3, 4, 5, 6]) {
        page.line(&format!("  {line}"));
    }
    for why in untrusted(tuning) {
        page.paragraph("", 2, None, &why);
    }
    let lost = shown(tuning).map(|shown| otherwise(&shown.runs)).unwrap_or_default();
    if !lost.is_empty() {
        page.heading("LOST DESPITE THE SLEEP, FOR OTHER REASONS", "");
        for lost in lost {
            page.paragraph("", 2, None, &lost);
        }
    }
    let lost = lost_before(tuning);
    if !lost.is_empty() {
        page.heading("LOST BEFORE", "");
        for lost in lost {
            page.paragraph("", 2, None, &lost);
        }
    }
    page.out
}

fn in_words(consumer: &ConsumerSleep) -> String {
    let longest = consumer.windows_seconds.last().copied().unwrap_or(0.0);
    let alike = consumer.within_rollouts.map(|alike| {
        format!(
            " ({} that ended at different times, in {}; intraclass correlation within a rollout {:.2}, where 0 means \
             independent)",
            counted(len(alike.ends), "window"),
            counted(len(alike.rollouts), "rollout"),
            alike.correlation
        )
    });
    format!(
        "{}: the longest of {} lasted at most {}, so it needs a sleep of {} s{}",
        consumer.consumer,
        counted(len(consumer.windows_seconds.len()), "window"),
        seconds_unit(longest),
        consumer.pre_stop_seconds,
        alike.unwrap_or_default()
    )
}

pub(super) fn markdown(tuning: &Tuning) -> String {
    let mut out = String::new();
    section(&mut out, &format!("# rolldrop tune: {}", escape(&tuning.workload)));
    section(&mut out, &format!("**{}**", escape(&headline(tuning))));
    if let Some(ProvenSettings { choice, proof, .. }) = shown(tuning) {
        let lines = yaml(tuning, choice.settings, true).join("\n");
        section(&mut out, &format!("```yaml\n{lines}\n```"));
        section(&mut out, &escape(&basis(&proof)));
        if let Some(chosen) = &choice.streams {
            section(&mut out, &escape(&streams(chosen, &proof)));
        }
    }
    if let Some(choice) = &tuning.chosen {
        let consumers: Vec<String> =
            choice.consumers.iter().map(|consumer| format!("- {}", escape(&in_words(consumer)))).collect();
        section(&mut out, &consumers.join("\n"));
    }
    if let Some(text) = supported(tuning) {
        section(&mut out, &escape(&text));
    }
    if let (Some(cost), Some(_)) = (&tuning.price, shown(tuning)) {
        section(&mut out, &escape(&price(cost)));
        for limit in &tuning.limits {
            section(&mut out, &escape(&sentence(limit)));
        }
    }
    section(&mut out, "![windows and lost requests](tune.png)");
    table(&mut out, &COLUMNS, &[1, 2, 3, 4, 5, 6], tuning.steps.iter().map(|step| row(step).to_vec()));
    let items = |lines: Vec<String>| {
        lines.iter().map(|line| format!("- {}", escape(line))).collect::<Vec<_>>().join("\n")
    };
    let untrusted = untrusted(tuning);
    if !untrusted.is_empty() {
        section(&mut out, &items(untrusted));
    }
    let lost = shown(tuning).map(|shown| otherwise(&shown.runs)).unwrap_or_default();
    if !lost.is_empty() {
        section(&mut out, "## Lost despite the sleep, for other reasons");
        section(&mut out, &items(lost));
    }
    let lost = lost_before(tuning);
    if !lost.is_empty() {
        section(&mut out, "## Lost before");
        section(&mut out, &items(lost));
    }
    section(&mut out, concat!("<sub>rolldrop ", env!("CARGO_PKG_VERSION"), "</sub>"));
    out
}

/// Returns `tune.json`, `tune.md` and the chart.
pub(super) fn files(tuning: &Tuning, chart: Chart) -> Vec<ReportFile> {
    let texts = [ReportFile::new("tune.json", json(tuning)), ReportFile::new("tune.md", markdown(tuning))];
    texts.into_iter().chain([chart.file("")]).collect()
}

#[cfg(test)]
mod tests {
    use rolldrop_judge::prediction::MeanCut;
    use serde_json::json;

    use super::*;

    /// Returns a tuning that has proven a sleep of 2 s. A second proof shows that one second less is too short.
    fn proven() -> Tuning {
        let settings = |s: u64| json!({"pre_stop_seconds": s, "termination_grace_period_seconds": 30, "min_ready_seconds": 0, "readiness_delay_seconds": 0});
        let step = |purpose: &str, sleep_s, lost: u64| {
            json!({
                "purpose": purpose, "run": purpose, "settings": settings(sleep_s), "verdict": {"state": "valid"},
                "modes": ["rollout"], "terminations": 12, "rollouts": 4, "unit": "ends", "units": 10,
                "confidence": 0.975, "coverage": 0.7, "lost": lost, "lost_for_a_sleep": lost, "lost_otherwise": [],
                "requests": 1000,
            })
        };
        serde_json::from_value(json!({
            "schema_version": 1, "tool": {"name": "rolldrop", "version": "0.1.0"}, "workload": "deployment/web",
            "containers": ["app"], "cluster": {"version": "v1.36.2+rolldrop", "dataplane": "nftables", "dataplane_from": "config_map", "nodes": 1, "endpoints": 3, "namespace": "default"},
            "coverage_asked": 0.6, "confidence": 0.95, "before": settings(0),
            "steps": [step("before", 0, 106), step("proof", 2, 0), step("proof", 1, 9)],
            "seen": {"windows": 12, "bounded": 11, "longest_lower_seconds": 0.9, "longest_upper_seconds": 1.25},
            "lost_before": [
                {"cause": "routed_to_dead_pod", "requests": 100, "helped_by_sleep": true, "remedy": ""},
                {"cause": "killed_in_flight", "requests": 6, "helped_by_sleep": false, "remedy": "a longer grace period"},
            ],
            "chosen": {"settings": settings(2), "consumers": [], "stopping_seconds": null},
            "price": null, "limits": [], "outcome": {"state": "proven"},
        }))
        .unwrap()
    }

    #[test]
    fn shown_proof_matches_chosen_sleep() {
        let tuning = proven();
        assert_eq!(shown(&tuning).map(|shown| shown.proof.lost), Some(0));
        assert_eq!(
            headline(&tuning),
            "A preStop sleep of 2 s and a grace period of 30 s lose none of 1,000 requests in 4 rollouts (12 \
             terminations); before, the loss was 106 of 1,000 requests in 4 rollouts (12 terminations)."
        );
        assert_eq!(
            basis(&tuning.steps[1]),
            "With 97.5 % confidence, at least 70 % of future pods that end in rollouts like these lose nothing that a \
             sleep can save (10 pods that left the rules separately, in 4 rollouts)."
        );
        let before = text(&tuning, &TextOptions::default());
        assert!(
            before.ends_with(
                "LOST BEFORE\n  routed_to_dead_pod: 100 requests, a sleep saves them\n  killed_in_flight: 6 requests, a \
                 sleep that outlasts the window does not save them; a longer grace\n  period\n"
            ),
            "{before}"
        );
    }

    #[test]
    fn texts_show_hooks_losses_and_parts_of_proof() {
        let mut tuning = proven();
        let hook =
            r#"lifecycle: {preStop: {exec: {command: ["/bin/sh", "-c", "sleep 2; exec \"$0\"", "quit"]}}}"#;
        let delay = "readinessProbe: {initialDelaySeconds: 4}";
        tuning.container_fields.insert("app".to_owned(), [hook, delay].map(str::to_owned).to_vec());
        let yaml = format!("  {hook}\n  {delay}\n  termination");
        let said = text(&tuning, &TextOptions::default());
        assert!(said.contains(&yaml), "the app keeps its own hook: {said}");
        let said = markdown(&tuning);
        assert!(said.contains(&format!("{hook}   # container app\n")), "{said}");
        assert!(said.contains("readinessProbe: {initialDelaySeconds: 4}   # container app"), "{said}");
        tuning.steps[1].lost_otherwise = vec![LostOtherwise {
            seq: 7,
            source: "load".into(),
            begun_seconds: 12.5,
            cause: rolldrop_explain::model::Cause::RuleSwap,
            outcome: serde_json::from_value(json!("connect_refused")).unwrap(),
            pod: Some("web-1".into()),
            after_deletion_seconds: Some(0.25),
        }];
        let lost = "- rule_swap (connect_refused) at 12.5 s of the run, 0.250 s after the deletion of web-1: request 7 from load in proof";
        assert!(markdown(&tuning).contains(&escape(lost)), "{}", markdown(&tuning));
        // An interrupted part of the proof counts, except for its last rollout.
        let mut part = tuning.steps[1].clone();
        (part.run, part.units) = ("2-proof".into(), 8);
        part.verdict = Verdict::Partial { why: vec!["it was interrupted".into()] };
        tuning.steps.insert(1, part);
        let together = markdown(&tuning);
        assert!(together.contains("none of 2,000 requests in 7 rollouts (24 terminations)"), "{together}");
        assert!(together.contains("(16 pods that left the rules separately, in 7 rollouts)"), "{together}");
        assert!(together.contains("request 7 from load in 2-proof"), "{together}");
    }

    #[test]
    fn unproven_and_unknown_figures_are_named() {
        let mut tuning = proven();
        tuning.outcome = TuningOutcome::Partial { why: vec!["it was interrupted".into()] };
        assert!(shown(&tuning).is_none());
        let partial = text(&tuning, &TextOptions::default());
        assert!(partial.starts_with("This tuning is partial: it was interrupted.\n"), "{partial}");
        let said = partial.replace("\n", " ");
        assert!(
            said.contains("Of 12 windows, 11 have an upper bound; the longest lasted at least"),
            "{partial}"
        );
        assert!(said.contains("these windows suggest a sleep of 2 s, which is not proven."), "{partial}");
        tuning.steps[0].verdict = Verdict::Invalid { why: vec!["the load generator fell behind".into()] };
        let invalid = markdown(&tuning);
        assert!(invalid.contains("as it was (invalid)"), "{invalid}");
        assert!(invalid.contains("before is not valid: the load generator fell behind"), "{invalid}");
        // The loss in an invalid run says nothing, and a proof is no run with the settings before.
        (tuning.lost_before, tuning.outcome) = (None, TuningOutcome::Proven);
        let unknown = markdown(&tuning);
        assert!(unknown.contains("; the loss before is unknown."), "{unknown}");
        assert!(unknown.contains("## Lost before\n\n- unknown, because the run with"), "{unknown}");
        tuning.steps.remove(0);
        let verified = markdown(&tuning);
        assert!(!verified.contains("before") && !verified.contains("Lost before"), "{verified}");
    }

    #[test]
    fn proof_sentence_counts_isolated_deletions() {
        let settings = json!({"pre_stop_seconds": 1, "termination_grace_period_seconds": 30, "min_ready_seconds": 0, "readiness_delay_seconds": null});
        let step: TuningStep = serde_json::from_value(json!({
            "purpose": "proof", "run": "2-proof", "settings": settings, "verdict": {"state": "valid"},
            "modes": ["isolated"], "terminations": 36, "rollouts": 0, "unit": "deletions", "units": 36,
            "confidence": 0.975, "coverage": 0.9, "lost": 0, "lost_for_a_sleep": 0, "lost_otherwise": [], "requests": 4000,
        }))
        .unwrap();
        let told =
            "none of 4,000 requests in 36 deletions, one pod at a time, which says nothing about rollouts";
        assert_eq!(none_lost(&step), told);
        assert!(basis(&step).contains("future one-at-a-time pod deletions like these lose nothing"));
        assert!(basis(&step).ends_with(" (36 one-at-a-time deletions). This says nothing about rollouts."));
    }

    #[test]
    fn cut_streams_are_counted_separately() {
        let settings = json!({"pre_stop_seconds": 6, "termination_grace_period_seconds": 9, "min_ready_seconds": 0, "readiness_delay_seconds": null});
        let mut step: TuningStep = serde_json::from_value(json!({
            "purpose": "proof", "run": "4-proof", "settings": settings, "verdict": {"state": "valid"},
            "modes": ["rollout"], "terminations": 10, "rollouts": 5, "unit": "ends", "units": 9,
            "confidence": 0.975, "coverage": 0.66, "lost": 3, "lost_for_a_sleep": 0, "lost_otherwise": [],
            "requests": 2930, "streams": {"alive": 228, "cut": 3},
        }))
        .unwrap();
        let of = "3 of 2,930 requests in 5 rollouts (10 terminations)";
        assert_eq!(none_lost(&step), format!("{of}, all of them streams that were cut"));
        assert!(basis(&step).contains("nothing that a sleep can save, apart from the cut streams (9 pods"));
        let chosen = ChosenStreams {
            max_cut: 0.5,
            on_sigterm: OnSigterm::Cuts,
            least_seconds: 6,
            cut: MeanCut { estimate: 0.35, lower: 0.25, upper: 0.48, undecided: 0.0 },
            rate_per_pod: 15.0,
            recorded: 3617,
            pod_seconds_each_rollout: Some(12.2),
        };
        // Poisson with mean 4.8: P(X <= 10) = 0.990, P(X <= 9) = 0.975.
        assert_eq!(
            streams(&chosen, &step),
            "The app cuts its streams at SIGTERM, so no grace period helps: a preStop sleep of 6 s or more cuts 0.35 \
             streams per termination on average (0.25 to 0.48, 95 % confidence; at most 0.5 allowed), at 15.00 streams \
             per pod per second, as predicted from 3,617 streams without disruptions. The proof cut 3 of the 228 that its 10 \
             terminations encountered; the prediction explains up to 10. The pods of a rollout spend 12 pod-seconds \
             terminating in total."
        );
        step.lost = 5;
        let others = "3 of them streams that were cut; no sleep would have saved the others";
        assert_eq!(
            none_lost(&step),
            format!("5 of 2,930 requests in 5 rollouts (10 terminations), {others}")
        );
    }
}
