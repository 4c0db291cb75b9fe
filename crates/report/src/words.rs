//! Sentences that all formats of the report share, so that text, Markdown, HTML and charts agree.

mod loss_words;
mod standing_words;

use std::collections::BTreeMap;

pub(super) use loss_words::{
    by_estimate, dropped_by_cause, dropped_by_outcome, dropped_of, errors_of, further, groups,
    most_lost_first, whereabouts,
};
pub(super) use standing_words::{by_verdict, checks_with, dropped_share, standing, undecided};

pub(super) use super::finding_words::manner;
use super::finding_words::{reasons_in_words, rests_on, sleep_in_words};
use super::format::{self, count, counted, either, len, list, percent, percent_down, seconds, seconds_unit};
use rolldrop_explain::model::{
    LoadResult, Mode, Percentiles, Recommendation, RequestCounts, RunResult, Termination, Verdict, Window,
    WindowBasis, WindowSummary,
};
use rolldrop_record::EndCause;
use rolldrop_record::expect::LatencyFigure;
use rolldrop_record::service_proxy::ProxyEvidence;
use rolldrop_record::{Cause, Outcome};

/// Returns the conclusion in one sentence.
pub(super) fn headline(result: &RunResult) -> String {
    let dropped = result.requests.lost();
    let lost = lost(result);
    match (result.terminations.len(), dropped) {
        (0, 0) => format!("{lost}; no pod ended during the run."),
        (0, _) => format!("{lost}, and no pod ended during the run."),
        (n, _) => format!("{lost} as {} ended.", counted(len(n), "pod")),
    }
}

/// Describes how many requests were dropped, and how many were answered with 5xx as pods terminated.
pub(super) fn lost(result: &RunResult) -> String {
    let dropped = result.requests.lost();
    let lost = format!("{} of {} requests", count(dropped), count(result.requests.total));
    match errors_of_ends(result) {
        Some(errors) => format!("{lost} {} dropped and {errors},", either(dropped, "was", "were")),
        None => format!("{lost} {} dropped", either(dropped, "was", "were")),
    }
}

/// Describes how many requests were answered with 5xx by terminating pods, or while pods were terminating; `None` if
/// there were none, or no more than while no pod ends.
pub(super) fn errors_of_ends(result: &RunResult) -> Option<String> {
    let reached = result.terminations.iter().map(|t| t.requests.seen).sum();
    let n = result.requests.errors_of_ends(reached);
    let named: u64 = result.terminations.iter().filter_map(|t| t.app_errors_after_t0).sum();
    let who = if named == n { "by terminating pods" } else { "while pods were terminating" };
    (n > 0).then(|| format!("{} {} answered with 5xx {who}", count(n), either(n, "was", "were")))
}

/// States the longest outage; a lower bound if no request succeeded after it.
pub(super) fn longest_outage(result: &RunResult) -> String {
    let lasted = seconds_unit(result.longest_outage_s);
    match result.is_failing_at_end {
        true => format!("at least {lasted} (requests still failed when the load ended)"),
        false => lasted,
    }
}

/// Returns the name of a load's latencies, and the time from which they are measured.
pub(super) fn latency(load: &LoadResult) -> (&'static str, &'static str) {
    match load.is_closed_loop() {
        false => ("response time", "from the intended send time"),
        true => ("service time", "from the actual send time; a closed loop has no other"),
    }
}

/// Percentiles that reports list, and those for which there is room in a terminal.
pub(super) const PERCENTILES: [LatencyFigure; 4] =
    [LatencyFigure::P50, LatencyFigure::P90, LatencyFigure::P99, LatencyFigure::P99_9];
pub(super) const FEW_PERCENTILES: [LatencyFigure; 2] = [LatencyFigure::P50, LatencyFigure::P99];

/// Reason why a latency figure is missing.
pub(super) const FEW_ANSWERS: &str = "too few requests were answered";

/// Formats a latency figure with `in_words`, or returns [`format::NONE`] if too few requests were answered for it.
pub(super) fn latency_figure(p: &Percentiles, figure: LatencyFigure, in_words: fn(f64) -> String) -> String {
    format::or_none(p.known(figure), in_words)
}

