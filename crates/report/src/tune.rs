//! A tuning to bytes: text, JSON, Markdown and one picture.

use super::format::{count, counted, len, list, percent, seconds_unit};
use super::markdown::{escape, section, table};
use super::text::{Page, Paint, columns};
use super::words::sentence;
use super::{Chart, ReportFile, TextOptions};
use rolldrop_analysis::tune::{Choice, Consumer, LostTo, Outcome, Price, Purpose, Settings, Step, Tuning};

const COLUMNS: [&str; 6] = ["run", "preStop sleep", "grace period", "terminations", "requests", "lost"];

/// `tune.json`, as `docs/tune.schema.json` describes it.
pub(super) fn json(tuning: &Tuning) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(tuning).expect("plain data with names as keys");
    bytes.push(b'\n');
    bytes
}

/// The answer in a sentence.
pub(super) fn headline(tuning: &Tuning) -> String {
    let before = tuning.steps.first();
    let lost = |step: &Step| {
        let ended = counted(len(step.terminations), "termination");
        format!("{} of {} in {ended}", count(step.lost), counted(step.requests, "request"))
    };
    let none_lost = |step: &Step| match step.lost {
        0 => lost(step).replacen("0 of", "none of", 1),
        _ => lost(step),
    };
    match (&tuning.outcome, shown(tuning), before) {
        (Outcome::Proven, Some((choice, proof)), Some(before)) => format!(
            "A preStop sleep of {} s and a grace period of {} s lose {}; before, it was {}.",
            choice.settings.pre_stop_seconds,
            choice.settings.termination_grace_period_seconds,
            none_lost(proof),
            lost(before),
        ),
        (Outcome::AlreadyRight, Some((_, proof)), _) => format!(
            "The preStop sleep of {} s that is set is right: it lost {}.",
            tuning.before.pre_stop_seconds,
            none_lost(proof),
        ),
        (Outcome::NotForASleep, ..) => {
            let causes: Vec<&str> = tuning.lost_before.iter().map(|lost| lost.cause.as_str()).collect();
            format!("No preStop sleep saves what is lost here ({}).", list(&causes))
        }
        (Outcome::NotShown { why }, ..) => format!("Not shown: {}.", why.join("; ")),
        _ => "The runs are incomplete.".to_owned(),
    }
}

/// What the last proof shows.
fn basis(step: &Step) -> String {
    let modes: Vec<&str> = step.modes.iter().map(|mode| mode.as_str()).collect();
    format!(
        "With {} confidence at least {} of future terminations like these lose nothing that a sleep saves ({}, {} of which \
         count; ended by {}).",
        percent(step.confidence),
        percent(step.coverage),
        counted(len(step.terminations), "termination"),
        count(len(step.units)),
        list(&modes),
    )
}

/// The proof of the chosen settings, if they are shown to hold.
pub(super) fn shown(tuning: &Tuning) -> Option<(&Choice, &Step)> {
    let choice = tuning.chosen.as_ref()?;
    let is_its = |step: &&Step| step.purpose == Purpose::Proof && step.settings == choice.settings;
    let step = tuning.steps.iter().rfind(is_its)?;
    tuning.outcome.is_shown().then_some((choice, step))
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

/// Fields as they are to be, of the containers and of what is around them.
struct Yaml {
    containers: Vec<String>,
    around: Vec<String>,
}

impl Yaml {
    fn of(settings: Settings, before: Settings) -> Self {
        let mut containers =
            vec![format!("lifecycle: {{preStop: {{sleep: {{seconds: {}}}}}}}", settings.pre_stop_seconds)];
        let mut around =
            vec![format!("terminationGracePeriodSeconds: {}", settings.termination_grace_period_seconds)];
        let delay = settings
            .readiness_delay_seconds
            .filter(|_| settings.readiness_delay_seconds != before.readiness_delay_seconds);
        containers.extend(delay.map(|delay| format!("readinessProbe: {{initialDelaySeconds: {delay}}}")));
        if settings.min_ready_seconds != before.min_ready_seconds {
            around.push(format!("minReadySeconds: {}   # of the workload", settings.min_ready_seconds));
        }
        Self { containers, around }
    }
}

fn purpose(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Before => "as it was",
        Purpose::Windows => "whole windows",
        Purpose::Proof => "proof",
    }
}

