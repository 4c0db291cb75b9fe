//! `lost.csv`: one row for each dropped request, with its cause and the terminations that may explain it.
//!
//! For people with a spreadsheet, and for whoever checks the analysis against another record. The columns are
//! documented in `docs/run-directory.md`.

use std::fmt::Write as _;

use crate::analysis::Analysis;
use crate::analysis::model::{Candidate, Lost};

const HEADER: &str =
    "source,seq,target,scheduled_ns,begun_ns,end_ns,outcome,status,cause,in_window,pods,shares,why";

/// The file, as RFC 4180 describes such files, but with line feeds alone.
pub(super) fn render(analysis: &Analysis) -> String {
    let mut out = format!("{HEADER}\n");
    for lost in &analysis.lost {
        let status = lost.status.map(|status| status.to_string()).unwrap_or_default();
        let of = |each: fn(&Candidate) -> String| list(lost, each);
        let pods: Vec<&str> = lost
            .candidates
            .iter()
            .map(|c| analysis.result.terminations.get(c.termination).map_or("", |t| t.pod.as_str()))
            .collect();
        let _ = writeln!(
            out,
            "{},{},{},{},{},{},{},{status},{},{},{},{},{}",
            field(&lost.source),
            lost.seq,
            field(&lost.target),
            lost.scheduled.unix_ns(),
            lost.begun.unix_ns(),
            lost.ended.unix_ns(),
            lost.outcome,
            lost.cause,
            lost.in_window,
            field(&pods.join(";")),
            of(|c| format!("{:.3}", c.share)),
            of(|c| c.why.as_str().to_owned()),
        );
    }
    out
}

fn list(lost: &Lost, each: fn(&Candidate) -> String) -> String {
    lost.candidates.iter().map(each).collect::<Vec<_>>().join(";")
}

/// A value in quotes, where it holds what would end it.
fn field(value: &str) -> String {
    match value.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", value.replace('"', "\"\"")),
        false => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;
    use crate::analysis::model::Why;

    #[test]
    fn each_dropped_request_is_a_row_with_all_that_may_explain_it() {
        let mut analysis = samples::naive_exit();
        analysis.lost.truncate(2);
        analysis.lost[0].target = "web, \"old\"".into();
        analysis.lost[1].status = Some(503);
        analysis.lost[1].candidates = vec![
            Candidate { termination: 0, share: 0.25, why: Why::Refused },
            Candidate { termination: 1, share: 0.75, why: Why::Time },
        ];
        insta::assert_snapshot!(render(&analysis), @r#"
        source,seq,target,scheduled_ns,begun_ns,end_ns,outcome,status,cause,in_window,pods,shares,why
        load-0,0,"web, ""old""",5035400000,5035400000,5036400000,connect_refused,,routed_to_dead_pod,true,web-7d4b9c6f5-2xkqp,1.000,named
        load-0,1,web,5047200000,5047200000,5048200000,connect_refused,503,routed_to_dead_pod,true,web-7d4b9c6f5-2xkqp;web-7d4b9c6f5-m8zrt,0.250;0.750,refused;time
        "#);
    }
}