/// Explains the figures that these parts lack, if any. `why` is the reason in words, without the numbers.
pub(super) fn missing_figures<'a>(
    parts: impl IntoIterator<Item = &'a Percentiles>,
    figures: &[LatencyFigure],
    why: &str,
) -> Option<String> {
    let lacks = |p: &Percentiles, figure: LatencyFigure| p.n > 0 && p.known(figure).is_none();
    let parts: Vec<&Percentiles> = parts.into_iter().collect();
    let missing = figures.iter().filter(|figure| parts.iter().any(|p| lacks(p, **figure)));
    let needs: Vec<String> =
        missing.map(|figure| format!("{figure} needs {}", count(Percentiles::fewest(*figure)))).collect();
    let needs: Vec<String> = needs.into_iter().map(|need| need.replace("p99_9", "p99.9")).collect();
    (!needs.is_empty()).then(|| format!("{} where {why}: {}", format::NONE, list(&needs)))
}

/// Lists the causes of dropped requests on one line, most frequent first.
pub(super) fn causes(result: &RunResult) -> Option<String> {
    let causes = dropped_by_cause(&result.requests);
    let told: Vec<String> = match causes[..] {
        [(only, _)] => vec![cause(only).to_owned()],
        _ => causes.iter().map(|&(each, n)| format!("{} ({})", cause(each), count(n))).collect(),
    };
    (!told.is_empty()).then(|| told.join(", "))
}

/// A change that would have saved the dropped requests.
pub(super) enum Remedy {
    /// A line of YAML, and the degree of certainty.
    Yaml(String, String),
    /// The remedy from the finding about the most frequent cause.
    Words(String),
}

/// Returns the change that would have saved most of the dropped requests; `None` if the measurement is invalid or no
/// remedy is known.
pub(super) fn remedy(result: &RunResult) -> Option<Remedy> {
    if matches!(result.verdict, Verdict::Invalid { .. }) {
        return None;
    }
    let (most, _) = *dropped_by_cause(&result.requests).first()?;
    if most.is_helped_by_sleep()
        && let Some(longest) =
            Recommendation::longest(&result.recommendation, &result.terminations, &result.groups)
        // A range is not a line that can be copied.
        && longest.suggested_from_seconds.is_none()
        && let Some((yaml, note)) = sleep_hook(longest, &result.cluster.version, ground(longest))
    {
        return Some(Remedy::Yaml(yaml, note));
    }
    let finding = result.findings.iter().find(|finding| finding.cause == Some(most))?;
    Some(Remedy::Words(sentence(&finding.remedy)))
}

/// Returns the causes of the dropped requests and the remedy, if known.
pub(super) fn answer(result: &RunResult) -> Vec<String> {
    let remedy = remedy(result).map(|remedy| match remedy {
        Remedy::Yaml(yaml, note) => format!("Remedy: {yaml} ({note})"),
        Remedy::Words(text) => format!("Remedy: {}", text.trim_end_matches('.')),
    });
    let cause = causes(result).map(|causes| format!("Cause: {causes}"));
    cause.into_iter().chain(remedy).collect()
}

/// Returns a verdict's name, its meaning, and its reasons.
pub(super) fn verdict(verdict: &Verdict) -> (&'static str, &'static str, &[String]) {
    match verdict {
        Verdict::Valid => ("VALID", "the generator kept its schedule and no recorder lost anything", &[]),
        Verdict::Partial { why } => {
            ("PARTIAL", "the record is incomplete; the numbers cover only what was recorded", why)
        }
        Verdict::Invalid { why } => ("INVALID", "do not use these numbers", why),
    }
}

/// Returns the verdict on one line, unless it is [`Verdict::Valid`].
pub(super) fn warning(result: &RunResult) -> Option<String> {
    let (word, meaning, why) = verdict(&result.verdict);
    if result.verdict == Verdict::Valid {
        return None;
    }
    let mut sentences = vec![format!("{word} MEASUREMENT: {meaning}.")];
    sentences.extend(why.iter().map(|why| sentence(why)));
    if matches!(result.verdict, Verdict::Invalid { .. }) && !result.complete {
        sentences.push("They are also partial: they cover only what was recorded.".to_owned());
    }
    Some(sentences.join(" "))
}