fn row(step: &Step) -> [String; 6] {
    [
        purpose(step.purpose).to_owned(),
        format!("{} s", step.settings.pre_stop_seconds),
        format!("{} s", step.settings.termination_grace_period_seconds),
        count(len(step.terminations)),
        count(step.requests),
        count(step.lost),
    ]
}

fn cause(lost: &LostTo) -> String {
    let helps = match (lost.helped_by_sleep, lost.remedy.as_str()) {
        (true, _) => "a sleep saves them".to_owned(),
        (false, "") => "not for a sleep to save".to_owned(),
        (false, remedy) => format!("not for a sleep to save; {remedy}"),
    };
    format!("{}: {}, {helps}", lost.cause.as_str(), counted(lost.requests, "request"))
}

/// The tuning for a terminal.
pub(super) fn text(tuning: &Tuning, options: &TextOptions) -> String {
    let mut page = Page::new(options);
    let paint = match tuning.outcome {
        Outcome::Proven | Outcome::AlreadyRight => Paint::Good,
        Outcome::NotForASleep => Paint::Bad,
        Outcome::NotShown { .. } => Paint::Caution,
    };
    page.paragraph("", 0, Some(paint), &headline(tuning));
    if let Some((choice, proof)) = shown(tuning) {
        let Yaml { containers, around } = Yaml::of(choice.settings, tuning.before);
        for line in containers.iter().chain(&around) {
            page.line(&format!("  {line}"));
        }
        page.paragraph("", 0, None, &basis(proof));
    }
    if let Some(choice) = &tuning.chosen {
        for consumer in &choice.consumers {
            page.paragraph("", 2, None, &in_words(consumer));
        }
    }
    if let (Some(cost), Some(_)) = (&tuning.price, shown(tuning)) {
        page.paragraph("", 0, None, &price(cost));
        for limit in &tuning.limits {
            page.paragraph("", 0, None, &sentence(limit));
        }
    }
    page.heading("RUNS", "");
    let header: [String; 6] = std::array::from_fn(|i| COLUMNS[i].to_owned());
    let rows: Vec<[String; 6]> = std::iter::once(header).chain(tuning.steps.iter().map(row)).collect();
    for line in columns(&rows, &[1, 2, 3, 4, 5]) {
        page.line(&format!("  {line}"));
    }
    if !tuning.lost_before.is_empty() {
        page.heading("LOST BEFORE", "");
        for lost in &tuning.lost_before {
            page.paragraph("", 2, None, &cause(lost));
        }
    }
    page.out
}

fn in_words(consumer: &Consumer) -> String {
    let longest = consumer.windows_seconds.last().copied().unwrap_or(0.0);
    let alike = consumer.within_rollouts.map(|alike| {
        format!(
            " ({} apart from each other, in {}; intraclass correlation within a rollout {:.2}, and 0 is independent)",
            counted(len(alike.ends), "end"),
            counted(len(alike.rollouts), "rollout"),
            alike.correlation
        )
    });
    format!(
        "{}: the longest of {} lasted at most {}, so {} s{}",
        consumer.consumer,
        counted(len(consumer.windows_seconds.len()), "window"),
        seconds_unit(longest),
        consumer.pre_stop_seconds,
        alike.unwrap_or_default()
    )
}

