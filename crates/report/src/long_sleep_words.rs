//! A preStop sleep that is longer than needed, in words.

use std::collections::BTreeSet;

use super::format::{count, either, len, list, percent, percent_down, seconds};
use rolldrop_explain::count::sleep_evidence::LongSleep;

/// Returns the sentences about a sleep that is longer than needed.
pub(super) fn long_sleep(sleep: &LongSleep) -> String {
    let need = match sleep.all_consumers_seen {
        true => "needed",
        false => "the consumers seen here need",
    };
    let consumers: Vec<&String> = sleep.consumers.iter().collect();
    let mut sentences = vec![
        format!(
            "the preStop sleep of {} s is longer than {need}: {} used a pod for at most {} s after its deletion in {} \
             terminations during rollouts.",
            sleep.pre_stop_sleep_s,
            list(&consumers),
            seconds(sleep.longest_s),
            count(sleep.terminations)
        ),
        format!(
            "With {} confidence, a preStop sleep of {} s covers at least {} of such terminations. {} of the {} observed \
             terminations count as independent evidence: their pods were last used at different times.",
            percent(sleep.confidence),
            sleep.enough_s,
            percent_down(sleep.coverage),
            count(sleep.separate_ends),
            count(sleep.terminations)
        ),
    ];
    if !sleep.all_consumers_seen {
        sentences.push(unseen_consumers(sleep));
    }
    sentences.join(" ")
}

/// Returns why there may be other consumers, and how to tell that there are none.
fn unseen_consumers(sleep: &LongSleep) -> String {
    let Some(declared) = &sleep.declared else {
        return "Others may need more: if these are all the consumers, name them in the annotation rolldrop.dev/consumers."
            .to_owned();
    };
    let without = |of: &BTreeSet<String>, others: &BTreeSet<String>| -> Vec<String> {
        of.difference(others).cloned().collect()
    };
    let (unseen, undeclared) = (without(declared, &sleep.consumers), without(&sleep.consumers, declared));
    if !undeclared.is_empty() {
        let does = either(len(undeclared.len()), "is", "are");
        return format!("{} {does} missing from the annotation rolldrop.dev/consumers.", list(&undeclared));
    }
    if !unseen.is_empty() {
        return format!(
            "The annotation rolldrop.dev/consumers also names {}, from which none of the followed \
             logs shows requests to these pods.",
            list(&unseen)
        );
    }
    "Too few of these terminations show all consumers that the annotation rolldrop.dev/consumers names."
        .to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::watch_lines::tests::end;
    use crate::{WatchHistory, WatchOutput, WatchSummary, watch_ranking, workload_notes};
    use rolldrop_explain::count::workload_ranking::WorkloadRanking;
    use rolldrop_explain::model::{SeenConsumers, TerminationTraffic, WatchedTermination};
    use rolldrop_record::Stamp;

    fn names(of: &[&str]) -> BTreeSet<String> {
        of.iter().map(|name| (*name).to_owned()).collect()
    }

    fn of(seen: &[&str], declared: Option<&[&str]>, all_consumers_seen: bool) -> String {
        long_sleep(&LongSleep {
            pre_stop_sleep_s: 15,
            enough_s: 4,
            longest_s: 2.1,
            terminations: 41,
            separate_ends: 34,
            coverage: 0.9157,
            confidence: 0.95,
            consumers: names(seen),
            declared: declared.map(names),
            all_consumers_seen,
        })
    }

    #[test]
    fn long_sleep_names_consumers_seen() {
        let (a, b) = ("edge/deployment/envoy", "edge/deployment/traefik");
        assert_eq!(
            of(&[a, b], Some(&[a, b]), true),
            "the preStop sleep of 15 s is longer than needed: edge/deployment/envoy and edge/deployment/traefik used a pod \
             for at most 2.100 s after its deletion in 41 terminations during rollouts. With 95 % confidence, a preStop \
             sleep of 4 s covers at least 91.57 % of such terminations. 34 of the 41 observed terminations count as \
             independent evidence: their pods were last used at different times."
        );
        let begin =
            "the preStop sleep of 15 s is longer than the consumers seen here need: edge/deployment/envoy";
        for (seen, declared, end) in [
            (
                &[a][..],
                None,
                "if these are all the consumers, name them in the annotation rolldrop.dev/consumers.",
            ),
            (
                &[a],
                Some(&[a, b][..]),
                "also names edge/deployment/traefik, from which none of the followed logs shows requests \
                 to these pods.",
            ),
            (
                &[a, b],
                Some(&[a]),
                "edge/deployment/traefik is missing from the annotation rolldrop.dev/consumers.",
            ),
            (&[a, b], Some(&[a, b]), "show all consumers that the annotation rolldrop.dev/consumers names."),
        ] {
            let text = of(seen, declared, false);
            assert!(text.starts_with(begin) && text.ends_with(end), "{text}");
        }
    }

    #[test]
    fn reports_advise_shorter_sleep_and_events_do_not() {
        let mut history = WatchHistory::new(None, Stamp::from_unix_ns(100_000_000_000_000));
        let (mut ranking, envoy) = (WorkloadRanking::default(), names(&["edge/deployment/envoy"]));
        let window = json!({"consumer": "edge/envoy-1/envoy", "lower_s": 1.9, "upper_s": 2.0, "lower_basis": null,
            "upper_basis": null, "censored": null, "rate_before": 100.0, "late_arrivals": 3});
        for number in 0..30 {
            let t0 = Stamp::from_unix_ns(number * 60_000_000_000);
            let consumers = SeenConsumers {
                seen: envoy.clone(),
                declared: Some(envoy.clone()),
                ..SeenConsumers::default()
            };
            let windows = vec![serde_json::from_value(window.clone()).unwrap()];
            let end = WatchedTermination {
                t0_earliest_ns: t0,
                t0_latest_ns: t0,
                pre_stop_sleep_s: Some(15),
                failed_hooks: None,
                traffic: Some(TerminationTraffic { windows, consumers, ..TerminationTraffic::default() }),
                ..end()
            };
            ranking.add(&end);
            history.take(
                t0,
                &WatchOutput::read(WatchOutput::Termination(Box::new(end)).json().as_bytes()).unwrap(),
            );
        }
        let (report, ranked) = (history.report(Vec::new()), ranking.ranked());
        let summary = WatchSummary {
            from_ns: Stamp::default(),
            to_ns: Stamp::default(),
            terminations: 30,
            workloads: 1,
            still_terminating: 0,
        };
        let html = report.html(&report.chart().unwrap());
        for shown in [watch_ranking(&summary, &ranked), report.text(), report.markdown(), html, report.json()]
        {
            let flat = shown.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(
                flat.contains("the preStop sleep of 15 s is longer than needed: edge/deployment/envoy"),
                "{shown}"
            );
        }
        let json: Value = serde_json::from_str(&report.json()).unwrap();
        let sleep = &json["workloads"][0]["long_sleep"];
        assert_eq!((&sleep["enough_s"], &sleep["all_consumers_seen"]), (&json!(4), &json!(true)), "{sleep}");
        let notes = workload_notes(&ranked[0]);
        assert_eq!(notes.iter().map(|note| note.reason).collect::<Vec<_>>(), ["KilledAtGraceEnd"]);
    }
}