/// Describes an outcome as a sentence fragment.
pub(super) const fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Ok => "answered",
        Outcome::HttpError => "answered with an error status",
        Outcome::ConnectRefused => "the connection was refused",
        Outcome::ConnectTimeout => "no connection within the timeout",
        Outcome::ConnectUnreachable => "the address could not be reached",
        Outcome::ConnectError => "connecting failed",
        Outcome::DnsError => "the name did not resolve",
        Outcome::TlsError => "the TLS handshake failed",
        Outcome::ResetBeforeResponse => "the connection was reset before the answer",
        Outcome::ResetMidResponse => "the connection was reset in the middle of the answer",
        Outcome::EofBeforeResponse => "the connection was closed before the answer",
        Outcome::TruncatedBody => "the answer was cut short",
        Outcome::ResponseTimeout => "no answer within the timeout",
        Outcome::BodyTimeout => "the answer did not end within the timeout",
        Outcome::H2RefusedStream => "the HTTP/2 stream was refused",
        Outcome::H2Goaway => "the HTTP/2 connection was closed first",
        Outcome::ProtocolError => "the answer could not be parsed",
        Outcome::StreamCut => "the stream was cut",
        Outcome::StreamUnfinished => "the stream ended without its last event",
        Outcome::StreamAborted => "the app ended the stream early, and said so",
        Outcome::StreamStalled => "the stream stalled",
        Outcome::NotSent => "not sent by the load",
        Outcome::Cancelled => "cut off by the end of the run",
    }
}

/// Describes a cause as a sentence fragment.
pub(super) const fn cause(cause: Cause) -> &'static str {
    match cause {
        Cause::RoutedToDeadPod => "routed to a pod that no longer accepted connections",
        Cause::KilledInFlight => "the pod ended while working on the request",
        Cause::DrainedTooShort => "the stream was still open when its pod's grace period ran out",
        Cause::CutAtSigterm => "the app cut the stream after SIGTERM",
        Cause::GatewayCut => "a gateway cut the stream while its pod still served it",
        Cause::IdleCloseRace => "the server closed an idle connection just as it was used",
        Cause::H2Unprocessed => "left unprocessed by an HTTP/2 server that closed the connection (GOAWAY)",
        Cause::AcceptQueueReset => "waiting in the accept queue of a listener that closed",
        Cause::StaleFlow => "an old conntrack entry pointed to a pod that was gone",
        Cause::NoReadyEndpoint => "no endpoint was ready",
        Cause::NotReadyYet => "sent to a pod that could not serve yet",
        Cause::GatewayError => "a gateway answered with its own error",
        Cause::GatewayToDeadPod => "a gateway sent it to a terminating pod",
        Cause::GatewayNoServer => "a gateway had no server left, although pods were ready",
        Cause::RefusedWhileEnding => "a terminating pod answered that it was no longer serving",
        Cause::RuleSwap => "refused or unreachable while kube-proxy changed its rules",
        Cause::Overload => "timed out with no termination nearby",
        Cause::Unattributed => "no cause fits, or several do",
    }
}

/// States that requests were not sent, and why.
pub(super) fn not_sent(requests: &RequestCounts) -> String {
    match requests.not_sent_by_reason.is_empty() {
        true => "not sent by the load".to_owned(),
        false => format!("not sent by the load ({})", reasons_in_words(&requests.not_sent_by_reason)),
    }
}

/// Returns a mode in words.
pub(super) const fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Isolated => "isolated",
        Mode::Rollout => "rollout",
        Mode::ScaleDown => "scale-down",
        Mode::Drain => "node drain",
        Mode::NodeShutdown => "node shutdown",
        Mode::Other => "other",
    }
}

/// Returns the reason why a pod ended, unless the run itself ended the pod or the mode already says it.
fn why_it_ended(termination: &Termination) -> Option<&str> {
    let Termination { cause, mode, disruption, .. } = termination;
    match cause {
        Some(EndCause::Other(what)) if disruption.is_none() || *mode == Mode::Other => Some(what),
        Some(EndCause::Other(_) | EndCause::ThisRun(_)) | None => None,
    }
}

