//! Writes `lost.csv`, with one row per dropped request: its cause, and the terminations that may explain it.
//!
//! The file is meant for spreadsheets, and for checking the analysis against another record. `docs/run-directory.md`
//! documents the columns.

use std::io::{self, Write};

use super::format;
use rolldrop_explain::Analysis;
use rolldrop_explain::model::{LostRequest, TerminationCandidate, Unclear};
use rolldrop_record::parts::csv::CsvWriter;

type Value = fn(&LostRequest, &Analysis) -> String;

/// Columns, in order.
const COLUMNS: [(&str, Value); 16] = [
    ("id", |lost, analysis| format!("{}-{}-{}", analysis.run, lost.source, lost.seq)),
    ("source", |lost, _| lost.source.to_string()),
    ("seq", |lost, _| lost.seq.to_string()),
    ("target", |lost, _| lost.target.to_string()),
    ("scheduled_ns", |lost, _| lost.scheduled.unix_ns().to_string()),
    ("begun_ns", |lost, _| lost.begun.unix_ns().to_string()),
    ("end_ns", |lost, _| lost.ended.unix_ns().to_string()),
    ("begun_utc", |lost, _| format::rfc3339(lost.begun)),
    ("outcome", |lost, _| lost.outcome.to_string()),
    ("status", |lost, _| lost.status.map_or_else(String::new, |status| status.to_string())),
    ("cause", |lost, _| lost.cause.to_string()),
    ("in_window", |lost, _| lost.in_window.to_string()),
    ("pods", |lost, analysis| {
        let termination = |c: &TerminationCandidate| analysis.result.terminations.get(c.termination);
        list(lost, |c| termination(c).map_or_else(String::new, |t| t.pod.clone()))
    }),
    ("shares", |lost, _| list(lost, |c| format!("{:.3}", c.share))),
    ("why", |lost, _| list(lost, |c| c.why.as_str().to_owned())),
    ("unclear", |lost, _| lost.unclear.as_ref().map_or_else(String::new, unclear)),
];

/// Returns the reason why no cause is given. Competing causes are listed with their shares.
fn unclear(unclear: &Unclear) -> String {
    let kind = unclear.kind().to_owned();
    match unclear {
        Unclear::Competing(causes) => {
            let each = causes.iter().map(|(cause, share)| format!(" {cause}={share:.3}"));
            each.fold(kind, |all, one| all + &one)
        }
        Unclear::PodWasWell | Unclear::NoFit | Unclear::NothingNear => kind,
    }
}

pub(super) fn write(analysis: &Analysis, out: impl Write) -> io::Result<()> {
    let mut lines = CsvWriter::new(out);
    let mut line = |values: [String; COLUMNS.len()]| {
        values.iter().try_for_each(|value| lines.text(value))?;
        lines.end_line()
    };
    line(COLUMNS.map(|(name, _)| name.to_owned()))?;
    for lost in &analysis.lost {
        line(COLUMNS.map(|(_, value)| value(lost, analysis)))?;
    }
    lines.finish()?.flush()
}

fn list(lost: &LostRequest, each: impl Fn(&TerminationCandidate) -> String) -> String {
    lost.candidates.iter().map(each).collect::<Vec<_>>().join(";")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::samples;
    use super::*;
    use rolldrop_explain::model::CandidateReason;
    use rolldrop_record::Cause;

    /// Returns the columns that a table in docs/run-directory.md lists.
    fn documented(section: &str) -> BTreeSet<&'static str> {
        let docs = include_str!("../../../docs/run-directory.md");
        let (_, section) = docs.split_once(&format!("\n## {section}\n")).expect(section);
        let rows = section.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
        let rows = rows.take_while(|line| line.starts_with('|'));
        rows.flat_map(|row| row.split('|').nth(1).expect(row).split(',')).map(str::trim).collect()
    }

    #[test]
    fn lost_csv_columns_are_documented() {
        assert_eq!(documented("lost.csv"), COLUMNS.iter().map(|(name, _)| *name).collect());
    }

    #[test]
    fn lost_csv_rows_list_every_candidate() {
        let mut analysis = samples::naive_exit();
        analysis.lost.truncate(2);
        analysis.lost[0].target = "web, \"old\"".into();
        analysis.lost[1].status = Some(503);
        analysis.lost[1].cause = Cause::Unattributed;
        let competing = vec![(Cause::RoutedToDeadPod, 0.75), (Cause::NotReadyYet, 0.25)];
        analysis.lost[1].unclear = Some(Unclear::Competing(competing));
        analysis.lost[1].candidates = vec![
            TerminationCandidate { termination: 0, share: 0.25, why: CandidateReason::Refused },
            TerminationCandidate { termination: 1, share: 0.75, why: CandidateReason::Time },
        ];
        let mut file = Vec::new();
        write(&analysis, &mut file).unwrap();
        insta::assert_snapshot!(String::from_utf8(file).unwrap(), @r#"
        id,source,seq,target,scheduled_ns,begun_ns,end_ns,begun_utc,outcome,status,cause,in_window,pods,shares,why,unclear
        9f3c-load-0-0,load-0,0,"web, ""old""",5035400000,5035400000,5036400000,1970-01-01T00:00:05.035400000Z,connect_refused,,routed_to_dead_pod,true,web-7d4b9c6f5-2xkqp,1.000,named,
        9f3c-load-0-1,load-0,1,web,5047200000,5047200000,5048200000,1970-01-01T00:00:05.047200000Z,connect_refused,503,unattributed,true,web-7d4b9c6f5-2xkqp;web-7d4b9c6f5-m8zrt,0.250;0.750,refused;time,competing routed_to_dead_pod=0.750 not_ready_yet=0.250
        "#);
    }
}