/// The tuning as Markdown.
pub(super) fn markdown(tuning: &Tuning) -> String {
    let mut out = String::new();
    section(&mut out, &format!("# rolldrop tune: {}", escape(&tuning.workload)));
    section(&mut out, &format!("**{}**", escape(&headline(tuning))));
    if let Some((choice, proof)) = shown(tuning) {
        let Yaml { containers, around } = Yaml::of(choice.settings, tuning.before);
        let whose = list(&tuning.containers);
        let containers = containers.iter().map(|line| format!("{line}   # container {whose}"));
        let lines: Vec<String> = containers.chain(around).collect();
        section(&mut out, &format!("```yaml\n{}\n```", lines.join("\n")));
        section(&mut out, &escape(&basis(proof)));
    }
    if let Some(choice) = &tuning.chosen {
        let consumers: Vec<String> =
            choice.consumers.iter().map(|consumer| format!("- {}", escape(&in_words(consumer)))).collect();
        section(&mut out, &consumers.join("\n"));
    }
    if let (Some(cost), Some(_)) = (&tuning.price, shown(tuning)) {
        section(&mut out, &escape(&price(cost)));
        for limit in &tuning.limits {
            section(&mut out, &escape(&sentence(limit)));
        }
    }
    section(&mut out, "![windows and lost requests](tune.png)");
    table(&mut out, &COLUMNS, &[1, 2, 3, 4, 5], tuning.steps.iter().map(|step| row(step).to_vec()));
    if !tuning.lost_before.is_empty() {
        section(&mut out, "## Lost before");
        let lost: Vec<String> =
            tuning.lost_before.iter().map(|lost| format!("- {}", escape(&cause(lost)))).collect();
        section(&mut out, &lost.join("\n"));
    }
    section(&mut out, concat!("<sub>rolldrop ", env!("CARGO_PKG_VERSION"), "</sub>"));
    out
}

/// `tune.json`, `tune.md` and the picture.
pub(super) fn files(tuning: &Tuning, chart: Chart) -> Vec<ReportFile> {
    let file = |path: &str, bytes: Vec<u8>| ReportFile { path: path.to_owned(), bytes };
    let mut files = vec![file("tune.json", json(tuning)), file("tune.md", markdown(tuning).into_bytes())];
    files.extend(chart.files(""));
    files
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_proof_that_is_shown_is_that_of_the_chosen_sleep() {
        let settings = |s: u64| json!({"preStopSeconds": s, "terminationGracePeriodSeconds": 30, "minReadySeconds": 0, "readinessDelaySeconds": 0});
        let step = |purpose: &str, sleep_s, lost: u64| {
            json!({
                "purpose": purpose, "run": purpose, "settings": settings(sleep_s), "verdict": {"state": "valid"},
                "modes": ["rollout"], "terminations": 12, "units": 10, "confidence": 0.975, "coverage": 0.7,
                "lost": lost, "lostForASleep": lost, "requests": 1000,
            })
        };
        // The last proof is that one second less is too short.
        let mut tuning: Tuning = serde_json::from_value(json!({
            "schemaVersion": 1, "tool": {"name": "rolldrop", "version": "0.1.0"}, "workload": "deployment/web",
            "containers": ["app"], "cluster": {"version": "v1.36.2+rolldrop", "dataplane": "nftables", "dataplane_from": "config_map", "nodes": 1, "endpoints": 3, "namespace": "default"},
            "coverageAsked": 0.6, "confidence": 0.95, "before": settings(0),
            "steps": [step("before", 0, 106), step("proof", 2, 0), step("proof", 1, 9)],
            "lostBefore": [
                {"cause": "routed_to_dead_pod", "requests": 100, "helpedBySleep": true, "remedy": ""},
                {"cause": "killed_in_flight", "requests": 6, "helpedBySleep": false, "remedy": "a longer grace period"},
            ],
            "chosen": {"settings": settings(2), "consumers": [], "stoppingSeconds": null},
            "price": null, "limits": [], "outcome": {"state": "proven"},
        }))
        .unwrap();
        assert_eq!(shown(&tuning).map(|(_, proof)| proof.lost), Some(0));
        assert!(headline(&tuning).contains("none of 1,000 requests"));
        assert!(text(&tuning, &TextOptions::default()).ends_with(
            "LOST BEFORE\n  routed_to_dead_pod: 100 requests, a sleep saves them\n  \
             killed_in_flight: 6 requests, not for a sleep to save; a longer grace period\n"
        ));
        tuning.chosen.as_mut().unwrap().settings.readiness_delay_seconds = Some(4);
        tuning.steps[1].settings.readiness_delay_seconds = Some(4);
        assert!(markdown(&tuning).contains("readinessProbe: {initialDelaySeconds: 4}   # container app"));
        tuning.outcome = Outcome::NotShown { why: vec!["it was killed".into()] };
        assert_eq!(shown(&tuning), None);
    }
}