/// Returns the reasons for all terminations, each once with its pods.
pub(super) fn why_they_ended(terminations: &[Termination]) -> Vec<(String, &str)> {
    let mut causes: Vec<(&str, Vec<&str>)> = Vec::new();
    for termination in terminations {
        let Some(why) = why_it_ended(termination) else { continue };
        match causes.iter_mut().find(|(cause, _)| *cause == why) {
            Some((_, pods)) => pods.push(&termination.pod),
            None => causes.push((why, vec![&termination.pod])),
        }
    }
    let whom = |(why, pods): (_, Vec<&str>)| match pods[..] {
        [pod] => (pod.to_owned(), why),
        _ => (counted(len(pods.len()), "pod"), why),
    };
    causes.into_iter().map(whom).collect()
}

/// Returns a map's entries, largest count first.
pub(super) fn by_count<K: Copy + Ord>(counts: &BTreeMap<K, u64>) -> Vec<(K, u64)> {
    let mut entries: Vec<(K, u64)> = counts.iter().filter(|&(_, &n)| n > 0).map(|(&k, &n)| (k, n)).collect();
    entries.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    entries
}

/// Formats a window as `0.098 to 0.142 s`, or with only the bound that is known.
pub(super) fn window(window: &Window) -> String {
    if !window.is_one() {
        return "none: it was never an endpoint".to_owned();
    }
    let [lower, upper] = [window.lower_s, window.upper_s].map(|bound| bound.filter(|s| s.is_finite()));
    let censored = if window.censored.is_some() { " (censored)" } else { "" };
    match (lower, upper) {
        (Some(lower), Some(upper)) => format!("{} to {} s{censored}", seconds(lower), seconds(upper)),
        (None, Some(upper)) => format!("at most {}{censored}", seconds_unit(upper)),
        (Some(lower), None) => format!("at least {}", seconds_unit(lower)),
        (None, None) => "unknown".to_owned(),
    }
}

/// Formats a window from its bounds. The lower bound may be 0, and the upper bound unknown.
pub(super) fn bounds(lower_s: f64, upper_s: Option<f64>) -> String {
    match upper_s {
        Some(upper) if lower_s > 0.0 => format!("{} to {}", seconds(lower_s), seconds_unit(upper)),
        Some(upper) => format!("at most {}", seconds_unit(upper)),
        None if lower_s > 0.0 => format!("at least {}, no upper bound", seconds_unit(lower_s)),
        None => "unknown".to_owned(),
    }
}

/// Describes the evidence for the bounds of a window.
pub(super) fn basis(w: &Window) -> String {
    match (w.lower_basis, w.upper_basis) {
        (Some(lower), Some(upper)) if lower == upper => bound_rests_on(lower).to_owned(),
        (Some(lower), Some(upper)) => {
            format!("{}; upper bound: {}", bound_rests_on(lower), bound_rests_on(upper))
        }
        (Some(only), None) | (None, Some(only)) => bound_rests_on(only).to_owned(),
        (None, None) => String::new(),
    }
}

/// Describes one kind of evidence as a sentence fragment.
const fn bound_rests_on(basis: WindowBasis) -> &'static str {
    match basis {
        WindowBasis::Named => "connections whose pod is named",
        WindowBasis::Conntrack => "the kernel's connection tracking",
        WindowBasis::Failures => "failures that only this window explains",
        WindowBasis::Order => "failures of several pods, in the EndpointSlice's order",
        WindowBasis::Balance => "answers of other pods, under random balancing",
        WindowBasis::BalanceAssumed => "answers of other pods, under balancing that is assumed to be random",
        WindowBasis::Gateway => "a gateway's failures",
    }
}

/// Returns the reasons why windows lack a bound, each with the number of windows that it applies to.
pub(super) fn censored(terminations: &[Termination]) -> Vec<String> {
    let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
    let windows = terminations.iter().flat_map(|t| &t.windows).filter(|w| w.is_one());
    for why in windows.filter_map(|w| w.censored.as_deref()) {
        *reasons.entry(why).or_default() += 1;
    }
    let line = |(why, n)| format!("{} could not be fully bounded: {why}", counted(n, "window"));
    reasons.into_iter().map(line).collect()
}

/// Describes the longest window of a termination.
pub(super) fn longest(termination: &Termination) -> String {
    format::or_none(longest_window(termination), window)
}

