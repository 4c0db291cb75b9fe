//! `lost.csv`: one row for each dropped request, with its cause and the terminations that may explain it.
//!
//! For people with a spreadsheet, and for whoever checks the analysis against another record. The columns are
//! documented in `docs/run-directory.md`.

use rolldrop_analysis::Analysis;
use rolldrop_analysis::model::{Candidate, Lost};
use rolldrop_record::parts::csv::CsvLine;

const HEADER: &str =
    "source,seq,target,scheduled_ns,begun_ns,end_ns,outcome,status,cause,in_window,pods,shares,why";

/// The file.
pub(super) fn render(analysis: &Analysis) -> String {
    let mut out = format!("{HEADER}\n");
    for lost in &analysis.lost {
        let mut line = CsvLine::new(&mut out);
        line.text(&lost.source);
        line.shown(Some(lost.seq));
        line.text(&lost.target);
        for at in [lost.scheduled, lost.begun, lost.ended] {
            line.shown(Some(at.unix_ns()));
        }
        line.shown(Some(lost.outcome));
        line.shown(lost.status);
        line.shown(Some(lost.cause));
        line.shown(Some(lost.in_window));
        let pod = |c: &Candidate| {
            analysis.result.terminations.get(c.termination).map_or_else(String::new, |t| t.pod.clone())
        };
        line.text(&list(lost, pod));
        line.text(&list(lost, |c| format!("{:.3}", c.share)));
        line.text(&list(lost, |c| c.why.as_str().to_owned()));
        out.push('\n');
    }
    out
}

fn list(lost: &Lost, each: impl Fn(&Candidate) -> String) -> String {
    lost.candidates.iter().map(each).collect::<Vec<_>>().join(";")
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;
    use rolldrop_analysis::model::Why;

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