/// Returns the termination's window that extends furthest. The window of a consumer that never routed to the pod counts
/// only if there is no other.
pub(super) fn longest_window(termination: &Termination) -> Option<&Window> {
    let reach = |w: &Window| w.upper_s.unwrap_or(f64::INFINITY).max(w.lower_s.unwrap_or(0.0));
    let longer = |a: &&Window, b: &&Window| a.is_one().cmp(&b.is_one()).then(reach(a).total_cmp(&reach(b)));
    termination.windows.iter().max_by(longer)
}

/// Describes one mode's windows for one consumer in a sentence.
pub(super) fn window_summary(summary: &WindowSummary) -> String {
    let lower = match summary.lower.filter(|l| l.0.is_finite() && l.1.is_finite()) {
        Some((from, to)) if seconds(from) == seconds(to) => format!("at least {}", seconds_unit(to)),
        Some((from, to)) => {
            format!("at least {} to {}, depending on the pod,", seconds(from), seconds_unit(to))
        }
        None => "for an unknown time".to_owned(),
    };
    let upper = match summary.max {
        Some(max) => format!("at most {}", seconds_unit(max)),
        None => "no upper bound could be set".to_owned(),
    };
    let mut notes = vec![format!("{}, {}", counted(len(summary.n), "pod"), mode(summary.mode))];
    if let (Some(p50), true) = (summary.p50, summary.n > 2) {
        notes.push(format!("median of the upper bounds {}", seconds_unit(p50)));
    }
    if summary.censored > 0 {
        notes.push(format!("{} of {} not fully bounded", summary.censored, summary.n));
    }
    format!("{lower} and {upper} ({})", notes.join("; "))
}

/// Describes a recommendation in sentences.
pub(super) fn recommendation(rec: &Recommendation) -> Vec<String> {
    let mut out = Vec::new();
    let of = manner(rec.mode);
    match rec.pre_stop_seconds {
        Some(sleep) => {
            let grace = match rec.termination_grace_period_seconds {
                Some(grace) => format!(" and terminationGracePeriodSeconds {grace}"),
                None => String::new(),
            };
            out.push(format!(
                "Recommended for pods that end {of}: preStop sleep {sleep} s{grace}. With {} confidence it covers at \
                 least {} of future terminations like these ({}).",
                percent(rec.confidence),
                percent_down(rec.coverage),
                rests_on(rec)
            ));
            out.push(sentence(&rec.basis));
        }
        None => {
            out.push("This run is not enough for a recommendation.".to_owned());
            out.extend(rec.refused_because.iter().map(|why| sentence(why)));
            if let Some(sleep) = sleep_in_words(rec) {
                let outlasts = match rec.suggested_from_seconds {
                    Some(from) => format!("no window is known to have lasted longer than {from} s"),
                    None => "it outlasts each of their windows".to_owned(),
                };
                out.push(format!("In the app's container: {sleep}; {outlasts}."));
            } else if let Some(covers) = rec.covers_all_seen_seconds {
                out.push(format!(
                    "Every window of pods that end {of} ended within {covers} s, and a longer sleep would not have saved \
                     any request that they lost: these terminations suggest no change."
                ));
            }
        }
    }
    out
}

/// Returns the YAML for a recommendation or a suggestion, for a cluster of this version.
pub(super) fn yaml(rec: &Recommendation, version: &str) -> Vec<String> {
    let note = match (rec.pre_stop_seconds, rec.suggested_from_seconds, rec.suggested_seconds) {
        (Some(_), ..) => "per container".to_owned(),
        (None, Some(from), Some(to)) => format!("the upper end of {from} to {to} s, not proven"),
        (None, ..) => "suggested, not proven".to_owned(),
    };
    let Some((hook, note)) = sleep_hook(rec, version, note) else { return Vec::new() };
    let mut lines = vec![format!("{hook}   # {note}")];
    if let Some(grace) = rec.termination_grace_period_seconds {
        lines.push(format!("terminationGracePeriodSeconds: {grace}   # per pod"));
    }
    lines
}

/// Names the mode that a sleep is meant for, and its evidence.
fn ground(rec: &Recommendation) -> String {
    let how = match rec.pre_stop_seconds {
        Some(_) => format!("recommended, based on {}", rests_on(rec)),
        None => format!("suggested by {}, not proven", rests_on(rec)),
    };
    format!("for pods that end {}; {how}", manner(rec.mode))
}

/// Returns a hook that sleeps for the recommended time on a cluster of this version, and the note with that version's
/// limitation.
fn sleep_hook(rec: &Recommendation, version: &str, note: String) -> Option<(String, String)> {
    let sleep = rec.advised_seconds()?;
    Some(if lacks_sleep_hooks(version) {
        (
            format!("lifecycle: {{preStop: {{exec: {{command: [sleep, \"{sleep}\"]}}}}}}"),
            format!("{note}; Kubernetes {version} has no preStop sleep, so the image needs a sleep program"),
        )
    } else {
        (format!("lifecycle: {{preStop: {{sleep: {{seconds: {sleep}}}}}}}"), note)
    })
}

/// Returns true if the cluster version predates the preStop `sleep` action (KEP-3960, enabled in 1.30).
fn lacks_sleep_hooks(version: &str) -> bool {
    let minor = version.strip_prefix("v1.").and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
    minor.is_some_and(|minor| minor < 30)
}

/// Describes on one line how the run was made.
pub(super) fn provenance(result: &RunResult) -> String {
    let cluster = &result.cluster;
    let mut parts = vec![
        format!("{} {}", result.tool.name, result.tool.version),
        format!("scenario {}", result.scenario),
        format!(
            "{} requests/s for {}",
            format::plain(result.load.rate),
            format::with_unit(format::plain(result.load.duration_s), "s")
        ),
    ];
    if let Some(command) = &result.command {
        parts.push(format!("pods ended by: {}", command.words.join(" ")));
    }
    if !cluster.version.is_empty() {
        parts.push(format!("Kubernetes {}", cluster.version));
    }
    if cluster.dataplane.is_known() || !cluster.version.is_empty() {
        let assumed = cluster.dataplane_from == Some(ProxyEvidence::Assumed);
        let how = if assumed { " (assumed)" } else { "" };
        parts.push(format!("{} dataplane{how}", cluster.dataplane));
    }
    if cluster.nodes > 0 {
        parts.push(counted(len(cluster.nodes), "node"));
    }
    if cluster.endpoints > 0 {
        parts.push(counted(len(cluster.endpoints), "endpoint"));
    }
    parts.join(" · ")
}

/// Returns the part of a pod name after the last dash, in which the pods of a ReplicaSet differ.
pub(super) fn short_pod(pod: &str) -> &str {
    pod.rsplit('-').next().filter(|s| !s.is_empty()).unwrap_or(pod)
}

/// Names the pods that share a row of a chart.
pub(super) fn row_of(pods: &[&str]) -> String {
    match pods {
        [pod] => (*pod).to_owned(),
        [first, .., last] => format!("{} pods: {} … {}", pods.len(), short_pod(first), short_pod(last)),
        [] => String::new(),
    }
}

/// Turns a fragment into a title, which begins with a capital and has no full stop.
pub(super) fn title(fragment: &str) -> String {
    sentence(fragment).trim_end_matches('.').to_owned()
}

/// Turns a fragment into a sentence: adds a capital, unless it begins with a code name, and a full stop, unless it ends
/// with code or punctuation.
pub(super) fn sentence(fragment: &str) -> String {
    let text = fragment.trim();
    let word = text.split_whitespace().next().unwrap_or_default();
    let mut letters = word.chars();
    let Some(first) = letters.next() else { return String::new() };
    let is_code =
        word.contains(['_', '.', '/', '=']) || letters.any(|c| c.is_ascii_uppercase() || c.is_ascii_digit());
    let begin = if is_code { first.to_string() } else { first.to_uppercase().to_string() };
    let stop = if text.ends_with(['.', '!', '?', '}', ':']) { "" } else { "." };
    format!("{begin}{}{stop}", &text[first.len_utf8()..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use rolldrop_explain::model::NoBound;

    #[test]
    fn sentence_capitalizes_words_but_keeps_names() {
        for (fragment, expected) in [
            ("the app exits", "The app exits."),
            ("preStop sleep is short", "preStop sleep is short."),
            (
                "use lifecycle: {preStop: {sleep: {seconds: 1}}}",
                "Use lifecycle: {preStop: {sleep: {seconds: 1}}}",
            ),
            ("done!", "Done!"),
            ("  ", ""),
        ] {
            assert_eq!(sentence(fragment), expected);
        }
    }

    #[test]
    fn remedy_addresses_most_frequent_cause() {
        let mut result = crate::samples::naive_exit().result;
        let told = |result: &RunResult| match remedy(result) {
            Some(Remedy::Yaml(yaml, note)) => format!("{yaml} {note}"),
            Some(Remedy::Words(words)) => words,
            None => String::new(),
        };
        assert_eq!(
            told(&result),
            "lifecycle: {preStop: {sleep: {seconds: 1}}} for pods that end one at a time; suggested by 3 terminations, \
             not proven"
        );
        result.requests.by_cause.insert(Cause::KilledInFlight, 1_000);
        assert_eq!(told(&result), "");
        result.findings[1].cause = Some(Cause::KilledInFlight);
        assert_eq!(told(&result), "Repeat the run with more terminations.");
        assert_eq!(
            causes(&result).unwrap(),
            "the pod ended while working on the request (1,000), routed to a pod that no longer accepted connections \
             (24)"
        );
        result.verdict = Verdict::Invalid { why: Vec::new() };
        assert_eq!(told(&result), "");
    }

    #[test]
    fn range_recommendation_states_mode_and_basis() {
        let mut result = crate::samples::naive_exit().result;
        let rec = &mut result.recommendation[0];
        (rec.suggested_seconds, rec.suggested_from_seconds) = (Some(4), Some(2));
        (rec.narrowed_by, rec.rollouts, rec.mode) =
            (Some("7 more rollouts would settle it".into()), Some(1), Mode::Rollout);
        let range = "a preStop sleep between 2 and 4 s for pods that end in a rollout (suggested by 3 terminations of \
                     1 rollout, not proven: 7 more rollouts would settle it)";
        assert_eq!(
            recommendation(rec).pop().unwrap(),
            format!("In the app's container: {range}; no window is known to have lasted longer than 2 s.")
        );
        assert!(yaml(rec, "v1.36.2")[0].contains("the upper end of 2 to 4 s"), "{:?}", yaml(rec, "v1.36.2"));
        // There is no line to copy; the finding contains the remedy.
        assert!(!matches!(remedy(&result), Some(Remedy::Yaml(..))));
    }

    #[test]
    fn pod_without_window_is_not_unbounded() {
        let mut result = crate::samples::naive_exit().result;
        let w = &mut result.terminations[0].windows[0];
        (w.lower_s, w.upper_s) = (None, None);
        (w.censored, w.censored_reason) = (Some("no endpoint".into()), Some(NoBound::NeverRouted));
        assert_eq!(window(w), "none: it was never an endpoint");
        let never = w.clone();
        let termination = &mut result.terminations[0];
        // Another consumer did route to this pod.
        let routed =
            Window { lower_s: Some(0.1), upper_s: Some(0.2), censored: None, censored_reason: None, ..never };
        termination.windows.push(routed);
        assert_eq!(longest(termination), "0.100 to 0.200 s");
        termination.windows.pop();
        assert_eq!(censored(&result.terminations), Vec::<String>::new());
    }

    #[test]
    fn older_cluster_gets_exec_sleep() {
        let analysis = crate::samples::naive_exit();
        let rec = &analysis.result.recommendation[0];
        let first = |version: &str| yaml(rec, version).swap_remove(0);
        let exec = "lifecycle: {preStop: {exec: {command: [sleep, \"1\"]}}}   # suggested, not proven; Kubernetes \
                    v1.29.7 has no preStop sleep, so the image needs a sleep program";
        assert_eq!(first("v1.29.7"), exec);
        for version in ["v1.30.0-rc.1", "v1.36.2", "", "v2.0.0"] {
            assert!(first(version).starts_with("lifecycle: {preStop: {sleep: {seconds: 1}}}"), "{version}");
        }
    }

    #[test]
    fn short_pod_name_keeps_suffix() {
        assert_eq!(
            [short_pod("web-7d4b9c6f5-2xkqp"), short_pod("web"), short_pod("web-")],
            ["2xkqp", "web", "web-"]
        );
    }
}
